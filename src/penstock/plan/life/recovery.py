"""The times that the life of a run is made of: starting, saving and failing.

Each constant says where it came from. A cluster file or a probe that knows better wins.
"""

from dataclasses import dataclass

from penstock.plan.hardware.machine import Machine
from penstock.plan.job.job import Job
from penstock.plan.life import times
from penstock.plan.life.rates import node_mtbf_s
from penstock.run.schema.run import Run

# Bytes that a checkpoint holds for a trained parameter: fp32 weight and AdamW's two moments.
CHECKPOINT_BYTES = 12.0
# Bytes of a parameter in the files of an open model: bf16.
OPEN_BYTES = 2.0
# Bytes per second of one node and shared storage where nobody said: BLOOM wrote 2.3 TB from 48
# nodes in 40 s (its chronicles), 1.2 GB/s a node. Reading is taken to be as fast.
NODE_BYTES_PER_S = 1.2e9
STORAGE_SOURCE = "estimated, as BLOOM's chronicles"
# Total rate of the storage of a very large cluster: Tectonic behind Llama 3 (arXiv
# 2407.21783) gives 2 TB/s.
STORAGE_BYTES_PER_S = 2e12
# Rate at which a rank copies, hashes and writes behind the training: 17.5 GB in 19 to 25 s on an
# H200 (docs/log.md).
RANK_SAVE_BYTES_PER_S = 0.8e9
# Rate at which a rank copies its state before it may change: from an H200 to pinned memory, in the
# next step (17.5 GB cost nothing in one of 0.44 s, docs/log.md); on a CPU with everything waiting
# (a plain copy of memory; estimated).
COPY_BYTES_PER_S = {"cuda": 40e9, "cpu": 3e9}


@dataclass(frozen=True)
class RecoveryCosts:
    """The seconds of each event in the life of a run, and how often failures come."""

    mtbf_s: float  # of all nodes: the guard saves by it
    startup_s: float  # the first one
    again_s: float  # until ranks are ready again after a failure
    load_s: float  # a durable checkpoint, by all nodes at once
    save_s: float  # until a save is safe; training goes on meanwhile
    copy_s: float  # until what is saved may change
    behind: bool  # the copy is made while the next step runs
    restart_s: float  # from a failure until steps go on, when a host is gone
    checkpoint_bytes: float
    notes: dict[str, tuple[str, ...]]

    def stall_s(self, step_s: float) -> float:
        """Return how long a save holds the training up."""
        return max(0.0, self.copy_s - step_s) if self.behind else self.copy_s


def recovery_costs(run: Run, job: Job) -> RecoveryCosts:
    machine = job.machine
    nodes = nodes_of(job)
    size = checkpoint_bytes(job)
    read, write = storage_rates(machine)
    write_from = "given" if machine.write_bytes_per_s else STORAGE_SOURCE
    read_from = "given" if machine.read_bytes_per_s else STORAGE_SOURCE
    save_rate = min(nodes * write, job.layout.ranks * RANK_SAVE_BYTES_PER_S, STORAGE_BYTES_PER_S)
    save_s = size / save_rate
    kind = "cpu" if machine.kind == "cpu" else "cuda"
    copy_s = size / job.layout.ranks / COPY_BYTES_PER_S[kind]
    load_s = size / min(nodes * read, STORAGE_BYTES_PER_S)
    weights_s = _weights_s(run, job, min(nodes * read, STORAGE_BYTES_PER_S))
    startup = times.startup_s(run, machine, nodes) + weights_s
    again = times.restart_s(run, machine, nodes)
    node_s, node_from = node_mtbf_s(machine)
    restart = run.guard.timeout + again + load_s
    notes: dict[str, tuple[str, ...]] = {
        "checkpoint_bytes": (
            f"{size:.4g} B = {CHECKPOINT_BYTES:g} B (weight, two moments) × trained parameters",
        ),
        "save_s": (
            f"{save_s:.3g} s = {size:.3g} B / {save_rate:.3g} B/s, the least of "
            f"{nodes} nodes × {write:.3g} B/s ({write_from}), {job.layout.ranks} ranks × "
            f"{RANK_SAVE_BYTES_PER_S:.3g} B/s (measured on an H200) and {STORAGE_BYTES_PER_S:.3g} "
            "B/s (Llama 3's storage); written while training goes on, but for the last one",
        ),
        "copy_s": (
            f"{copy_s:.3g} s = {size:.3g} B / {job.layout.ranks} ranks / "
            f"{COPY_BYTES_PER_S[kind]:.3g} B/s"
            + (", while the next step runs" if kind == "cuda" else "; the step waits for it"),
        ),
        "startup_s": (
            f"{startup:.3g} s on {nodes} nodes, of them {weights_s:.3g} s to read weights: "
            + _start_words(run, machine),
            f"joining grows with nodes to the power {times.GROWTH:g} (FT-HSDP: 10 min on 100,000 "
            "GPUs)",
        ),
        "restart_s": (
            f"{restart:.3g} s = {run.guard.timeout:g} s until it is noticed (guard.timeout) + "
            f"{again:.3g} s until ranks are ready again + {load_s:.3g} s to load at {read:.3g} "
            f"B/s a node ({read_from}). A process that ends is noticed after {times.NOTICED_S:g} "
            "s, and a copy in memory needs no load",
        ),
        "mtbf_s": (
            f"{node_s / nodes:.4g} s = {node_s:.4g} s of one node ({node_from}) / {nodes} nodes",
        ),
    }
    return RecoveryCosts(
        mtbf_s=node_s / nodes,
        startup_s=startup,
        again_s=again,
        load_s=load_s,
        save_s=save_s,
        copy_s=copy_s,
        behind=kind == "cuda",
        restart_s=restart,
        checkpoint_bytes=size,
        notes=notes,
    )


def _weights_s(run: Run, job: Job, bytes_per_s: float) -> float:
    """Return how long an open model is read at the start; new weights are drawn by each rank."""
    return job.shape.params() * OPEN_BYTES / bytes_per_s if run.model.from_ else 0.0


def _start_words(run: Run, machine: Machine) -> str:
    if not times.compiles(run, machine):
        how = "layers are not compiled"
    elif times.compiled_before(run):
        how = "layers were compiled before on this machine"
    else:
        how = "layers are compiled first"
    by = machine.start_factor
    earlier = f"; × {by:.2f} by earlier runs here" if by != 1 else ""
    return f"{times.start_times(machine).source}; {how}{earlier}"


def nodes_of(job: Job) -> int:
    """Return the number of nodes that the ranks of the job run on."""
    return -(-job.layout.ranks // job.machine.per_node)


def checkpoint_bytes(job: Job) -> float:
    """Return the bytes of one whole checkpoint; an adapter saves only what it trains."""
    if job.adapter is None:
        return job.shape.params() * CHECKPOINT_BYTES
    # A and B of every attention and feed-forward matrix: about rank × (in + out) each.
    shape, rank = job.shape, job.adapter.rank
    width = 8 * shape.hidden + 3 * (shape.hidden + (shape.ffn or shape.expert_ffn))
    return shape.layers * rank * width * CHECKPOINT_BYTES


def storage_rates(machine: Machine) -> tuple[float, float]:
    """Return the bytes per second that one node reads and writes."""
    return (
        machine.read_bytes_per_s or NODE_BYTES_PER_S,
        machine.write_bytes_per_s or NODE_BYTES_PER_S,
    )
