"""`Job`: everything that the time and the memory of one optimizer step depend on, and nothing else.

A run and a cluster make one; so does a row of published measurements. Time and memory models read
only this, so that what is checked against measurements is what plans a run.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from penstock.catalog.shapes import ModelShape
from penstock.plan.hardware.machine import Machine
from penstock.plan.job.layout import Layout

# The rate a precision's matmuls run at, as the catalog names rates.
RATE_OF = {"mxfp8": "fp8", "fp8-rowwise": "fp8", "fp16": "bf16", "fp64": "fp32"}


@dataclass(frozen=True)
class UnshardedBytes:
    """Bytes per parameter where a rank holds all of its weights, if the program stores them
    another way.
    """

    weights: float
    once: float  # of a gradient that one backward pass makes
    summed: float  # of one that several passes or replicas add to
    master: float  # in the optimizer, beside its moments


@dataclass(frozen=True)
class Software:
    """The properties of a training program that show in time or memory."""

    name: str = "eager torch"
    fused: bool = False  # compiled or hand-fused element-wise work, against eager torch
    overlap_tensor: bool = False  # tensor-parallel collectives run behind matmuls
    overlap_data: bool = True  # gradients travel while the backward pass goes on
    # Expert all-to-all runs behind other microbatches: what that leaves shows like tensor-parallel
    # collectives behind matmuls.
    overlap_experts: bool = False
    # Pipelines run two directions at once and hide all-to-all behind the other's work (DualPipe):
    # only what is longer than that work shows.
    dual_pipe: bool = False
    dispatch_bytes: float = (
        2.0  # of a value on its way to or from an expert; the mean of four trips
    )
    dedupes: bool = True  # a token with several experts in one far domain travels there once
    dropless: bool = True  # every routed token is computed: shapes change, the host must look
    graphs: bool = False  # CUDA graphs: no launch cost per kernel
    attention: str = "second"  # kernel: "first" FlashAttention, "second", or made for the "chip"
    torch_checkpoints: bool = True  # selective recompute is PyTorch's, not Megatron's
    flash: bool = True  # attention that never writes its scores to memory
    weight_bytes: float = 4.0  # stored, per parameter
    grad_bytes: float = 4.0
    reduce_bytes: float = 4.0  # per gradient element that travels
    replica_bytes: float = 0.0  # of one between replicas, sent there and back; 0: as other programs
    optimizer_bytes: float = 8.0  # per parameter, with a master copy where weights are narrow
    matrix_saving_bytes: float = 0.0  # less of it for the layers' matrices: Muon has one moment
    whole: UnshardedBytes | None = None  # these four where shard × context is 1; None: the same
    accumulates: bool = True  # gradients are kept over microbatches
    chunked_loss: bool = False  # all logits are never in memory at once
    offload: bool = False  # optimizer state lives on the host
    grad_buffers: bool = False  # gradients have room of their own before the first backward pass
    torch_layers: bool = True  # torch's norm and attention: no fp32 copies, no joined, copied heads
    dropout: bool = False  # dropout masks are kept for the backward pass
    # Bytes per logit at the peak of the loss; in eager torch log-probabilities, their gradient and
    # the gradient of the logits, all fp32.
    logit_bytes: float = 12.0
    bucket_params: float = 0.0  # gradients that collect in a buffer before they travel
    live_params: float = 0.0  # gathered weights that may stay in memory; 0: two layers
    ahead_layers: int = 0  # multi-token prediction: layers trained beside the model's own
    tables_apart: bool = False  # embedding and head are gathered one at a time, as layers are
    shards_late: bool = False  # every rank holds the whole model while it is loaded
    chunk_logits: float = 0.0  # logits in memory at once, where the loss is chunked by number
    sums_aside: bool = False  # what replicas agree on stands beside the gradients of each
    fsdp: bool = False  # between steps a rank has shards only, whatever stays whole inside one
    # A pipeline's stage gathers its sharded weights and reduces its gradients once a step.
    keeps_gathered: bool = False
    flat_bytes: float = 0.0  # flat copies of gradients made for an update, per parameter updated
    pass_states: float = 0.0  # hidden states that a pass under way keeps beside its layers
    context_bytes: float = 0.0  # CUDA's context; 0: the usual
    inplace_gates: bool = False  # gradients of a gated part are written over what they need
    gathers_context: bool = False  # context: all keys under a mask, not a ring of causal blocks
    lean: bool = False  # compiled so that what is cheap to compute again is not kept
    loss_bytes: float = 0.0  # moved per logit beside the products; 0: the usual
    update_bytes: float = 0.0  # moved per parameter by an update; 0: the usual
    measured: tuple[tuple[str, float], ...] = ()  # constants of time that replace the fitted ones


@dataclass(frozen=True)
class Adapter:
    """Low-rank training of a frozen model."""

    rank: int = 16
    bits: int = 16  # of the frozen weights; 4 is QLoRA
    targets: tuple[str, ...] | None = None  # matrices of a layer that have an adapter; None: all


@dataclass(frozen=True)
class ReplicaSync:
    """How the replicas of a run agree: in every step, or after local steps."""

    local_steps: int = 1
    codec: str = "none"
    parts: int = 1  # of the model; more than one are streamed
    sites: int = 0  # that meet in a bucket, each with machines of its own; 0: one world


@dataclass(frozen=True)
class Job:
    """One optimizer step of one model on one machine."""

    shape: ModelShape
    sequence: int  # tokens
    batch: int  # samples per optimizer step, over all ranks
    layout: Layout
    machine: Machine
    precision: str = "bf16"  # of the matmuls: fp32, tf32, fp16, bf16, fp8, fp8-rowwise, mxfp8, fp4
    software: Software = field(default_factory=Software)
    adapter: Adapter | None = None
    rows: int = 1  # sequences of a sample: 2 of a pair of answers
    reference: bool = False  # one more forward pass, by the model without its adapter
    reference_first: bool = False  # it reads all samples before the first step instead
    imbalance: float | None = None  # most loaded expert over the mean; None: usual for the routing
    sync: ReplicaSync = ReplicaSync()
    # The program in another layout, where that makes a difference to what it does.
    by_layout: Callable[[Layout], Software] | None = None

    @property
    def apart(self) -> bool:
        """Return whether replicas take steps of their own."""
        return self.sync.local_steps > 1 and self.agreeing > 1

    @property
    def agreeing(self) -> int:
        """Return the number of replicas that agree after local steps, or in every step: sites, or
        those of the layout. The replicas inside a site agree in every step.
        """
        return self.sync.sites or self.layout.replicate

    @property
    def agreeing_ranks(self) -> int:
        """Return the ranks of one of them."""
        return self.layout.ranks // (1 if self.sync.sites else self.layout.replicate)

    @property
    def replicas_together(self) -> int:
        """Return the number of replicas that exchange something in every step."""
        return 1 if self.apart and not self.sync.sites else self.layout.replicate

    @property
    def nodes_together(self) -> int:
        """Return the number of nodes whose ranks take a step together."""
        ranks = self.agreeing_ranks if self.apart else self.layout.ranks
        return max(1, -(-ranks // self.machine.per_node))

    @property
    def data_ways(self) -> int:
        """Return the number of ranks that read different sequences."""
        return self.layout.replicate * self.layout.shard

    @property
    def zero_in_step(self) -> int:
        """Return what is sharded while the microbatches of a step flow, as `Layout.zero` says it.

        torch's pipeline schedules gather weights and reduce gradients once a step.
        """
        zero = self.layout.zero
        return min(zero, 1) if self.software.keeps_gathered and self.layout.pipeline > 1 else zero

    @property
    def microbatches(self) -> int:
        """Return the forward passes of one rank in a step."""
        return -(-self.batch // (self.data_ways * self.layout.microbatch))

    @property
    def tokens(self) -> int:
        """Return the tokens of a step, over all ranks."""
        return self.batch * self.rows * self.sequence

    @property
    def rank_tokens(self) -> float:
        """Return the tokens of one microbatch that one rank's activations hold (context split,
        tensor not).
        """
        return self.layout.microbatch * self.rows * self.sequence / self.layout.context

    def with_layout(self, layout: Layout) -> "Job":
        software = self.by_layout(layout) if self.by_layout else self.software
        return replace(self, layout=layout, software=software)
