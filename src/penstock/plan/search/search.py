"""The search for the best layouts of a job: best-first over every legal one, with safe bounds.

`SearchSpace` says what may be chosen: every factorisation of the accelerators into replicate ×
shard × tensor × pipeline × context, times experts, microbatch, pieces of a stage and recompute. The
space is a tree: a split of the model (tensor, pipeline, context, expert), then a family of it
(microbatch and pieces), then its layouts (replicas or shards, recompute). Each branch has a floor:
none of its layouts is faster. The search opens branches from the lowest floor up and ends when the
next floor is above the slowest of the best layouts so far. The floors:

- of a family: its time with the fewest shards whose state fits, without reduction, optimizer and
  recompute. Each of these only adds, and more shards never gather faster. Once it is known how much
  recompute the family needs to fit, that is added.
- of a split: that of its largest microbatch, without the bubble and sending between stages. One
  large microbatch reads the weights, issues the kernels and waits for messages the fewest times.

Jitter is a share of all else that the number of nodes gives, so floors have it too.

Recompute is never faster, so more of it is tried only where less does not fit. If any sharding of a
family fits, the narrowest or the widest does, so that two memory predictions can rule out a family.
Tests hold both rules, and compare the search with brute force.

A sharding also says when weights and gradients are sharded again: after every layer, or kept whole
inside a step (ZeRO-2 and ZeRO-1), which gathers less and needs more memory. A pipeline keeps both.

Schedules are 1F1B and interleaved. The trainer has no zero-bubble schedule; it is searched only
when a `SearchSpace` asks for it.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from penstock.errors import PenstockError
from penstock.plan.job import legal
from penstock.plan.job.constants import Constants, fitted
from penstock.plan.job.job import Job
from penstock.plan.job.layout import Layout, NothingFits
from penstock.plan.job.legal import divisors
from penstock.plan.job.outcome import OUTER_PARTS, PeakMemory, StepTime
from penstock.plan.memory import memory
from penstock.plan.memory import state as memory_state
from penstock.plan.search.sensitivity import LayoutOption
from penstock.plan.step import step
from penstock.run.schema.run import Run
from penstock.run.unsupported import UNSUPPORTED_FIELDS
from penstock.style import FAR_FROM_PLAN, format_slowdown

RECOMPUTE = ("none", "selective", "full")
# Parts of a step that a family's floor leaves out, because sharding or recompute decides them;
# jitter is a share of the others. So does the exchange of replicas after local steps.
ABOVE_FLOOR = ("reduce", "optimizer", "jitter", "data", "recompute", *OUTER_PARTS)


@dataclass(frozen=True)
class SearchSpace:
    """The choices of a search; a tuple of one is fixed, None is every legal value."""

    replicate: tuple[int, ...] | None = None
    shard: tuple[int, ...] | None = None
    tensor: tuple[int, ...] | None = None
    pipeline: tuple[int, ...] | None = None
    context: tuple[int, ...] | None = None
    expert: tuple[int, ...] | None = None
    microbatch: tuple[int, ...] | None = None
    recompute: tuple[str, ...] = RECOMPUTE
    interleave: tuple[int, ...] | None = None
    zero_bubble: tuple[bool, ...] = (False,)  # the trainer has no such schedule; may be asked for
    zero: tuple[int, ...] = (3,)  # 3 shards weights and gradients after every layer


def trainable_space(run: Run) -> SearchSpace:
    """Return the part of the space that this version trains for a run: all that would not be
    refused.
    """
    works = {gap.field: gap.works for gap in UNSUPPORTED_FIELDS}

    def of(name: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(v for v in values if works.get(f"layout.{name}", lambda _: True)(v))

    ways = {name: of(name, (1, 2)) for name in (*legal.MODEL_WAYS, "interleave")}
    fixed: dict[str, Any] = {name: can for name, can in ways.items() if can == (1,)}
    if legal.whole_matrices(run):
        fixed["tensor"] = (1,)
    if legal.data_parallel_only(run):
        fixed |= dict.fromkeys((*legal.MODEL_WAYS, "interleave"), (1,))
    return SearchSpace(**fixed, recompute=of("recompute", RECOMPUTE), zero=(3, 2, 1))


@dataclass(frozen=True)
class LayoutSearch:
    """The outcome of a search."""

    best: tuple[LayoutOption, ...]  # the fastest that fit, fastest first
    rejected: tuple[
        LayoutOption, ...
    ]  # those that would be faster and do not; their rate is a ceiling
    opened: int  # families whose memory was looked at
    looked_at: int  # layouts whose time was predicted


def splits(job: Job, ranks: int, space: SearchSpace) -> Iterator[Layout]:
    """Yield every legal way to split the model; the data-parallel ways are all in `replicate`."""
    shape, most = job.shape, legal.tensor_divisor(job.shape)
    narrow = job.adapter is not None and job.adapter.bits == 4  # rows that cannot be cut
    for tensor in _among(divisors(ranks), space.tensor):
        if most % tensor or (narrow and tensor > 1):
            continue
        for pipeline in _among(divisors(ranks // tensor), space.pipeline):
            if pipeline > shape.layers:
                break
            for context in _among(divisors(ranks // tensor // pipeline), space.context):
                if not legal.cuts_sequence(job.sequence, tensor, context):
                    continue
                data = ranks // tensor // pipeline // context
                if data > job.batch:  # more would only add up zeros
                    continue
                for expert in _experts(job, tensor * context * data, space):
                    yield Layout(
                        replicate=data,
                        tensor=tensor,
                        pipeline=pipeline,
                        context=context,
                        expert=expert,
                    )


def families(job: Job, split: Layout, space: SearchSpace) -> Iterator[Layout]:
    """Yield every microbatch and number of pieces of a split."""
    share = -(-job.batch // split.replicate)
    for microbatch in _among(divisors(share), space.microbatch):
        for pieces in _pieces(job.shape.layers, split.pipeline, share // microbatch, space):
            for filled in space.zero_bubble if split.pipeline > 1 else (False,):
                yield replace(split, microbatch=microbatch, interleave=pieces, zero_bubble=filled)


def _among(values: tuple[int, ...], allowed: tuple[int, ...] | None) -> tuple[int, ...]:
    return values if allowed is None else tuple(v for v in values if v in allowed)


def _experts(job: Job, ways: int, space: SearchSpace) -> tuple[int, ...]:
    if not job.shape.moe:
        return (1,)
    return _among(tuple(e for e in divisors(job.shape.experts) if ways % e == 0), space.expert)


def _pieces(layers: int, pipeline: int, microbatches: int, space: SearchSpace) -> tuple[int, ...]:
    """Return the possible pieces of a stage: interleaving needs whole rounds of the pipeline."""
    if pipeline == 1:
        return (1,)
    most = max(1, layers // pipeline) if microbatches % pipeline == 0 else 1
    return _among(tuple(range(1, most + 1)), space.interleave)


def fewest_shards(job: Job, split: Layout, space: SearchSpace) -> Layout | None:
    """Return the split with the fewest shards whose weights, gradients and optimizer alone would
    fit.

    They are in memory together at the end of every backward pass, so that fewer never fit.
    """
    room = job.machine.memory_bytes * memory.USABLE_SHARE
    for layout in shardings(split, space):
        state = memory_state.state_bytes(job.with_layout(layout), 0)
        if state.weights + state.gradients + state.optimizer <= room:
            return layout
    return None


def floor_s(job: Job, family: Layout, c: Constants) -> float:
    """Return a time that no layout of the family with as many shards or more, and as much
    recompute or more, is below.

    More shards never gather faster, and only a layout that gathers (ZeRO-3) has to.
    """
    job = job.with_layout(family)
    parts = step.predict(job, c).parts
    above = ABOVE_FLOOR if family.zero == 3 else (*ABOVE_FLOOR, "gather")
    least = sum(seconds for name, seconds in parts.items() if name not in above)
    return (least + parts.get("recompute", 0.0)) * (1 + step.jitter_share(job, c))


def split_floor_s(job: Job, split: Layout, c: Constants) -> float:
    """Return a time that no family of the split is below."""
    largest = job.with_layout(replace(split, microbatch=-(-job.batch // split.replicate)))
    if job.shape.moe and 0 < job.shape.dense_layers < job.shape.layers:
        # Some number of pieces may spread dense and sparse layers evenly.
        least = step.mean_stage_s(largest, c)
    else:
        above = (*ABOVE_FLOOR, "gather", "bubble", "pipeline")
        parts = step.predict(largest, c).parts
        least = sum(seconds for name, seconds in parts.items() if name not in above)
    return least * (1 + step.jitter_share(largest, c))


def shardings(layout: Layout, space: SearchSpace) -> Iterator[Layout]:
    """Yield the ways to make the data-parallel ranks replicas or shards, fewest shards first."""
    for shard in divisors(layout.replicate):
        replicate = layout.replicate // shard
        if layout.expert > 1 and (shard * layout.context * layout.tensor) % layout.expert:
            continue  # the experts of a replica are spread inside it
        if (space.shard is None or shard in space.shard) and (
            space.replicate is None or replicate in space.replicate
        ):
            # Nothing is gathered where nothing is sharded; a pipeline gathers once a step anyway.
            same = shard * layout.context == 1 or layout.pipeline > 1
            for zero in space.zero[:1] if same else space.zero:
                yield replace(layout, replicate=replicate, shard=shard, zero=zero)


def search(
    job: Job,
    ranks: int,
    space: SearchSpace | None = None,
    keep: int = 5,
    constants: Constants | None = None,
    progress: Callable[[int], None] | None = None,
) -> LayoutSearch:
    """Search the `keep` fastest layouts of `job` on `ranks` accelerators that fit."""
    space, c = space or SearchSpace(), constants or fitted()
    order = count()
    # Branches by floor: a split has no layouts yet, a family has.
    queue: list[tuple[float, int, Layout, bool]] = [
        (split_floor_s(job, split, c), next(order), split, True)
        for split in splits(job, ranks, space)
    ]
    heapq.heapify(queue)
    best, rejected = _Shortlist(keep), _Shortlist(keep)
    opened = looked = 0
    while queue:
        floor, _, branch, whole = heapq.heappop(queue)
        if best.excludes(floor):
            break
        if not whole:
            opened += 1
            if progress:
                progress(opened)
            looked += _try_family(job, branch, floor, space, c, best, rejected)
            continue
        first = fewest_shards(job, branch, space)
        if first is None:
            if lean := _leanest_of(job, branch, space):
                rejected.add(floor, _option(job, lean, floor))
            continue
        zero = min(space.zero)  # the one that gathers least
        for family in families(job, branch, space):
            begun = replace(family, replicate=first.replicate, shard=first.shard, zero=zero)
            heapq.heappush(queue, (floor_s(job, begun, c), next(order), begun, False))
    kept = best.options()
    return LayoutSearch(
        best=tuple(_reason(option, kept[0]) for option in kept),
        rejected=tuple(
            replace(option, reason=_short_of(option.memory)) for option in rejected.options()
        ),
        opened=opened,
        looked_at=looked,
    )


@dataclass
class _Shortlist:
    """The `most` fastest options; the earlier one of two that are equally fast."""

    most: int
    _heap: list[tuple[float, int, LayoutOption]] = field(default_factory=list)  # slowest first
    _added: int = 0

    @property
    def is_full(self) -> bool:
        return len(self._heap) == self.most

    def excludes(self, seconds: float) -> bool:
        """Return whether an option of this time or a longer one would not be kept."""
        return self.is_full and seconds >= -self._heap[0][0]

    def add(self, seconds: float, option: LayoutOption) -> None:
        """Keep the option if it is among the fastest."""
        self._added += 1
        item = (-seconds, -self._added, option)
        if len(self._heap) < self.most:
            heapq.heappush(self._heap, item)
        elif item > self._heap[0]:
            heapq.heapreplace(self._heap, item)

    def options(self) -> list[LayoutOption]:
        """Return the kept options, the fastest first."""
        return [option for _, _, option in sorted(self._heap, key=lambda item: -item[0])]


def _try_family(
    job: Job,
    branch: Layout,
    floor: float,
    space: SearchSpace,
    c: Constants,
    best: _Shortlist,
    rejected: _Shortlist,
) -> int:
    """Add the layouts of a family to those that fit and those that do not; return how many times
    were predicted. `floor` is the least time that any of them can take.
    """
    ways = replace(branch, replicate=branch.replicate * branch.shard, shard=1)
    layouts = [lay for lay in shardings(ways, space) if lay.shard >= branch.shard]
    if not layouts:
        return 0
    least = _least_recompute(job, layouts, space)
    if least is None:
        widest = replace(layouts[-1], recompute=space.recompute[-1])
        rejected.add(floor, _option(job, widest, floor))
        return 0
    if least > 0:
        needed = floor_s(job, replace(branch, recompute=space.recompute[least]), c)
        if best.excludes(needed):
            out = _option(job, replace(layouts[-1], recompute=space.recompute[0]), floor)
            rejected.add(floor, out)
            return 0
    predicted = 0
    told = rejected.excludes(floor)  # floors only rise
    for layout in layouts:
        bare: StepTime | None = None  # with the least recompute
        if told and best.is_full:
            # Nothing of it would be kept: what does not fit was told, and the rest is too slow.
            predicted += 1
            least_kept = replace(layout, recompute=space.recompute[0])
            bare = step.predict(job.with_layout(least_kept), c)
            if best.excludes(bare.step_s):
                continue
        for recompute in space.recompute:
            tried = replace(layout, recompute=recompute)
            held = memory.predict(job.with_layout(tried))
            if not held.fits:
                if recompute == space.recompute[0]:
                    rejected.add(floor, LayoutOption(tried, job.tokens / floor, held))
                continue
            time = bare if recompute == space.recompute[0] else None
            predicted += bare is None
            time = time or step.predict(job.with_layout(tried), c)
            best.add(time.step_s, LayoutOption(tried, time.tokens / time.step_s, held))
            break
    return predicted


def _least_recompute(job: Job, layouts: list[Layout], space: SearchSpace) -> int | None:
    """Return the place in `space.recompute` of the least with which any sharding fits: if one does,
    the first or the widest does. None: nothing fits.
    """
    lean = max(space.zero)  # keeps least whole
    for at, recompute in enumerate(space.recompute):
        for layout in (layouts[-1], layouts[0]):
            tried = replace(layout, recompute=recompute, zero=lean)
            if memory.predict(job.with_layout(tried)).fits:
                return at
    return None


def _leanest_of(job: Job, split: Layout, space: SearchSpace) -> Layout | None:
    """Return the widest sharding of a split with the smallest microbatch and the most recompute."""
    family = next(families(job, split, space), None)
    layouts = list(shardings(family, space)) if family else []
    return replace(layouts[-1], recompute=space.recompute[-1]) if layouts else None


def _option(job: Job, layout: Layout, seconds: float) -> LayoutOption:
    held = memory.predict(job.with_layout(layout))
    return LayoutOption(layout, job.tokens / seconds, held)


def _reason(option: LayoutOption, first: LayoutOption) -> LayoutOption:
    if option is first:
        return replace(option, reason="fastest that fits")
    ratio = first.tokens_per_s / option.tokens_per_s
    slower = f"{100 * (ratio - 1):.1f} % slower"  # finer than a percent: options lie close together
    return replace(option, reason=format_slowdown(ratio) if ratio >= FAR_FROM_PLAN else slower)


def _short_of(held: PeakMemory) -> str:
    return f"out of memory by {held.short_bytes / 2**30:,.1f} GiB"


def require_fit(
    found: LayoutSearch, job: Job, ranks: int, space: SearchSpace | None = None
) -> LayoutSearch:
    """Return what a search of `space` found; raise an error when nothing fits."""
    if found.best:
        return found
    size = job.shape.params() / 1e9
    if not found.rejected:
        raise PenstockError(
            f"layout: no way to spread {size:,.1f}B parameters and {job.batch} sequences a step "
            f"over {ranks} accelerators; change train.batch_tokens or the number of accelerators"
        )
    near = leanest(job, ranks, space or SearchSpace())
    assert near, "something was rejected, so something is legal"
    tried = [replace(near, reason=_short_of(near.memory)), *found.rejected]
    raise NothingFits(
        f"model: {size:,.1f}B parameters fit on {ranks} × {job.machine.accelerator} in no layout; "
        f"the nearest, {near.layout}, is {_short_of(near.memory)}. Choose a smaller model, a "
        "shorter sequence or more accelerators",
        [option.to_json() for option in tried],
    )


def leanest(job: Job, ranks: int, space: SearchSpace) -> LayoutOption | None:
    """Return the layout that needs the least memory of all; None where none is legal."""
    lean = (_leanest_of(job, split, space) for split in splits(job, ranks, space))
    options = [_option(job, layout, 1.0) for layout in lean if layout]
    return min(options, key=lambda option: option.memory.peak_bytes, default=None)
