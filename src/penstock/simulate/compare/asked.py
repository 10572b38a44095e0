"""Options of a comparison: its start, and the deadline."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.errors import PenstockError
from penstock.run.schema.quantity import option_s
from penstock.simulate.rent.rank import MOST_LIVES

LIVES = 50
_DATE = re.compile(r"\s*[0-9]{4}-[0-9]{2}-[0-9]{2}\s*")


@dataclass(frozen=True)
class Asked:
    """Options of a comparison beside the run and its clusters."""

    start: datetime
    deadline_s: float | None = None  # from the start
    lives: int = LIVES
    seed: int = 0

    def __post_init__(self) -> None:
        if self.deadline_s is not None and self.deadline_s <= 0:
            before = f"{-self.deadline_s / 86400:.3g} days before the start"
            raise PenstockError(f"--deadline: {before}; write a later one")
        if not 1 <= self.lives <= MOST_LIVES:
            raise PenstockError(f"--lives {self.lives}: write 1 to {MOST_LIVES:,}")


def question(start: str | None, deadline: str | None, lives: int, seed: int) -> Asked:
    """Read the options of a comparison; it starts today if nothing else is said."""
    begin = datetime.now(UTC) if start is None else _date(start, "--start")
    if deadline is not None and _DATE.fullmatch(deadline):
        by_s: float | None = (_date(deadline, "--deadline") - begin).total_seconds()
    else:
        by_s = option_s(deadline, "--deadline")
    return Asked(begin, by_s, lives, seed)


def _date(words: str, option: str) -> datetime:
    try:
        return datetime.strptime(words.strip(), "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise PenstockError(f"{option} '{words}': not a date; write it as 2026-12-01") from None
