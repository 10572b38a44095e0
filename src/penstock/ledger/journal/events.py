"""Events of the journal: one class per kind, its fields in the order in which they are written.

This file documents the format of `.events` and `.meters` lines. A line is a JSON object: `t` (unix
seconds), `end` for a span, `kind`, then the fields below. The file's name gives attempt and rank;
the supervisor's lines carry their own `attempt`.

`needed` marks a field that readers rely on: a line without it, or with another type there, is
damaged and left out. Every other field may be missing in lines of older versions, and may have any
type in damaged ones: readers check with `values.py` what they compute with. A field whose default
is ABSENT is written only when it applies. `_s` in a name is seconds.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Final, Self, TypeVar, dataclass_transform


class _Absent:
    """The value of a field that a line does not have; `null` is another value."""

    def __repr__(self) -> str:
        return "ABSENT"

    def __str__(self) -> str:
        return "None"  # what is shown of a missing field, as of `null`

    def __bool__(self) -> bool:
        return False


ABSENT: Final[Any] = _Absent()


class JournalEvent:
    """A kind of line. Subclasses are frozen dataclasses in the registries below."""

    kind: str  # as it is written: the same for all events of a class
    field_names: ClassVar[frozenset[str]] = frozenset()

    def to_payload(self) -> dict[str, object]:
        """Return the fields as they are written, without those that are absent."""
        every = ((one.name, getattr(self, one.name)) for one in fields(self))  # type: ignore[arg-type]
        return {name: value for name, value in every if value is not ABSENT}

    @classmethod
    def from_payload(cls, payload: dict[str, object]) -> Self | None:
        """Return the event of a line; None if a needed field is damaged.

        Missing fields are ABSENT, and unknown ones of later versions are left out. The event keeps
        the dictionary as its own: a journal may have millions of lines, and `__init__` would take
        longer than the parser.
        """
        if cls.kind in NEEDED and not has_needed(cls.kind, payload):
            return None
        if not payload.keys() <= cls.field_names:
            payload = {name: payload[name] for name in payload.keys() & cls.field_names}
        event = object.__new__(cls)
        _set_dict(event, payload)
        return event


_set_dict = vars(JournalEvent)["__dict__"].__set__  # the fastest way into a frozen class


@dataclass(frozen=True)
class UnknownEvent(JournalEvent):
    """An event of a kind that this version does not have; its line has the fields."""

    kind: str


MOMENTS: dict[str, type[JournalEvent]] = {}  # by kind
SPANS: dict[str, type[JournalEvent]] = {}  # those with an `end`
NEEDED: dict[str, dict[str, tuple[type, ...]]] = {}  # kind -> field -> types that it may have


def needed(*types: type) -> Any:
    """Declare a field that readers rely on, with the types that JSON may give it."""
    return field(metadata={"needed": types})


def has_needed(kind: str, payload: Mapping[str, object]) -> bool:
    """Return whether a line has every field that readers of its kind rely on."""
    wanted = NEEDED.get(kind)
    return not wanted or all(type(payload.get(name)) in types for name, types in wanted.items())


def parse_event(kind: str, spans: bool, payload: dict[str, object]) -> JournalEvent | None:
    """Return the event of a line's kind and fields; None if a needed field is damaged.

    `spans` tells whether the line has an `end`: a kind may name a moment and a span.
    """
    known = SPANS.get(kind) or MOMENTS.get(kind) if spans else MOMENTS.get(kind) or SPANS.get(kind)
    return known.from_payload(payload) if known else UnknownEvent(kind)


_Class = TypeVar("_Class", bound=type[JournalEvent])


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field, needed))
def _registered(kind: str, registry: dict[str, type[JournalEvent]]) -> Callable[[_Class], _Class]:
    def register(cls: _Class) -> _Class:
        assert kind not in registry, f"two classes are called {kind}"
        cls.kind = kind
        made: _Class = dataclass(frozen=True, kw_only=True)(cls)  # type: ignore[assignment]
        registry[kind] = made
        every = fields(made)  # type: ignore[arg-type]
        made.field_names = frozenset(f.name for f in every)
        for f in every:
            if f.default is MISSING:  # what is read of a line without it; writers must give it
                setattr(made, f.name, ABSENT)
        types = {f.name: f.metadata["needed"] for f in every if "needed" in f.metadata}
        if types:
            NEEDED[kind] = types
        return made

    return register


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field, needed))
def moment(kind: str) -> Callable[[_Class], _Class]:
    """Register a class as the kind of a line without an `end`."""
    return _registered(kind, MOMENTS)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field, needed))
def span(kind: str) -> Callable[[_Class], _Class]:
    """Register a class as the kind of a line with an `end`: seconds that have a cause."""
    return _registered(kind, SPANS)


# --- The life of a run, by its supervisor (`supervisor.events`) ---


@moment("invocation")
class InvocationStarted(JournalEvent):
    """One `penstock train` process began."""

    ranks: int
    machine: str  # its accelerators, in words
    node: str = ABSENT  # the leading host, with several hosts


@moment("launch")
class AttemptLaunched(JournalEvent):
    """The ranks of an attempt were started."""

    attempt: int
    ranks: int


@moment("fault")
class AttemptFailed(JournalEvent):
    """An attempt ended with a fault."""

    since: float  # unix seconds: when work stopped
    attempt: int
    rank: int | None
    reason: str
    action: str  # what the restart policy decided


@moment("hang")
class HangFound(JournalEvent):
    """Ranks made no progress for too long."""

    attempt: int
    ranks: list[int]
    rank: int | None  # the first of them
    phase: str
    step: int
    since: float  # unix seconds: last sign of progress
    why: str


@moment("straggler")
class StragglerChanged(JournalEvent):
    """A rank became slower than its peers, or recovered."""

    attempt: int
    rank: int = needed(int)
    factor: float = needed(int, float)  # its step time over the median
    slow: bool = needed(bool)


@moment("asked_to_stop")
class StopSignal(JournalEvent):
    """The supervisor received a signal to stop."""

    signal: str


@moment("grace_over")
class GraceOver(JournalEvent):
    """The ranks did not stop within the grace period."""

    grace_s: float


@moment("budget_reached")
class BudgetReached(JournalEvent):
    """The run reached its budget of money or time and stops."""

    budget: str


@moment("paused")
class RunPaused(JournalEvent):
    """The run waits for a better hour: its ranks saved and ended, or were not started."""

    until: float  # unix seconds: when it will go on, as far as was known then
    why: str  # the hour in words


@moment("pause_over")
class PauseEnded(JournalEvent):
    """The run goes on after a pause, or stops."""


@moment("resized")
class RunResized(JournalEvent):
    """An attempt has as many ranks as its hour has power for: fewer than all, or all again. This
    was planned and is no fault.
    """

    attempt: int
    ranks: int = needed(int)
    of: int = needed(int)  # ranks, where there is power for all
    why: str  # the hour in words


@moment("display_failed")
class DisplayFailed(JournalEvent):
    """The terminal could not be written any more; the run goes on."""

    error: str


@moment("replanned")
class Replanned(JournalEvent):
    """The run got another layout, after it ran out of memory."""

    attempt: int
    old: dict[str, Any]
    layout: dict[str, Any]


@moment("record_mended")
class RecordMended(JournalEvent):
    """A damaged or misnamed record was repaired."""

    words: str


@moment("adopted")
class CheckpointAdopted(JournalEvent):
    """`penstock checkpoint adopt` brought a checkpoint of another run."""

    step: int
    name: str  # of the other run
    run: str  # its identity
    path: str
    manifest: str  # hash
    next_attempt: int


@moment("ended")
class InvocationEnded(JournalEvent):
    """An invocation ended by itself."""

    result: str  # "done", "stopped", "stopped early", "failed"
    error: str | None


# --- Live mode: replicas that go on without a lost one, by the supervisor ---


@moment("lost")
class ReplicaGone(JournalEvent):
    """An attempt lost a replica and goes on without it."""

    attempt: int
    replica: int
    ranks: list[int]  # first and last
    since: float  # unix seconds
    rank: int | None
    reason: str


@moment("generation")
class GenerationStarted(JournalEvent):
    """A new group of replicas was formed."""

    attempt: int
    number: int
    members: list[int]  # replicas


@moment("left_out")
class ReplicaLeftOut(JournalEvent):
    """A replica is not restarted any more."""

    attempt: int
    replica: int


# --- Several hosts, by the leading supervisor ---


@moment("host_came")
class HostCame(JournalEvent):
    """A host joined."""

    node: str
    address: str
    slots: int  # accelerators that it offers


@moment("host_refused")
class HostRefused(JournalEvent):
    """A host wanted to join and was refused."""

    node: str
    reason: str


@moment("host_leaves")
class HostLeaving(JournalEvent):
    """A host announced that it leaves."""

    node: str


@moment("host_left")
class HostLeft(JournalEvent):
    """A host left as it had announced."""

    node: str
    reason: str


@moment("host_lost")
class HostLost(JournalEvent):
    """A host stopped answering."""

    node: str
    reason: str


@moment("strike")
class HostStrike(JournalEvent):
    """A fault was counted against an accelerator or a whole host."""

    node: str
    accelerator: int | None
    reason: str


@moment("quarantined")
class Quarantined(JournalEvent):
    """An accelerator or a whole host is not used any more."""

    node: str
    accelerator: int | None


@moment("mustered")
class HostsAssigned(JournalEvent):
    """Ranks were assigned to hosts for an attempt."""

    attempt: int
    hosts: list[Any]


@moment("asked_by_host")
class HostRequest(JournalEvent):
    """A user of another host asked for something."""

    what: str  # the name of a file in `control/`


@moment("regroup")
class RegroupRequested(JournalEvent):
    """Hosts came or leave: the run saves, then starts again with other hosts."""

    reason: str


@moment("strangers")
class StrangersRefused(JournalEvent):
    """Connections without the run's secret were refused."""

    count: int
    address: str
    why: str


@moment("took_over")
class LeaseTaken(JournalEvent):
    """Another host leads the run from now on."""

    node: str


@moment("handed_over")
class LeaseHandedOver(JournalEvent):
    """The leading host leaves and hands the run over."""

    attempt: int
    node: str


@moment("lease_lost")
class LeaseExpired(JournalEvent):
    """The leading host lost its lease and stopped its ranks."""

    node: str


@moment("left")
class LeaderLeft(JournalEvent):
    """A host left the run for good."""

    node: str


# --- A rank's life ---


@moment("start")
class RankStarted(JournalEvent):
    """The process of a rank began."""

    pid: int


@moment("joined")
class RankJoined(JournalEvent):
    """The rank has met the others."""


@moment("ready")
class RankReady(JournalEvent):
    """The rank begins to train: start-up is over."""

    step: int  # the last step that is done


@moment("end")
class RankEnded(JournalEvent):
    """The rank ended by itself."""

    result: str  # "done", "stopped", "refused", "oom", "failed", …
    weights_hash: str | None = ABSENT
    exit_code: int = ABSENT
    error: str = ABSENT


@moment("went_back")
class RankWentBack(JournalEvent):
    """The rank goes on from an earlier step."""

    step: int
    why: str


@moment("regrouped")
class RankRegrouped(JournalEvent):
    """The rank goes on in a new group of replicas."""

    generation: int
    members: list[int]
    step: int
    donor: int | None  # replica whose state healed the others
    healed: list[int]
    seconds: float


@moment("round")
class RoundEnded(JournalEvent):
    """Replicas that take local steps have agreed; by the first rank of each replica."""

    step: int
    sent_bytes: int  # by this rank, since the last round


@moment("site_round")
class SiteRound(JournalEvent):
    """A site has merged a round of sites that meet in a bucket."""

    number: int
    by: str  # the site that wrote it
    sites: dict[str, int]  # whose work it is, with the round in which its lease was granted
    late: dict[str, int]  # the same sites: rounds by which they were late
    sent_bytes: int  # by this site, since the last round
    received_bytes: int


@moment("site_refused")
class SiteRefused(JournalEvent):
    """A publication in the name of a site was refused."""

    site: str  # or the name of the object, where it is no site's
    why: str


@moment("site_lease_lost")
class SiteLeaseLost(JournalEvent):
    """This site was late by too much: its samples were given out again."""

    lease: int
    number: int  # the last round by then


@moment("site_joined_anew")
class SiteJoinedAnew(JournalEvent):
    """This site was away for longer than the bucket keeps rounds: it went on from a snapshot."""

    merged: int  # the last round that it had merged
    number: int  # the round of the snapshot


@moment("bucket_not_cleaned")
class BucketNotCleaned(JournalEvent):
    """Objects that no site needs could not be deleted from the bucket; the run goes on."""

    problem: str


@moment("feed")
class FeedState(JournalEvent):
    """The state of the data feed, now and then."""

    ready: int  # batches that wait
    capacity: int
    tokens_per_s: int  # consumed
    could_tokens_per_s: int | None  # as fast as the data can be read


@moment("data_skipped")
class DataSkipped(JournalEvent):
    """A damaged block of a dataset was left out."""

    dataset: str = needed(str)
    shard: str = needed(int, str)
    block: int = needed(int)
    samples: list[int]  # first and last position


@moment("rewards")
class PairsRewarded(JournalEvent):
    """The rewards of the pairs of a step, where the objective is on pairs; means."""

    step: int = needed(int)
    chosen: float = needed(float, int)
    rejected: float = needed(float, int)
    accuracy: float = needed(float, int)  # share of pairs whose chosen answer has the higher one


@moment("reference")
class ReferenceReady(JournalEvent):
    """The log-probabilities of all pairs by the model that the run began with are there."""

    pairs: int
    origin: str  # "computed", "cache" (an earlier run's) or "run" (this run's own)
    seconds: float


@moment("trace")
class StepTraced(JournalEvent):
    """The inside of one step, by the profiler (`ledger/split.py`)."""

    cost_s: float  # of the trace itself
    step: int
    split: dict[str, Any]  # seconds by what they were spent on; `collectives` is a list
    count: int  # collectives
    peers: list[int]  # first and last rank that it has collectives with
    stage: list[int]  # first and last rank with the same work
    file: str = ABSENT  # of the whole trace


@moment("stopped_early")
class StoppedEarly(JournalEvent):
    """The validation loss did not improve any more: the run stops."""

    step: int
    why: str


@moment("sample_failed")
class SampleFailed(JournalEvent):
    """The model could not write a sample at the end; the run is done."""

    error: str


# --- Checkpoints, by ranks ---


@moment("fast_tier")
class FastTierReady(JournalEvent):
    """The slots for copies in memory were allocated, or could not be."""

    slots: int
    tier: str = ABSENT  # "memory" or "disk"
    bytes: int = ABSENT  # of one slot over all ranks
    direct: bool = ABSENT  # whether the GPU writes into the slot itself
    problem: str = ABSENT


@moment("saved")
class CheckpointSaved(JournalEvent):
    """A checkpoint was published."""

    step: int
    tier: str  # "disk" or "remote"
    path: str
    bytes: int
    seconds: float
    manifest: str  # hash


@moment("save_failed")
class SaveFailed(JournalEvent):
    """A save failed; training goes on."""

    step: int
    tier: str
    error: str


@moment("copy_failed")
class PeerCopyFailed(JournalEvent):
    """The copy for another host failed; this host's is good."""

    step: int
    error: str


@moment("checkpoint_dropped")
class CheckpointDropped(JournalEvent):
    """An old checkpoint was deleted to make room."""

    step: int
    why: str


@moment("resumed")
class CheckpointLoaded(JournalEvent):
    """The run goes on from a checkpoint."""

    step: int = needed(int)
    tier: str
    path: str
    seconds: float


@moment("checkpoint_rejected")
class CheckpointRejected(JournalEvent):
    """A newer checkpoint could not be used."""

    problem: str = needed(str)


@moment("place_unreachable")
class StoreUnreachable(JournalEvent):
    """A store of checkpoints did not answer."""

    problem: str


@moment("fetch_failed")
class PeerFetchFailed(JournalEvent):
    """Copies in the memory of other hosts could not be fetched."""

    error: str


@moment("taken_back")
class StepsTakenBack(JournalEvent):
    """Later checkpoints are about to be deleted, because their steps are trained again."""

    after_step: int
    left: list[int] | None  # steps that stay saved; None: a store could not be listed


@moment("forget_failed")
class DiscardFailed(JournalEvent):
    """A checkpoint of a step that was taken back could not be deleted."""

    error: str


@moment("stream_changed")
class StreamChanged(JournalEvent):
    """The checkpoint was made with other data, or another order of it."""

    saved: Any
    now: Any


@moment("moments_dropped")
class MomentsDropped(JournalEvent):
    """The optimizer's state was not loaded: the optimizer is another one."""

    saved: Any
    now: Any


@moment("local_state_dropped")
class LocalStateDropped(JournalEvent):
    """Replica-local state was not loaded: the layout is another one."""

    names: list[str]
    saved: Any
    now: Any


# --- Sentinels, by the rank that writes for all ---


@moment("batch_skipped")
class BatchSkipped(JournalEvent):
    """A step was left out because its numbers were bad."""

    step: int = needed(int)
    why: str = needed(str)
    loss: str  # as text: JSON has no NaN
    grad_norm: str


@moment("spike")
class SpikeFound(JournalEvent):
    """A step's numbers were bad, and the run goes back."""

    step: int = needed(int)
    why: str = needed(str)
    loss: str  # as text: JSON has no NaN
    grad_norm: str


@moment("replicas_differ")
class ReplicasDiffer(JournalEvent):
    """Replicas do not hold the same weights."""

    step: int = needed(int)
    replicas: list[int]
    certain: bool
    tensors: list[str] = needed(list)
    back_to: int | None  # step


@moment("replica_at_fault")
class ReplicaAtFault(JournalEvent):
    """A replay showed which replicas computed wrongly."""

    step: int = needed(int)
    replicas: list[int] = needed(list)
    certain: bool


@moment("replay_differs")
class ReplayDiffers(JournalEvent):
    """A step that was computed twice gave two results."""

    step: int = needed(int)
    pairs: list[list[int]]
    replicas: list[int] = needed(list)


# --- Energy of a node (`node-NAME.meters`) ---


@moment("meters")
class MetersOpened(JournalEvent):
    """The devices of a node that are metered from now on."""

    node: str
    devices: list[dict[str, Any]]  # number, uuid, name, kind
    accelerators: int = ABSENT  # that the run uses
    cpu: str | None = ABSENT
    cores: int = ABSENT  # that the run may use
    cores_of_machine: int = ABSENT
    notes: list[str] = ABSENT  # why a meter is missing


@moment("odd")
class MeterOdd(JournalEvent):
    """A meter could not be read, reads again, or could not be written."""

    device: int = ABSENT
    what: str


@moment("closed")
class MetersClosed(JournalEvent):
    """The writer ended; a gap after this is no energy."""


# --- Spans of a rank's time ---


@span("warmup")
class WarmUpSpan(JournalEvent):
    """Warm-up before or after `ready`."""

    parts: dict[str, float] = ABSENT  # seconds: kernels; then what was still waited for


@span("evaluate")
class EvaluateSpan(JournalEvent):
    """Validation, or the sample that the model writes at the end."""

    step: int = ABSENT
    val_loss: float = ABSENT
    samples: int = ABSENT
    chosen: float = ABSENT  # rewards of pairs: mean of the chosen answers,
    rejected: float = ABSENT  # of the rejected ones,
    accuracy: float = ABSENT  # and the share of pairs whose chosen answer has the higher one
    prompt: str = ABSENT
    sample: str = ABSENT


@moment("task_scores")
class TaskScoresEvent(JournalEvent):
    """Scores of benchmark tasks after a step; rank 0 writes them (`ledger/scores.py`)."""

    step: int = needed(int)
    scores: list[dict[str, Any]] = needed(list)
    limit: int | None = ABSENT
    truncated: int = ABSENT  # requests that were longer than the model's context


@moment("tasks_failed")
class TasksFailed(JournalEvent):
    """Benchmark tasks could not be run; the run goes on."""

    step: int
    error: str


@span("checkpoint")
class CheckpointSpan(JournalEvent):
    """The loop waited for a save."""

    step: int = ABSENT


@span("held")
class HeldSpan(JournalEvent):
    """A step waited for the copies of a save."""

    step: int


@span("lost")
class LostStepSpan(JournalEvent):
    """A step that nothing came of."""


@span("regroup")
class RegroupSpan(JournalEvent):
    """Replicas formed a new group."""

    why: str


@span("rollback")
class RollbackSpan(JournalEvent):
    """The run went back to an earlier checkpoint in the same process."""

    before: int | None  # only checkpoints of earlier steps were good
    to: int | None  # step
