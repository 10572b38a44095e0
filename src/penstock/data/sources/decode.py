"""Bytes to text, strictly: what does not decode is kept aside, never patched up."""

from penstock.data.sources.cut import Cut
from penstock.data.sources.pieces import HEAD_BYTES, Rejected


def decode(content: bytes, encodings: tuple[str, ...]) -> tuple[str, str] | None:
    """The text and the first encoding that gives it, or None."""
    for encoding in encodings:
        try:
            text = content.decode(encoding)
            text.encode()  # some codecs let lone surrogates through
        except (UnicodeError, ValueError):
            continue
        return text, encoding
    return None


def not_decodable(encodings: tuple[str, ...]) -> str:
    return "not " + " or ".join(encoding.upper() for encoding in encodings)


def aside(file: str, cut: Cut, reason: str, detail: str = "") -> Rejected:
    """A part that is not taken, with its place."""
    line, row = (cut.line, cut.number) if cut.line else (cut.number, None)
    return Rejected(file, reason, detail, line, cut.offset, cut.content[:HEAD_BYTES], row)
