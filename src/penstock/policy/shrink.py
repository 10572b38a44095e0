"""The layout that was asked for, fitted to fewer or more ranks than it was asked for.

Ways that the model was cut by (tensor, pipeline, context) stay, since it may fit no other way;
replicas go first, then shards, and with those the ways that experts are spread over them. The
global batch does not follow from any of these, so what is computed stays the same.
"""

from collections.abc import Mapping
from math import ceil, gcd

WAYS = ("replicate", "shard", "tensor", "pipeline", "context", "expert")


def speed_with(microbatches: int, data_ways: int, left: int) -> float:
    """Return the speed with `left` of the data-parallel ways, over that with all: the batch stays,
    so those that are left compute more microbatches.
    """
    if left >= data_ways:
        return 1.0
    return microbatches / ceil(microbatches * data_ways / left)


def fit_to_ranks(asked: Mapping[str, int], ranks: int) -> dict[str, int] | None:
    """Fit the sizes of `asked` to at most `ranks` ranks; None where not even one replica of one
    shard fits.
    """
    sizes = {name: max(1, asked.get(name) or 1) for name in WAYS}
    data = ranks // (sizes["tensor"] * sizes["pipeline"] * sizes["context"])
    if data < 1:
        return None
    # As sharded as it was, where that can be: it may need the room. Fewer shards only where there
    # are fewer ranks than shards.
    shard = min(sizes["shard"], data)
    expert = gcd(sizes["expert"], shard * sizes["tensor"] * sizes["context"])
    return sizes | {"shard": shard, "replicate": data // shard, "expert": expert}
