"""The catalogue: every fault that `penstock drill` can inject, in the order of its table."""

from dataclasses import replace

from penstock.drill.faults import DrillFault, Injection, StepChoice, WeightsRule
from penstock.drill.hosts import FIELDS
from penstock.drill.sites import LOOSE, STEADY
from penstock.errors import PenstockError, nearest

HELD_MS = 60_000.0  # a rank that is held waits for the drill, which acts and ends it
REJECTED, FAILED = "checkpoint_rejected", "save_failed"


def _kill(
    name: str,
    where: str,
    phase: str,
    at: StepChoice = "middle",
    soon_ms: float = 0.0,
    rank: int = -1,
) -> DrillFault:
    action = "kill_soon" if soon_ms else "kill"
    injection = Injection(action, phase, at, rank, soon_ms)
    return DrillFault(f"kill_{name}", f"SIGKILL of a rank {where}", ("fault",), (injection,))


def _held(
    name: str, what: str, reported_by: str, at: StepChoice = "middle", needs: str = ""
) -> DrillFault:
    """Return a fault where the drill acts while a failpoint holds a rank."""
    injection = Injection("hold", "forward", at, ms=HELD_MS)
    return DrillFault(
        name, what, (reported_by,), (injection,), outside_action=name, needs=tuple(needs.split())
    )


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
    DrillFault(
        "kill_all",
        "SIGKILL of two ranks in one step",
        ("fault",),
        (Injection("kill", "reduce", rank=0), Injection("kill", "reduce", rank=-1)),
    ),
    DrillFault(
        "kill_twice",
        "SIGKILL of a rank, and of another while it loads what was saved",
        ("fault",),
        (Injection("kill", "forward"), Injection("kill", "load", "any", rank=0, then=True)),
    ),
    _held("kill_supervisor", "SIGKILL of the supervisor; the same command again", "invocation"),
)
NOTICE = (
    _held("preempt", "notice of preemption (SIGTERM); the same command again", "asked_to_stop"),
    DrillFault(
        "preempt_evaluate",
        "the same notice in evaluation",
        ("asked_to_stop",),
        (Injection("hold", "evaluate", "evaluated", ms=HELD_MS),),
        outside_action="preempt",
    ),
    DrillFault(
        "preempt_warm_up",
        "the same notice in warm-up and compile",
        ("asked_to_stop",),
        (Injection("hold", "warm_up", "any", ms=HELD_MS),),
        outside_action="preempt",
    ),
)
HANG = (
    DrillFault(
        "hang_forward", "SIGSTOP of a rank in forward", ("hang",), (Injection("stop", "forward"),)
    ),
    DrillFault(
        "hang_vote", "SIGSTOP of a rank before the vote", ("hang",), (Injection("stop", "vote"),)
    ),
    DrillFault(
        "slow_rank",
        "a rank that gets a third of its time",
        ("straggler",),
        (
            Injection("hold", "forward", 2, ms=HELD_MS),
            Injection("hold", "fetch", "late", 0, HELD_MS),
        ),
        outside_action="slow_rank",
    ),
)
NUMBERS = (
    DrillFault(
        "nan_batch",
        "NaN in a batch",
        ("batch_skipped",),
        (Injection("nan", "fetch"),),
        outcome="skipped",
    ),
    DrillFault(
        "flip_weight",
        "a flipped bit in a weight of one replica",
        ("replicas_differ",),
        (Injection("flip", "updated"),),
        needs=("replicas",),
    ),
    DrillFault(
        "out_of_memory",
        "a rank runs out of memory",
        ("replanned",),
        (Injection("oom", "forward"),),
        outcome="near",
        fields=('guard.on_oom="replan"',),
    ),
)


def _loaded(
    name: str, what: str, reported_by: str, at: StepChoice = "middle", needs: str = ""
) -> DrillFault:
    """Return a fault that ranks meet when they load; in live mode the other replicas do not."""
    return _held(name, what, reported_by, at, needs=f"loading {needs}")


def _newest(name: str, what: str) -> DrillFault:
    """Return damage to the newest checkpoint; the run goes on from the one before it."""
    return _loaded(name, what, REJECTED, "late", "two_checkpoints")


CHECKPOINTS = (
    _newest("checkpoint_flip", "a flipped bit in the newest checkpoint"),
    _newest("checkpoint_cut", "the newest checkpoint cut short"),
    _newest("checkpoint_gone", "a file of the newest checkpoint deleted"),
    _loaded("memory_flip", "a flipped bit in the newest copy in memory", REJECTED),
    _loaded("memory_gone", "the copies in memory lost with their host", "fault", "late"),
    replace(
        _held("memory_wiped", "all that it holds in shared memory deleted", ""), reported_by=()
    ),
)


def _shard(name: str, what: str) -> DrillFault:
    """Return damage to data: the run must stop, and it goes on when the data is whole again."""
    return replace(_held(name, what, "ended", needs="dataset"), refuses=True)


DATA = (
    _shard("shard_flip", "flipped bits in a data shard, mended later"),
    _shard("shard_cut", "a data shard cut short, mended later"),
    _shard("shard_gone", "a data shard deleted, put back later"),
)


def _meanwhile(name: str, what: str, needs: str, *reported_by: str) -> DrillFault:
    """Return a fault where something that a save needs is gone while the save is due."""
    injections = (
        Injection("hold", "forward", ms=HELD_MS),
        Injection("hold", "forward", "after_save", ms=HELD_MS),
    )
    return DrillFault(name, what, reported_by, injections, outside_action=name, needs=(needs,))


MACHINE = (
    _meanwhile("disk_full", "the run's disk full for a while", "root", FAILED),
    _meanwhile(
        "disk_read_only", "the disk of the checkpoints read-only for a while", "root", FAILED
    ),
    _meanwhile("store_outage", "the object store out of reach for a while", "store"),
    _held("clock_jump", "the time of day jumps twice around a SIGKILL", "fault"),
)


def _hosts(name: str, what: str, *reported_by: str, outcome: WeightsRule = "near") -> DrillFault:
    """Return a fault on two hosts; a host that is lost and comes back changes the layout twice."""
    first = Injection("hold", "forward", ms=HELD_MS)
    second = Injection("hold", "forward", "late", rank=0, ms=HELD_MS, then=True)
    more = {
        "outside_action": name,
        "outcome": outcome,
        "needs": ("root", "hosts"),
        "fields": FIELDS,
    }
    return DrillFault(name, what, reported_by, (first, second), check_clock=False, **more)  # type: ignore[arg-type]


NETWORK = (
    _hosts("host_lost", "a host lost, and there again later", "host_lost"),
    _hosts("head_lost", "the host that leads lost, and there again later", "took_over"),
    _hosts("host_notice", "notice of preemption on one host", "host_leaves"),
    _hosts("network_cut", "the link of a host cut, and mended later", "host_lost"),
    _hosts("packet_loss", "every fiftieth packet between hosts lost", outcome="same"),
)


def _sites(
    name: str, what: str, fields: tuple[str, ...], *reported_by: str, at: int = 6
) -> DrillFault:
    """Return a fault between two sites; the second one is held while the drill acts."""
    return DrillFault(
        name,
        what,
        reported_by,
        (Injection("hold", "forward", at, ms=HELD_MS),),
        outside_action=name,
        outcome="same" if fields == STEADY else "near",
        needs=("sites",),
        fields=fields,
    )


BETWEEN_SITES = (
    _sites(
        "cut_site",
        "one of two sites cut off from their bucket for some rounds",
        LOOSE,
        "place_unreachable",
    ),
    _sites("slow_site", "one of two sites too slow for the rounds", LOOSE, "late_round"),
    _sites(
        "bucket_away", "the bucket of two sites out of reach of both", STEADY, "place_unreachable"
    ),
    DrillFault(
        "kill_between_put_and_commit",
        "SIGKILL of a site's rank after it has put its work, before a round has it",
        ("fault",),
        (Injection("kill", "site_published", 14),),
        needs=("sites",),
        fields=STEADY,
    ),
    _sites(
        "replayed_round",
        "copies of an old round and old work in the place of later ones",
        STEADY,
        "site_refused",
    ),
)
FAULTS: dict[str, DrillFault] = {
    fault.name: fault
    for group in (
        PROCESS,
        NOTICE,
        HANG,
        NUMBERS,
        CHECKPOINTS,
        DATA,
        MACHINE,
        NETWORK,
        BETWEEN_SITES,
    )
    for fault in group
}


def chosen(names: str | None) -> list[DrillFault]:
    """Return the faults with the names `a,b`; all of them when no name is given."""
    if names is None:
        return list(FAULTS.values())
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise PenstockError(
            f"--faults '{names}': names no fault; `penstock drill --list` shows them"
        )
    for name in wanted:
        if name not in FAULTS:
            hint = nearest(name, list(FAULTS)) or "`penstock drill --list` shows them"
            raise PenstockError(f"--faults: no fault '{name}'. {hint}")
    return [FAULTS[name] for name in dict.fromkeys(wanted)]
