"""The derivation of a step's time, in lines with their numbers, for `--explain step_s`."""

from penstock.plan.hardware import network
from penstock.plan.job.constants import fitted
from penstock.plan.job.job import Job
from penstock.plan.job.partition import rank_params
from penstock.plan.step import operators, probed, step


def lines(job: Job, calibrated: float = 1.0, runs: int = 0) -> tuple[str, ...]:
    """Return one line per ingredient; the parts themselves are in the plan."""
    found = [_microbatches(job), *_pairs(job)]
    if probed.is_probed(job.machine) and job.layout.model_ways * job.layout.expert == 1:
        found.append("seconds of each operator are read from the probe's curves at its sizes")
    else:
        found += [*_compute(job), *_network(job)]
    if runs:
        found.append(f"all × {calibrated:.3f}, by {runs} measured run(s) on this accelerator")
    return tuple(found)


def _microbatches(job: Job) -> str:
    lay, samples = job.layout, "pairs" if job.rows > 1 else "sequences"
    return (
        f"{job.batch} {samples} a step over {job.data_ways} data-parallel ranks in microbatches of "
        f"{lay.microbatch} are {job.microbatches} forward and backward passes of "
        f"{job.rank_tokens:,.0f} tokens on a rank"
    )


def _pairs(job: Job) -> list[str]:
    if job.rows == 1:
        return []
    each = f"a pair is two sequences of {job.sequence} tokens"
    if job.reference:
        return [f"{each}; the reference is one more forward pass of them, with the adapter off"]
    if job.reference_first:
        return [f"{each}; the reference reads all pairs once before the first step, and not in it"]
    return [f"{each}; there is no reference"]


def _compute(job: Job) -> list[str]:
    c, machine = fitted(), job.machine
    r = operators.device_rates(job, c)
    slow = max(
        step.slowest_stages(job.shape, job.layout.pipeline, job.layout.interleave),
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


def parts(job: Job) -> dict[str, tuple[str, ...]]:
    """Explain each part of the step, by its name in the JSON."""
    c, lay = fitted(), job.layout
    m, layers = job.microbatches, job.shape.layers
    held = max(
        (rank_params(job.shape, lay, stage) for stage in range(lay.pipeline)),
        key=lambda one: one.common + one.routed,
    )
    nodes = max(1, -(-lay.ranks // job.machine.per_node))
    passes = f"{m} passes over {layers / lay.pipeline:g} layers"
    size = job.rank_tokens * job.shape.hidden * 2
    behind = f"hidden behind {c.hidden_share:.0%} of the work, which it slows by {c.contention:.0%}"
    shown = f"{c.tensor_exposed:.0%} of it shows" if job.software.overlap_tensor else "all shows"
    gradients = (
        (held.common + held.routed)
        * (job.software.replica_bytes or job.software.reduce_bytes)
        / 2**30
    )
    found = {
        "matmul": f"{passes}: work of each product at its rate plus its traffic, three times",
        "attention": f"{passes}: half of a square of {job.sequence} tokens, 3.5 times",
        "elementwise": f"{passes}: reads and writes of the activations of {job.rank_tokens:,.0f} "
        "tokens at the memory's bandwidth",
        "experts": f"{passes}: each expert's product, and tokens moved to its order and back",
        "loss": "the output matmul in 16 bits and the passes over its logits",
        "recompute": f"{passes}: {lay.recompute}",
        "reference": f"{passes}: forward only, by the model without its adapter",
        "optimizer": f"{operators.OPTIMIZER_BYTES:g} B of traffic for each parameter kept",
        "launch": f"{c.host_layer_s * 1e3:.2g} ms of the host for a layer, where that is longer",
        "tensor": f"{passes}: 8 collectives of {size / 2**20:,.0f} MiB over {lay.tensor} ranks "
        f"(12 with full recompute); {shown}",
        "context": f"{passes}: keys and values around {lay.context} ranks, {behind}",
        "all-to-all": f"{passes}: routed copies to {lay.expert} ranks and back, twice",
        "gather": f"{passes}: weights twice, gradients once over {lay.shard} shards, {behind}",
        "reduce": f"{gradients:.3g} GiB of gradients before sharding, between replicas, once",
        "outer": "codec and outer optimizer of a round over its steps (`sync.exchange`)",
        "exchange": "what is waited for at the end of a round, over its steps (`sync.exchange`)",
        "pipeline": f"{size / 2**20:,.0f} MiB to the next of {lay.pipeline} stages and back",
        "bubble": f"({lay.pipeline} stages - 1) / {lay.interleave} of a microbatch's time",
        "jitter": f"{c.jitter:.2%} of the rest for each doubling of {nodes} nodes",
        "data": "what reading takes longer than the step",
    }
    return {f"step.{name}": (text,) for name, text in found.items()}
