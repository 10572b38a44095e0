"""How the time of a step came about, in lines with their numbers, for `--explain step_s`."""

from penstock.plan import network, operators, probed, step
from penstock.plan.constants import fitted
from penstock.plan.job import Job


def lines(job: Job, calibrated: float = 1.0, runs: int = 0) -> tuple[str, ...]:
    """One line per ingredient; the parts themselves are in the plan."""
    found = [_microbatches(job)]
    if probed.is_probed(job.machine) and job.layout.model_ways * job.layout.expert == 1:
        found.append("seconds of each operator are read from the probe's curves at its sizes")
    else:
        found += [*_compute(job), *_network(job)]
    if runs:
        found.append(f"all × {calibrated:.3f}, by {runs} measured run(s) on this accelerator")
    return tuple(found)


def _microbatches(job: Job) -> str:
    lay = job.layout
    return (
        f"{job.batch} sequences a step over {job.data_ways} data-parallel ranks in microbatches of "
        f"{lay.microbatch} are {job.microbatches} forward and backward passes of "
        f"{job.rank_tokens:,.0f} tokens on a rank"
    )


def _compute(job: Job) -> list[str]:
    c, machine = fitted(), job.machine
    r = operators.rates(job, c)
    slow = max(
        step.stages(job.shape, job.layout.pipeline, job.layout.interleave),
        key=lambda s: s.layers + s.head,
    )
    return [
        f"matmul: {r.flops / 1e12:,.0f} TFLOP/s at {job.precision}, the lesser of the best "
        f"measured matmul and what {machine.tdp_w or 0:,.0f} W sustain "
        f"({machine.sources.get('', 'given')}), and traffic at {r.bytes_per_s / 1e12:.2f} TB/s",
        f"attention: half of the square, at {r.attention_flops / 1e12:,.0f} TFLOP/s",
        f"elementwise: {c.passes_fused if job.software.fused else c.passes_eager:.1f} passes over "
        "a layer's activations",
        f"the slowest stage has {slow.layers:g} layers" + (" and the head" if slow.head else ""),
    ]


def _network(job: Job) -> list[str]:
    lay, found = job.layout, []
    for name, ways, stride in (
        ("tensor", lay.tensor, 1),
        ("context", lay.context, lay.tensor),
        ("shard", lay.shard, lay.tensor * lay.context),
        ("replicate", lay.replicate, lay.tensor * lay.context * lay.shard),
        ("expert", lay.expert, lay.expert_tensor),
    ):
        if ways > 1:
            legs = ", ".join(
                f"{leg.ways} over {leg.tier.name} at {leg.tier.bytes_per_s / 1e9:,.0f} GB/s"
                for leg in network.group(job.machine, ways, stride).legs
            )
            found.append(f"{name}: {ways} ranks, {legs}")
    return found
