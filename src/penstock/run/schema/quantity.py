"""Quantities as exact text: counts, bytes, durations, rates and shares are read and written here.

Everything is computed in exact fractions, so "0.1K" is 100, and the text of a `show_*` function
reads back as the same number. K, M, B, T are decimal and Ki, Mi, Gi, Ti binary; no unit is ever
guessed. Rounded formats for people are in `penstock/style.py`.
"""

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from penstock.errors import PenstockError

COUNT_UNITS = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "B": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
BYTE_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "PB": 10**15,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "PiB": 2**50,
}
BIT_UNITS = {"bit": 1, "Kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9, "Tbit": 10**12}
DURATION_UNITS = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
    "day": Fraction(86400),
    "days": Fraction(86400),
}
RATE_UNITS = {f"{name}/s": Fraction(size) for name, size in BYTE_UNITS.items()} | {
    f"{name}/s": Fraction(size, 8) for name, size in BIT_UNITS.items()
}

# Exponents stop at three digits: an exact fraction of "1e999999999" would not fit in memory.
_NUMBER = re.compile(
    r"\s*([0-9][0-9_]{0,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,3})?)\s*(\S*)\s*", re.A
)
LARGEST_COUNT = 2**63 - 1
LONGEST_OPTION_S = 36525 * 86400.0


class BadQuantity(PenstockError, ValueError):
    """A value that is not the expected quantity. A ValueError, so that pydantic collects it."""

    def __init__(self, value: object, what: str) -> None:
        super().__init__(f"{value!r}: {what}")
        self.what = what


@dataclass(frozen=True)
class Every:
    """An interval: a number of steps or a number of seconds, exactly one of them."""

    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        assert (self.steps is None) != (self.seconds is None), "steps or seconds, not both"

    def __str__(self) -> str:
        return (
            show_steps(self.steps) if self.steps is not None else show_duration(self.seconds or 0.0)
        )


@dataclass(frozen=True)
class Portion:
    """A part of a run: a share of its steps or a number of steps, exactly one of them."""

    share: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        assert (self.share is None) != (self.steps is None), "share or steps, not both"

    def of(self, total_steps: int) -> int:
        """Return the part in steps, for a run of `total_steps`."""
        return self.steps if self.steps is not None else round((self.share or 0.0) * total_steps)

    def __str__(self) -> str:
        return show_steps(self.steps) if self.steps is not None else show_share(self.share or 0.0)


def count(value: object, of: str = "things", example: str = '524288, "512Ki" or "0.5M"') -> int:
    """Read a whole number such as 524288, "512Ki" or "1.5T"; `of` and `example` are for errors."""
    wrong = f"not a quantity of {of}; write {example}"
    if isinstance(value, str):
        number, unit = _split(value, wrong)
        sizes = {name.lower(): size for name, size in COUNT_UNITS.items()}
        if unit.lower() not in sizes:
            raise BadQuantity(value, wrong)
        exact = number * sizes[unit.lower()]
    else:
        exact = _plain(value, wrong)
    if exact.denominator != 1:
        raise BadQuantity(value, f"not a whole number of {of}; write for example {round(exact)}")
    if exact > LARGEST_COUNT:
        raise BadQuantity(value, f"more {of} than a run can count; write at most {LARGEST_COUNT}")
    return int(exact)


def size_bytes(value: object) -> int:
    """Read bytes from "3.2 TB", "64 MiB" or a plain number of bytes."""
    wrong = 'not a size; write "64 MiB", "3.2 TB" or a number of bytes'
    exact = _with_unit(value, BYTE_UNITS, wrong) if isinstance(value, str) else _plain(value, wrong)
    if exact.denominator != 1:
        raise BadQuantity(value, "not a whole number of bytes; write a larger or rounder size")
    return int(exact)


def duration_s(value: object) -> float:
    """Read seconds from "10 min", "90 s", "2 h", "1 day"."""
    wrong = 'not a duration; write a number and ms, s, min, h or day, such as "90 s" or "10 min"'
    if not isinstance(value, str):
        raise BadQuantity(value, wrong)
    return _float(value, _with_unit(value, DURATION_UNITS, wrong), wrong)


def option_s(text: str | None, option: str) -> float | None:
    """Read the duration that an option asks for; an error names the option."""
    try:
        seconds = None if text is None else duration_s(text)
    except BadQuantity as error:
        raise PenstockError(f"{option}: {error}") from None
    if seconds is not None and seconds > LONGEST_OPTION_S:
        raise PenstockError(f"{option} '{text}': over 100 years; write a shorter time")
    return seconds


def rate_bytes_per_s(value: object) -> float:
    """Read bytes per second from "400 Gbit/s" or "3.2 TB/s"."""
    wrong = 'not a rate; write a number and a unit, such as "400 Gbit/s" or "3.2 TB/s"'
    if not isinstance(value, str):
        raise BadQuantity(value, wrong)
    return _float(value, _with_unit(value, RATE_UNITS, wrong), wrong)


def share(value: object) -> float:
    """Read a share between 0 and 1 from "0.5%" or 0.005."""
    wrong = 'not a share; write "0.5%" or 0.005'
    if isinstance(value, str):
        exact = _with_unit(value, {"%": Fraction(1, 100), "": Fraction(1)}, wrong)
    else:
        exact = _plain(value, wrong)
    if exact > 1:
        raise BadQuantity(value, 'more than the whole; write at most "100%" or 1.0')
    return float(exact)


def every(value: object) -> Every:
    """Read an interval: "250 steps" or a duration such as "10 min"."""
    wrong = 'not an interval; write "250 steps" or "10 min"'
    if not isinstance(value, str):
        raise BadQuantity(value, wrong)
    steps = _steps(value)
    interval = Every(steps=steps) if steps is not None else None
    if interval is None:
        interval = Every(seconds=_float(value, _with_unit(value, DURATION_UNITS, wrong), wrong))
    if not (interval.steps or interval.seconds):
        raise BadQuantity(value, 'an interval is more than nothing; write "250 steps" or "10 min"')
    return interval


def portion(value: object) -> Portion:
    """Read a part of a run: "2%", 0.02 or "100 steps"."""
    steps = _steps(value) if isinstance(value, str) else None
    if steps is not None:
        return Portion(steps=steps)
    try:
        return Portion(share=share(value))
    except BadQuantity as error:
        what = 'not a part of the run; write "5%", 0.05 or "100 steps"'
        raise BadQuantity(value, error.what if "whole" in error.what else what) from None


def show_count(number: int) -> str:
    """Return the shortest exact text: 1000000 is "1M", 524288 is "512Ki", 12345 stays "12345"."""
    texts = [str(number)]
    for unit, size in COUNT_UNITS.items():
        text = _exact(Fraction(number, size))
        if unit and text and number >= size:
            texts.append(text + unit)
    return min(texts, key=len)


def show_bytes(number: int) -> str:
    """Return the shortest exact text: 67108864 is "64 MiB"."""
    texts = [f"{number} B"]
    for unit, size in BYTE_UNITS.items():
        text = _exact(Fraction(number, size))
        if text and number >= size:
            texts.append(f"{text} {unit}")
    return min(texts, key=len)


def show_duration(seconds: float) -> str:
    """Return an exact text in the largest unit that divides it: 120 is "2 min", 90 is "90 s"."""
    seconds = float(seconds)
    if seconds >= 1e15:
        return f"{seconds!r} s"  # a float this large has no seconds left to be exact about
    for unit in ("day", "h", "min"):
        units = Fraction(seconds) / DURATION_UNITS[unit]
        if units >= 1 and units.denominator == 1:
            return f"{units} {'days' if unit == 'day' and units > 1 else unit}"
    return f"{int(seconds) if seconds.is_integer() else repr(seconds)} s"


def show_share(part: float) -> str:
    """Return a share in per cent if that is exact, else the plain number."""
    text = f"{part * 100:.6g}%"
    return text if share(text) == part else repr(part)


def show_steps(steps: int) -> str:
    return f"{steps} step" if steps == 1 else f"{steps} steps"


def _steps(value: str) -> int | None:
    """Return the number in "250 steps", or None if the text is not about steps."""
    head, sep, tail = value.rpartition("step")
    if not sep or tail.strip() not in ("", "s"):
        return None
    return count(head, "steps", "250")


def _split(text: str, wrong: str) -> tuple[Fraction, str]:
    match = _NUMBER.fullmatch(text)
    if not match:
        raise BadQuantity(text, wrong)
    try:
        return Fraction(match[1]), match[2]
    except ValueError:  # misplaced underscores: "1__0", "1_"
        raise BadQuantity(text, wrong) from None


def _with_unit(text: str, units: dict[str, int] | dict[str, Fraction], wrong: str) -> Fraction:
    number, unit = _split(text, wrong)
    if unit not in units:
        raise BadQuantity(text, wrong)
    return number * units[unit]


def _plain(value: object, wrong: str) -> Fraction:
    """Return a plain number as a fraction; refuse booleans, NaN, infinity and negative numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadQuantity(value, wrong)
    if value < 0:
        raise BadQuantity(value, f"below zero, {wrong}")
    return Fraction(value)


def _float(value: str, exact: Fraction, wrong: str) -> float:
    try:
        return float(exact)
    except OverflowError:
        raise BadQuantity(value, wrong) from None


def _exact(number: Fraction) -> str:
    """Return `number` with at most three decimals; empty if that would round it."""
    if (number * 1000).denominator != 1:
        return ""
    whole, thousandths = divmod(int(number * 1000), 1000)
    return f"{whole}.{thousandths:03}".rstrip("0").rstrip(".")
