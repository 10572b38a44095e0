"""The layout of a run: how its ranks divide the work. Chosen here when the file leaves it out."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError
from penstock.run.schema.layout import LayoutSection
from penstock.run.schema.run import Run

# Bytes per parameter that stay on the device: fp32 master weights, gradients and the two AdamW
# moments (4 × 4), and a bf16 copy for the matmuls (2).
STATE_BYTES_PER_PARAM = 18
# With an adapter the weights only lie there: as the matmuls take them, or in 4 bits (and the tables
# in 16).
FROZEN_BYTES_PER_PARAM = {"fp64": 8.0, "fp32": 4.0, "bf16": 2.0, "fp8": 2.0, "qlora": 0.75}
# State may fill this share of a device's memory; the rest is for activations and buffers.
STATE_SHARE = 0.6
# Tokens of one microbatch: enough rows to keep the matmuls busy, few enough to bound activations.
MICROBATCH_TOKENS = {"cpu": 2048, "cuda": 16384}


class IllegalLayout(PenstockError):
    """A layout that the model, the ranks or the device cannot have."""


class NothingFits(PenstockError):
    """A model for which no layout has memory enough; `tried` are the nearest, for programs."""

    def __init__(self, message: str, tried: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(message)
        self.tried = list(tried)


@dataclass(frozen=True)
class Layout:
    """replicate × shard × tensor × pipeline × context = ranks; experts spread inside a replica.

    The fields after `interleave` are how the parts are run; the run file does not ask for them.
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
    zero: int = 3  # what `shard` shards: 1 the optimizer, 2 also gradients, 3 also weights
    sequence_parallel: bool = True  # activations between tensor-parallel parts are split too
    zero_bubble: bool = False  # weight gradients fill the pipeline's bubble
    expert_tensor: int = 1  # ways each expert's matrices are split

    @property
    def ranks(self) -> int:
        return prod((self.replicate, self.shard, self.tensor, self.pipeline, self.context))

    @property
    def model_ways(self) -> int:
        """Ranks that together hold one copy of the layers and read the same sequences."""
        return self.tensor * self.pipeline * self.context

    @property
    def ways(self) -> str:
        """How many of each kind, in words."""
        more = (
            f"{getattr(self, name)} {name}"
            for name in ("tensor", "pipeline", "context")
            if getattr(self, name) > 1
        )
        text = " × ".join([f"{self.replicate} replicate × {self.shard} shard", *more])
        return text if self.expert == 1 else f"{text}, experts over {self.expert}"

    def __str__(self) -> str:
        text = f"{self.ways}, microbatch {self.microbatch}"
        if self.interleave > 1:
            text += f", {self.interleave} pieces a stage"
        return text if self.recompute == "none" else f"{text}, {self.recompute} recompute"

    def to_json(self) -> dict[str, int | str | bool]:
        """What the run file can say, and the rest only where it is not the usual."""
        usual = Layout()
        always = ("replicate", "shard", "microbatch")
        return {
            key: value
            for key, value in asdict(self).items()
            if key in always or value != getattr(usual, key)
        }


def choose(
    run: Run, shape: ModelShape | None, sequence: int, ranks: int, kind: str, memory_bytes: int
) -> Layout:
    """The run file's layout, completed; or replicas when they fit, else the fewest shards that do.

    Replicas talk once a step and shards in every layer, so replicas win whenever the state fits.
    `memory_bytes` is of one accelerator, or of the whole machine where it has none.
    """
    asked = run.layout or LayoutSection()
    ways = asked.tensor * asked.pipeline * asked.context
    if ranks % ways:
        raise IllegalLayout(
            f"layout: tensor × pipeline × context = {ways} does not divide the run's "
            f"{_ranks(ranks)}; write a divisor of {ranks} or set cluster.accelerators = {ways}"
        )
    data = ranks // ways  # ranks that read samples of their own
    if asked.shard:
        shard = asked.shard
    elif asked.replicate:
        shard = max(1, data // asked.replicate)
    else:
        # The ranks of a CPU share its memory; an accelerator has its own. What one of `ways` ranks
        # holds of the model is that much less, which is as if it had more room.
        own = memory_bytes // ranks if kind == "cpu" else memory_bytes
        shard = _fewest_shards(run, shape, data, own * ways)
        inner = asked.tensor * asked.context
        holds = (
            n for n in range(shard, data + 1) if data % n == 0 and n * inner % asked.expert == 0
        )
        shard = next(holds, shard)  # experts are spread over the ranks of a replica
    replicate = asked.replicate or max(1, data // shard)
    if replicate * shard != data:
        product = f"replicate {replicate} × shard {shard}"
        if ways > 1:
            product += f" × tensor, pipeline and context {ways}"
        found = replicate * shard * ways
        raise IllegalLayout(
            f"layout: {product} = {found}, but the run has {_ranks(ranks)}; make the product "
            f"{ranks} or set cluster.accelerators = {found}"
        )
    # A pipeline wants a microbatch for each of its stages, at the least.
    share = max(1, run.batch_tokens // sequence // data // asked.pipeline)
    most = max(1, MICROBATCH_TOKENS[kind] // sequence)
    return Layout(
        replicate=replicate,
        shard=shard,
        microbatch=asked.microbatch or min(share, most),
        tensor=asked.tensor,
        pipeline=asked.pipeline,
        context=asked.context,
        expert=asked.expert,
        recompute=asked.recompute,
        interleave=asked.interleave,
    )


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count > 1 else ''}"


def _fewest_shards(run: Run, shape: ModelShape | None, data: int, room_bytes: int) -> int:
    """Of `data` ranks, or groups of ranks, with so much room each."""
    if shape is None:  # the user's own module: its size is not known before it is built
        return 1
    each: float = STATE_BYTES_PER_PARAM
    if adapter := run.model.adapter:
        narrow = adapter.kind == "qlora"
        each = FROZEN_BYTES_PER_PARAM["qlora" if narrow else run.train.precision]
    state = shape.params() * each
    if state > room_bytes * data:
        raise NothingFits(
            f"model: {shape.params() / 1e9:.1f}B parameters need {state / 1e9:,.0f} GB for "
            f"weights, gradients and optimizer; all ranks together have "
            f"{room_bytes * data / 1e9:,.0f} GB. Choose a smaller model or more accelerators"
        )
    fits = (
        n for n in range(1, data + 1) if data % n == 0 and state / n <= room_bytes * STATE_SHARE
    )
    return next(fits, data)
