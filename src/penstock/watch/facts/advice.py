"""Advice to make a run faster or cheaper, from the causes of its time.

Each cause has a remedy: a field of the run file and a value if there is one, and the time that it
would have saved so far. A saving is the time of the cause in the ledger, times the part that the
remedy removes. For compute, the plan's own advice is quoted.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from penstock.catalog import accelerators
from penstock.ledger.causes import Cause
from penstock.ledger.journal.events import ABSENT, AttemptFailed, EvaluateSpan, RankEnded
from penstock.ledger.journal.read import JournalLine, lines_of
from penstock.run.schema.quantity import Every
from penstock.run.schema.run import Run
from penstock.style import format_duration
from penstock.watch.facts.run_view import RunView
from penstock.watch.facts.timeline import starts_s

LEAST_SHARE = 0.01  # of the time, from which a cause gets advice
LEAST_UNEXPLAINED = 0.02  # of the time; a healthy run has less
LEAST_S = 0.05  # that advice saves; less is shown as 0.0 s
MOST = 5
FEW_STARTS = 4  # that are listed one by one


@dataclass(frozen=True)
class Advice:
    """One thing to change in a run."""

    cause: Cause
    words: str
    saves_s: float | None  # of the wall-clock time so far; None if it cannot be told
    field: str | None = None  # of the run file
    value: object = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"cause": str(self.cause)}


@dataclass(frozen=True)
class AdviceContext:
    """The input of a remedy: the run, and one cause of its time."""

    view: RunView
    run: Run
    cause: Cause
    seconds: float  # of wall-clock that the cause took

    def change(self, field: str, value: object, why: str, part: float | None) -> Advice:
        """Advise to set a field; `part` of the time of the cause goes away, None if unknown."""
        words = f"{field} = {json.dumps(value)}: {why}"  # such values are the same in TOML
        return self.say(words, part, field, value)

    def say(
        self, words: str, part: float | None, field: str | None = None, value: object = None
    ) -> Advice:
        """Advise in words, with the time that it saves."""
        saves_s = None if part is None else part * self.seconds
        wall_s = self.view.account.wall_s
        if saves_s is not None and wall_s > 0:
            words += (
                f"; saves up to {format_duration(saves_s)} ({saves_s / wall_s:.0%} of the time)"
            )
        return Advice(self.cause, words, saves_s, field, value)


def advice(view: RunView, most: int = MOST) -> list[Advice]:
    """Return advice, the largest saving first; none for a run without steps or a readable file."""
    account, run = view.account, view.run_or_none
    if run is None or not len(view.curve) or not account.ledger.total:
        return []
    all_advice = []
    for cause, remedy in REMEDIES.items():
        share = account.ledger.share(cause) or 0.0
        least = LEAST_UNEXPLAINED if cause is Cause.UNEXPLAINED else LEAST_SHARE
        if share < least:
            continue
        item = remedy(AdviceContext(view, run, cause, share * account.wall_s))
        if item and (item.saves_s is None or item.saves_s >= LEAST_S):
            all_advice.append(item)
    return sorted(all_advice, key=lambda item: -(item.saves_s or 0.0))[:most]


def _data_wait(context: AdviceContext) -> Advice:
    remote = "://" in str(context.view.launch.dataset)
    if remote and context.run.data.cache is None:
        why = "the dataset is read over the network; keep what was read on a local disk"
        return context.change("data.cache", "/local/disk", why, 1.0)
    if context.run.data.order == "shuffle":
        why = "reads neighbours together instead of single samples from everywhere"
        return context.change("data.order", "window", why, 1.0)
    where = "copy it to this machine" if remote else "put it on a faster disk, or in memory"
    return context.say(f"the dataset does not come fast enough: {where}", 1.0)


def _checkpoint(context: AdviceContext) -> Advice:
    now = context.run.guard.checkpoint
    if isinstance(now, Every):
        why = f"instead of every {now}: as often as saving costs and failures make worth it"
        return context.change("guard.checkpoint", "auto", why, 0.5)
    twice = 2 * context.view.launch.predicted.get("checkpoint_interval_s", 0.0)
    if twice >= 60:
        why = "half as many saves; more is lost when something fails"
        return context.change("guard.checkpoint", f"{twice / 60:.0f} min", why, 0.5)
    return context.say("put `dir` on a faster disk: every save waits for it", 0.5)


def _evaluate(context: AdviceContext) -> Advice | None:
    spans = [line for line in context.view.rank_events_of(EvaluateSpan) if line.end is not None]
    on_tasks = [
        line for line in spans if line.event.step is not ABSENT and line.event.val_loss is ABSENT
    ]
    if 2 * sum(map(_seconds, on_tasks)) > sum(map(_seconds, spans)):
        every = context.run.evaluate.tasks_every
        if isinstance(every, Every) and every.steps:
            value = f"{2 * every.steps} steps"
            return context.change("evaluate.tasks_every", value, "runs tasks half as often", 0.5)
        return context.say("set evaluate.tasks_limit: fewer documents of each task", 0.5)
    every = context.run.evaluate.every
    steps = int(context.view.launch.steps)
    if isinstance(every, Every) and every.steps and (not steps or 2 * every.steps <= steps):
        value = f"{2 * every.steps} steps"
        return context.change("evaluate.every", value, "validates half as often", 0.5)
    # A small dataset holds out less than the field allows: halving the field would change nothing.
    samples = max(
        (line.event.samples for line in spans if line.event.samples is not ABSENT), default=0
    )
    if samples < 2:
        return None
    tokens = samples // 2 * (context.run.batch_tokens // context.run.batch_samples)
    return context.change("evaluate.tokens", tokens, "validates on half as much", 0.5)


def _seconds(event: JournalLine) -> float:
    return (event.end or event.t) - event.t


def _communicate(context: AdviceContext) -> Advice:
    layout = context.view.launch.layout
    sync = context.run.train.sync
    if layout.get("replicate", 1) > 1 and sync.compress == "none":
        why = "gradients travel between replicas in half the bytes"
        return context.change("train.sync.compress", "bf16", why, 0.5)
    if layout.get("tensor", 1) > 1:
        why = "fewer exchanges inside a layer, if the model fits"
        return context.change("layout.tensor", layout["tensor"] // 2, why, 0.5)
    tokens = 2 * context.run.batch_tokens
    why = "half as many exchanges for the same tokens; the learning rate may want to follow"
    return context.change("train.batch_tokens", tokens, why, 0.5)


def _bubble(context: AdviceContext) -> Advice:
    layout = context.view.launch.layout
    interleave, microbatch = layout.get("interleave", 1), layout.get("microbatch", 1)
    if microbatch > 1:
        why = "twice as many microbatches fill the pipeline"
        return context.change("layout.microbatch", microbatch // 2, why, 0.5)
    why = "each stage takes several smaller parts of the model"
    return context.change("layout.interleave", 2 * interleave, why, 0.5)


def _peer_wait(context: AdviceContext) -> Advice:
    """Name the slowest rank if there is one: it waits least."""
    ledgers = context.view.account.by_rank
    waits = [ledger.seconds[Cause.PEER_WAIT] for ledger in ledgers]
    slow = waits.index(min(waits))
    others = (sum(waits) - waits[slow]) / max(1, len(waits) - 1)
    if waits[slow] < 0.5 * others:
        return context.say(
            f"the others wait for rank {slow}: look at its machine (heat, other work, a slow link)",
            1.0,
        )
    return context.say(
        "ranks wait for each other in turn: the machines have other work, or uneven samples", None
    )


def _startup(context: AdviceContext) -> Advice | None:
    took = starts_s(context.view)
    if len(took) > 1:
        each = f"{format_duration(min(took))} to {format_duration(max(took))}"
        if len(took) <= FEW_STARTS:
            each = f"{', '.join(map(format_duration, took[:-1]))} and {format_duration(took[-1])}"
        return context.say(f"{len(took)} starts took {each}: fewer, longer invocations", None)
    if context.run.train.compile == "on":
        return context.change("train.compile", "off", "compiling does not pay in a short run", None)
    return context.say(
        f"a start takes {format_duration(took[0])}, which matters less in a longer run",
        None,
    )


def _lost(context: AdviceContext) -> Advice:
    guard, layout = context.run.guard, context.view.launch.layout
    waited = context.view.paused_s or context.view.fewer_s
    if context.cause is Cause.DOWN and waited and not context.view.fault_count:
        why = "the run waited for hours of budget.hours_csv; `penstock plan` says what that saves"
        return context.say(why, None)
    if error := _raised(context.view):
        return context.say(
            f"the code raised an error, which no way of recovery prevents: {error}", None
        )
    if guard.mode == "restart" and layout.get("replicate", 1) > 1:
        why = "the other replicas go on while a lost one is healed"
        return context.change("guard.mode", "live", why, 0.9)
    if guard.fast == "never":
        why = "copies in memory, so that a restart goes back only seconds"
        return context.change("guard.fast", "auto", why, 0.5)
    if context.cause is Cause.REDO and isinstance(guard.checkpoint, Every):
        why = "saves as often as the failures that were seen make worth it"
        return context.change("guard.checkpoint", "auto", why, 0.5)
    return context.say("`penstock drill` shows which part of a recovery takes long here", None)


def _raised(view: RunView) -> str:
    """Return the error of the last fault if most faults were errors that code raised."""
    faults = lines_of(view.supervisor_events, AttemptFailed)
    ends = view.rank_events_of(RankEnded)
    raised = {
        (end.attempt, rank) for end in ends if end.event.result == "failed" for rank in end.ranks
    }
    by_code = [fault for fault in faults if (fault.event.attempt, fault.event.rank) in raised]
    if 2 * len(by_code) <= len(faults):
        return ""
    return by_code[-1].event.reason.splitlines()[0][:200]


def _unexplained(context: AdviceContext) -> Advice:
    why = "looks into single steps; open the newest file under traces/ in Perfetto"
    return context.change("log.trace", "100 steps", why, None)


def _compute(context: AdviceContext) -> Advice | None:
    """Advise faster computation, else what the plan would change."""
    train, view = context.run.train, context.view
    device = accelerators.for_device(str(view.launch.device_name))
    if train.deterministic:
        why = "deterministic kernels are slower; only bit-exact restarts need them"
        return context.change("train.deterministic", False, why, None)
    if device and train.precision in ("fp32", "bf16"):
        better: Literal["bf16", "fp8"] = "bf16" if train.precision == "fp32" else "fp8"
        now, then = device.peak_flops(train.precision), device.peak_flops(better)
        if now and then and then > now:
            why = f"the accelerator computes up to {then / now:.1f} times as fast in it"
            return context.change("train.precision", better, why, (1 - now / then) / 2)
    recompute = view.launch.layout.get("recompute", "none")
    if recompute == "full":
        why = "less of the forward work is done twice, if memory allows"
        return context.change("layout.recompute", "selective", why, 0.2)
    words = str(view.launch.predicted.get("next") or "")
    return context.say(f"the plan says: {words}", None) if words else None


REMEDIES: dict[Cause, Callable[[AdviceContext], Advice | None]] = {
    Cause.DATA_WAIT: _data_wait,
    Cause.CHECKPOINT: _checkpoint,
    Cause.COMMUNICATE: _communicate,
    Cause.BUBBLE: _bubble,
    Cause.PEER_WAIT: _peer_wait,
    Cause.DOWN: _lost,
    Cause.REDO: _lost,
    Cause.EVALUATE: _evaluate,
    Cause.UNEXPLAINED: _unexplained,
    Cause.STARTUP: _startup,
    Cause.COMPUTE: _compute,
}
