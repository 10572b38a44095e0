r"""Texts that are hard to tokenize: where engines disagree, they should disagree here.

Fast engines replace the regex that splits text by code of their own. They make mistakes with
Unicode classes (\p{L}, \p{N}, \s of another Unicode version), with what `(?i:'s)` matches, with
runs of white space, with special tokens, and at the borders of chunks of long texts. A wrong split
shows in the ids only where a merge crosses it, so doubtful characters are next to pairs that are
often merged.
"""

import random
import sysconfig
from functools import lru_cache
from pathlib import Path

_MODULES = ["argparse.py", "typing.py", "html/entities.py", "encodings/cp1251.py", "this.py"]
_LANGUAGES = [
    "The quick brown fox's 12,345.67 jumps; they'll SHOUT: WE'VE, IT'S — “done”…",
    "Zażółć gęślą jaźń. Ünïcödé naïve façade; İstanbul ıŞIK; ﬁne ﬂow; Ǆungla; ſ'ſ 'ſ 'ı K Å",
    "Съешь же ещё этих мягких булок, да выпей чаю. Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "عربي: ١٢٣٤٥ نص مُشَكَّل‎. עברית עם נִקּוּד. فارسی‌نویسی ۱۲۳",
    "हिन्दी में १२३ संख्या और क्षत्रिय। বাংলা ১২৩ লেখা। தமிழ் எழுத்து க்ஷ। ภาษาไทยไม่มีช่องว่าง ๑๒๓",
    "日本語のテスト、カタカナ・ひらがな。全角ＡＢＣ１２３　空白。中文测试，没有空格。",
    "𠮷野家 㐀 한국어 띄어쓰기 조합형 각",
    "မြန်မာ ខ្មែរ ລາວ བོད་ཡིག ქართული Հայերեն አማርኛ ᓀᐦᐃᔭᐍᐏᐣ ᏣᎳᎩ 𐍈 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 Ⅷ ⅷ ½ ² ₂ ① 〇",
    "e\u0301 n\u0303 a\u0300\u0301\u0302\u0303 \u0301x",
    "\u200bzero\u200dwidth\u200c \ufeffmark \u00adsoft \u2060",
    "if x_1 == 0x1F and not y[-3:]:\n\treturn {'a': 1e-9, **kw}  # later\n\n\n    pass\r\n\r\n",
    "https://user:pw@example.org:8080/a/b?q=1&r=%20#frag",
    "<tag attr='v'>&amp;</tag> $1,000.00 50% C++ C#",
]
_EMOJI = "😀😃👍🏽👩‍👩‍👧‍👦🏳️‍🌈🇩🇪🇯🇵1️⃣#️⃣❤️‍🔥🫠🪿☺☺️ ©®™ → ∑∫√ ♥ 😀a😀1😀 😀\n"
_BLANKS = [" ", "\t", "\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\xa0", "\u1680"]
_BLANKS += ["\u180e", "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff", "\0"]
_ATOMS = [
    "'",
    "'s",
    "'S",
    "'ll",
    "'LL",
    "'re",
    "'ſ",
    "’s",
    "a",
    "B",
    "é",
    "日",
    "1",
    "12",
    "٣",
    "_",
]
_ATOMS += [".", "...", "/", "\\", '"', "\u0301", "😀", "\U000e0041", "\ue000", "\U0010ffff", "\x7f"]
# Long ranges of similar letters; the rest of the first two planes is taken completely.
_ALIKE = [(0x3400, 0xA000), (0xAC00, 0xD7A4), (0xE000, 0xF900), (0x17000, 0x18B00)]
_STRIDE = 16
# Blocks of 16 at the ends of ranges, where each Unicode version adds a few characters.
_ENDS = [0x4DB0, 0x4DC0, 0x9FF0, 0x187F0, 0x18AF0, 0x2A6D0, 0x2B730, 0x2B810, 0x2CEA0, 0x2EBE0]
_ENDS += [0x2EE50, 0x2FA10, 0x31340, 0x323A0, 0x33470, 0xE0000, 0xE0070, 0xE01E0, 0x10FFF0]


def hard_texts(special: list[str]) -> list[str]:
    """Return the texts; `special` are the tokenizer's added tokens, which some texts spell out."""
    return [*_fixed(), *_spelled(special)]


@lru_cache(maxsize=1)
def _fixed() -> tuple[str, ...]:
    rng = random.Random(0)
    texts = ["", *_LANGUAGES, _EMOJI, *_library(), *_blanks(), *_code_points()]
    texts += ["".join(rng.choices(_ATOMS + _BLANKS, k=rng.randrange(40))) for _ in range(2000)]
    texts += [rng.randbytes(rng.randrange(80)).decode("latin-1") for _ in range(500)]
    texts += [rng.randbytes(rng.randrange(80)).decode("utf-8", "ignore") for _ in range(500)]
    texts += [
        "a" * 3000,
        " " * 3000,
        "\n" * 3000,
        "1" * 3000,
        "!?" * 1500,
        "é" * 1000,
        "日本" * 1000,
    ]
    # One long text, since engines split long texts into chunks.
    texts.append("".join(rng.choices([*_LANGUAGES, _EMOJI, *_ATOMS, *_BLANKS], k=6000)))
    return tuple(texts)


def _library() -> list[str]:
    root = Path(sysconfig.get_path("stdlib"))
    return [path.read_text("utf-8") for name in _MODULES if (path := root / name).is_file()]


def _blanks() -> list[str]:
    runs = [blank * count for blank in _BLANKS for count in (1, 2, 3, 4, 7, 16, 65)]
    pairs = [one + other for one in _BLANKS for other in _BLANKS]
    return [f"{run}word{run}1{run}.{run}'s{run}" for run in runs + pairs]


def _code_points() -> list[str]:
    """Return each code point in contexts where its class decides which neighbours are merged.

    Before `'s`, letters and digits behave differently; after two spaces, white space does; between
    digits, digits do.
    """
    points = [
        point
        for point in range(0x110000)
        if not 0xD800 <= point < 0xE000
        and (
            point % _STRIDE == 0
            or point - point % _STRIDE in _ENDS
            or (point < 0x20000 and not any(low < point < high - 1 for low, high in _ALIKE))
        )
    ]
    size = 512
    return [
        "".join(
            f"re{chr(point)}'s  {chr(point)}\n\n1{chr(point)}23" for point in points[at : at + size]
        )
        for at in range(0, len(points), size)
    ]


def _spelled(special: list[str]) -> list[str]:
    some = special[:50] + special[50:][-50:]
    return [f"{token}{token} {token}word{token}\n{token[:-1]} {token[1:]}1" for token in some]
