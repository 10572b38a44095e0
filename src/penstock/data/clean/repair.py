"""Text repair: one form of each character, no control characters, plain spaces and line ends.

Repairing a second time changes nothing. Indentation and runs of spaces inside a line stay: code and
tables need them.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Repair:
    """Repairs to make."""

    mojibake: bool = True  # UTF-8 that was read as Windows-1252 or Latin-1: `â€™` is ’
    whitespace: bool = True  # plain spaces and line feeds, no spaces at the end of a line
    max_blank_lines: int = 2  # in a row; part of `whitespace`
    controls: bool = True  # no control and zero-width characters; lone surrogates become U+FFFD
    nfc: bool = True  # Unicode's composed form (UAX #15)


@dataclass(frozen=True)
class RepairedTexts:
    """Repaired texts."""

    texts: list[str]
    counts: dict[str, int]  # documents that each step changed


def _as_byte() -> dict[str, int]:
    """Map each character that a wrong decoding makes of a byte from 0x80 on to that byte."""
    latin = {chr(byte): byte for byte in range(0x80, 0x100)}
    windows = {bytes([byte]).decode("cp1252", "ignore"): byte for byte in range(0x80, 0xA0)}
    return {character: byte for character, byte in (latin | windows).items() if character}


_BYTES = _as_byte()
_TAIL = "".join(re.escape(character) for character, byte in _BYTES.items() if byte < 0xC0)
# Common sequences that no language writes: Â Ã â ð and the characters that follow them.
_BROKEN = re.compile(f"[ÂÃ][{_TAIL}]|â[{_TAIL}]{{2}}|ð[{_TAIL}]{{3}}")
_LINE_END = re.compile("\r\n|[\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029]")
_BLANK = re.compile("[\x1f\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
# Joiners (U+200C, U+200D) stay: scripts and emoji need them.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u200b\u2060\ufeff\ufffe\uffff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def repair_texts(texts: Sequence[str], config: Repair) -> RepairedTexts:
    steps = _steps(config)
    counts = dict.fromkeys(steps, 0)
    out: list[str] = []
    for text in texts:
        changed: set[str] = set()
        while True:  # removing characters can create new work for another step
            before = text
            for name, step in steps.items():
                after = step(text)
                if after != text:
                    changed.add(name)
                    text = after
            if text == before:
                break
        for name in changed:
            counts[name] += 1
        out.append(text)
    return RepairedTexts(out, counts)


def _steps(config: Repair) -> dict[str, Callable[[str], str]]:
    steps: dict[str, Callable[[str], str]] = {}
    if config.mojibake:
        steps["mojibake"] = _mojibake
    if config.whitespace:
        most = "\n" * (config.max_blank_lines + 1)
        steps["whitespace"] = lambda text: _whitespace(text, most)
    if config.controls:
        steps["controls"] = _controls
    if config.nfc:
        steps["nfc"] = lambda text: unicodedata.normalize("NFC", text)
    return steps


def _mojibake(text: str) -> str:
    return text if text.isascii() else _BROKEN.sub(_read_again, text)


def _read_again(found: re.Match[str]) -> str:
    try:
        return bytes(_BYTES[character] for character in found[0]).decode()
    except UnicodeDecodeError:
        return found[0]


def _whitespace(text: str, most: str) -> str:
    """Normalize white space; `most` is the longest run of line feeds that may stay."""
    text = _LINE_END.sub("\n", text)
    if not text.isascii() or "\x1f" in text:
        text = _BLANK.sub(" ", text)
    if " \n" in text or "\t\n" in text:
        text = "\n".join(line.rstrip(" \t") for line in text.split("\n"))
    if most + "\n" in text:
        text = re.sub(most + "\n+", most, text)
    return text.rstrip(" \t\n").lstrip("\n")


def _controls(text: str) -> str:
    text = _CONTROL.sub("", text)
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
