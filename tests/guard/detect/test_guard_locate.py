"""Finding the word at which replicas differ, with real ranks."""

from collections.abc import Callable

import pytest
import torch

from penstock.guard.detect.fingerprints import fingerprints, gather_by_replica
from penstock.guard.detect.locate import WordLocation, locate_difference, values_at
from penstock.plan.job.layout import Layout
from penstock.train.world.world import join

AT = 1_234_567


def seek(dtype: torch.dtype) -> tuple[int, WordLocation, list[str], list[tuple[float, ...]]]:
    world = join(Layout(replicate=2, shard=2), "cpu", 60.0)
    draw = torch.Generator().manual_seed(world.index("shard"))  # shards hold other weights
    tensors = {"small": torch.ones(3, dtype=dtype)}
    tensors["large"] = torch.randn(2_000_001 + world.index("shard"), generator=draw).to(dtype)
    if (world.index("replicate"), world.index("shard")) == (1, 1):
        tensors["large"][AT] = 7.0
    found = gather_by_replica(fingerprints(tensors).sum(dim=0, keepdim=True), world)
    place = next(i for i, at in enumerate(zip(*found, strict=True)) if len(set(at)) > 1)
    spot, names = locate_difference(tensors, place, world)
    return world.rank, spot, names, values_at(spot, tensors, world)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_ranks_learn_where_and_what(ranks: Callable, dtype: torch.dtype) -> None:
    each = 8 // dtype.itemsize  # elements of a word
    for rank, spot, names, values in ranks(4, seek, dtype):
        assert spot == WordLocation(place=1, tensor=1, word=AT // each)
        assert names == (["large"] if rank % 2 else [])
        assert len(values) == 2
        differing = [i for i in range(each) if values[0][i] != values[1][i]]
        assert differing == [AT % each]
        assert values[1][AT % each] == 7.0
