"""The catalogue: every fault that `penstock drill` can do, in the order of its table."""

from dataclasses import replace

from penstock.drill.faults import Blow, Fault, Outcome, Where
from penstock.drill.hosts import FIELDS
from penstock.errors import PenstockError, nearest

HELD_MS = 60_000.0  # a rank that is held waits for the drill, which acts and ends it
REJECTED, FAILED = "checkpoint_rejected", "save_failed"


def _kill(
    name: str, where: str, phase: str, at: Where = "middle", soon_ms: float = 0.0, rank: int = -1
) -> Fault:
    action = "kill_soon" if soon_ms else "kill"
    blow = Blow(action, phase, at, rank, soon_ms)
    return Fault(f"kill_{name}", f"SIGKILL of a rank {where}", ("fault",), (blow,))


def _held(name: str, what: str, told: str, at: Where = "middle", needs: str = "") -> Fault:
    """The drill acts while a rank is held in its work."""
    blow = Blow("hold", "forward", at, ms=HELD_MS)
    return Fault(name, what, (told,), (blow,), deed=name, needs=tuple(needs.split()))


PROCESS = (
    _kill("rendezvous", "while the ranks meet", "join", "any"),
    _kill("build", "while it builds the model", "build", "any"),
    _kill("warm_up", "in warm-up", "warm_up", "any"),
    _kill("fetch", "while it waits for data", "fetch"),
    _kill("forward", "in forward and backward", "forward", soon_ms=3),
    _kill("collective", "inside a collective", "reduce", soon_ms=1),
    _kill("before_vote", "before the vote", "vote"),
    _kill("after_vote", "after the vote, before its update", "voted"),
    _kill("optimizer", "in the optimizer", "update", soon_ms=1),
    _kill("updated", "after its update, before it told", "updated"),
    _kill("staging", "while it copies its state", "stage", "staged"),
    _kill("write", "while the checkpoint is written", "write", "saved"),
    _kill("publish", "before the rename of the checkpoint", "publish", "saved", rank=0),
    _kill("evaluate", "in evaluation", "evaluate", "evaluated"),
    Fault(
        "kill_all",
        "SIGKILL of two ranks in one step",
        ("fault",),
        (Blow("kill", "reduce", rank=0), Blow("kill", "reduce", rank=-1)),
    ),
    Fault(
        "kill_twice",
        "SIGKILL of a rank, and of another while it loads what was saved",
        ("fault",),
        (Blow("kill", "forward"), Blow("kill", "load", "any", rank=0, then=True)),
    ),
    _held("kill_supervisor", "SIGKILL of the supervisor; the same command again", "invocation"),
)
NOTICE = (
    _held("preempt", "notice of preemption (SIGTERM); the same command again", "asked_to_stop"),
    Fault(
        "preempt_evaluate",
        "the same notice in evaluation",
        ("asked_to_stop",),
        (Blow("hold", "evaluate", "evaluated", ms=HELD_MS),),
        deed="preempt",
    ),
    Fault(
        "preempt_warm_up",
        "the same notice in warm-up and compile",
        ("asked_to_stop",),
        (Blow("hold", "warm_up", "any", ms=HELD_MS),),
        deed="preempt",
    ),
)
HANG = (
    Fault("hang_forward", "SIGSTOP of a rank in forward", ("hang",), (Blow("stop", "forward"),)),
    Fault("hang_vote", "SIGSTOP of a rank before the vote", ("hang",), (Blow("stop", "vote"),)),
    Fault(
        "slow_rank",
        "a rank that gets a third of its time",
        ("straggler",),
        (Blow("hold", "forward", 2, ms=HELD_MS), Blow("hold", "fetch", "late", 0, HELD_MS)),
        deed="slow_rank",
    ),
)
NUMBERS = (
    Fault(
        "nan_batch",
        "NaN in a batch",
        ("batch_skipped",),
        (Blow("nan", "fetch"),),
        outcome="skipped",
    ),
    Fault(
        "flip_weight",
        "a flipped bit in a weight of one replica",
        ("replicas_differ",),
        (Blow("flip", "updated"),),
        needs=("replicas",),
    ),
    Fault(
        "out_of_memory",
        "a rank runs out of memory",
        ("replanned",),
        (Blow("oom", "forward"),),
        outcome="near",
        fields=('guard.on_oom="replan"',),
    ),
)


def _loaded(name: str, what: str, told: str, at: Where = "middle", needs: str = "") -> Fault:
    """What is met when ranks load; in live mode the others do not."""
    return _held(name, what, told, at, needs=f"loading {needs}")


def _newest(name: str, what: str) -> Fault:
    """Damage to the newest checkpoint; the run goes on from the one before it."""
    return _loaded(name, what, REJECTED, "late", "two_checkpoints")


CHECKPOINTS = (
    _newest("checkpoint_flip", "a flipped bit in the newest checkpoint"),
    _newest("checkpoint_cut", "the newest checkpoint cut short"),
    _newest("checkpoint_gone", "a file of the newest checkpoint deleted"),
    _loaded("memory_flip", "a flipped bit in the newest copy in memory", REJECTED),
    _loaded("memory_gone", "the copies in memory lost with their host", "fault", "late"),
    replace(_held("memory_wiped", "all that it holds in shared memory deleted", ""), told=()),
)


def _shard(name: str, what: str) -> Fault:
    """The run stops, since nothing else is right, and goes on when the data is whole again."""
    return replace(_held(name, what, "ended", needs="dataset"), refuses=True)


DATA = (
    _shard("shard_flip", "flipped bits in a data shard, mended later"),
    _shard("shard_cut", "a data shard cut short, mended later"),
    _shard("shard_gone", "a data shard deleted, put back later"),
)


def _meanwhile(name: str, what: str, needs: str, *told: str) -> Fault:
    """Something that a save needs is gone from before it is due until after it."""
    blows = (Blow("hold", "forward", ms=HELD_MS), Blow("hold", "forward", "after_save", ms=HELD_MS))
    return Fault(name, what, told, blows, deed=name, needs=(needs,))


MACHINE = (
    _meanwhile("disk_full", "the run's disk full for a while", "root", FAILED),
    _meanwhile(
        "disk_read_only", "the disk of the checkpoints read-only for a while", "root", FAILED
    ),
    _meanwhile("store_outage", "the object store out of reach for a while", "store"),
    _held("clock_jump", "the time of day jumps twice around a SIGKILL", "fault"),
)


def _hosts(name: str, what: str, *told: str, outcome: Outcome = "near") -> Fault:
    """Two hosts of the drill's own; what is lost and comes back changes the layout twice."""
    first = Blow("hold", "forward", ms=HELD_MS)
    second = Blow("hold", "forward", "late", rank=0, ms=HELD_MS, then=True)
    more = {"deed": name, "outcome": outcome, "needs": ("root", "hosts"), "fields": FIELDS}
    return Fault(name, what, told, (first, second), clocked=False, **more)  # type: ignore[arg-type]


NETWORK = (
    _hosts("host_lost", "a host lost, and there again later", "host_lost"),
    _hosts("head_lost", "the host that leads lost, and there again later", "took_over"),
    _hosts("host_notice", "notice of preemption on one host", "host_leaves"),
    _hosts("network_cut", "the link of a host cut, and mended later", "host_lost"),
    _hosts("packet_loss", "every fiftieth packet between hosts lost", outcome="same"),
)
FAULTS: dict[str, Fault] = {
    fault.name: fault
    for group in (PROCESS, NOTICE, HANG, NUMBERS, CHECKPOINTS, DATA, MACHINE, NETWORK)
    for fault in group
}


def chosen(names: str | None) -> list[Fault]:
    """`a,b` as faults; all of them when no name is given."""
    if names is None:
        return list(FAULTS.values())
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in FAULTS:
            hint = nearest(name, list(FAULTS)) or "`penstock drill --list` shows them"
            raise PenstockError(f"--faults: no fault '{name}'. {hint}")
    return [FAULTS[name] for name in dict.fromkeys(wanted)]
