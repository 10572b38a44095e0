"""Fields whose value is a secret: what may be shown of them."""

from typing import Any
from urllib.parse import urlsplit

from penstock.run import toml

SECRET = frozenset({"log.webhook"})


def shown(field: str, value: object) -> str:
    """A value as it may be printed. The name of a variable gives nothing away."""
    if field in SECRET and isinstance(value, str) and not value.startswith("$"):
        return f'"{masked(value)}"'
    return toml.value(value)


def masked(url: str) -> str:
    """Scheme and host of an address: `https://hooks.slack.com/…`."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "…"
    return f"{parts.scheme}://{parts.hostname}/…" if parts.scheme and parts.hostname else "…"


def without(table: dict[str, Any], above: str = "") -> dict[str, Any]:
    """A run's table as it may leave the run folder: in checkpoints, and in what programs read."""
    open_table: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            open_table[name] = without(value, f"{above}{name}.")
        elif f"{above}{name}" in SECRET and not str(value).startswith("$"):
            open_table[name] = masked(value)
        else:
            open_table[name] = value
    return open_table
