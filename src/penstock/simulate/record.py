"""The record of one life, for its journal: attempts, the work in each, faults and replicas."""

from dataclasses import dataclass, field

from penstock.plan.life.causes import FaultClass


@dataclass
class WorkSpan:
    """Work in which nothing changed; stalls are seconds of an average rank."""

    start: float
    end: float
    first: float  # progress
    last: float
    saving_s: float
    evaluating_s: float


@dataclass
class Segment:
    """Work from one whole step on, until a fault or the end of the attempt."""

    start: float
    step: int
    spans: list[WorkSpan] = field(default_factory=list)
    stopped: float | None = None  # when work stopped
    reached: int | None = None  # the last whole step


@dataclass
class AttemptRecord:
    """One attempt: its segments (live mode and rollbacks have several) and how it ended."""

    launched: float
    ready: float = 0.0
    ranks: int = 0
    by_hour: bool = False  # fewer ranks than the run has, because of the hour
    segments: list[Segment] = field(default_factory=list)
    fault: tuple[float, float, FaultClass] | None = None  # since, noticed, cause
    ended: float | None = None


@dataclass
class LostReplicas:
    """Replicas that live mode went on without."""

    t: float
    attempt: int
    replicas: list[int]
    reason: str


class Recorder:
    """The record of one life."""

    def __init__(self) -> None:
        self.attempts: list[AttemptRecord] = []
        self.lost_replicas: list[LostReplicas] = []
        self.joined_replicas: list[tuple[float, int, int]] = []  # t, attempt, replica
        self.stalls: list[tuple[float, float, int, str]] = []  # start, end, attempt, kind
        self.pauses: list[tuple[float, float]] = []
        self.finished = False
        self.end_t = 0.0
        self._launched = 0.0

    def ready(self, t: float, step: int, ranks: int, by_hour: bool = False) -> None:
        """Note that all ranks of a new attempt are ready."""
        attempt = AttemptRecord(self._launched, t, ranks, by_hour)
        attempt.segments.append(Segment(t, step))
        self.attempts.append(attempt)

    def worked(
        self, start: float, end: float, first: float, last: float, saving: float, evaluating: float
    ) -> None:
        span = WorkSpan(start, end, first, last, saving, evaluating)
        self.attempts[-1].segments[-1].spans.append(span)

    def fault(self, since: float, noticed: float, cause: FaultClass, reached: int) -> None:
        """Note a failure that ended the attempt."""
        self._stop(since, reached)
        self.attempts[-1].fault = (since, noticed, cause)
        self._launched = noticed

    def stopped(self, t: float, step: int) -> None:
        """Note that the attempt saved and stopped on purpose."""
        self._stop(t, step)
        self.attempts[-1].ended = t
        self._launched = t

    def paused(self, start: float, end: float) -> None:
        """Note that the run waited for a better hour, with no rank at work."""
        self.pauses.append((start, end))
        self._launched = end

    def rolled_back(self, since: float, until: float, reached: int, step: int) -> None:
        """Note that the run went back in the same processes."""
        self._stop(since, reached)
        self.stalls.append((since, until, len(self.attempts), "rollback"))
        self.attempts[-1].segments.append(Segment(until, step))

    def lost(self, since: float, cause: FaultClass, replicas: list[int], reached: int) -> None:
        """Note replicas that were lost while the others go on."""
        self._stop(since, reached)
        self.without(since, replicas, cause.reason)

    def without(self, t: float, replicas: list[int], reason: str) -> None:
        """Note replicas that the others go on without from now on."""
        self.lost_replicas.append(LostReplicas(t, len(self.attempts), replicas, reason))

    def joined(self, t: float, replica: int, reached: int) -> None:
        self._stop(t, reached)
        self.joined_replicas.append((t, len(self.attempts), replica))

    def regrouped(self, t: float, step: int) -> None:
        """Note that the replicas work on as a new group."""
        attempt = self.attempts[-1]
        since = attempt.segments[-1].stopped
        assert since is not None
        self.stalls.append((since, t, len(self.attempts), "regroup"))
        attempt.segments.append(Segment(t, step))

    def end(self, t: float, reached: int, finished: bool) -> None:
        """Note the end of the life."""
        if self.attempts and self.attempts[-1].fault is None and self.attempts[-1].ended is None:
            self._stop(t, reached)
        self.end_t, self.finished = t, finished

    def _stop(self, t: float, reached: int) -> None:
        segment = self.attempts[-1].segments[-1]
        segment.stopped, segment.reached = t, reached
