"""Options for reading a source: the field with the text, the carried columns, and limits."""

from dataclasses import dataclass

from penstock.errors import PenstockError


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options for reading the files of a source."""

    kind: str = ""  # text, jsonl, csv, parquet or arrow; empty: by the file's name
    text: str = "text"  # the field or column that holds the text
    messages: str = ""  # instead of `text`: the field with a conversation
    prompt: str = ""  # instead of `text`: the field with a prompt, and
    response: str = ""  # the field with its response; or, for a pair of answers,
    chosen: str = ""  # the field with the better one, and
    rejected: str = ""  # the field with the worse one
    columns: tuple[str, ...] | None = None  # carried with a document; None: all other columns
    separator: str | None = None  # of documents in a text file; None: the file is one document
    delimiter: str = ""  # of the cells of a CSV file; empty: by its name or first row
    encodings: tuple[str, ...] = ("utf-8",)  # tried in this order; a byte-order mark overrides them
    most_bytes: int = 16 << 20  # of a document or a line; longer ones are rejected

    @property
    def chat(self) -> tuple[str, ...]:
        """Return the fields of a conversation; empty for plain text."""
        named = (self.messages, self.prompt, self.response, self.chosen, self.rejected)
        return tuple(field for field in named if field)

    @property
    def missing_fields(self) -> str:
        """Return the reason for rejecting rows without one of these fields."""
        if self.chosen:
            return "no prompt, chosen and rejected"
        return "no messages" if self.messages else "no prompt and response"

    def __post_init__(self) -> None:
        pair = bool(self.chosen or self.rejected)
        whole = all((self.prompt, self.chosen, self.rejected)) and not self.response
        alone = bool(self.prompt) == bool(self.response)
        if (not whole if pair else not alone) or (self.prompt and self.messages):
            raise PenstockError(
                "A conversation is in `messages`, or in `prompt` and `response` together, or in "
                f"`prompt`, `chosen` and `rejected`; found {', '.join(self.chat)}."
            )
        if self.separator == "":
            raise PenstockError(
                "The separator of documents is empty. Leave it out, or give at least one character."
            )
        if self.most_bytes < 1:
            raise PenstockError(f"most_bytes must be at least 1, found {self.most_bytes}.")
        if not self.encodings:
            raise PenstockError("No encoding is named. The usual one is 'utf-8'.")
        for encoding in self.encodings:
            try:
                "".encode(encoding)
                b"".decode(encoding)
            except (LookupError, ValueError):
                raise PenstockError(
                    f"{encoding!r} is not a text encoding that Python knows, such as 'utf-8', "
                    "'cp1252' or 'shift_jis'."
                ) from None
