"""The layout of a run is decided here: for a plan, for a launch, and when hosts are lost.

The search takes the fastest layout that fits, among those that agree with what the run file says.
Only on a CPU, whose ranks share one memory, and on a device that nobody has measured, the fewest
shards that hold the state are taken (`complete_layout`).
"""

from dataclasses import dataclass, fields, replace
from typing import Any

from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError
from penstock.meter.devices import Devices
from penstock.plan.hardware import precision
from penstock.plan.hardware.cluster import machine_for
from penstock.plan.hardware.machine import Machine
from penstock.plan.job import legal, own
from penstock.plan.job.job import Job, ReplicaSync
from penstock.plan.job.layout import IllegalLayout, Layout, NothingFits
from penstock.plan.job.partition import frozen_model_bytes
from penstock.plan.search.lighter import lighter
from penstock.plan.search.search import SearchSpace, require_fit, search, trainable_space
from penstock.plan.search.sensitivity import LayoutOption
from penstock.policy import shrink
from penstock.run.schema.layout import LayoutSection
from penstock.run.schema.run import Run

# Bytes per parameter that stay on the device: fp32 master weights, gradients and the two AdamW
# moments (4 × 4), and a bf16 copy for the matmuls (2).
STATE_BYTES_PER_PARAM = 18
# State may fill this share of a device's memory; the rest is for activations and buffers.
STATE_SHARE = 0.6
# Tokens of one microbatch: enough rows to keep the matmuls busy, few enough to bound activations.
MICROBATCH_TOKENS = {"cpu": 2048, "cuda": 16384}


@dataclass(frozen=True)
class LayoutChoice:
    """A job with its layout, and the other layouts that the search looked at."""

    job: Job
    options: tuple[LayoutOption, ...] = ()
    rejected: tuple[LayoutOption, ...] = ()


def usable_ranks(run: Run, ranks: int) -> int:
    """Return how many of `ranks` a run of its own choice uses: no more than a step has samples.

    A rank without a sample would only add zeros to the sum of gradients.
    """
    return min(ranks, run.batch_samples)


def takes_all(run: Run) -> bool:
    """Tell whether the file leaves both the layout and the number of accelerators open."""
    return run.layout is None and run.cluster.accelerators == "all"


def choose_layout(
    run: Run, machine: Machine, vocab: int | None = None, layout: Layout | None = None
) -> LayoutChoice:
    """Choose the layout of a run on a machine: the given one, the file's, or the fastest that fits.

    On this machine the search looks only at what this version trains.
    """
    run, _ = precision.settled(run, machine)
    shape = run.model.shape(vocab)
    here = run.cluster.use == "here"
    if layout is not None or run.layout is not None or (here and machine.kind == "cpu"):
        asked = _cap_microbatch(layout or layout_of_file(run, machine, shape), run)
        legal.refuse(run, shape, asked, "cpu" if machine.kind == "cpu" else "")
        job = job_of(run, machine, shape, asked)
        if layout is not None or run.layout is None or machine.kind == "cpu":
            return LayoutChoice(job)
        return _completed(job, run, run.layout)
    ranks = machine.accelerators
    if here and takes_all(run):
        ranks = usable_ranks(run, ranks)
    job = job_of(run, machine, shape, Layout(replicate=ranks))
    space = trainable_space(run)
    try:
        found = require_fit(search(job, ranks, space), job, ranks, space)
    except NothingFits as error:
        hint = lighter_ways(run, job)
        raise NothingFits(f"{error}. {hint}".rstrip(". "), error.tried) from None
    return LayoutChoice(job.with_layout(found.best[0].layout), found.best, found.rejected)


def choose_for_launch(run: Run, vocab: int, devices: Devices, ranks: int) -> Layout:
    """Choose the layout of a launch on `ranks` ranks; refuse one that cannot be trained.

    `devices.memory_bytes` is of one accelerator, or of all hosts together where they have none.
    """
    shape = None if run.model.module else run.model.shape(vocab)
    layout = _searched_here(run, vocab) if shape is not None else None
    if layout is None:
        layout = complete_layout(run, shape, ranks, devices.kind, devices.memory_bytes)
    legal.refuse(run, shape, layout, devices.name or devices.kind)
    return layout


def choose_for_fewer_ranks(
    run: Run, vocab: int, devices: Devices, ranks: int
) -> tuple[Run, Layout]:
    """Choose a layout when hosts are lost or come back; return it with the run that asks for it.

    A layout that was asked for gives up replicas first; see `policy/shrink.py`.
    """
    try:
        return run, choose_for_launch(run, vocab, devices, ranks)
    except IllegalLayout:
        asked = (run.layout or LayoutSection()).model_dump()
        sizes = shrink.fit_to_ranks({name: asked[name] for name in shrink.WAYS}, ranks)
        if sizes is None:
            raise
        section = LayoutSection(**asked | sizes)
        run = run.model_copy(update={"layout": section})
        fewer = section.per_replica * sizes["replicate"]
        return run, choose_for_launch(run, vocab, devices, fewer)


def _searched_here(run: Run, vocab: int) -> Layout | None:
    """Return the planner's layout for the accelerators here; None without a model of them."""
    try:
        machine = machine_for(run).machine
    except PenstockError:  # a device that nobody has measured
        return None
    return None if machine.kind == "cpu" else choose_layout(run, machine, vocab).job.layout


def layout_of_file(run: Run, machine: Machine, shape: ModelShape) -> Layout:
    """Return the run file's layout, completed for a machine of the planner."""
    ranks = machine.accelerators
    if takes_all(run):
        ranks = usable_ranks(run, ranks)
    on_cpu = machine.kind == "cpu"  # its ranks share the memory of the machine
    memory_bytes = machine.memory_bytes * (ranks if on_cpu else 1)
    return complete_layout(run, shape, ranks, "cpu" if on_cpu else "cuda", memory_bytes)


def complete_layout(
    run: Run, shape: ModelShape | None, ranks: int, kind: str, memory_bytes: int
) -> Layout:
    """Complete the run file's layout: replicas when they fit, else the fewest shards that do.

    Replicas communicate once a step and shards in every layer, so replicas win whenever the state
    fits. `memory_bytes` is of one accelerator, or of the whole machine where it has none. `shape`
    is None for the user's own module.
    """
    asked = run.layout or LayoutSection()
    ways = asked.tensor * asked.pipeline * asked.context
    if ranks % ways:
        raise IllegalLayout(
            f"layout: tensor × pipeline × context = {ways} does not divide the run's "
            f"{_ranks(ranks)}; write a divisor of {ranks} or set cluster.accelerators = {ways}"
        )
    data = ranks // ways  # ranks that read samples of their own
    if asked.shard:
        shard = asked.shard
    elif asked.replicate:
        shard = max(1, data // asked.replicate)
    else:
        # The ranks of a CPU share its memory; an accelerator has its own. One of `ways` ranks holds
        # that much less of the model, which is as if it had more room.
        own_bytes = memory_bytes // ranks if kind == "cpu" else memory_bytes
        shard = _fewest_shards(run, shape, data, own_bytes * ways)
        inner = asked.tensor * asked.context
        enough = (
            n for n in range(shard, data + 1) if data % n == 0 and n * inner % asked.expert == 0
        )
        shard = next(enough, shard)  # experts are spread over the ranks of a replica
    replicate = asked.replicate or max(1, data // shard)
    if replicate * shard != data:
        product = f"replicate {replicate} × shard {shard}"
        if ways > 1:
            product += f" × tensor, pipeline and context {ways}"
        total = replicate * shard * ways
        raise IllegalLayout(
            f"layout: {product} = {total}, but the run has {_ranks(ranks)}; make the product "
            f"{ranks} or set cluster.accelerators = {total}"
        )
    # A pipeline wants a microbatch for each of its stages, at the least.
    share = max(1, run.batch_samples // data // asked.pipeline)
    most = max(1, MICROBATCH_TOKENS[kind] // run.sample_tokens)
    return Layout(
        replicate=replicate,
        shard=shard,
        microbatch=asked.microbatch or min(share, most),
        tensor=asked.tensor,
        pipeline=asked.pipeline,
        context=asked.context,
        expert=asked.expert,
        recompute=asked.recompute or "none",
        interleave=asked.interleave or 1,
        zero=legal.zero_of(asked),
    )


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count > 1 else ''}"


def _fewest_shards(run: Run, shape: ModelShape | None, data: int, room_bytes: int) -> int:
    """Return the fewest shards that hold the state over `data` ranks with `room_bytes` each."""
    if shape is None:  # the user's own module: its size is not known before it is built
        return 1
    adapter = own.adapter(run)
    if adapter:  # the weights only lie there; next to them the adapter's state is small
        state = frozen_model_bytes(shape, adapter.bits)
    else:
        state = float(shape.params() * STATE_BYTES_PER_PARAM)
    if state > room_bytes * data:
        raise NothingFits(
            f"model: {shape.params() / 1e9:.1f}B parameters need {state / 1e9:,.0f} GB for "
            f"weights, gradients and optimizer; all ranks together have "
            f"{room_bytes * data / 1e9:,.0f} GB. Choose a smaller model or more accelerators"
        )
    fits = (
        n for n in range(1, data + 1) if data % n == 0 and state / n <= room_bytes * STATE_SHARE
    )
    return next(fits, data)


def _cap_microbatch(layout: Layout, run: Run) -> Layout:
    """Reduce a microbatch of more sequences than a rank has in a step to all that it has."""
    share = -(-run.batch_samples // (layout.replicate * layout.shard))
    return replace(layout, microbatch=min(layout.microbatch, share))


def _completed(job: Job, run: Run, asked: LayoutSection) -> LayoutChoice:
    """Fill in what the file's layout leaves open, by the search; leave the layout as it is when
    nothing fits or nothing is open.
    """
    lay, can = job.layout, trainable_space(run)
    open_ways = asked.replicate is None and asked.shard is None
    fixed: dict[str, Any] = {name: (getattr(lay, name),) for name in legal.MODEL_WAYS}
    if not open_ways:
        fixed |= {"replicate": (lay.replicate,), "shard": (lay.shard,)}
    for name, given in (
        ("microbatch", asked.microbatch),
        ("recompute", asked.recompute),
        ("interleave", asked.interleave),
    ):
        if given is not None:
            fixed[name] = (getattr(lay, name),)
    if asked.reshard is not None:
        fixed["zero"] = (lay.zero,)
    if not open_ways and len(fixed) == len(fields(SearchSpace)) - 1:
        return LayoutChoice(job)
    found = search(job, lay.ranks, replace(can, **fixed))
    if not found.best:
        return LayoutChoice(job, (), found.rejected)
    return LayoutChoice(job.with_layout(found.best[0].layout), found.best, found.rejected)


def job_of(run: Run, machine: Machine, shape: ModelShape, layout: Layout) -> Job:
    """Return the job that the models of time and memory predict for a run."""
    program = own.program_by_layout(run, machine.kind, shape.moe)
    sync, sites = run.train.sync, run.sites.count if run.sites else 0
    return Job(
        shape=shape,
        sequence=run.sequence,
        batch=-(-run.batch_samples // max(1, sites)),
        rows=run.train.sample_sequences,
        layout=layout,
        machine=machine,
        precision=run.train.precision,
        software=program(layout),
        adapter=own.adapter(run),
        reference=run.train.has_reference and run.model.adapter is not None,
        reference_first=run.train.has_reference and run.model.adapter is None,
        sync=ReplicaSync(sync.inner_steps, sync.compress, sync.stream, sites),
        by_layout=program,
    )


def lighter_ways(run: Run, job: Job) -> str:
    """Say what lighter ways of training would take; "" on a CPU, whose memory is large."""
    if job.machine.kind == "cpu":
        return ""
    return lighter(
        run, lambda other: job_of(other, job.machine, job.shape, job.layout), job.layout.ranks
    )
