"""`Layout`: how the ranks of a run divide the work."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from penstock.errors import PenstockError

# `layout.reshard` of the run file, by the ZeRO stage.
RESHARD = {3: "layer", 2: "backward", 1: "step"}


class IllegalLayout(PenstockError):
    """A layout that the model, the ranks or the device cannot have."""


class NothingFits(PenstockError):
    """A model for which no layout has enough memory; `tried` are the nearest, for programs."""

    def __init__(self, message: str, tried: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(message)
        self.tried = list(tried)


@dataclass(frozen=True)
class Layout:
    """A layout: replicate × shard × tensor × pipeline × context = ranks; experts spread inside a
    replica.

    The fields after `zero` are how the parts are run; the run file does not ask for them.
    """

    replicate: int = 1  # data-parallel copies
    shard: int = 1  # ways the weights and the optimizer are sharded
    microbatch: int = 1  # sequences per forward pass and rank
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1  # ways the routed experts are spread, over shard × context × tensor
    recompute: str = "none"  # "selective", "full"
    interleave: int = 1  # pieces of the model that one pipeline stage holds
    # What `shard` shards inside a step: 1 the optimizer, 2 also gradients, 3 also weights. The run
    # file calls it `reshard`.
    zero: int = 3
    sequence_parallel: bool = True  # activations between tensor-parallel parts are split too
    zero_bubble: bool = False  # weight gradients fill the pipeline's bubble
    expert_tensor: int = 1  # ways each expert's matrices are split

    @property
    def ranks(self) -> int:
        return prod((self.replicate, self.shard, self.tensor, self.pipeline, self.context))

    @property
    def model_ways(self) -> int:
        """Return the number of ranks that together hold one copy of the layers and read the same
        sequences.
        """
        return self.tensor * self.pipeline * self.context

    @property
    def ways(self) -> str:
        """Describe how many of each kind there are."""
        more = (
            f"{getattr(self, name)} {name}"
            for name in ("tensor", "pipeline", "context")
            if getattr(self, name) > 1
        )
        text = " × ".join([f"{self.replicate} replicate × {self.shard} shard", *more])
        return text if self.expert == 1 else f"{text}, experts over {self.expert}"

    @property
    def reshard(self) -> str:
        """Return when weights and gradients are sharded again, as the run file says it."""
        return RESHARD[max(1, self.zero)]

    def __str__(self) -> str:
        text = f"{self.ways}, microbatch {self.microbatch}"
        if self.zero < 3 and self.shard * self.context > 1:
            text += f", resharded every {self.reshard}"
        if self.interleave > 1:
            text += f", {self.interleave} pieces a stage"
        return text if self.recompute == "none" else f"{text}, {self.recompute} recompute"

    def to_json(self) -> dict[str, int | str | bool]:
        """Return what the run file can say, and the other fields only where they are not the
        default.
        """
        usual = Layout()
        always = ("replicate", "shard", "microbatch")
        return {
            key: value
            for key, value in asdict(self).items()
            if key in always or value != getattr(usual, key)
        }
