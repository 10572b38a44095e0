"""The layout of a run: how its ranks divide the work. Chosen here when the file leaves it out."""

from dataclasses import asdict, dataclass
from math import prod

from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError
from penstock.run.file import Run

# Bytes per parameter that stay on the device: fp32 master weights, gradients and the two AdamW
# moments (4 × 4), and a bf16 copy for the matmuls (2).
STATE_BYTES_PER_PARAM = 18
# State may fill this share of a device's memory; the rest is for activations and buffers.
STATE_SHARE = 0.6
# Tokens of one microbatch: enough rows to keep the matmuls busy, few enough to bound activations.
MICROBATCH_TOKENS = {"cpu": 2048, "cuda": 16384}


@dataclass(frozen=True)
class Layout:
    """replicate × shard × tensor × pipeline × context = ranks; experts spread inside a replica.

    The fields after `recompute` are how the parts are run; the run file does not ask for them.
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

    def __str__(self) -> str:
        ways = (
            f"{getattr(self, name)} {name}"
            for name in ("tensor", "pipeline", "context", "expert")
            if getattr(self, name) > 1
        )
        parts = [f"{self.replicate} replicate × {self.shard} shard", *ways]
        text = f"{' × '.join(parts)}, microbatch {self.microbatch}"
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
    """
    asked = run.layout
    if kind == "cpu":
        memory_bytes //= ranks  # the ranks of a machine share it; an accelerator has its own
    if asked and asked.shard:
        shard = asked.shard
    elif asked and asked.replicate:
        shard = max(1, ranks // asked.replicate)
    else:
        shard = _fewest_shards(shape, ranks, memory_bytes)
    replicate = asked.replicate if asked and asked.replicate else max(1, ranks // shard)
    if replicate * shard != ranks:
        raise PenstockError(
            f"layout: replicate {replicate} × shard {shard} = {replicate * shard}, but the run has "
            f"{ranks} rank{'s' if ranks > 1 else ''}; make the product {ranks} or set "
            f"cluster.accelerators = {replicate * shard}"
        )
    microbatch = asked.microbatch if asked and asked.microbatch else None
    share = max(1, run.batch_tokens // sequence // ranks)
    return Layout(
        replicate, shard, microbatch or min(share, max(1, MICROBATCH_TOKENS[kind] // sequence))
    )


def _fewest_shards(shape: ModelShape | None, ranks: int, memory_bytes: int) -> int:
    if shape is None:  # the user's own module: its size is not known before it is built
        return 1
    state = shape.params() * STATE_BYTES_PER_PARAM
    if state > memory_bytes * ranks:
        raise PenstockError(
            f"model: {shape.params() / 1e9:.1f}B parameters need {state / 1e9:,.0f} GB for "
            f"weights, gradients and optimizer; {ranks} rank{'s have' if ranks > 1 else ' has'} "
            f"{memory_bytes * ranks / 1e9:,.0f} GB. Choose a smaller model or more accelerators"
        )
    fits = (
        n for n in range(1, ranks + 1) if ranks % n == 0 and state / n <= memory_bytes * STATE_SHARE
    )
    return next(fits, ranks)
