"""The smaller layouts to try after memory ran out, fastest first.

The measured peak is not known, only that it was above what the device has; so a layout counts as
smaller when the model predicts clearly less than it did for the one that failed. The ranks and the
global batch stay.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock.plan.job import legal
from penstock.plan.job.job import Job
from penstock.plan.job.layout import Layout
from penstock.plan.job.legal import divisors
from penstock.plan.memory import memory
from penstock.plan.search.search import RECOMPUTE, SearchSpace, search
from penstock.plan.step import step
from penstock.run import toml
from penstock.run.schema.run import Run
from penstock.style import format_slowdown

# A layout counts as smaller below this share of the failed prediction; above, the difference is
# within the model's error.
SMALLER = 0.9


@dataclass(frozen=True)
class SmallerLayout:
    """A layout that needs less memory; without numbers where there is no model of the job."""

    layout: Layout
    memory_bytes: float | None = None
    slower: float | None = None  # step time over that of the layout that failed, less 1

    def words(self, run: Run, failed: Layout) -> str:
        """Say what to write, and what it would give."""
        if self.memory_bytes is None or self.slower is None:
            return fields_to_write(run, failed, self.layout)
        pace = format_slowdown(1 + self.slower)
        needs = f"{self.memory_bytes / 2**30:,.1f} GiB predicted, {pace}"
        return f"{fields_to_write(run, failed, self.layout)} ({needs})"


def fields_to_write(run: Run, old: Layout, new: Layout) -> str:
    """Return the fields of [layout] to write; all of them where the file leaves the section out."""
    names = list(changed_fields(old, new))
    if run.layout is None:
        names = list(dict.fromkeys([*new.to_json(), *names]))
    names = ["reshard" if name == "zero" else name for name in names]
    return " and ".join(
        f"layout.{name} = {toml.format_value(getattr(new, name))}" for name in names
    )


def changed_fields(old: Layout, new: Layout) -> tuple[str, ...]:
    """Return the fields in which two layouts differ."""
    return tuple(name for name in vars(new) if getattr(new, name) != getattr(old, name))


def smaller_layouts(job: Job, space: SearchSpace) -> list[SmallerLayout]:
    """Return the layouts that would need clearly less memory than the job did, fastest first."""
    held, took_s = memory.predict(job), step.predict(job).step_s
    most = min(held.capacity_bytes, SMALLER * held.peak_bytes)
    found: dict[Layout, SmallerLayout] = {}
    for layout in (*_neighbours(job, space), *_others(job, space, most)):
        if layout in found or legal.shape_problems(job.shape, layout, job.sequence):
            continue
        tried = job.with_layout(layout)
        peak = memory.predict(tried).peak_bytes
        if peak <= most:
            more = step.predict(tried).step_s / took_s - 1
            found[layout] = SmallerLayout(layout, peak, more)
    return sorted(found.values(), key=lambda one: one.slower or 0.0)


def _neighbours(job: Job, space: SearchSpace) -> Iterator[Layout]:
    """Yield layouts with one thing changed: the microbatch, recompute, or replicas made shards."""
    lay = job.layout
    share = -(-job.batch // job.data_ways)
    for microbatch in divisors(share):
        if microbatch < lay.microbatch:
            yield replace(lay, microbatch=microbatch)
    for kind in RECOMPUTE[RECOMPUTE.index(lay.recompute) + 1 :]:
        if kind in space.recompute:
            yield replace(lay, recompute=kind)
    if lay.zero < max(space.zero):
        yield replace(lay, zero=max(space.zero))
    for more in divisors(lay.replicate)[1:]:
        yield replace(lay, replicate=lay.replicate // more, shard=lay.shard * more)


def _others(job: Job, space: SearchSpace, most_bytes: float) -> Iterator[Layout]:
    """Return the best of all layouts on a device of that much memory; CPU ranks only share
    theirs.
    """
    if job.machine.kind == "cpu":
        return
    room = replace(job.machine, memory_bytes=int(most_bytes / memory.USABLE_SHARE))
    found = search(replace(job, machine=room), job.layout.ranks, space, keep=1)
    yield from (option.layout for option in found.best)


def halved_microbatch(run: Run, lay: Layout) -> list[SmallerLayout]:
    """Halve the microbatch: for jobs without a memory model (an own module, an unknown device).

    Then, with one row left, more shards.
    """
    share = min(lay.microbatch, -(-run.batch_samples // (lay.replicate * lay.shard)))
    if share > 1:
        return [SmallerLayout(replace(lay, microbatch=share // 2))]
    if lay.replicate > 1:
        more = divisors(lay.replicate)[1]
        return [
            SmallerLayout(replace(lay, replicate=lay.replicate // more, shard=lay.shard * more))
        ]
    return []
