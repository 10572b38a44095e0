"""What happens to a run that somebody may want to be woken for: told once each, by time.

The supervisor's journal says what broke and how the run ended; the curve says that it gets on.
Nothing here waits or sends: `webhook.py` and `wandb_log.py` do.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from penstock.ledger.journal.read import Event
from penstock.policy import restart
from penstock.style import format_duration

Kind = Literal["crash", "stall", "recovered", "finish", "stopped"]
# A run without a step for so many times its usual one stalls, if the supervisor sees it or not.
USUAL_STEPS = 20
OVER = ("ended", "left", "lease_lost", "handed_over")  # the supervisor's last words


@dataclass(frozen=True)
class News:
    """One thing that happened; `words` are a sentence without the run's name."""

    event: Kind
    t: float
    step: int
    words: str


@dataclass(frozen=True)
class Point:
    """A finished step, as the curve has it."""

    t: float
    step: int
    attempt: int


@dataclass
class Teller:
    """Turns what a run wrote into news. `patience_s` is the least time without a step to speak of.

    What was going on before `began` is no news.
    """

    began: float
    patience_s: float
    over: bool = False  # the supervisor has said its last word
    step: int = 0
    steps_told: int = 0  # finished since the beginning
    _last_t: float = 0.0
    _usual_s: float = 0.0
    _trouble: News | None = None
    _attempt: int = -1  # that the trouble was in
    _hung: set[int | None] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._last_t = self.began

    def finished(self, points: Sequence[Point]) -> list[News]:
        """New steps, by time; the first after a trouble is the end of it."""
        told: list[News] = []
        for point in points:
            if self.steps_told:
                gap = max(0.0, point.t - self._last_t)
                self._usual_s += 0.1 * (gap - self._usual_s) if self._usual_s else gap
            self.step, self._last_t = point.step, max(self._last_t, point.t)
            self.steps_told += 1
            before = self._trouble
            if before and (point.attempt > self._attempt or point.t > before.t):
                down = format_duration(max(0.0, point.t - before.t))
                words = f"goes on: step {point.step} is done, {down} after the {before.event}"
                told.append(News("recovered", point.t, point.step, words))
                self._trouble = None
        return told

    def heard(self, events: Iterable[Event]) -> list[News]:
        """New lines of the supervisor."""
        return [news for event in events if (news := self._of(event))]

    def looked(self, now: float) -> list[News]:
        """No step for long is a stall, once."""
        still_s = now - self._last_t
        if (
            self._trouble
            or self.over
            or still_s < max(self.patience_s, USUAL_STEPS * self._usual_s)
        ):
            return []
        what = f"no step for {format_duration(still_s)}; the last was {self.step}"
        return [self._in_trouble("stall", now, what, self._attempt)]

    def vanished(self, now: float) -> list[News]:
        """The supervisor is gone; without a last word it was killed."""
        if self.over:
            return []
        self.over = True
        words = "the supervisor was killed; `penstock train` goes on from the last checkpoint"
        return [News("crash", now, self.step, words)]

    def _of(self, event: Event) -> News | None:
        about = event.payload
        match event.kind:
            case "hang":
                self._hung.add(event.attempt)
                phase = f" ({about['phase']} of step {about['step']})" if "phase" in about else ""
                words = f"ranks hang{phase}: {about.get('why', '')}"
                return self._in_trouble("stall", event.t, words, event.attempt)
            case "fault" if event.attempt not in self._hung:  # a hang is told already
                after = "gives up" if about.get("action") == "give_up" else "restarts"
                words = f"rank {about.get('rank')}: {about.get('reason')}; {after}"
                return self._in_trouble("crash", event.t, words, event.attempt)
            case "lost":
                words = f"rank {about.get('rank')} lost: {about.get('reason')}; the others go on"
                return self._in_trouble("crash", event.t, words, event.attempt)
            case "ended":
                return self._ended(event)
            case kind if kind in OVER:
                self.over = True
        return None

    def _ended(self, event: Event) -> News:
        self.over = True
        error = str(event.payload.get("error") or "").partition("\n")[0]
        match event.payload.get("result"):
            case "done":
                return News("finish", event.t, self.step, "has finished")
            case restart.EARLY:
                return News("finish", event.t, self.step, "has stopped early")
            case "stopped":
                why = f" ({error})" if error else ""
                return News("stopped", event.t, self.step, f"was stopped{why}")
        return News("crash", event.t, self.step, f"has failed: {error}")

    def _in_trouble(self, kind: Kind, t: float, words: str, attempt: int | None) -> News:
        self._trouble = News(kind, t, self.step, words)
        self._attempt = self._attempt if attempt is None else attempt
        return self._trouble


def sentence(run: str, news: News, steps: int) -> str:
    """`code-1b has finished, at step 2,000 of 2,000`, for a chat or a phone."""
    joined = "" if news.event in ("finish", "stopped", "recovered") else ":"
    of = f" of {steps:,}" if steps else ""
    return f"{run}{joined} {news.words}, at step {news.step:,}{of}"
