"""The layout of a run for whatever hosts are there: another one each time, and the same batch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.launch.prepare.listener import Listener
from penstock.launch.prepare.prepare import prepare
from penstock.launch.prepare.prepared_run import PreparedRun
from penstock.launch.verify import verify
from penstock.meter.devices import Devices
from penstock.run.launch_record import LaunchRecord
from penstock.run.load import load
from penstock.train import trial
from penstock.watch.outlets.callbacks import Callbacks

HOST = Devices("cpu", 4, "", "", 8 << 30)


@pytest.fixture
def prepared(run_file: Callable[..., Path]) -> Callable[..., PreparedRun]:
    def make(**fields: Any) -> PreparedRun:
        asked = {"cluster.nodes": 2, "cluster.accelerators": 2} | fields
        return prepare(load(run_file(**asked)), LaunchRecord(), HOST, Listener())

    return make


class Heard(Listener):
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, words: str) -> None:
        self.warnings.append(words)


def test_rows_that_were_kept_aside_are_told_when_the_data_is_built_and_never_again(
    run_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    rows = "".join(json.dumps({"text": f"row {n} of a small file"}) + "\n" for n in range(200))
    (tmp_path / "torn.jsonl").write_text(rows + '{"text": "cut')
    fields = {"data.dataset": "torn.jsonl", "data.sequence": 8, "train.batch_tokens": 64}
    run = load(run_file(**fields))
    machine = Devices("cpu", 1, "", "", 8 << 30)
    first, second, going_on = Heard(), Heard(), Heard()
    kept = prepare(run, LaunchRecord(), machine, first)
    said = [one for one in first.warnings if "rows of torn were kept aside (1 broken JSON)" in one]
    assert len(said) == 1
    prepare(run, LaunchRecord(), machine, second)  # another run of the same file
    prepare(run, LaunchRecord(dataset=kept.dataset), machine, going_on)
    assert not [one for one in (*second.warnings, *going_on.warnings) if "kept aside" in one]


def test_conversations_that_are_cut_are_told_to_each_new_run(
    run_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    row = json.dumps({"prompt": "Say yes", "completion": "yes and no " * 40}) + "\n"
    (tmp_path / "long.jsonl").write_text(row * 200)
    fields = {"data.dataset": "long.jsonl", "data.sequence": 16, "train.batch_tokens": 64}
    heard, machine = Heard(), Devices("cpu", 1, "", "", 8 << 30)
    prepare(load(run_file(**fields)), LaunchRecord(), machine, heard)
    begin = "documents of long are longer than data.sequence = 16 and are cut: 200 became "
    assert [one for one in heard.warnings if one.startswith(begin)]


def test_without_a_layout_in_the_file_all_ranks_become_replicas(
    prepared: Callable[..., PreparedRun],
) -> None:
    run = prepared()
    whole, plan = run.plan_launch(LaunchRecord())
    assert (whole.replicate, whole.shard) == (4, 1)
    assert plan["machine"] == "2 hosts with 4 CPU cores"
    for slots, ranks in (([2, 2], 4), ([2], 2), ([1], 1), ([2, 1], 3), ([2, 2, 2], 6)):
        layout, now = run.plan_for_hosts(slots, LaunchRecord.from_json(plan))
        assert layout.ranks == ranks
        assert now["batch_tokens"] == plan["batch_tokens"]
        assert now["steps"] == plan["steps"]


def test_more_ranks_than_samples_in_a_batch_would_only_add_zeros(
    prepared: Callable[..., PreparedRun],
) -> None:
    run = prepared(**{"train.batch_tokens": 48})  # three samples
    assert run.plan_for_hosts([2, 2], LaunchRecord())[0].ranks == 3


def test_a_layout_that_was_asked_for_gives_up_replicas_first(
    prepared: Callable[..., PreparedRun],
) -> None:
    run = prepared(**{"layout.replicate": 2, "layout.shard": 2})
    sizes = {
        tuple(slots): (lay.replicate, lay.shard)
        for slots in ([2, 2], [2], [2, 1], [1])
        for lay in [run.plan_for_hosts(slots, LaunchRecord())[0]]
    }
    assert sizes == {(2, 2): (2, 2), (2,): (1, 2), (2, 1): (1, 2), (1,): (1, 1)}


def test_a_model_that_was_cut_over_more_ranks_than_are_left_cannot_go_on(
    prepared: Callable[..., PreparedRun],
) -> None:
    run = prepared(**{"layout.tensor": 2, "layout.replicate": 2})
    assert run.plan_for_hosts([2], LaunchRecord())[0].tensor == 2
    with pytest.raises(PenstockError, match="tensor"):
        run.plan_for_hosts([1], LaunchRecord())


def test_the_last_replica_of_a_live_run_goes_on(prepared: Callable[..., PreparedRun]) -> None:
    run = prepared(**{"guard.mode": "live", "cluster.accelerators": 1})
    assert run.plan_for_hosts([1], LaunchRecord())[0].replicate == 1
    with pytest.raises(PenstockError, match="one replica"):
        prepared(
            **{"guard.mode": "live", "cluster.accelerators": 1, "cluster.nodes": 1}
        ).plan_launch(LaunchRecord())


def test_what_an_earlier_launch_was_replanned_to_stays(
    prepared: Callable[..., PreparedRun],
) -> None:
    """After it ran out of memory, on the same hosts."""
    run = prepared()
    layout, plan = run.plan_for_hosts([2], LaunchRecord())
    smaller = layout.to_json() | {"microbatch": 1, "recompute": "full"}
    plan["replanned"] = {
        "asked": layout.to_json(),
        "layout": smaller,
        "machine": plan["machine"],
    }
    assert run.plan_for_hosts([2], LaunchRecord.from_json(plan))[0].to_json() == smaller
    assert run.plan_for_hosts([2, 2], LaunchRecord.from_json(plan))[0].ranks == 4


NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head, self.idle = nn.Embedding(300, 8), nn.Linear(8, 300), nn.Linear(2, 2)

    def forward(self, tokens):
        return self.head(self.embed(tokens))

build = Net
"""
SHAPE = ("layers", "hidden", "heads", "kv_heads", "ffn", "tied")


def test_what_is_not_certain_of_own_code_is_a_warning_everywhere(
    run_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "MOST_WORK", 1)  # so that a few tokens are tried
    (tmp_path / "net.py").write_text(NET)
    own = {"model.module": f"{tmp_path}/net.py:build", "train.learning_rate": 0.1}
    run = load(run_file(**{f"model.{name}": None for name in SHAPE} | own))
    with pytest.warns(UserWarning, match="no gradient reached idle.weight, idle.bias"):
        prepared = prepare(run, LaunchRecord(), HOST, Callbacks())
    assert verify(run).warnings == prepared.warnings
    assert verify(run).refused is None
