"""`[probe]` of a cluster file: measurements of `penstock probe`, with date and software.

Readings are lower quartiles of repetitions, means over ranks that all ran at the same time. Times
are of one rank, forward and backward together unless a line says otherwise.
"""

from pydantic import Field

from penstock.run.schema.machine_fields import Heads, Products, Rate, Size, Sized, Watts
from penstock.run.schema.section import Positive, PositiveCount, Section, Text


class MatmulReadings(Section):
    """Matrix products by precision: rows × inner by inner × columns, seconds of one."""

    fp32: Products = Field((), description="In fp32.")
    bf16: Products = Field((), description="In bf16.")
    fp8: Products = Field((), description="In fp8, scaled by tensor.")


class AttentionReadings(Section):
    """Causal attention, forward and backward, seconds of all heads together."""

    fp32: Heads = Field((), description="In fp32.")
    bf16: Heads = Field((), description="In bf16.")


class NormReadings(Section):
    """RMSNorm by elements."""

    fp32: Sized = Field((), description="In fp32.")
    bf16: Sized = Field((), description="In bf16.")


class RotaryReadings(Section):
    """Rotary positions by elements."""

    fp32: Sized = Field((), description="In fp32.")
    bf16: Sized = Field((), description="In bf16.")


class GateReadings(Section):
    """SiLU of one tensor times another, by elements."""

    fp32: Sized = Field((), description="In fp32.")
    bf16: Sized = Field((), description="In bf16.")


class AddReadings(Section):
    """One addition of two tensors, forward only, by elements."""

    fp32: Sized = Field((), description="In fp32.")
    bf16: Sized = Field((), description="In bf16.")


class LossReadings(Section):
    """Cross-entropy by logits: tokens × vocabulary."""

    fp32: Sized = Field((), description="From fp32 logits.")
    bf16: Sized = Field((), description="From bf16 logits.")


class ShardReadings(Section):
    """Extra time of FSDP2 per pass through a unit (gather, cast, copy, reduce), by parameters."""

    fp32: Sized = Field((), description="Computing in fp32.")
    bf16: Sized = Field((), description="Computing in bf16.")


class ProbeSection(Section):
    """Measurements of `penstock probe`, which writes this section."""

    date: Text = Field(description="When, in UTC.")
    took_s: Positive = Field(description="Seconds that the probe took.")
    python: Text = Field(description="Version of Python.")
    torch: Text = Field(description="Version of torch.")
    cuda: Text | None = Field(None, description="Version of CUDA that torch was built with.")
    penstock: Text = Field(description="Version of Penstock.")
    kind: Text = Field(description="Kind of device that was probed: cuda or cpu.")
    seen: Text = Field(description="The hardware as seen without torch; another one is not probed.")
    ranks: PositiveCount = Field(description="Ranks that ran together.")
    threads: PositiveCount = Field(description="CPU threads of each rank.")
    memory: Size = Field(description="Memory of one rank.")
    op_s: Positive = Field(description="Seconds to ask for one small operation.")
    fresh_bytes_per_s: Positive | None = Field(
        None, description="Bytes per second of writing to memory that was not touched before."
    )
    home_write: Rate = Field(description="Writing to the home folder until it is on disk.")
    home_read: Rate = Field(description="Reading it back, past the cache where possible.")
    here_write: Rate = Field(description="Writing to the folder the probe was started in.")
    here_read: Rate = Field(description="Reading it back.")
    idle_w: Watts | None = Field(None, description="Watts of one accelerator at rest.")
    loaded_w: Watts | None = Field(None, description="Watts of one accelerator multiplying.")
    update_s: Sized = Field(
        (), description="Clip and AdamW by parameters: what follows the exchange in a step."
    )
    all_reduce_s: Sized = Field((), description="Sum over all ranks by bytes.")
    matmul_s: MatmulReadings = Field(MatmulReadings(), description="Matrix products.")
    attention_s: AttentionReadings = Field(AttentionReadings(), description="Attention.")
    norm_s: NormReadings = Field(NormReadings(), description="Norms.")
    rotary_s: RotaryReadings = Field(RotaryReadings(), description="Rotary positions.")
    gate_s: GateReadings = Field(GateReadings(), description="Gates.")
    add_s: AddReadings = Field(AddReadings(), description="Additions.")
    loss_s: LossReadings = Field(LossReadings(), description="Losses.")
    shard_s: ShardReadings = Field(ShardReadings(), description="Sharding.")


BY_PRECISION = (
    "attention_s", "norm_s", "rotary_s", "gate_s", "add_s", "loss_s", "shard_s"
)  # fmt: skip
