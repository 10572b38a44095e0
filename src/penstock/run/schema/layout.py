"""`[layout]`: how the model is spread over the accelerators."""

from math import prod
from typing import Literal

from pydantic import Field

from penstock.run.schema.section import PositiveCount, Section


class LayoutSection(Section):
    """Distribution of the model over the accelerators; chosen if the section is left out."""

    replicate: PositiveCount | None = Field(
        None, description="Data-parallel copies; if not given, what the accelerators allow."
    )
    shard: PositiveCount | None = Field(
        None,
        description="Ways the weights and optimizer are sharded (FSDP2); if not given, chosen.",
    )
    tensor: PositiveCount = Field(1, description="Ways each matrix is split.")
    pipeline: PositiveCount = Field(1, description="Pipeline stages.")
    interleave: PositiveCount | None = Field(
        None,
        description="Pieces of the model on each pipeline stage; more make its bubble smaller; if "
        "not given, chosen.",
    )
    context: PositiveCount = Field(1, description="Ways each sequence is split.")
    expert: PositiveCount = Field(1, description="Ways the experts are spread.")
    microbatch: PositiveCount | None = Field(
        None,
        description="Sequences (pairs of them, for an objective on pairs) per forward pass and "
        "rank; if not given, chosen.",
    )
    recompute: Literal["none", "selective", "full"] | None = Field(
        None,
        description="Activations computed again in the backward pass, to save memory; if not "
        "given, the least that fits.",
    )
    reshard: Literal["layer", "backward", "step"] | None = Field(
        None,
        description="When gathered weights are dropped and gradients reduced over the shards: both "
        "after every layer (ZeRO-3); weights at the end of a step, gradients in every backward "
        "pass (ZeRO-2); both once a step (ZeRO-1); if not given, chosen.",
    )

    @property
    def per_replica(self) -> int:
        """Accelerators of one replica; splits that the file leaves open count as 1."""
        return prod((self.shard or 1, self.tensor, self.pipeline, self.context))
