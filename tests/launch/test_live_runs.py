"""Live mode in whole runs of real processes: a replica dies anywhere, the others go on within the
step, it comes back healed, and at the end all are equal in every bit."""

import itertools
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.data.read.stream import rank_slice
from penstock.guard.detect.failpoints import Failpoint, arm
from penstock.guard.format.published import published_checkpoints, published_folders
from penstock.launch.prepare.listener import Listener
from penstock.launch.start import start
from penstock.ledger.journal.read import JournalLine, read_curve, read_events
from penstock.ledger.journal.records import SUPERVISOR, journal_files
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.watch.report.screen import summary

STEPS, BATCH = 24, 8
MakeFile = Callable[..., Path]


class Lived:
    """A live run that has ended."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder, self.report = folder, summary(folder)
        self.told = read_events(folder.journal / SUPERVISOR)
        self.events: dict[int, list[JournalLine]] = defaultdict(list)
        for file in journal_files(folder.journal, "events"):
            self.events[file.ranks.start] += read_events(file.path)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event.payload for event in self.told if event.kind == kind]

    def of_rank(self, rank: int, kind: str) -> list[dict[str, Any]]:
        return [event.payload for event in self.events[rank] if event.kind == kind]

    def hashes(self) -> dict[int, str]:
        """Of the ranks that came to the end, by their last word."""
        last = {rank: self.of_rank(rank, "end")[-1:] for rank in sorted(self.events)}
        return {r: e[0]["weights_hash"] for r, e in last.items() if e and "weights_hash" in e[0]}

    def losses(self) -> dict[int, float]:
        curves = [read_curve(f.path) for f in journal_files(self.folder.journal, "curve")]
        return {int(p["step"]): float(p["loss"]) for p in np.concatenate(curves)}

    def check_samples(self) -> None:
        """Each sample exactly once: a step that was passed was passed by a sum over all slices of
        its generation, and nobody passed it in another one."""
        lines: dict[int, list[dict[str, int]]] = defaultdict(list)
        for path in self.folder.audit.glob("r*.jsonl"):
            for line in path.read_text().splitlines():
                found = json.loads(line)
                lines[found["step"]].append(found)
        size = load(self.folder.run_file).batch_samples
        assert sorted(lines) == list(range(1, max(lines) + 1))
        for step, found in lines.items():
            (ranks,) = {line["data_ranks"] for line in found}
            places = [line["data_rank"] for line in found]
            assert len(set(places)) == len(places), f"step {step} was passed twice"
            for line in found:
                first = (step - 1) * size
                due = rank_slice(first, first + size, line["data_rank"], ranks)
                assert (line["first"], line["stop"]) == due


def passed(folder: RunFolder) -> int:
    """The last step that was passed."""
    curves = [read_curve(f.path)["step"] for f in journal_files(folder.journal, "curve")]
    return max((int(c[-1]) for c in curves if len(c)), default=0)


class Campaign(Listener):
    """Faults one after the other: the next is armed when all replicas are back and at work. After
    the last one the run is stopped, so that no test waits for a time too short or too long."""

    def __init__(self, faults: list[list[Failpoint]]) -> None:
        self.left, self.since, self.stopped = faults, 0, False
        self.armed: list[Failpoint] = []

    def launching(self, folder: RunFolder, plan: dict[str, Any]) -> None:
        self.folder, self.each = folder, plan["ranks"] // plan["layout"]["replicate"]

    def tick(self) -> None:
        if self.stopped or not all(self._back(trap) for trap in self.armed):
            return
        step = passed(self.folder)
        self.since = self.since or step
        if step < self.since + 3:
            return
        self.since = 0
        if not self.left:
            self.stopped = True
            self.folder.request("stop")
            return
        self.armed = self.left.pop(0)
        for trap in self.armed:
            arm(self.folder.traps, trap)

    def _back(self, trap: Failpoint) -> bool:
        """Whether it was sprung, and all ranks of the replica are at work again."""
        fired = self.folder.traps / f"{trap.name}.fired"
        if not fired.exists() or not fired.stat().st_size:
            return False
        assert trap.rank is not None
        since, first = json.loads(fired.read_text())["t"], trap.rank // self.each * self.each
        files = journal_files(self.folder.journal, "events")
        found = [read_events(f.path) for f in files if first <= f.ranks.start < first + self.each]
        back = [any(e.kind == "ready" and e.t > since for e in own) for own in found]
        return len(back) == self.each and all(back)


_numbers = itertools.count()


def kill(rank: int, phase: str, action: str = "kill", step: int | None = None) -> Failpoint:
    return Failpoint(f"{next(_numbers)}-{action}-{phase}", action, phase, rank, step)


@pytest.fixture
def live(run_file: MakeFile) -> Callable[..., Lived]:
    def go(
        *traps: Failpoint, replicas: int = 2, shard: int = 1, faults: Any = None, **fields: Any
    ) -> Lived:
        """`traps` are there from the start; `faults` come one after the other in an endless run."""
        ranks = replicas * shard
        values: dict[str, Any] = {
            "train.steps": 100_000 if faults else STEPS,
            "train.batch_tokens": BATCH * 16,
            "train.schedule": "wsd",
            "guard.mode": "live",
            "guard.checkpoint": "8 steps",
            "evaluate.every": "never" if faults else "12 steps",
            "cluster.accelerators": ranks,
            "layout.replicate": replicas,
            "layout.shard": shard,
        }
        run = load(run_file(**values | fields))
        folder = RunFolder(run.folder)
        folder.audit.mkdir(parents=True)
        for trap in traps:
            arm(folder.traps, trap)
        return Lived(start(run, listener=Campaign(faults) if faults else None))

    return go


Live = Callable[..., Lived]


def check(run: Lived, lost: list[int], alive: int) -> None:
    """Nothing of the run was lost, and all that came to its end are equal in every bit."""
    gone = run.of("lost")
    assert sorted(told["replica"] for told in gone) == sorted(lost), gone
    assert not run.of("fault")
    hashes = run.hashes()
    assert hashes.keys() == set(range(alive))
    assert len(set(hashes.values())) == 1
    run.check_samples()


def test_without_a_fault_it_is_the_same_run(live: Live) -> None:
    plain = live(**{"name": "plain", "guard.mode": "restart"})
    calm = live(**{"name": "calm"})
    assert calm.report["status"] == "done"
    assert calm.hashes()[0] == calm.hashes()[1] == plain.hashes()[0]
    assert calm.report["val_losses"] == plain.report["val_losses"]
    calm.check_samples()


def test_one_of_two_dies_in_every_phase_of_a_step(live: Live) -> None:
    phases = ["forward", "reduce", "vote", "voted", "update", "updated"]
    victims = [0, 1, 0, 1, 0, 1]
    faults = [[kill(rank, phase)] for rank, phase in zip(victims, phases, strict=True)]
    faults += [[kill(0, "reduce", "kill_soon")]]
    run = live(faults=faults)
    check(run, [*victims, 0], alive=2)
    # Nobody was restarted who was not killed.
    assert len(run.of_rank(0, "start")) == 5
    assert len(run.of_rank(1, "start")) == 4
    ledger = run.report["ledger"]
    assert ledger["down"] > 0
    assert ledger["redo"] > 0


def test_of_three_two_go_on_and_of_two_one(live: Live) -> None:
    faults = [
        [kill(1, "reduce")],
        [kill(0, "voted")],
        [kill(0, "reduce"), kill(2, "vote")],
    ]
    run = live(replicas=3, faults=faults, **{"train.batch_tokens": 9 * 16})
    check(run, [1, 0, 0, 2], alive=3)
    assert len(run.of_rank(1, "start")) == 2


def test_shards_of_a_replica_go_together(live: Live) -> None:
    run = live(replicas=2, shard=2, faults=[[kill(3, "vote")], [kill(0, "voted")]])
    check(run, [1, 0], alive=4)
    assert [told["ranks"] for told in run.of("lost")] == [[2, 3], [0, 1]]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_fault_during_healing(live: Live, victim: int) -> None:
    """Of the donor, when the healed one has half a state; or of that one."""
    # Replica 1 comes back and is healed by 0.
    run = live(faults=[[kill(1, "vote"), kill(victim, "heal")]])
    assert sorted(told["replica"] for told in run.of("lost")) == sorted([1, victim])
    assert run.hashes().keys() == {0, 1}
    assert len(set(run.hashes().values())) == 1


@pytest.mark.slow
def test_a_replica_that_dies_in_every_phase_of_its_start(live: Live) -> None:
    """Also the one that loads the state for all: another does it in its place."""
    traps = [kill(1, phase) for phase in ("join", "build", "warm_up")]
    run = live(*traps, kill(0, "load"), replicas=3, **{"train.batch_tokens": 9 * 16})
    assert run.report["status"] == "done"
    assert not run.of("fault")
    assert 2 in run.hashes()
    assert len(set(run.hashes().values())) == 1
    run.check_samples()


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "step"), [(0, 12), (1, STEPS)])
def test_an_evaluation_that_was_cut_off_is_made_again(live: Live, rank: int, step: int) -> None:
    run = live(kill(rank, "evaluate", step=step))
    assert run.report["status"] == "done"
    assert [at for at, _ in run.report["val_losses"]] == [0, 12, STEPS]
    run.check_samples()


@pytest.mark.slow
def test_the_last_save_is_made_by_another(live: Live) -> None:
    run = live(kill(0, "save", step=STEPS))
    assert run.report["status"] == "done"
    assert 1 in run.hashes()
    assert published_folders(run.folder.checkpoints)[0].name.endswith(str(STEPS))


@pytest.mark.slow
def test_when_all_are_lost_the_run_starts_again(live: Live) -> None:
    run = live(kill(0, "vote", step=12), kill(1, "reduce", step=12))
    assert run.report["status"] == "done"
    assert run.hashes().keys() == {0, 1}
    assert len(run.of("launch")) == 2


@pytest.mark.slow
def test_a_replica_that_hangs_is_ended_and_healed(live: Live) -> None:
    run = live(faults=[[kill(1, "forward", "stop")]])
    check(run, [1], alive=2)
    assert "hang" in run.of("lost")[0]["reason"]


@pytest.mark.slow
def test_the_curve_is_that_of_the_undisturbed_run(live: Live) -> None:
    calm = live(**{"name": "calm", "guard.mode": "restart"}).losses()
    hurt = live(kill(0, "voted", step=7), **{"name": "hurt"}).losses()
    assert calm.keys() == hurt.keys()
    assert [hurt[s] for s in calm] == pytest.approx([calm[s] for s in calm], rel=1e-4)


@pytest.mark.slow
def test_compressed_gradients(live: Live) -> None:
    """What rounding left out is owed to the members of a generation, and dropped with it."""
    run = live(faults=[[kill(1, "vote")]], **{"train.sync.compress": "bf16"})
    check(run, [1], alive=2)


MIXTURE = {"model.experts": 4, "model.experts_active": 2, "model.expert_ffn": 16}


@pytest.mark.slow
def test_a_mixture_of_experts(live: Live) -> None:
    """The balance of its experts is state, and changes with the step or not at all."""
    plain = live(**{"name": "plain", "guard.mode": "restart"} | MIXTURE)
    calm = live(**{"name": "calm"} | MIXTURE)
    assert calm.hashes()[0] == calm.hashes()[1] == plain.hashes()[0]
    run = live(faults=[[kill(0, "voted")], [kill(1, "reduce")]], **{"name": "hurt"} | MIXTURE)
    check(run, [0, 1], alive=2)


@pytest.mark.slow
def test_the_guard_takes_steps_back_in_all_replicas(live: Live) -> None:
    """A flipped bit in one replica: all go back to the checkpoint that they agreed on, which one of
    them loads for all."""
    flip = Failpoint("flip", "flip", "fetch", 1, 20)
    run = live(flip, **{"train.steps": 30, "guard.compare": "5 steps"})
    calm = live(**{"name": "calm", "train.steps": 30, "guard.compare": "5 steps"})
    assert [told["back_to"] for told in run.of_rank(0, "replicas_differ")] == [16]
    assert not run.of("lost")
    assert run.hashes() == calm.hashes()


# The loss is lowest at step 6, and the run stops at step 15: see test_best_runs.py.
EARLY = {
    "train.steps": 40,
    "train.learning_rate": 3.0,
    "train.warmup": "75%",
    "train.schedule": "cosine",
    "train.clip": 0,
    "train.precision": "fp64",
    "evaluate.every": "3 steps",
    "evaluate.patience": 3,
    "evaluate.keep_best": True,
    "guard.checkpoint": "4 steps",
}


@pytest.mark.parametrize(
    ("victim", "phase", "step"),
    [
        (0, "", 0),
        (0, "save", 15),  # the last evaluation is made again, and counts once
        pytest.param(1, "evaluate", 15, marks=pytest.mark.slow),
        pytest.param(0, "evaluate", 6, marks=pytest.mark.slow),
    ],
)
def test_it_stops_early_at_the_same_step_whoever_is_lost(
    live: Live, victim: int, phase: str, step: int
) -> None:
    run = live(*([kill(victim, phase, step=step)] if phase else []), **EARLY)
    assert run.report["status"] == "stopped early"
    assert len(run.of("lost")) == bool(phase)
    assert len(set(run.hashes().values())) == 1
    losses = dict(run.report["val_losses"])
    assert list(losses) == [0, 3, 6, 9, 12, 15]
    assert min(losses, key=lambda step: losses[step]) == 6
    told = [e["why"] for rank in (0, 1) for e in run.of_rank(rank, "stopped_early")]
    assert told[-1].startswith("no improvement in 3 evaluations (evaluate.patience = 3)")
    saved = published_checkpoints(run.folder.checkpoints)
    assert {15, 6} <= {one.step for one in saved}
    assert (saved[0].step, saved[0].scalars["best"]["waited"]) == (15, 3)
    run.check_samples()
