"""The times that the life of a run is made of: starting, saving and failing.

Each constant says where it came from. A cluster file or a probe that knows better wins.
"""

from dataclasses import dataclass

from penstock.plan.hardware.machine import Machine
from penstock.plan.job.job import Job
from penstock.policy import checkpoint as policy
from penstock.run.schema.run import Run

# Bytes that a checkpoint holds for a trained parameter: fp32 weight and AdamW's two moments.
CHECKPOINT_BYTES = 12.0
# Bytes per second of one node and shared storage where nobody said: BLOOM wrote 2.3 TB from 48
# nodes in 40 s (its chronicles), 1.2 GB/s a node. Reading is taken to be as fast.
NODE_BYTES_PER_S = 1.2e9
STORAGE_SOURCE = "estimated, as BLOOM's chronicles"
# What the storage of a very large cluster sustains in all: Tectonic behind Llama 3 (arXiv
# 2407.21783) gives 2 TB/s.
STORAGE_BYTES_PER_S = 2e12
# What one rank of ours copies, hashes and writes behind the training: 17.5 GB in 19 to 25 s on an
# H200 (docs/log.md).
RANK_SAVE_BYTES_PER_S = 0.8e9
# What a rank copies of its state before it may change: from an H200 to pinned memory while the next
# step runs (17.5 GB went unnoticed in one of 0.44 s, docs/log.md); on a CPU with everything waiting
# (a plain copy of memory; estimated).
COPY_BYTES_PER_S = {"cuda": 40e9, "cpu": 3e9}
# Launch, imports, rendezvous, warm-up on one node, measured: 8 to 10 s on a CPU machine, 20 s and
# more with CUDA (docs/log.md).
STARTUP_S = {"cpu": 9.0, "cuda": 20.0}
ACCELERATORS_OF_A_PUBLISHED_NODE = 8
# How start-up grows with nodes: from 20 s on one to the 10 minutes that a restart took on 100,000
# GPUs (FT-HSDP): 30 times over 12,500 nodes is nodes ** 0.36.
STARTUP_GROWTH = 0.36


@dataclass(frozen=True)
class RecoveryCosts:
    """The seconds of each event in the life of a run, and how often failures come."""

    mtbf_s: float  # of the whole run: one failure of any node stops it
    startup_s: float
    save_s: float  # until a save is safe; training goes on meanwhile
    copy_s: float  # until what is saved may change
    behind: bool  # the copy is made while the next step runs
    restart_s: float  # from the failure until steps go on
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
    startup = startup_s(machine, nodes)
    node_s, node_from = node_mtbf_s(machine)
    restart = run.guard.timeout + startup + load_s
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
            f"{startup:.3g} s on {nodes} nodes: measured on one node, growing with nodes to the "
            "power 0.36 (FT-HSDP: 10 min on 100,000 GPUs)",
        ),
        "restart_s": (
            f"{restart:.3g} s = {run.guard.timeout:g} s until it is noticed (guard.timeout) + "
            f"{startup:.3g} s of start-up + {load_s:.3g} s to load at {read:.3g} B/s a node "
            f"({read_from})",
        ),
        "mtbf_s": (
            f"{node_s / nodes:.4g} s = {node_s:.4g} s of one node ({node_from}) / {nodes} nodes",
        ),
    }
    return RecoveryCosts(
        node_s / nodes, startup, save_s, copy_s, kind == "cuda", restart, size, notes
    )


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


def startup_s(machine: Machine, nodes: int) -> float:
    return float(STARTUP_S.get(machine.kind, STARTUP_S["cuda"]) * nodes**STARTUP_GROWTH)


def node_mtbf_s(machine: Machine) -> tuple[float, str]:
    """Return the time between failures of one node, and its source."""
    if machine.node_mtbf_s:
        return machine.node_mtbf_s, machine.sources.get("node_mtbf_s", "given")
    where = "median of the published rates, `penstock catalog failures`"
    if machine.kind == "cpu":
        return policy.node_mtbf_s(), where
    # Published nodes have eight accelerators, which are most of what breaks: a rack of 72 fails
    # nine times as often, and half a node half as often.
    each = policy.node_mtbf_s() * ACCELERATORS_OF_A_PUBLISHED_NODE
    return each / machine.per_node, f"{where}, by accelerators"


def storage_rates(machine: Machine) -> tuple[float, float]:
    """Return the bytes per second that one node reads and writes."""
    return (
        machine.read_bytes_per_s or NODE_BYTES_PER_S,
        machine.write_bytes_per_s or NODE_BYTES_PER_S,
    )
