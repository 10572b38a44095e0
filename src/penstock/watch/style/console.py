"""The consoles that print for people."""

from typing import Any

from rich.console import Console

from penstock.secret import redact


class RedactedConsole(Console):
    """A rich console that redacts plain text. Tables and panels are made of redacted values."""

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(redact(one) if isinstance(one, str) else one for one in objects), **how)
