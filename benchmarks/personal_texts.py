"""The personal-data test set: 2,000 labelled texts, made from templates and a seed.

Two parts of 1,000 texts each, half of them with personal data and half hard negatives. `develop` is
for work on the recognisers. `report` has other templates and other seeds: look at its figures, not
at its texts.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import personal_negatives
import personal_values as values

KINDS = ("email", "ip", "phone", "iban", "card", "ssn", "key", "secret")
PARTS = ("develop", "report")


@dataclass(frozen=True)
class Labelled:
    """A text and the spans in it that are personal data."""

    text: str
    spans: list[tuple[int, int, str]] = field(default_factory=list)  # start, end, kind
    group: str = ""  # what kind of text it is, for listing mistakes


def _phone(rng: random.Random) -> str:
    return values.PHONES[rng.choice(sorted(values.PHONES))](rng)


_MAKERS: dict[str, tuple[str, Callable[[random.Random], str]]] = {
    "email": ("email", values.email), "ip4": ("ip", values.ip4), "ip6": ("ip", values.ip6),
    "phone": ("phone", _phone), "bare": ("phone", values.bare_phone), "iban": ("iban", values.iban),
    "card": ("card", values.card), "ssn": ("ssn", values.ssn), "baressn": ("ssn", values.bare_ssn),
    "key": ("key", values.key), "bearer": ("key", values.bearer),
    "password": ("secret", values.password), "apisecret": ("secret", values.api_secret),
    **{name: ("phone", maker) for name, maker in values.PHONES.items()},
}  # fmt: skip
_SLOT = re.compile(r"\{(\w+)\}")

DEVELOP = {
    "email": [
        "Please write to {email} before Friday.",
        "Contact: {email}",
        "Schicken Sie Ihre Unterlagen bitte an {email}, danke.",
        "Pour toute question : {email}.",
        "From: Jane Doe <{email}>\nTo: <{email}>\nSubject: lunch",
        "Escríbeme a {email} o pásate mañana.",
        '{"user": "jdoe", "mail": "{email}", "active": true}',
        "# Author: J. Doe ({email}), 2019",
        "1042;Doe;Jane;{email};active",
        "INFO 2024-03-01 login ok user={email} session=19",
    ],
    "ip": [
        '{ip4} - - [10/Oct/2023:13:55:36 +0000] "GET /index.html HTTP/1.1" 200 2326',
        "The server at {ip4} did not answer.",
        "Failed password for root from {ip4} port 52144 ssh2",
        "ping {ip4}",
        "nameserver {ip4}\nnameserver {ip6}",
        "Der Zugriff kam von {ip4}, kurz nach Mitternacht.",
        "inet6 {ip6}/64 scope global",
        "http://[{ip6}]:8080/status",
        "X-Forwarded-For: {ip4}, 10.0.0.1",
        "host = '{ip4}'  # the old box",
        "2023-11-02T08:14:11Z,{ip4},GET,/login,200",
        "L'adresse {ip6} est bloquée.",
        "Connect to {ip4}:8443 first.",
    ],
    "phone": [
        "Call us at {us} any time.",
        "You can reach our office on {uk}.",
        "Tel.: {de}",
        "Appelez le {fr} entre 9h et 18h.",
        "Llámame al {es} por la tarde.",
        "Chiamate il numero {it}.",
        "Ring {au} after hours.",
        "Mobile: {in}",
        "Ligue para {br} e fale com a Ana.",
        "電話: {jp}",
        "Jane Doe, 12 High Street, {phone}",
        "Doe,Jane,{phone},{email}",
        "Fax {phone}",
        "phone: {bare}",
        "My cell is {bare}, text me.",
        "Telefon {bare}",
        "Numéro de téléphone : {bare}",
        "The plumber ({uk}) came at once.",
        "Unser Büro: Hauptstraße 5, 10115 Berlin, {de}",
        "Cabinet Martin — {fr} — sur rendez-vous",
        "{us}\n{us}",
        '"contact": {"name": "Kenji", "number": "{jp}"}',
        "WhatsApp {br}",
    ],
    "iban": [
        "IBAN: {iban}",
        "Bitte überweisen Sie den Betrag auf {iban} bei der Musterbank.",
        "Virement sur le compte {iban}, merci.",
        "My account is {iban}.",
        "4711;Doe;{iban};120,50",
        'payee = {"iban": "{iban}", "bic": "MUSTDEFF"}',
    ],
    "card": [
        "Card number: {card}, exp 04/27",
        "I paid with {card} and never got it.",
        "Kreditkarte {card}, gültig bis 12/26",
        "cc={card}&cvv=123",
        "carte bancaire {card}",
        "8812,{card},2025-03,approved",
    ],
    "ssn": [
        "SSN: {ssn}",
        "Her social security number is {ssn}.",
        "Doe, Jane; {ssn}; 1 Main St",
        "ssn {baressn}",
        "Employee 44, social security no. {baressn}",
        "Applicant {ssn} was approved.",
    ],
    "key": [
        'aws_access_key_id = "{key}"',
        "Use this: {key}",
        "Authorization: Bearer {bearer}",
        'curl -H "Authorization: Bearer {bearer}" https://api.example.com/v1/me',
        "client = Client('{key}')",
        "I pushed {key} by mistake, sorry!",
        "{key}\n",
        "export KEY={key}",
    ],
    "secret": [
        "password={password}",
        "DB_PASSWORD={password}\nDB_HOST=localhost",
        "passwd: {password}",
        "The password is {password}, do not tell.",
        'api_key = "{apisecret}"',
        "secret: {apisecret}",
        "token={apisecret}&page=2",
        "Passwort: {password}",
        'conn = connect(host="db", user="root", password="{password}")',
        "mysql --user=root --password={password} shop",
        "postgres://admin:{password}@db.example.com:5432/shop",
        "client_secret='{apisecret}'",
    ],
}
REPORT = {
    "email": [
        "Mail {email} if the link is broken.",
        "E-Mail: {email} | Web: www.example.com",
        "Por favor, envie o currículo para {email}.",
        "Reply-To: {email}",
        "cc {email}; {email}",
        "<a href=\"mailto:{email}\">write</a>",
        "git commit --author='Jane Doe <{email}>'",
        "ご質問は {email} までお願いします。",
        "[{email}] has joined the channel",
        "maintainers:\n  - {email}\n  - {email}",
    ],
    "ip": [
        "Our mail gateway is {ip4} now.",
        "traceroute to {ip4}, 30 hops max",
        "Blocked {ip4} after 5 attempts; also blocked {ip4}.",
        "Accepted publickey for git from {ip6} port 40022",
        "remote_addr={ip4} status=403 bytes=512",
        "<client ip=\"{ip4}\" country=\"ZZ\"/>",
        "dig @{ip4} example.com AAAA",
        "Mi IP es {ip4} y no puedo entrar.",
        "allow from {ip4}/32\ndeny from all",
        "[{ip6}]:443 refused the connection",
        "A    www    {ip4}\nAAAA www    {ip6}",
        "IPs: {ip4},{ip4},{ip6}",
        "Seen from {ip4} (Frankfurt) on Monday",
    ],
    "phone": [
        "Questions? Phone {us} or stop by.",
        "For bookings telephone {uk} before noon.",
        "Sie erreichen mich unter {de} oder per Mail.",
        "Joignable au {fr} toute la journée.",
        "Teléfono de contacto: {es}",
        "Per informazioni: {it} (ore 9-13)",
        "Text {au} to confirm.",
        "Customer care {in}, Mumbai",
        "Telefone: {br}",
        "お問い合わせは{jp}まで",
        "Dr. A. Khan\nSuite 4\n{phone}",
        "name|phone|city\nLi|{phone}|Turin",
        "T {phone} / F {phone}",
        "tel:{bare}",
        "Contact number {bare}",
        "Handy: {bare}",
        "Mon portable : {bare}",
        "celular {bare}",
        "Rua das Flores 10 - {br} - falar com Ana",
        "<td>Sales</td><td>{us}</td>",
        "leave a message on {uk}, thanks",
        "Hotline {de} (Mo-Fr 8-17 Uhr)",
        "SMS an {phone} genügt.",
    ],
    "iban": [
        "Send the rent to {iban} by the 3rd.",
        "Kontonummer (IBAN) {iban}",
        "IBAN {iban} BIC MUSTFRPP",
        "cuenta: {iban}, titular Mateo García",
        "<IBAN>{iban}</IBAN>",
        "transfer,{iban},EUR,99.00",
    ],
    "card": [
        "Visa/Mastercard no. {card}",
        "please refund {card} today",
        "Número de tarjeta: {card}",
        '{"pan": "{card}", "amount": 1250}',
        "Customer read out {card} over the phone",
        "carta di credito {card} scad. 09/28",
    ],
    "ssn": [
        "Social Security #: {ssn}",
        "SSN={ssn} DOB=01/02/1980",
        "name,ssn\nDoe,{ssn}",
        "Taxpayer {ssn} filed late.",
        "social security number {baressn}",
        "SSN {baressn} (spouse)",
    ],
    "key": [
        "token leaked in the log: {key}",
        "const c = new Api({ key: '{key}' });",
        "headers = {'Authorization': 'Bearer {bearer}'}",
        "Here is mine:\n{key}\nthanks",
        "AWS_KEY={key}",
        "authorization: bearer {bearer}",
        "wget --header='X-Auth: {key}' https://example.com/f",
        "secret_file: |\n{key}\n",
    ],
    "secret": [
        "user: admin\npassword: {password}",
        "PGPASSWORD={password} psql shop",
        "my password was {password} until yesterday",
        "\"apiKey\": \"{apisecret}\",",
        "SECRET_KEY = '{apisecret}'",
        "https://api.example.com/v2/items?api_key={apisecret}&q=1",
        "mot de passe : {password}",
        "contraseña: {password}",
        "smtp.login('bot', password='{password}')",
        "redis://:{password}@cache.example.com:6379/0",
        "access_token: {apisecret}",
        "<password>{password}</password>",
        "pwd={password};uid=sa",
    ],
}  # fmt: skip
# Of 500 texts with personal data: how many begin from a template of each kind.
_COUNTS = {
    "email": 50, "ip": 75, "phone": 150, "iban": 40, "card": 40, "ssn": 35, "key": 55, "secret": 55,
}  # fmt: skip


def fill(template: str, rng: random.Random, group: str) -> Labelled:
    """Puts values into a template's slots and labels them."""
    text, at, spans = "", 0, []
    for slot in _SLOT.finditer(template):
        if slot[1] not in _MAKERS:
            continue
        kind, make = _MAKERS[slot[1]]
        text += template[at : slot.start()]
        value = make(rng)
        spans.append((len(text), len(text) + len(value), kind))
        text += value
        at = slot.end()
    return Labelled(text + template[at:], spans, group)


def texts(part: str) -> list[Labelled]:
    """Makes the 1,000 texts of a part; the same every time."""
    rng = random.Random(f"personal data, {part}")
    templates = DEVELOP if part == "develop" else REPORT
    made = [
        fill(some[number % len(some)], rng, kind)
        for kind, some in templates.items()
        for number in range(_COUNTS[kind])
    ]
    makers = personal_negatives.PARTS[part]
    count = len(made)
    made += [
        Labelled(makers[number % len(makers)](rng), group=makers[number % len(makers)].__name__)
        for number in range(count)
    ]
    return made
