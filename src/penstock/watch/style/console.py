"""The console of the command line."""

from typing import Any

from rich.console import Console

from penstock.secret import redact


class RedactedConsole(Console):
    """A rich console that redacts secrets in plain text. Callers redact values in tables."""

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(redact(item) if isinstance(item, str) else item for item in objects), **how)
