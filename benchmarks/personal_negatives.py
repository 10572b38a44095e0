"""Hard negatives of the personal-data test set: numbers and code that look like personal data."""

import random
import uuid
from collections.abc import Callable

from personal_values import digits, grouped, iban_plain

Rng = random.Random
Maker = Callable[[Rng], str]


def _day(rng: Rng) -> tuple[int, int, int]:
    return rng.randint(1950, 2030), rng.randint(1, 12), rng.randint(1, 28)


def dates(rng: Rng) -> str:
    y, m, d = _day(rng)
    return rng.choice(
        [f"The meeting is on {y}-{m:02}-{d:02} at {rng.randint(0, 23):02}:30.",
         f"Geboren am {d:02}.{m:02}.{y}, gestorben {d:02}.{m:02}.{y + 40}.",
         f"{d:02}/{m:02}/{y} {rng.randint(10, 23)}:15:09 started",
         f"le {d:02} {m:02} {y} à 10 h", f"backup-{y}{m:02}{d:02}-{digits(rng, 6)}.tar",
         f"{y}-{m:02}-{d:02}T12:00:00+02:00", f"from {d:02}-{m:02}-{y} to {d:02}-{m:02}-{y + 1}"]
    )  # fmt: skip


def books(rng: Rng) -> str:
    ten = f"{rng.randint(0, 9)}-{digits(rng, 3)}-{digits(rng, 5)}-{rng.choice('0123456789X')}"
    return rng.choice(
        [f"ISBN 978-{ten}", f"ISBN {ten}", f"ISBN: 978{digits(rng, 10)}",
         f"ISSN {digits(rng, 4)}-{digits(rng, 4)}", f"doi:10.{digits(rng, 4)}/j.{digits(rng, 8)}",
         f"arXiv:{digits(rng, 4)}.{digits(rng, 5)}", f"EAN 4{digits(rng, 12)} in stock"]
    )  # fmt: skip


def versions(rng: Rng) -> str:
    v = ".".join(str(rng.randint(0, 20)) for _ in range(4))
    return rng.choice(
        [f"Upgraded to version {v} today.", f"v{v} fixes the crash", f"requests=={v}",
         f"release {v} (stable)", f"package-{v}.tar.gz", f"Section {v} describes the header.",
         f"Mozilla/5.0 Chrome/{rng.randint(60, 120)}.0.{digits(rng, 4)}.{digits(rng, 3)}",
         f"needs libfoo >= {v}", f"OID 1.3.6.1.4.1.{digits(rng, 4)}.1"]
    )  # fmt: skip


def hashes(rng: Rng) -> str:
    h = f"{rng.getrandbits(256):064x}"
    return rng.choice(
        [f"commit {h[:40]}", f"sha256:{h}", f"md5sum {h[:32]} file.iso", f"id {uuid_of(rng)}",
         f"ETag: \"{h[:16]}\"", f"0x{h[:16]}", f"color: #{h[:6]};",
         f"ssh-rsa AAAAB3NzaC1yc2E{h} public key", f"integrity sha512-{h}=="]
    )  # fmt: skip


def uuid_of(rng: Rng) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def prices(rng: Rng) -> str:
    n = rng.randint(1000, 9_999_999)
    return rng.choice(
        [f"It costs ${n:,}.00 plus tax.", f"{n:,} EUR".replace(",", "."), f"£{n}",
         f"Umsatz: {n:,} Euro".replace(",", " "), f"population of {n * 100:,}".replace(",", " "),
         f"budget {n * 1000:,} USD", f"total: {n}.{digits(rng, 2)}"]
    )  # fmt: skip


def places(rng: Rng) -> str:
    a, b = rng.uniform(-90, 90), rng.uniform(-180, 180)
    return rng.choice(
        [f"at {a:.6f}, {b:.6f}", f"GPS {a:.4f} {b:.4f}", f"({a:.3f};{b:.3f})",
         f"48° 51' 24.{digits(rng, 2)}\" N", f"POINT({a:.7f} {b:.7f})",
         f"Springfield, IL 62704-{digits(rng, 4)}", f"28013 Madrid, {digits(rng, 5)} Paris"]
    )  # fmt: skip


def mathematics(rng: Rng) -> str:
    n = [rng.randint(1, 9999) for _ in range(8)]
    return rng.choice(
        [" ".join(map(str, n)), f"{n[0]} + {n[1]} - {n[2]} = {n[0] + n[1] - n[2]}",
         f"3.{digits(rng, 20)}", f"2^{n[0]} mod {n[1]}", f"[{n[0]}, {n[1]}, {n[2]}, {n[3]}]",
         f"f(x) = {n[0]}x - {n[1]}", f"({n[0]}) {n[1]}-{n[2]}", f"1e-{n[0] % 20} ± 0.00{n[1]}",
         f"{n[0]} {n[1]} {n[2]}\n{n[3]} {n[4]} {n[5]}"]
    )  # fmt: skip


def orders(rng: Rng) -> str:
    return rng.choice(
        [f"Order number {digits(rng, 3)}-{digits(rng, 7)}-{digits(rng, 7)}",
         f"Invoice {digits(rng, 10)} is due.", f"Ticket #{digits(rng, 8)}",
         f"Bestellnummer {digits(rng, 3)}-{digits(rng, 3)}-{digits(rng, 4)}",
         f"tracking 1Z{digits(rng, 16)}", f"SKU {digits(rng, 4)}-{digits(rng, 4)}",
         f"serial no. {digits(rng, 9)}", f"case {digits(rng, 2)}-{digits(rng, 5)}",
         f"Part No. 0{digits(rng, 3)}-{digits(rng, 6)}"]
    )  # fmt: skip


def bad_checks(rng: Rng) -> str:
    """Numbers of the right shape with a wrong check digit."""
    good = iban_plain(rng)
    bad = good[:-1] + str((int(good[-1]) + 1) % 10) if good[-1].isdigit() else good[:-1] + "0"
    card = "411111111111111" + rng.choice("023456789")
    return rng.choice(
        [f"code {bad}", f"lot {card}", f"ref {grouped(card, 4, ' ')}", f"id 9{digits(rng, 15)}",
         f"batch 000-{digits(rng, 2)}-{digits(rng, 4)}", f"code {grouped(bad, 4, ' ')}"]
    )  # fmt: skip


def own_addresses(rng: Rng) -> str:
    x, y = rng.randint(0, 255), rng.randint(1, 254)
    return rng.choice(
        [f"listen on 192.168.{x}.{y}", f"10.{x}.{x}.{y} gateway", "bind 127.0.0.1:8000",
         f"e.g. 203.0.113.{y}", "fe80::1%eth0", "::1 localhost", f"2001:db8::{y:x}",
         f"mask 255.255.{x}.0", f"172.16.{x}.{y}/12", f"mac 00:1b:{x:02x}:{y:02x}:5e:01"]
    )  # fmt: skip


def code(rng: Rng) -> str:
    n = rng.randint(1, 99)
    return rng.choice(
        ["connect(user=user, password=password)", "password = os.environ['DB_PASSWORD']",
         "def login(self, password: str, token: Token) -> None:", "token = next(tokens)",
         "if password == '':\n    raise ValueError('no password')", "secret = get_secret(name)",
         f"api_key = config.api_keys[{n}]", "passwd = getpass.getpass('Password: ')",
         "parser.add_argument('--token', default=None)", "<input type=\"password\" name=\"pw\">",
         "password: ${DB_PASSWORD}", "token: {{ secrets.TOKEN }}", "Password: ********",
         f"x = data[{n}:{n + 10}, ::2]", f"std::vector<int> v{{{n}, {n + 1}}};",
         f"for i in range({n}, {n}000): total += i", "y = x@weights.mean()",
         "self.password = password", "assert token.type == 'NAME'", "API_KEY=your-api-key-here"]
    )  # fmt: skip


def words(rng: Rng) -> str:
    return rng.choice(
        ["The password is required for every login.", "Choose a password: it must be long.",
         "A token of appreciation was given to all.", "The secret: never give up.",
         "Follow @example on social media.", "He said: call me maybe at five.",
         "Your secret is safe with me.", "We met at 5 and left at 9.",
         "Token: a unit of text that a model reads."]
    )  # fmt: skip


def tables(rng: Rng) -> str:
    rows = [" ".join(f"{rng.randint(100, 999)}" for _ in range(5)) for _ in range(3)]
    return rng.choice(
        ["\n".join(rows), "0000 0010 0020 0030 0040", "01 02 03 04 05 06 07 08",
         "01 23 45 67 89 ab cd ef", f"id,count\n{digits(rng, 5)},{digits(rng, 9)}",
         f"{rng.randint(10, 99)} {rng.randint(10, 99)} {rng.randint(10, 99)} {rng.randint(10, 99)}",
         f"10 000 000 {rng.randint(100, 999)}", f"row 1\t{digits(rng, 4)}\t{digits(rng, 4)}"]
    )  # fmt: skip


def stamps(rng: Rng) -> str:
    return rng.choice(
        [f"[{rng.randint(1_500_000_000, 1_700_000_000)}.{digits(rng, 3)}] usb 1-1: reset",
         f"ts=1{digits(rng, 12)} level=info", f"pid {digits(rng, 5)} uid {digits(rng, 4)}",
         f"request_id={digits(rng, 10)}", f"1{digits(rng, 18)} ns", f"offset {digits(rng, 11)}",
         f"took 0.{digits(rng, 9)} s"]
    )  # fmt: skip


# The second part: the same things as others write them.
def more_dates(rng: Rng) -> str:
    y, m, d = _day(rng)
    return rng.choice(
        [f"Published {m:02}-{d:02}-{y}", f"{y}.{m:02}.{d:02} - {y}.{m:02}.{d:02}",
         f"{d}.{m}.{y % 100:02}",
         f"({y}) {m:02}-{d:02}", f"{y}年{m}月{d}日", f"{y}/{m:02}/{d:02}:{digits(rng, 6)}",
         f"seasons {y}-{y + 1} {y + 1}-{y + 2}", f"DTSTART:{y}{m:02}{d:02}T{digits(rng, 6)}Z",
         f"{d:02}-{m:02}-{y} 10-12-30"]
    )  # fmt: skip


def more_books(rng: Rng) -> str:
    return rng.choice(
        [f"(ISBN 0-{digits(rng, 3)}-{digits(rng, 5)}-{digits(rng, 1)})", f"PMID: {digits(rng, 8)}",
         f"978 {digits(rng, 1)} {digits(rng, 4)} {digits(rng, 4)} {digits(rng, 1)}",
         f"UPC 0{digits(rng, 11)}",
         f"US Patent {rng.randint(4, 11)},{digits(rng, 3)},{digits(rng, 3)}",
         f"pp. {rng.randint(100, 400)}-{rng.randint(401, 900)}",
         f"RFC {digits(rng, 4)}, section 4.2.1.1",
         f"LCCN {digits(rng, 2)}-{digits(rng, 6)}"]
    )  # fmt: skip


def more_versions(rng: Rng) -> str:
    v = ".".join(str(rng.randint(0, 15)) for _ in range(4))
    return rng.choice(
        [f"Changes in {v}:", f"ver. {v}", f"foo_{v}_amd64.deb", f"{v} Scope of this clause",
         f"build {v}", f"Firefox/{v}", f"pip install foo~={v}", f"firmware {v} or newer",
         f"<version>{v}</version>", f"\"version\": \"{v}\""]
    )  # fmt: skip


def more_hashes(rng: Rng) -> str:
    h = f"{rng.getrandbits(256):064x}"
    return rng.choice(
        [f"Merge {h[:7]} into {h[8:15]}", f"blob {h[:40]} {digits(rng, 5)}", f"{uuid_of(rng)}.png",
         f"cache key {h[:24]}", f"crc32 {h[:8]}", f"urn:uuid:{uuid_of(rng)}",
         f"{h[:4]}-{h[4:8]}-{h[8:12]}", f"guid={{{uuid_of(rng).upper()}}}",
         f"data:image/png;base64,iVBORw0KGgo{h}"]
    )  # fmt: skip


def more_prices(rng: Rng) -> str:
    n = rng.randint(1000, 999_999)
    return rng.choice(
        [f"¥{n}000", f"CHF {n:,}.–".replace(",", "'"), f"{n:,} inhabitants in 2020", f"R$ {n},00",
         f"{n} 000 habitants", f"USD {n}.99 x 12", f"between {n} and {n + 500} dollars",
         f"{n}-{n + 1000} euros"]
    )  # fmt: skip


def more_places(rng: Rng) -> str:
    a, b = rng.uniform(30, 60), rng.uniform(0, 20)
    return rng.choice(
        [f"{a:.5f}N {b:.5f}E", f"geo:{a:.6f},{b:.6f}", f"LatLng({a:.6f}, {b:.6f})",
         f"20{digits(rng, 3)} Milano, Via Roma {rng.randint(1, 99)}",
         f"CEP 0{digits(rng, 4)}-{digits(rng, 3)}",
         f"〒{digits(rng, 3)}-{digits(rng, 4)}", f"bbox {a:.2f} {b:.2f} {a + 1:.2f} {b + 1:.2f}"]
    )  # fmt: skip


def more_mathematics(rng: Rng) -> str:
    n = [rng.randint(2, 999) for _ in range(6)]
    return rng.choice(
        [f"{n[0]}-{n[1]}-{n[2]}", f"det = {n[0]}*{n[1]} - {n[2]}*{n[3]}", f"{n[0]}/{n[1]}/{n[2]}",
         f"0.{digits(rng, 16)}", f"p < 0.00{n[0]} (n = {n[1]})", f"{n[0]}! / ({n[1]}!{n[2]}!)",
         "1 1 2 3 5 8 13 21 34 55 89 144", f"x1={n[0]} x2={n[1]} x3=-{n[2]}", f"+{n[0]} -{n[1]}",
         f"{n[0]}.{n[1]}.{n[2]}", f"{digits(rng, 4)} {digits(rng, 4)} {digits(rng, 4)}"]
    )  # fmt: skip


def more_orders(rng: Rng) -> str:
    return rng.choice(
        [f"Your order #{digits(rng, 3)}-{digits(rng, 3)}-{digits(rng, 4)} has shipped",
         f"Rechnung Nr. {digits(rng, 2)}-{digits(rng, 6)}", f"PO {digits(rng, 10)}",
         f"commande n° {digits(rng, 9)}", f"Flight 0{digits(rng, 3)} seat {digits(rng, 2)}A",
         f"account {digits(rng, 8)} was closed",
         f"model 0{digits(rng, 2)}-{digits(rng, 4)}-{digits(rng, 2)}",
         f"customer id {digits(rng, 9)}", f"RMA {digits(rng, 3)} {digits(rng, 3)} {digits(rng, 4)}"]
    )  # fmt: skip


def more_code(rng: Rng) -> str:
    n = rng.randint(1, 99)
    return rng.choice(
        ["auth = (user, password)", "if not token:\n    return", "secret_key: str | None = None",
         "kwargs['password'] = kwargs.pop('passwd')", "pwd=$(pwd)", "PASSWORD=\"$1\"",
         "token = self.tokens[self.pos]", "print('password:', '*' * 8)", "String password = null;",
         "token=token_for(user)", "export API_KEY=<your key>", "password_hash = hash(password)",
         "passwords: list[str] = []", "const token = await getToken();", "token := lexer.Next()",
         "label: 'Password:'", f"a[{n}] = b::c::d({n});",
         "git clone git@github.com:example/repo.git",
         "@decorator.method", "%(password)s", "password=%s&user=%s", "secret=\"{}\".format(s)",
         "M = A@B.T", f"#define VERSION 0x{n:08x}", f"rgba({n}, {n}, {n}, 0.{n})",
         "token: 'identifier'", "api_key: str = Field(description='the key')"]
    )  # fmt: skip


def more_words(rng: Rng) -> str:
    return rng.choice(
        ["Passwords are hashed; the secret is a slow function.", "Forgot your password? Reset it.",
         "The token is invalid or has expired.", "Secret: ingredients from the garden.",
         "password is case sensitive", "Ein Passwort: das ist Pflicht.",
         "tokens=words in this text",
         "a bearer of good news", "Bearer tokens are explained below.", "Call 911 in an emergency.",
         "ask for room 1204", "Psalm 119:105 and John 3:16-18"]
    )  # fmt: skip


def more_tables(rng: Rng) -> str:
    return rng.choice(
        [" ".join(f"{rng.randint(10, 99)}" for _ in range(9)),
         "de ad be ef 01 02 03 04",
         "\n".join(f"{i:03} {digits(rng, 4)} {digits(rng, 4)}" for i in range(3)),
         f"{digits(rng, 3)}\t{digits(rng, 3)}\t{digits(rng, 4)}",
         f"1 {digits(rng, 3)} {digits(rng, 3)} km",
         "96 192 384 768 1536 3072", "Lotto: 03 11 19 27 38 45",
         f"2010 2011 2012 2013 {digits(rng, 4)}",
         "6-4 3-6 7-6 (7-5)", f"00000{digits(rng, 3)}: 4500 0034 1c46 4000 4006"]
    )  # fmt: skip


def more_stamps(rng: Rng) -> str:
    return rng.choice(
        [f"epoch 1{digits(rng, 9)}", f"trace={digits(rng, 16)}", f"{digits(rng, 20)}",
         f"msg id: {digits(rng, 14)}", f"rc=0 t={digits(rng, 6)}us",
         f"block {digits(rng, 7)} mined",
         f"tweet/1{digits(rng, 18)}",
         f"0{digits(rng, 2)}:{digits(rng, 2)}:{digits(rng, 2)},{digits(rng, 3)}"]
    )  # fmt: skip


PARTS: dict[str, list[Maker]] = {
    "develop": [dates, books, versions, hashes, prices, places, mathematics, orders, bad_checks,
                own_addresses, code, code, words, tables, stamps],
    "report": [more_dates, more_books, more_versions, more_hashes, more_prices, more_places,
               more_mathematics, more_orders, bad_checks, own_addresses, more_code, more_code,
               more_words, more_tables, more_stamps],
}  # fmt: skip
