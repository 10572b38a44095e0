"""What to change to go faster or cheaper, from where the time of a run went.

Each cause has its own remedy: a field of the run file and a value where there is one, and what it
would have saved of the time so far. A saving is what the ledger has of the cause, times the part
that the remedy takes away; the plan's own advice is quoted where computing is all there is.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from penstock.catalog import accelerators
from penstock.ledger.causes import Cause
from penstock.run.schema.quantity import Every
from penstock.run.schema.run import Run
from penstock.style import format_duration
from penstock.watch.facts.timeline import starts_s
from penstock.watch.facts.view import View

WORTH_SAYING = 0.01  # of the time, that a cause took
UNEXPLAINED = 0.02  # of the time: what a healthy run stays below
MOST = 5
FEW_STARTS = 4  # that are told one by one


@dataclass(frozen=True)
class Advice:
    """One thing to change."""

    cause: Cause
    words: str
    saves_s: float | None  # of the wall-clock so far; None where nobody can say
    field: str | None = None  # of the run file
    value: object = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"cause": str(self.cause)}


@dataclass(frozen=True)
class Found:
    """What a remedy looks at."""

    view: View
    run: Run
    cause: Cause
    seconds: float  # of wall-clock that the cause took

    def change(self, field: str, value: object, why: str, part: float | None) -> Advice:
        """`part` of the cause goes away."""
        words = f"{field} = {json.dumps(value)}: {why}"  # such values are the same in TOML
        return self.say(words, part, field, value)

    def say(
        self, words: str, part: float | None, field: str | None = None, value: object = None
    ) -> Advice:
        saves_s = None if part is None else part * self.seconds
        wall_s = self.view.account.wall_s
        if saves_s is not None and wall_s > 0:
            words += (
                f"; saves up to {format_duration(saves_s)} ({saves_s / wall_s:.0%} of the time)"
            )
        return Advice(self.cause, words, saves_s, field, value)


def advice(view: View, most: int = MOST) -> list[Advice]:
    """The most useful first; empty for a run that has not worked yet, or cannot be read."""
    account, run = view.account, view.known_run
    if run is None or not len(view.curve) or not account.ledger.total:
        return []
    found = []
    for cause, remedy in REMEDIES.items():
        share = account.ledger.share(cause) or 0.0
        least = UNEXPLAINED if cause is Cause.UNEXPLAINED else WORTH_SAYING
        if share >= least and (one := remedy(Found(view, run, cause, share * account.wall_s))):
            found.append(one)
    return sorted(found, key=lambda one: -(one.saves_s or 0.0))[:most]


def _data_wait(found: Found) -> Advice:
    remote = "://" in str(found.view.plan.get("dataset", ""))
    if remote and found.run.data.cache is None:
        why = "the dataset is read over the network; keep what was read on a local disk"
        return found.change("data.cache", "/local/disk", why, 1.0)
    if found.run.data.order == "shuffle":
        why = "reads neighbours together instead of single samples from everywhere"
        return found.change("data.order", "window", why, 1.0)
    where = "copy it to this machine" if remote else "put it on a faster disk, or in memory"
    return found.say(f"the dataset does not come fast enough: {where}", 1.0)


def _checkpoint(found: Found) -> Advice:
    now = found.run.guard.checkpoint
    if isinstance(now, Every):
        why = f"instead of every {now}: as often as saving costs and failures make worth it"
        return found.change("guard.checkpoint", "auto", why, 0.5)
    twice = 2 * (found.view.plan.get("predicted") or {}).get("checkpoint_interval_s", 0.0)
    if twice >= 60:
        why = "half as many saves; more is lost when something fails"
        return found.change("guard.checkpoint", f"{twice / 60:.0f} min", why, 0.5)
    return found.say("put `dir` on a faster disk: every save waits for it", 0.5)


def _evaluate(found: Found) -> Advice:
    every = found.run.evaluate.every
    steps = int(found.view.plan.get("steps") or 0)
    if isinstance(every, Every) and every.steps and (not steps or 2 * every.steps <= steps):
        value = f"{2 * every.steps} steps"
        return found.change("evaluate.every", value, "validates half as often", 0.5)
    tokens = found.run.evaluate.tokens // 2
    return found.change("evaluate.tokens", tokens, "validates on half as much", 0.5)


def _communicate(found: Found) -> Advice:
    layout = found.view.plan.get("layout") or {}
    sync = found.run.train.sync
    if layout.get("replicate", 1) > 1 and sync.compress == "none":
        why = "gradients travel between replicas in half the bytes"
        return found.change("train.sync.compress", "bf16", why, 0.5)
    if layout.get("tensor", 1) > 1:
        why = "fewer exchanges inside a layer, if the model fits"
        return found.change("layout.tensor", layout["tensor"] // 2, why, 0.5)
    tokens = 2 * int(found.view.plan.get("batch_tokens") or 0)
    why = "half as many exchanges for the same tokens; the learning rate may want to follow"
    return found.change("train.batch_tokens", tokens, why, 0.5)


def _bubble(found: Found) -> Advice:
    layout = found.view.plan.get("layout") or {}
    interleave, microbatch = layout.get("interleave", 1), layout.get("microbatch", 1)
    if microbatch > 1:
        why = "twice as many microbatches fill the pipeline"
        return found.change("layout.microbatch", microbatch // 2, why, 0.5)
    why = "each stage takes several smaller parts of the model"
    return found.change("layout.interleave", 2 * interleave, why, 0.5)


def _peer_wait(found: Found) -> Advice:
    """The slowest waits least."""
    ledgers = found.view.account.by_rank
    waits = [ledger.seconds[Cause.PEER_WAIT] for ledger in ledgers]
    slow = waits.index(min(waits))
    others = (sum(waits) - waits[slow]) / max(1, len(waits) - 1)
    if waits[slow] < 0.5 * others:
        return found.say(
            f"the others wait for rank {slow}: look at its machine (heat, other work, a slow link)",
            1.0,
        )
    return found.say(
        "ranks wait for each other in turn: the machines have other work, or uneven samples", None
    )


def _startup(found: Found) -> Advice | None:
    took = starts_s(found.view)
    if len(took) > 1:
        each = f"{format_duration(min(took))} to {format_duration(max(took))}"
        if len(took) <= FEW_STARTS:
            each = f"{', '.join(map(format_duration, took[:-1]))} and {format_duration(took[-1])}"
        return found.say(f"{len(took)} starts took {each}: fewer, longer invocations", None)
    if found.run.train.compile == "on":
        return found.change("train.compile", "off", "compiling does not pay in a short run", None)
    return found.say(
        f"a start takes {format_duration(took[0])}, which matters less in a longer run",
        None,
    )


def _lost(found: Found) -> Advice:
    guard, layout = found.run.guard, found.view.plan.get("layout") or {}
    if guard.mode == "restart" and layout.get("replicate", 1) > 1:
        why = "the other replicas go on while a lost one is healed"
        return found.change("guard.mode", "live", why, 0.9)
    if guard.fast == "never":
        why = "copies in memory, so that a restart goes back only seconds"
        return found.change("guard.fast", "auto", why, 0.5)
    if found.cause is Cause.REDO and isinstance(guard.checkpoint, Every):
        why = "saves as often as the failures that were seen make worth it"
        return found.change("guard.checkpoint", "auto", why, 0.5)
    return found.say("`penstock drill` shows which part of a recovery takes long here", None)


def _unexplained(found: Found) -> Advice:
    why = "looks into single steps; open the newest file under traces/ in Perfetto"
    return found.change("log.trace", "100 steps", why, None)


def _compute(found: Found) -> Advice | None:
    """What the computing itself could be spared; else what the plan would change."""
    train, view = found.run.train, found.view
    device = accelerators.for_device(str(view.plan.get("device_name", "")))
    if train.deterministic:
        why = "deterministic kernels are slower; only bit-exact restarts need them"
        return found.change("train.deterministic", False, why, None)
    if device and train.precision in ("fp32", "bf16"):
        better: Literal["bf16", "fp8"] = "bf16" if train.precision == "fp32" else "fp8"
        now, then = device.peak_flops(train.precision), device.peak_flops(better)
        if now and then and then > now:
            why = f"the accelerator computes up to {then / now:.1f} times as fast in it"
            return found.change("train.precision", better, why, (1 - now / then) / 2)
    recompute = (view.plan.get("layout") or {}).get("recompute", "none")
    if recompute == "full":
        why = "less of the forward work is done twice, if memory allows"
        return found.change("layout.recompute", "selective", why, 0.2)
    words = str((view.plan.get("predicted") or {}).get("next") or "")
    return found.say(f"the plan says: {words}", None) if words else None


REMEDIES: dict[Cause, Callable[[Found], Advice | None]] = {
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
