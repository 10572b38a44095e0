"""`[layout]`: how the model is spread over the accelerators."""

from math import prod
from typing import Literal

from pydantic import Field

from penstock.run.schema.section import Section, Some


class LayoutSection(Section):
    """How the model is spread over the accelerators. Leave the section out to have it chosen."""

    replicate: Some | None = Field(
        None, description="Data-parallel copies; if not given, what the accelerators allow."
    )
    shard: Some | None = Field(
        None,
        description="Ways the weights and optimizer are sharded (FSDP2); if not given, chosen.",
    )
    tensor: Some = Field(1, description="Ways each matrix is split.")
    pipeline: Some = Field(1, description="Pipeline stages.")
    interleave: Some = Field(
        1, description="Pieces of the model on each pipeline stage; more make its bubble smaller."
    )
    context: Some = Field(1, description="Ways each sequence is split.")
    expert: Some = Field(1, description="Ways the experts are spread.")
    microbatch: Some | None = Field(
        None, description="Sequences per forward pass and rank; if not given, chosen."
    )
    recompute: Literal["none", "selective", "full"] = Field(
        "none", description="Activations computed again in the backward pass, to save memory."
    )

    @property
    def per_replica(self) -> int:
        """Accelerators of one replica, as far as the file says."""
        return prod((self.shard or 1, self.tensor, self.pipeline, self.context))
