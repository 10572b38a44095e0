"""What ranks tell each other is data: plain values come back equal, and nothing is unpickled."""

import ast
import contextlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import penstock
import real_ranks
from penstock.guard.save import exchange

SOURCE = Path(penstock.__file__).parent
OBJECTS = {"broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list"}
OBJECTS |= {"send_object_list", "recv_object_list"}

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
keys = st.integers() | st.text() | st.tuples(st.integers(), st.text())
values = st.recursive(
    scalars | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.dictionaries(st.sampled_from(["tuple", "bytes", "dict"]), inner)
    ),
    max_leaves=20,
)


@given(values)
def test_plain_values_come_back_equal(value: Any):
    found = exchange.decode(exchange.encode(value))
    assert found == value
    assert repr(found) == repr(value)  # tuples are tuples, True is not 1


@given(st.binary() | st.text().map(str.encode) | values.map(pickle.dumps))
def test_bytes_of_a_stranger_are_a_clear_error_or_plain_values(content: bytes):
    with contextlib.suppress(ValueError):
        exchange.encode(exchange.decode(content))  # nothing but plain values, or an error


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"bytes":"!"}', b'{"other":1}', b"{}"])
def test_hostile_messages_are_a_clear_error(content: bytes):
    with pytest.raises(ValueError, match="cannot be read"):
        exchange.decode(content)


def test_other_types_are_refused_by_the_sender():
    with pytest.raises(TypeError, match="Path"):
        exchange.encode([Path("/")])


class _Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def _attack(evil: str, guarded: bool) -> str:
    """Rank 1 sends a pickle as torch itself would; rank 0 takes part in the collective."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", rank=rank, world_size=2, store=_store())
    if rank == 0 and guarded:
        exchange.refuse_pickles()
    value = _Evil(evil) if rank == 1 else "own"
    try:
        if rank == 1:
            sent = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
            size = torch.tensor([sent.numel()])
            dist.broadcast(size, src=1)
            dist.broadcast(sent, src=1)
            return "sent"
        # What rank 0 would do inside of torch's broadcast_object_list.
        size = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(size, src=1)
        got = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(got, src=1)
        try:
            dist.distributed_c10d._tensor_to_object(got, got.numel(), None)
        except RuntimeError as error:
            return f"refused: {error}"
        try:
            exchange.decode(got.numpy().tobytes())
        except ValueError:
            return "unpickled by torch, refused by us"
        return "taken"
    finally:
        real_ranks.leave()


def _store() -> dist.Store:
    return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_pickle_of_a_peer_runs_only_where_nothing_guards(
    ranks: Callable[..., list[Any]], tmp_path: Path, guarded: bool
):
    evil = tmp_path / "evil"
    first, second = ranks(2, _attack, str(evil), guarded)
    assert second == "sent"
    assert first.startswith("refused" if guarded else "unpickled")
    assert evil.exists() is not guarded


def test_no_file_of_the_package_calls_an_object_collective():
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "attr", getattr(node, "id", None))
            if name in OBJECTS or (name in ("load", "loads") and _of_pickle(node)):
                found.append(f"{path}:{node.lineno}")
    assert not found


def _of_pickle(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "pickle"
