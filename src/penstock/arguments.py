"""Translation of command-line messages for Python callers: options become arguments.

Messages are written once, in the words of the command line, wherever they arise, including ranks,
whose messages arrive as text. The Python functions translate them before they raise. Below every
room, like `errors`.
"""

import re

# Options that are named in messages which can reach a Python function. A test reads the source.
FLAGS = ("fresh", "force", "merged", "chat", "best")
VALUES = (
    *("fork", "step", "dtype", "out", "tasks", "limit", "batch", "checkpoint"),
    *("lives", "days", "by", "fleet", "without", "calibrate", "seed"),
    *("offers", "deadline", "accelerators", "nodes", "trace", "clusters", "start"),
)

_COMMAND = r"`penstock [^`]*`"  # a whole command stays one
_VALUE = r"""(?: (?P<value>'[^']*'|"[^"]*"|NAME\b|[\w.-]+(?=:)))?"""
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_OPTION = re.compile(
    rf"{_COMMAND}|--(?:(?P<flag>{'|'.join(FLAGS)})|(?P<name>{'|'.join(VALUES)}){_VALUE})(?![\w-])"
)


def in_python(message: str) -> str:
    """Return the message with options as arguments: `--fresh` is `fresh=True`."""
    return _OPTION.sub(_argument, message)


def _argument(found: re.Match[str]) -> str:
    if flag := found["flag"]:
        return f"{flag}=True"
    if not (name := found["name"]):
        return found[0]
    value = found["value"] or "…"
    plain = value == "…" or value[0] in "'\"" or _NUMBER.fullmatch(value)
    return f"{name}={value}" if plain else f'{name}="{value}"'
