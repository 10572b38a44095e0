"""Personal data: what is replaced, what stays, and that no text makes it slow or wrong."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.clean.numbers import iban_is_valid, luhn_is_valid
from penstock.data.clean.personal import Personal, find_personal, scrub_texts

KINDS = ("key", "secret", "email", "ip", "iban", "card", "ssn", "phone")
BLOCK = "-----BEGIN RSA PRIVATE KEY-----\nMIIE+abc/=\nxyz\n-----END RSA PRIVATE KEY-----"


def one(text: str) -> tuple[str, dict[str, int]]:
    done = scrub_texts([text], Personal())
    return done.texts[0], done.counts[0]


@pytest.mark.parametrize(
    ("secret", "kind"),
    [
        ("jane.doe+x@mail.example.org", "email"),
        ("a@b-c.example", "email"),
        ("jürgen@exämple.de", "email"),
        ("81.2.69.142", "ip"),
        ("8.8.8.8", "ip"),
        ("1.2.3.4", "ip"),
        ("2001:4860:4860::8888", "ip"),
        ("2a00:1450:4001:81b:0:0:0:200e", "ip"),
        ("2A00:1450::200E", "ip"),
        ("+49 30 1234567", "phone"),
        ("+44 (20) 7946 0958", "phone"),
        ("+44 (0)20 7946 0958", "phone"),
        ("+33 1 99 00 12 34", "phone"),
        ("+12125550123", "phone"),
        ("(415) 555-2671", "phone"),
        ("(555) 123-4567", "phone"),
        ("415.555.2671", "phone"),
        ("415-555-2671", "phone"),
        ("1-415-555-2671", "phone"),
        ("020-7946-0958", "phone"),
        ("030/123456", "phone"),
        ("03-0000-0123", "phone"),
        ("0120-000-123", "phone"),
        ("(11) 90000-0123", "phone"),
        ("DE89370400440532013000", "iban"),
        ("GB82WEST12345698765432", "iban"),
        ("FR1420041010050500013M02606", "iban"),
        ("4111111111111111", "card"),
        ("5105-1051-0510-5100", "card"),
        ("3782 822463 10005", "card"),
        ("219-09-9999", "ssn"),
        ("AKIAIOSFODNN7EXAMPLE", "key"),
        ("ghp_" + "a1B2" * 9, "key"),
        ("github_pat_" + "a1B2" * 9, "key"),
        ("xoxb-123456789012-abcDEF", "key"),
        ("AIza" + "a1B2c" * 7, "key"),
        ("sk-" + "a1B2c3" * 6, "key"),
        ("sk-proj-" + "a1B2_" * 10, "key"),
        ("sk_live_" + "a1B2c3" * 4, "key"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4", "key"),
        (BLOCK, "key"),
    ],
)
def test_personal_data_with_a_known_shape_is_found_anywhere(secret: str, kind: str) -> None:
    done = scrub_texts([f"Before ({secret}), after.", f"{secret} {secret}"], Personal())
    token = f"<{kind.upper()}>"
    assert done.texts == [f"Before ({token}), after.", f"{token} {token}"]
    assert done.counts == [{kind: 1}, {kind: 2}]
    off = scrub_texts([secret], Personal(**{kind: None}))  # type: ignore[arg-type]
    assert kind not in off.counts[0]


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        # National formats with blanks, alone on their line or beside words
        ("London 020 7946 0958.", "London <PHONE>."),
        ("Leeds, 0113 496 0123", "Leeds, <PHONE>"),
        ("01632 960 123", "<PHONE>"),
        ("Berlin 030 123456, Raum 5", "Berlin <PHONE>, Raum 5"),
        ("(0 30) 23 12 51 23", "<PHONE>"),
        ("01 23 45 67 89 de 9 h", "<PHONE> de 9 h"),
        ("01.99.00.12.34", "<PHONE>"),
        ("612 34 56 78", "<PHONE>"),
        ("Roma 06 0000 0123", "Roma <PHONE>"),
        ("(02) 5550 0123", "<PHONE>"),
        ("0491 570 123", "<PHONE>"),
        ("022 2000 0123", "<PHONE>"),
        ("11 90000-0123", "<PHONE>"),
        ("電話は03-0000-0123です", "電話は<PHONE>です"),
        ("tel:+1-212-555-0123;x", "tel:<PHONE>;x"),
        ("Doe,Jane,030/123456,x", "Doe,Jane,<PHONE>,x"),
        ("0044 20 7946 0958 2024-01-02", "<PHONE> 2024-01-02"),
        ("+49 30 1234567 and (020) 7946 0958", "<PHONE> and <PHONE>"),
        # Only a word says that these are telephone numbers
        ("Phone: 2125550123", "Phone: <PHONE>"),
        ("my cell is 212 555 0123.", "my cell is <PHONE>."),
        ("Mobile: 90000 00123", "Mobile: <PHONE>"),
        ("Tél. 0199001234", "Tél. <PHONE>"),
        ("call 555-0123", "call <PHONE>"),
        ("Handynummer 01713920012", "Handynummer <PHONE>"),
        ("móvil 600 000 123", "móvil <PHONE>"),
        # Accounts
        ("IBAN DE89 3704 0044 0532 0130 00 BIC", "IBAN <IBAN> BIC"),
        ("GB82-WEST-1234-5698-7654-32", "<IBAN>"),
        ("8812,4111111111111111,2025-03", "8812,<CARD>,2025-03"),
        ("4111 1111 1111 1111 04/27", "<CARD> 04/27"),
        ("SSN 219099999", "SSN <SSN>"),
        ("Social Security #: 219-09-9999", "Social Security #: <SSN>"),
        ("Phone # 2125550123", "Phone # <PHONE>"),
        ("social security number: 219 09 9999", "social security number: <SSN>"),
        # Addresses
        ("http://8.8.8.8:53/x", "http://<IP>:53/x"),
        ("[2001:4860::1]:443", "[<IP>]:443"),
        ("src:2001:4860::1", "src:<IP>"),
        ("Der Server ist 8.8.8.8.", "Der Server ist <IP>."),
        ("mailto:jane@example.org?subject=x", "mailto:<EMAIL>?subject=x"),
        # Secrets: the value goes, its name stays
        ("password=hunter2", "password=<SECRET>"),
        ("DB_PASSWORD=S3cret!x\nHOST=a", "DB_PASSWORD=<SECRET>\nHOST=a"),
        ("passwd: hunter2.", "passwd: <SECRET>."),
        ('{"password": "hunter2"}', '{"password": "<SECRET>"}'),
        ("The password is hunter2, ok?", "The password is <SECRET>, ok?"),
        ("Passwort: Sommer_2020!", "Passwort: <SECRET>"),
        ("<password>hunter2</password>", "<password><SECRET></password>"),
        ("mysql --password hunter2 db", "mysql --password <SECRET> db"),
        ("?api_key=0a1b2c3d4e5f6071&q=1", "?api_key=<SECRET>&q=1"),
        ("SECRET_KEY = 'q8Zr1vT0pLx93KdW'", "SECRET_KEY = '<SECRET>'"),
        ("client_secret: q8Zr1vT0pLx93KdW", "client_secret: <SECRET>"),
        ("token=q8Zr1vT0pLx93KdW", "token=<SECRET>"),
        ("postgres://app:hunter2@db.example.com/x", "postgres://app:<SECRET>@db.example.com/x"),
        ("Authorization: Bearer q8Zr1vT0pLx93KdW==", "Authorization: Bearer <KEY>"),
        ("'authorization': 'Basic YWxhZGRpbjpvcGVu'", "'authorization': 'Basic <KEY>'"),
        ("İ password=hunter2", "İ password=<SECRET>"),
    ],
)
def test_values_are_removed_because_of_the_words_around_them(text: str, clean: str) -> None:
    assert one(text)[0] == clean


@pytest.mark.parametrize(
    "text",
    [
        # Addresses
        "10.0.0.1 127.0.0.1 192.168.1.1 172.16.0.1 169.254.1.1 ::1 fe80::1 fd00::1",
        "203.0.113.7 198.51.100.1 192.0.2.9 2001:db8::1 255.255.255.0",
        "version 1.2.3.4 and 1.2.3.5, v8.8.8.8 and v 8.8.8.8, 1.2.3.4.5 and 999.8.8.8",
        "Fixes since 1.6.0.5; layers of 96 192 384 768 1536 3072",
        "pkg==1.2.3.4 pkg>=1.2.3.4 pkg-1.2.3.4.tar.gz Firefox/3.6.0.1 pkg_1.2.3.4_all.deb",
        "See section 4.2.1.1.\n4.2.1.2 The second clause",
        "user@localhost @handle a@b y = x@w.mean() git@github.com:example/repo.git",
        "0x1234 std::vector a::b 12:30:45 00:1b:44:11:3a:b7 2001:12:31",
        # Numbers
        "2024-01-02 12:30:45, 01-02-2024, 01.02.2024, 01/02/2024 10:11, 20240102",
        "3.14159, 1234567890, 555-2671, 1,000,000, 10 000 000, 912 345 678",
        "ISBN 978-3-16-148410-0 ISBN 0-306-40615-2 ISSN 0378-5955 arXiv:0704.00012",
        "100 200 3000 400-500-600, +1 2 3, +10 to +20, -0.0123456",
        "01 23 45 67 89 ab cd ef\n01 02 03 04 05\n0000 0010 0020\n001 002 003",
        "order 415-555-2671, Bestellnummer 0171-1234567, invoice no. 2125550123, #415-555-2671",
        "Order 123-1234567-1234567, part no. 0123-456789, account 12345678",
        "48.858222, 2.294500 and POINT(48.8582 2.2945) 62704-1234",
        "phone since 2024-01-02; call on 01.02.2024",
        "550e8400-e29b-41d4-a716-446655440000 d41d8cd98f00b204e9800998ecf8427e",
        "4111111111111112, 4111 1111 1111 1112, 1234567812345678, 1700000000000000000",
        "0.2552805046961355 1.6449340668482264 13.346107628161008 4111111111111111.5",
        "doi.org/10.1016/0021-9991(90)90201-B, 01001–99998, 07-3456789",
        "DE89370400440532013001 DE8937040044053201300 XX89370400440532013000",
        "000-12-3456 666-12-3456 900-12-3456 123-00-4567 123-45-0000 123456789 1-123-45-6789",
        # Names of secrets in code and prose
        "f(password=password, token=token, secret=self.secret, api_key=None)",
        "password = os.environ['PW1234']\npassword = getpass.getpass('x1234567')",
        "def f(password: str, token: Token2 = None, secret: bytes | None = None) -> str:",
        "password: ${DB_PASSWORD1}\ntoken: {{ secrets.TOKEN1 }}\npassword=%s\npassword=********",
        'token = tokens[12345678]\ntoken := lexer.Next2()\n"token": "identifier"',
        "API_KEY=your-api-key-1\npassword = '<password1>'\nif password == 'x': pass",
        "The password is required. Password: it must be long. A token of thanks, a bearer of news.",
        "http://user:pass@host.test http://%s:%s@host http://host:8080/a@b",
        "sk-learn task-force-with-many-words-in-it hf_hub eyJ AKIA ASIA",
        'publicKeyToken="1fc8b3b9a1e18e3b" Signal Processing Magazine 34.4 (2017): 183-187',
        "Phone survey 34.4 (2017): 183-187",
        "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
    ],
)
def test_text_without_personal_data_stays(text: str) -> None:
    assert one(text) == (text, {})


def test_overlapping_kinds_get_one_placeholder() -> None:
    assert one("https://a:hunter2@example.com password=jane@example.com") == (
        "https://a:<SECRET>@example.com password=<EMAIL>",
        {"secret": 1, "email": 1},
    )
    assert one("token=sk-" + "a1B2c3" * 6) == ("token=<KEY>", {"key": 1})


def _with_check(body: str) -> str:
    return next(body + digit for digit in "0123456789" if luhn_is_valid(body + digit))


@given(st.randoms(use_true_random=False), st.sampled_from(["", " ", "-"]), st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_every_valid_card_is_found_and_none_with_one_digit_off(
    rng: random.Random, mark: str, off: int
) -> None:
    prefix = rng.choice(["4", "51", "55", "2221", "2720", "6011", "65", "3528", "62"])
    body = prefix + "".join(rng.choices("0123456789", k=15 - len(prefix)))
    plain, at = _with_check(body), rng.randrange(16)
    wrong = plain[:at] + str((int(plain[at]) + off) % 10) + plain[at + 1 :]

    def kinds(number: str) -> list[str]:
        shown = mark.join(number[i : i + 4] for i in range(0, 16, 4))
        return [found.kind for found in find_personal(f"card {shown}.", ("card",))]

    assert kinds(plain) == ["card"]
    assert kinds(wrong) == []


SHAPES = {"DE": 18, "ES": 20, "BE": 12, "PL": 24, "NO": 11, "SE": 20}


@given(st.randoms(use_true_random=False), st.sampled_from(["", " ", "-"]), st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_every_valid_iban_is_found_and_none_with_one_digit_off(
    rng: random.Random, mark: str, off: int
) -> None:
    country = rng.choice(sorted(SHAPES))
    account = "".join(rng.choices("0123456789", k=SHAPES[country]))
    plain = next(
        iban for check in range(2, 99) if iban_is_valid(iban := f"{country}{check:02}{account}")
    )
    at = rng.randrange(4, len(plain))
    wrong = plain[:at] + str((int(plain[at]) + off) % 10) + plain[at + 1 :]

    def kinds(number: str) -> list[str]:
        shown = mark.join(number[i : i + 4] for i in range(0, len(number), 4))
        return [found.kind for found in find_personal(f"to {shown}.", ("iban",))]

    assert kinds(plain) == ["iban"]
    assert kinds(wrong) == []


PIECES = [
    "password=", "hunter2", "token: ", "q8Zr1vT0pLx93KdW", "tel ", "order ", "415-555-2671",
    "4111 ", "1111 1111 1111", "020 7946 0958", "+49 30 ", "1234567", "8.8.8.8", "v1.2.3.4",
    "DE89 3704 0044", " 0532 0130 00", "219-09-9999", "a@b.example", "2001:4860::1", "://u:",
    "@h.example", "<PHONE>", "Bearer ", "sk-a1b2c3a1b2c3a1b2c3a1b2", " ", "\n", "-", "+",
    "(", ")", ".", ",", "'", "0", "is ",
]  # fmt: skip


@given(
    st.text(st.characters(exclude_categories=()), max_size=80)
    | st.text("ab1.@:+-() 8", max_size=80)
    | st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
)
@settings(max_examples=400, deadline=None)
def test_scrubbing_twice_changes_nothing(text: str) -> None:
    once = scrub_texts([text], Personal()).texts
    assert scrub_texts(once, Personal()).texts == once


@given(st.text(st.characters(exclude_categories=["Nd"], exclude_characters="@:"), max_size=200))
@settings(max_examples=200, deadline=None)
def test_text_without_digits_and_marks_stays(text: str) -> None:
    assert one(text) == (text, {})


@pytest.mark.parametrize(
    "part",
    [
        "a", "1.", "+1 ", ":", "a@", "a.", "1-", "(2", "0", "01 ", "0(", "0/", "4111 ", "DE89",
        "2001:", "1.1.1.1 ", "tel 1", "0049 ", "eyJ", "sk-", "AKIA", "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----a-", "password=", "password:'", "token=a1", "--password ", "://",
        "://a:", "bearer ", "authorization: basic ", "İpwd=x1",
    ],
)  # fmt: skip
def test_time_grows_with_the_text_and_no_faster(part: str) -> None:
    def seconds(size: int) -> float:
        text = part * (size // len(part)) + "@"
        start = time.process_time()
        find_personal(text, KINDS)
        return time.process_time() - start

    # Four times the text: a quadratic pattern takes 16 times as long, and minutes.
    assert seconds(80_000) < 10 * seconds(20_000) + 0.5
