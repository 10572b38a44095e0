"""Limits for chat templates, which are untrusted programs.

Jinja's sandbox protects the machine but lets a template run forever: `range` is limited, nested
loops are not. Here, loop iterations and macro calls are counted, processor time is limited, and
texts and numbers cannot grow without limit. The limit is on processor time, not wall-clock time: a
machine that is busy or was suspended must not change the result of a build.
"""

import contextlib
import resource
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.extras import extra

MOST_ROUNDS = 1_000_000
ROUNDS_PER_MESSAGE = 1_000
MOST_CPU_S = 10.0
MOST_CHARACTERS = 64 << 20  # of the rendered text, or of a text in between
MOST_MEMORY = 2 << 30  # that one rendering may add, bytes
_LOOK_EVERY = 16  # rounds between two checks of the clock
_MOST_BITS = 1 << 14  # of a number
_PAGE = resource.getpagesize()


class TemplateLimitExceeded(Exception):
    """Raised when a template takes too long or produces too much."""


class _Left(threading.local):
    rounds: int = 0
    until_s: float = 0.0


_left = _Left()


@contextlib.contextmanager
def template_limits(messages: int = 0) -> Iterator[None]:
    """Give a rendering its rounds, time and memory."""
    _left.rounds = MOST_ROUNDS + ROUNDS_PER_MESSAGE * messages
    _left.until_s = time.thread_time() + MOST_CPU_S
    with _memory():
        yield


def count_round() -> None:
    """Count one round of a loop or one call of a macro."""
    _left.rounds -= 1
    if _left.rounds < 0:
        raise TemplateLimitExceeded("it goes round too often")
    if _left.rounds % _LOOK_EVERY == 0 and time.thread_time() > _left.until_s:
        raise TemplateLimitExceeded(f"it takes more than {MOST_CPU_S:g} s")


def join_bounded(pieces: Iterable[str]) -> str:
    """Join the output of a template up to a limit."""
    found, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > MOST_CHARACTERS:
            raise TemplateLimitExceeded(f"it writes more than {MOST_CHARACTERS:,} characters")
        found.append(piece)
    return "".join(found)


def bounded_environment(**settings: Any) -> Any:
    """Return a sandbox whose loops are counted and whose operators are bounded."""
    jinja = extra("jinja2", "A chat template")
    sandbox = extra("jinja2.sandbox", "A chat template")
    base: Any = sandbox.ImmutableSandboxedEnvironment
    extension: Any = extra("jinja2.ext", "A chat template").Extension

    class LoopCounter(extension):
        """Extension whose method is called in each round of a loop."""

        def count(self) -> None:
            count_round()

    class LimitedSandbox(base):
        """Sandbox that counts loop rounds and macro calls and limits operators."""

        intercepted_binops = frozenset({"*", "**", "+", "%"})

        def _parse(self, *given: Any) -> Any:
            template = super()._parse(*given)
            rounds = self.extensions[LoopCounter.identifier]
            for node in template.find_all((jinja.nodes.For, jinja.nodes.Macro)):
                node.body.insert(0, jinja.nodes.ExprStmt(rounds.call_method("count")))
            return template

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _refuse_growth(operator, left, right)
            return super().call_binop(context, operator, left, right)

    extensions = [*settings.pop("extensions", []), LoopCounter]
    return LimitedSandbox(extensions=extensions, **settings)


def _refuse_growth(operator: str, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() + right.bit_length()
        if operator == "**":
            bits = left.bit_length() * max(right, 1)
        if operator in ("*", "**") and bits > _MOST_BITS:
            raise TemplateLimitExceeded("it computes with very large numbers")
        return
    sizes = [len(one) if hasattr(one, "__len__") else 0 for one in (left, right)]
    if operator == "*":
        times = left if isinstance(left, int) else right
        grown = max(sizes) * (times if isinstance(times, int) else 1)
    else:
        grown = sum(sizes)
    if grown > MOST_CHARACTERS:
        raise TemplateLimitExceeded(f"it makes a text or list of more than {MOST_CHARACTERS:,}")


@contextlib.contextmanager
def _memory() -> Iterator[None]:
    """Bound the memory of this process while a template runs: filters grow text in many ways."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    try:
        with open("/proc/self/statm", "rb") as file:
            most = int(file.read().split()[0]) * _PAGE + MOST_MEMORY
    except (OSError, ValueError):  # not Linux
        yield
        return
    if soft != resource.RLIM_INFINITY and soft <= most:
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
