"""Whole runs in real processes: going on, stopping, forked, and dying at any moment."""

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import commands
from penstock.errors import PenstockError, RunFailed
from penstock.launch.prepare.listener import Listener
from penstock.launch.start import start
from penstock.launch.supervisor.fork_client import ForkClient
from penstock.launch.supervisor.preload import PreloadClient
from penstock.ledger.journal.read import read_events
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.watch.report.screen import summary
from whole_runs import FIELDS, OWN_FIELDS, STEPS, At, MakeFile, go, pids, reached


class Faults(Listener):
    """What the supervisor did after each fault."""

    def __init__(self) -> None:
        self.actions: list[str] = []

    def fault(self, rank: int, reason: str, action: str) -> None:
        self.actions.append(action)


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, tiny: str, warm: PreloadClient
) -> dict[str, Any]:
    """The run that all the disturbed ones must equal, bit for bit."""
    folder = tmp_path_factory.mktemp("undisturbed")
    path = folder / "run.toml"
    path.write_text(
        f'name = "calm"\ndir = "{folder}"\n[model]\nlayers = 2\nhidden = 32\nheads = 4\n'
        f'kv_heads = 2\nffn = 64\ntied = true\n[data]\ndataset = "{tiny}"\nsequence = 16\n'
        f'[train]\nprecision = "bf16"\nsteps = {STEPS}\nbatch_tokens = 128\n'
        '[evaluate]\nevery = "20 steps"\n'
        '[guard]\ncheckpoint = "10 steps"\ntimeout = "30 s"\n[cluster]\naccelerators = 2\n'
    )
    return go(path) | {"path": path}


def two_ranks(run_file: MakeFile, **fields: Any) -> Path:
    return run_file(**FIELDS | {"cluster.accelerators": 2} | fields)


def test_a_run_ends_with_a_whole_account(undisturbed: dict[str, Any]) -> None:
    report = undisturbed
    assert report["status"] == "done"
    assert report["steps"] == STEPS
    assert report["tokens"] == STEPS * 128
    assert report["ranks"] == 2
    assert report["resumed_from"] is None
    assert report["val_loss"] < report["val_losses"][0][1] - 0.5
    assert [step for step, _ in report["val_losses"]] == [0, 20, 40, 60]
    assert sum(report["ledger"].values()) == pytest.approx(2 * report["wall_s"], rel=1e-6)
    assert report["ledger"]["compute"] > 0
    assert report["ledger"]["down"] == report["ledger"]["redo"] == 0
    assert len(report["weights_hash"]) == 64
    assert isinstance(report["sample"], str)
    json.dumps(report | {"path": None}, allow_nan=False)


MANY = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 15)]


@pytest.mark.parametrize("seed", [1, 2, *MANY])
def test_a_rank_killed_at_a_random_moment_leaves_no_trace_in_the_weights(
    seed: int, run_file: MakeFile, undisturbed: dict[str, Any]
) -> None:
    draw = random.Random(seed)
    victim = draw.randrange(2)

    def kill(folder: RunFolder) -> None:
        time.sleep(draw.random() * 0.02)  # anywhere inside a step
        os.kill(pids(folder)[victim], signal.SIGKILL)

    listener = At(draw.randrange(3, STEPS - 10), kill)
    report = go(two_ranks(run_file), listener=listener)
    assert listener.done
    assert report["status"] == "done"
    assert report["faults"] == 1
    assert report["weights_hash"] == undisturbed["weights_hash"]
    assert report["val_losses"] == undisturbed["val_losses"]
    assert report["ledger"]["down"] > 0
    assert sum(report["ledger"].values()) == pytest.approx(2 * report["wall_s"], rel=1e-6)


def test_a_rank_that_dies_before_its_first_word_is_named_and_replaced(
    run_file: MakeFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stillborn.py").write_text("import os; os.kill(os.getpid(), 9)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    start_rank, first = ForkClient.start, ["stillborn"]

    def born(client: ForkClient, rank: int, env: Any, args: Any, logs: Path) -> int:
        return start_rank(client, rank, env, [first.pop()] if first else args, logs)

    monkeypatch.setattr(ForkClient, "start", born)
    report = go(run_file(**{"cluster.accelerators": 1}))
    assert report["status"] == "done"
    folder = RunFolder(Path(report["folder"]))
    assert not (folder.journal / "a0000-r00000.events").exists()
    faults = [e for e in read_events(folder.journal / "supervisor.events") if e.kind == "fault"]
    assert [f.payload["reason"] for f in faults] == [
        "the process was killed by SIGKILL (out of memory?)"
    ]


def test_a_killed_supervisor_takes_its_ranks_along_and_the_run_goes_on_later(
    run_file: MakeFile, undisturbed: dict[str, Any]
) -> None:
    path = two_ranks(run_file)
    process = commands.popen("train", path, "--json")
    folder = RunFolder(load(path).folder)
    while reached(folder) < 25:
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    ranks = pids(folder)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}/stat").exists() and not zombie(pid) for pid in ranks):
        assert time.monotonic() < deadline, "a rank outlived its supervisor"
        time.sleep(0.01)
    assert summary(folder)["status"] == "killed"
    report = json.loads(commands.run("train", path, "--json").stdout)
    assert report["resumed_from"] >= 20
    assert report["weights_hash"] == undisturbed["weights_hash"]


@pytest.mark.usefixtures("cold")  # one run just as a user starts it
def test_ctrl_c_saves_and_stops(run_file: MakeFile) -> None:
    path = run_file(**FIELDS | {"train.steps": 100_000, "cluster.accelerators": 1})
    process = commands.popen("train", path, "--json")
    folder = RunFolder(load(path).folder)
    while reached(folder) < 5:
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    out, told = process.communicate(timeout=60)
    report = json.loads(out)
    assert process.returncode == 0
    assert report["status"] == "stopped"
    assert report["checkpoint"].endswith(f"step-{report['steps']:08d}")
    assert "stopping: saving first" in told
    assert not folder.control_requests()["stop"]  # granted: it does not stop the next start


def zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_stopped_then_resumed_on_another_layout_reaches_the_same_loss(
    run_file: MakeFile, undisturbed: dict[str, Any]
) -> None:
    path = two_ranks(run_file)
    stopped = go(path, listener=At(17, lambda folder: folder.request("stop")))
    assert stopped["status"] == "stopped"
    assert 17 <= stopped["steps"] < STEPS
    assert stopped["checkpoint"].endswith(f"step-{stopped['steps']:08d}")
    report = go(path, "cluster.accelerators=1")
    assert report["status"] == "done"
    assert report["resumed_from"] == stopped["steps"]
    # Sums in another order: equal up to bf16 rounding, not bit for bit.
    assert report["val_loss"] == pytest.approx(undisturbed["val_loss"], rel=2e-3)


def test_a_finished_run_says_so_and_a_longer_one_goes_on(undisturbed: dict[str, Any]) -> None:
    path = undisturbed["path"]
    again = go(path)
    assert again["weights_hash"] == undisturbed["weights_hash"]
    assert again["wall_s"] == undisturbed["wall_s"]  # nothing was launched
    fork = go(path, "train.steps=70", fork="longer")
    assert fork["run"] == "longer"
    assert fork["resumed_from"] == STEPS
    assert fork["steps"] == 70
    assert go(path)["steps"] == STEPS


def test_a_fork_trains_on_with_what_its_file_says(undisturbed: dict[str, Any]) -> None:
    path = undisturbed["path"]
    with pytest.raises(
        PenstockError,
        match=r"begin at step 60 and the file ends at step 60; write train\.steps=120$",
    ):
        go(path, "train.learning_rate=1e-3", fork="short")
    still = go(path, "train.steps=62", "train.learning_rate=1e-9", "train.weight_decay=0", fork="a")
    decayed = go(
        path, "train.steps=62", "train.learning_rate=1e-9", "train.weight_decay=1e9", fork="b"
    )
    assert still["steps"] == 62
    # With no rate to speak of only the decay moves weights: it must be the fork's, not the saved.
    assert still["val_loss"] == pytest.approx(undisturbed["val_loss"], abs=1e-3)
    assert decayed["val_loss"] > undisturbed["val_loss"] + 0.5
    with pytest.raises(PenstockError, match="not a name"):
        go(path, "train.steps=62", fork="../x")
    with pytest.raises(PenstockError, match="another run of that name"):
        go(path, "train.steps=62", "name=other", fork="calm")


def test_a_changed_file_is_refused_with_the_difference(undisturbed: dict[str, Any]) -> None:
    with pytest.raises(PenstockError) as caught:
        go(undisturbed["path"], "train.seed=7", "train.clip=0.5", "guard.keep=5")
    message = str(caught.value)
    assert "train.seed: 0 → 7" in message
    assert "train.clip" in message
    assert "guard.keep" not in message  # safe: it would go through
    assert "--fork" in message
    with pytest.raises(PenstockError, match="model"):
        go(undisturbed["path"], "model.ffn=96", fork="other")


def test_a_damaged_checkpoint_is_passed_over(
    run_file: MakeFile, undisturbed: dict[str, Any]
) -> None:
    path = two_ranks(run_file)
    stopped = go(path, listener=At(31, lambda folder: folder.request("stop")))
    shard = next(Path(stopped["checkpoint"]).glob("state/*.distcp"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    report = go(path)
    assert report["resumed_from"] == 30
    assert report["weights_hash"] == undisturbed["weights_hash"]
    assert report["ledger"]["redo"] > 0


def test_a_second_train_of_a_running_run_is_refused(run_file: MakeFile) -> None:
    path = two_ranks(run_file, **{"cluster.accelerators": 1})
    refusals = []

    def second(folder: RunFolder) -> None:
        try:
            start(load(path))
        except PenstockError as error:
            refusals.append(str(error))

    report = go(path, listener=At(1, second))
    assert report["status"] == "done"
    assert "already running" in refusals[0]


OWN = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(300, 16)
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(2)])
        self.head = nn.Linear(16, 300)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x).relu()
        return self.head(x) BREAK

def build():
    return Own()
"""
ON_A_RANK = "'RANK' in __import__('os').environ"


DROPOUT = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(16, 16) for _ in range(2)])
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x):
        x = x + sum(head(x) for head in self.heads).relu()
        return self.norm(x.flatten(0, 1)).view_as(x)

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(300, 16)
        self.blocks = nn.ModuleList([nn.ModuleList([Block()]), nn.ModuleList([Block()])])
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(16, 300)

    def forward(self, tokens):
        x = self.drop(self.embed(tokens))
        for part in self.blocks:
            for block in part:
                x = self.drop(block(x))
        return self.head(x), x.mean()[None]

def build():
    return Own()
"""


def test_a_module_that_draws_and_counts_resumes_exactly(tmp_path: Path, run_file: MakeFile) -> None:
    """Dropout, running statistics, nested layer lists: a restart must not show in the weights."""
    (tmp_path / "own.py").write_text(DROPOUT)
    fields = OWN_FIELDS | {
        "model.module": f"{tmp_path}/own.py:build",
        "train.steps": 40,
        "train.precision": "fp32",
        "guard.checkpoint": "10 steps",
        "cluster.accelerators": 1,
    }
    calm = go(run_file("calm", **fields))
    path = run_file("stopped", **fields)
    stopped = go(path, listener=At(13, lambda folder: folder.request("stop")))
    assert stopped["steps"] < 40
    again = go(path)
    assert again["weights_hash"] == calm["weights_hash"]
    assert isinstance(again["sample"], str)


def own_module(tmp_path: Path, run_file: MakeFile, broken: str) -> Path:
    (tmp_path / "own.py").write_text(OWN.replace("BREAK", broken))
    return run_file(**OWN_FIELDS | {"model.module": f"{tmp_path}/own.py:build"})


def test_the_users_own_module_trains(tmp_path: Path, run_file: MakeFile) -> None:
    report = go(own_module(tmp_path, run_file, ""), "cluster.accelerators=2", "layout.shard=2")
    assert report["status"] == "done"
    assert report["val_loss"] < report["val_losses"][0][1]


def test_a_loss_that_is_not_finite_ends_the_run_with_words(
    tmp_path: Path, run_file: MakeFile
) -> None:
    # Right where a module is tried before the launch, and wrong on every rank.
    path = own_module(tmp_path, run_file, f"* (float('nan') if {ON_A_RANK} else 1.0)")
    with pytest.raises(
        RunFailed,
        match=r"step 3: loss nan.*in a row.*your own code: look at model\.module = .*learning_rate",
    ):
        go(path, "cluster.accelerators=1", "evaluate.every=never")


def test_a_run_that_fails_again_and_again_gives_up_and_says_why(
    tmp_path: Path, run_file: MakeFile
) -> None:
    # Right where a module is tried before the launch, and wrong on every rank.
    size = f"3 if {ON_A_RANK} else 300"
    path = own_module(tmp_path, run_file, f"@ torch.eye({size}, dtype=x.dtype)")
    with pytest.raises(RunFailed, match="brought no new step"):
        go(path, "cluster.accelerators=1", "guard.restarts=1")
    events = read_events(RunFolder(load(path).folder).journal / "supervisor.events")
    assert [e.payload["action"] for e in events if e.kind == "fault"] == ["restart", "give_up"]


def test_a_module_with_a_loss_of_its_own_trains_to_the_end(
    tmp_path: Path, run_file: MakeFile
) -> None:
    text = OWN.replace("def forward(self, tokens):", "def forward(self, tokens, targets=None):")
    loss = "nn.functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())"
    text = text.replace("self.head(x) BREAK", f"(None, {loss})")
    (tmp_path / "own.py").write_text(text)
    path = run_file(**OWN_FIELDS | {"model.module": f"{tmp_path}/own.py:build"})
    report = go(path, "cluster.accelerators=1")
    assert report["val_loss"] < report["val_losses"][0][1]
    assert report["sample"] is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("def build():", "def build(size):", "own.py:build.*TypeError"),
        ("self.head(x) BREAK", "self.head(x).mean(-1)", "must give logits"),
        ("(2)])", "(2)]); self.idle = nn.Linear(2, 2)", "no gradient reached idle.weight"),
        (
            "self.head(x) BREAK",
            f"(self.tail if {ON_A_RANK} else self.head)(x)",
            "no attribute 'tail'",
        ),
    ],
)
def test_mistakes_in_the_users_module_are_told_and_not_tried_again(
    old: str, new: str, said: str, tmp_path: Path, run_file: MakeFile
) -> None:
    """Before the launch, or by the first rank that meets them."""
    assert old in OWN
    (tmp_path / "own.py").write_text(OWN.replace(old, new).replace("BREAK", ""))
    path = run_file(**OWN_FIELDS | {"model.module": f"{tmp_path}/own.py:build"})
    heard = Faults()
    fields = ("cluster.accelerators=1", "guard.restarts=3", "evaluate.every=never")
    with pytest.raises(PenstockError, match=said):
        go(path, *fields, listener=heard)
    assert heard.actions in ([], ["give_up"])  # some are known before a rank is started
    assert not load(path).folder.exists()  # no step was made, so there is no run to list
