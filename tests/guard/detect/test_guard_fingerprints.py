"""The number of a rank's tensors: equal for equal bits, another after any flip."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penstock.guard.detect.fingerprints import fingerprints, gather_by_replica

TYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int8]


def tensors(seed: int, dtype: torch.dtype, length: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    values = torch.randn(3 * length, generator=draw).mul(100).to(dtype)
    # The second begins at an odd place of its memory; the third is empty, as a small shard may be.
    return {"a": values[:length].clone(), "b": values[length + 1 :], "c": values[:0]}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 99), st.sampled_from(TYPES), st.integers(2, 40), st.data())
def test_every_flipped_bit_changes_it(
    seed: int, dtype: torch.dtype, length: int, data: st.DataObject
) -> None:
    held = tensors(seed, dtype, length)
    before = fingerprints(held)
    assert torch.equal(before, fingerprints(tensors(seed, dtype, length)))
    name = data.draw(st.sampled_from(["a", "b"]))
    raw = held[name].view(torch.uint8)
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    after = fingerprints(held)
    assert after.sum() != before.sum()
    assert [n for n, a, b in zip(held, before, after, strict=True) if a != b] == [name]


def test_two_tensors_that_changed_places_differ() -> None:
    held = tensors(1, torch.float32, 8)
    swapped = held | {"a": held["b"][:8], "b": held["a"]}
    assert fingerprints(held | {"b": held["b"][:8]}).sum() != fingerprints(swapped).sum()


def test_a_tensor_that_does_not_lie_in_one_piece_has_the_number_of_its_copy() -> None:
    whole = torch.randn(6, 7)
    assert torch.equal(fingerprints({"w": whole.t()}), fingerprints({"w": whole.t().clone()}))


@dataclass
class Placed:
    """One of 2 × 3 ranks that share a table in memory instead of a process group."""

    replica: int
    shard: int
    table: dict[tuple[int, int], Tensor]
    device = torch.device("cpu")

    def size(self, dimension: str) -> int:
        return {"replicate": 2, "shard": 3}.get(dimension, 1)

    def index(self, dimension: str) -> int:
        return {"replicate": self.replica, "shard": self.shard}.get(dimension, 0)

    def sum_(self, values: Tensor) -> Tensor:
        self.table[self.replica, self.shard] = values
        return torch.stack(list(self.table.values())).sum(0)


def test_numbers_of_all_ranks_stand_by_replica_and_place() -> None:
    table: dict[tuple[int, int], Tensor] = {}
    for replica in range(2):
        for shard in range(3):
            own = torch.tensor([10 * replica + shard, -1])
            found = gather_by_replica(own, Placed(replica, shard, table))
    assert found == [((0, -1), (1, -1), (2, -1)), ((10, -1), (11, -1), (12, -1))]


@pytest.mark.gpu
def test_a_device_has_the_number_of_the_host() -> None:
    held = tensors(3, torch.bfloat16, 1001)
    assert torch.equal(
        fingerprints({n: t.cuda() for n, t in held.items()}).cpu(), fingerprints(held)
    )
