"""The files of a checkpoint: raw bytes in place, read by our index and by torch's own reader."""

import json
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from one_rank import Alone
from penstock.guard import checkpoints
from penstock.guard.format import reader
from penstock.guard.format.file_plan import plan_files
from penstock.guard.format.index import Chunk, Index, TensorEntry
from penstock.guard.format.skeleton import archive_skeleton
from penstock.guard.save.staging import PendingCopies, RankFiles

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.float16,
    torch.float8_e4m3fn,
]


def bits(tensor: Tensor) -> list[int]:
    return tensor.detach().contiguous().flatten().view(torch.uint8).tolist()


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Of any type and shape, also empty, a number, or not contiguous; any bits, also NaNs."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    numbers = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    raw = torch.randint(0, 256, (*shape, dtype.itemsize), generator=numbers, dtype=torch.uint8)
    if dtype is torch.bool:
        raw %= 2
    made = raw.view(dtype).reshape(shape)
    return made.transpose(0, 1) if len(shape) > 1 and draw(st.booleans()) else made


states = st.dictionaries(st.from_regex(r"[a-z/.0-9]{1,12}", fullmatch=True), tensors(), max_size=6)


@given(states, states)
@settings(max_examples=60, deadline=None)
def test_any_state_comes_back_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, state: dict[str, Tensor], local: dict[str, Tensor]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    saved = checkpoints.save(folder, 1, state, local, {}, Alone())
    assert saved.find_damage() == []
    found = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    checkpoints.load(saved, found, None)
    assert {n: bits(t) for n, t in found.items()} == {n: bits(t) for n, t in state.items()}
    back = checkpoints.load_local(saved, 0)
    assert {n: (t.dtype, t.shape, bits(t)) for n, t in back.items()} == {
        n: (t.dtype, t.shape, bits(t)) for n, t in local.items()
    }


@given(states.filter(bool))
@settings(max_examples=30, deadline=None)
def test_torchs_own_reader_reads_the_same_tensors(
    tmp_path_factory: pytest.TempPathFactory, state: dict[str, Tensor]
) -> None:
    folder = tmp_path_factory.mktemp("torch")
    saved = checkpoints.save(folder, 1, state, {}, {}, Alone())
    found = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(found, checkpoint_id=str(saved.path / "state"), no_dist=True)
    assert {n: bits(t) for n, t in found.items()} == {n: bits(t) for n, t in state.items()}


def test_torchs_own_tool_converts_it(tmp_path: Path) -> None:
    state = {"model/a": torch.randn(3, 4), "optimizer/a/m": torch.arange(5, dtype=torch.bfloat16)}
    saved = checkpoints.save(tmp_path, 1, state, {}, {}, Alone())
    dcp_to_torch_save(saved.path / "state", tmp_path / "whole.pt")
    found = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


def test_local_state_is_a_safetensors_file(tmp_path: Path) -> None:
    local = {"residual.0": torch.randn(3, 5), "flag": torch.tensor([True, False, True])}
    saved = checkpoints.save(tmp_path, 1, {"a": torch.zeros(1)}, local, {}, Alone())
    found = load_file(saved.path / "local-r00000.safetensors")
    assert found.keys() == local.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in local.items())


def test_nothing_of_a_checkpoint_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"model/a": torch.randn(3, 4)}
    saved = checkpoints.save(tmp_path, 1, state, {"r": torch.ones(2)}, {}, Alone())

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    found = {"model/a": torch.zeros(3, 4)}
    checkpoints.load(saved, found, None)
    assert torch.equal(found["model/a"], state["model/a"])
    assert checkpoints.load_local(saved, 0)["r"].tolist() == [1, 1]


def test_large_skeletons_take_no_memory_and_torch_finds_the_data() -> None:
    bones = archive_skeleton((3, 1_000_000_000), torch.float32)
    assert bones.data_bytes == 12_000_000_000
    assert len(bones.head) + len(bones.tail) < 4096
    assert len(bones.head) % 64 == 0


def test_the_index_says_where_each_byte_is(tmp_path: Path) -> None:
    state = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(7)}
    saved = checkpoints.save(tmp_path, 1, state, {}, {}, Alone())
    index = saved.index()
    assert (index.tensors["a"].dtype, index.tensors["a"].shape) == ("float32", (2, 3))
    (chunk,) = index.tensors["a"].chunks
    raw = (saved.path / chunk.file).read_bytes()[chunk.at : chunk.at + 24]
    assert torch.frombuffer(bytearray(raw), dtype=torch.float32).tolist() == [0, 1, 2, 3, 4, 5]
    assert index.files == {"state/__0_0.distcp": (saved.path / chunk.file).stat().st_size}


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.builds(
            lambda shape, at: TensorEntry(
                "float32", shape, (Chunk((0,) * len(shape), shape, "f", at),)
            ),
            st.lists(st.integers(0, 1 << 40), max_size=4).map(tuple),
            st.integers(0, 1 << 50),
        ),
        max_size=4,
    )
)
def test_an_index_comes_back(tensors: dict[str, TensorEntry]) -> None:
    index = Index(tensors, {"f": 3})
    assert Index.from_bytes(index.to_bytes()) == index
    json.loads(index.to_bytes())


def test_an_index_cannot_name_files_that_no_hash_covers(tmp_path: Path) -> None:
    saved = checkpoints.save(tmp_path, 1, {"a": torch.zeros(2)}, {}, {}, Alone())
    text = (saved.path / "index.json").read_text()
    for name, said in (("../outside", "outside the checkpoint"), ("other", "no hash covers")):
        (saved.path / "index.json").write_text(text.replace("state/__0_0.distcp", name))
        with pytest.raises(OSError, match=said):
            checkpoints.load(saved, {"a": torch.zeros(2)}, None)
    listed = Index.from_bytes(text.encode())
    with pytest.raises(ValueError, match="does not list"):
        Index.from_bytes(Index(listed.tensors, {}).to_bytes())


def test_staging_again_changes_the_data_and_nothing_else(tmp_path: Path) -> None:
    state = {"a": torch.zeros(4), "b": torch.zeros(2, 2, dtype=torch.bfloat16)}
    drawing = plan_files(state, Alone())
    files = RankFiles(tmp_path, drawing, 0)
    PendingCopies(files.copies(state, {}))
    before = (tmp_path / "state/__0_0.distcp").read_bytes()
    state["a"].fill_(3.0)
    PendingCopies(files.copies(state, {}))
    after = (tmp_path / "state/__0_0.distcp").read_bytes()
    at = drawing.index.tensors["a"].chunks[0].at
    assert after[:at] + after[at + 16 :] == before[:at] + before[at + 16 :]
    assert after[at : at + 16] != before[at : at + 16]
    read = reader.IndexReader(tmp_path, drawing.index)
    entry = drawing.index.tensors["a"]
    assert read.saved(entry, entry.chunks[0]).tolist() == [3.0] * 4


def test_local_state_may_come_change_and_go(tmp_path: Path) -> None:
    """Error feedback exists from the first exchange on, and a bucket may change its size."""
    state = {"a": torch.zeros(4)}
    files = RankFiles(tmp_path, plan_files(state, Alone()), 0)
    assert files.copies(state, {})[1:] == []
    assert files.names == ["state/__0_0.distcp"]
    for size in (3, 5):
        PendingCopies(files.copies(state, {"r": torch.full((size,), float(size))}))
        assert files.names[1:] == ["local-r00000.safetensors"]
        assert load_file(tmp_path / files.names[1])["r"].tolist() == [float(size)] * size
    files.copies(state, {})
    assert files.names == ["state/__0_0.distcp"]
    assert not (tmp_path / "local-r00000.safetensors").exists()
