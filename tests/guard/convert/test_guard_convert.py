"""A checkpoint in other forms is the same tensors, bit for bit; nothing foreign is unpickled."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from one_rank import Alone
from penstock.errors import PenstockError, RunFailed
from penstock.guard import checkpoints
from penstock.guard.convert.foreign import ForeignCheckpoint
from penstock.guard.convert.relayout import rewrite_for_ranks, rows_of_rank
from penstock.guard.convert.source import open_checkpoint
from penstock.guard.convert.writers import RunCheckpoint, write_safetensors, write_torch
from penstock.guard.format.published import StoredCheckpoint


def state() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(5)
    return {
        "model/embed.weight": torch.randn(37, 6, generator=draw),
        "model/norm.weight": torch.randn(6, generator=draw).bfloat16(),
        "model/steps": torch.tensor(7),
        "model/none": torch.empty(0, 4),
        "optimizer/embed.weight/exp_avg": torch.randn(37, 6, generator=draw),
    }


def quiet(count: int) -> None:
    pass


def equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(
        found[n].dtype == w.dtype and torch.equal(found[n], w) for n, w in wanted.items()
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> StoredCheckpoint:
    scalars = {"step": 4, "tokens": 512, "layout": {"microbatch": 2}, "penstock": "0"}
    folder = tmp_path_factory.mktemp("saved")
    return checkpoints.save(folder, 4, state(), {"residual.0": torch.ones(3)}, scalars, Alone())


def weights(moments: bool = False) -> dict[str, Tensor]:
    found = {n.removeprefix("model/"): t for n, t in state().items()}
    return {n: t for n, t in found.items() if moments or not n.startswith("optimizer/")}


@pytest.mark.parametrize("moments", [False, True])
def test_safetensors_hold_the_same_bits(
    saved: StoredCheckpoint, tmp_path: Path, moments: bool
) -> None:
    told: list[int] = []
    out = tmp_path / "w.safetensors"
    assert write_safetensors(RunCheckpoint(saved), out, moments, told.append) == out.stat().st_size
    assert equal(load_file(out), weights(moments))
    assert sum(told) == sum(t.nbytes for t in weights(moments).values())
    with safe_open(out, "pt") as file:
        assert file.metadata() == {"step": "4", "tokens": "512", "penstock": "0"}
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]


def test_a_torch_file_is_read_without_trust(saved: StoredCheckpoint, tmp_path: Path) -> None:
    write_torch(RunCheckpoint(saved), tmp_path / "w.pt", True, quiet)
    found = torch.load(tmp_path / "w.pt", weights_only=True)
    assert equal(found["model"], weights())
    assert list(found["optimizer"]) == ["embed.weight/exp_avg"]
    assert found["about"]["step"] == 4


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(first=st.integers(1, 40), second=st.integers(1, 5))
def test_files_for_other_ranks_hold_the_same_bits(
    saved: StoredCheckpoint, tmp_path_factory: pytest.TempPathFactory, first: int, second: int
) -> None:
    """By our reader, by torch's own tools, and back again."""
    folder = tmp_path_factory.mktemp("other")
    rewrite_for_ranks(RunCheckpoint(saved), folder / "a", first, quiet)
    once = StoredCheckpoint(folder / "a" / "step-00000004")
    assert once.find_damage() == []
    assert len(list((once.path / "state").glob("*.distcp"))) == first
    assert once.scalars["layout"]["shard"] == first
    assert once.scalars["tokens"] == 512
    dcp_to_torch_save(once.path / "state", folder / "torch.pt")
    assert equal(torch.load(folder / "torch.pt"), state())
    rewrite_for_ranks(RunCheckpoint(once), folder / "b", second, quiet)
    found = {name: torch.empty_like(t) for name, t in state().items()}
    checkpoints.load(StoredCheckpoint(folder / "b" / "step-00000004"), found, Alone())
    assert equal(found, state())
    shutil.rmtree(folder)


@given(rows=st.integers(0, 50), ranks=st.integers(1, 60))
def test_every_row_has_one_rank(rows: int, ranks: int) -> None:
    held = [own for rank in range(ranks) if (own := rows_of_rank((rows, 3), rank, ranks))]
    assert [first + i for first, count in held for i in range(count)] == list(range(rows))
    assert held or rows == ranks == 0


def test_what_is_there_is_not_written_over(saved: StoredCheckpoint, tmp_path: Path) -> None:
    out = tmp_path / "w.safetensors"
    out.write_text("mine")
    with pytest.raises(PenstockError, match="there already"):
        write_safetensors(RunCheckpoint(saved), out, False, quiet)
    assert out.read_text() == "mine"
    with pytest.raises(PenstockError, match="already"):
        rewrite_for_ranks(RunCheckpoint(saved), saved.path.parent, 2, quiet)


def test_a_copied_checkpoint_is_verified_first(saved: StoredCheckpoint, tmp_path: Path) -> None:
    copy = tmp_path / "step-00000004"
    shutil.copytree(saved.path, copy)
    with open_checkpoint(str(copy), None, "runs", trust=False) as found:
        assert equal({"w": found.source.read("model/embed.weight")}, {"w": state_weight()})
    data = copy / "state" / "__0_0.distcp"
    raw = bytearray(data.read_bytes())
    raw[len(raw) // 2] ^= 4
    data.write_bytes(raw)
    with (
        pytest.raises(RunFailed, match="does not match"),
        open_checkpoint(str(copy), None, "runs", False),
    ):
        pass


def state_weight() -> Tensor:
    return state()["model/embed.weight"]


class Bomb:
    """Code that runs when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Path.touch, (self.path,)


def test_a_foreign_checkpoint_is_not_unpickled_without_a_word(tmp_path: Path) -> None:
    """Nor is ours ever: what stands in torch's description of it is of no interest."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with (
        pytest.raises(PenstockError, match="--trust"),
        open_checkpoint(str(folder), None, "runs", trust=False),
    ):
        pass
    assert not (tmp_path / "ran").exists()
    own = checkpoints.save(tmp_path / "own", 1, state(), {}, {"step": 1}, Alone())
    (own.path / "state" / ".metadata").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    assert equal({"w": RunCheckpoint(own).read("model/embed.weight")}, {"w": state_weight()})
    assert not (tmp_path / "ran").exists()


def test_with_trust_a_foreign_checkpoint_is_converted(tmp_path: Path) -> None:
    model = {"layer.weight": torch.randn(5, 3), "layer.bias": torch.randn(5)}
    dcp.save({"model": model, "extra": {"step": 9}}, checkpoint_id=tmp_path / "f", no_dist=True)
    found = ForeignCheckpoint(tmp_path / "f", trust=True)
    assert found.left_out == ["extra.step"]
    write_safetensors(found, tmp_path / "f.safetensors", False, quiet)
    assert equal(load_file(tmp_path / "f.safetensors"), {f"model.{n}": t for n, t in model.items()})
