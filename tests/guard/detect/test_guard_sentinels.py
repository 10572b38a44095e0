"""What the sentinels put on record, and what goes with a checkpoint."""

import json
import math
from pathlib import Path

import pytest

from penstock.errors import RunFailed
from penstock.guard.detect.sentinels import Sentinels
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import journal_files
from penstock.ledger.journal.writer import Journal
from penstock.policy.divergence import LIMIT
from penstock.policy.spike import OnSpike
from penstock.run.schema.code import UserCode


def made(folder: Path, on_spike: OnSpike = "rollback", tells: bool = True) -> Sentinels:
    return Sentinels(on_spike, Journal(folder, 0), lambda: tells)


def told(folder: Path) -> list[tuple[str, dict]]:
    files = journal_files(folder, "events")
    return [(e.kind, e.payload) for f in files for e in read_events(f.path)]


def calm(sentinels: Sentinels, first: int, last: int) -> None:
    for step in range(first, last + 1):
        assert sentinels.judge(step, 3.0 + 0.01 * (step % 3), 1.0 + 0.1 * (step % 2)).kind == "good"


def test_a_bad_batch_and_a_spike_are_on_record(tmp_path: Path) -> None:
    sentinels = made(tmp_path)
    calm(sentinels, 1, 40)
    assert sentinels.judge(41, math.nan, 1.0).kind == "skip"
    assert sentinels.judge(42, 9.0, 50.0).kind == "rollback"
    kinds = [(kind, payload["step"], payload["loss"]) for kind, payload in told(tmp_path)]
    assert kinds == [("batch_skipped", 41, "nan"), ("spike", 42, "9.0")]
    assert "3.01 is usual" in told(tmp_path)[1][1]["why"]


def test_only_one_rank_tells(tmp_path: Path) -> None:
    assert made(tmp_path, tells=False).judge(1, math.nan, 1.0).kind == "skip"
    assert told(tmp_path) == []


def test_stop_names_the_step_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"step 7: loss nan.*not taken.*learning_rate.*on_spike"):
        made(tmp_path, "stop").judge(7, math.nan, 1.0)


def test_stop_names_the_users_own_code_before_the_learning_rate(tmp_path: Path) -> None:
    sentinels = made(tmp_path, "stop")
    sentinels.user_code = [
        UserCode("model.module", "net.py:build"),
        UserCode("train.loss", "mine.py:smooth"),
    ]
    said = r'look at train\.loss = "mine\.py:smooth" and model\.module = .* first.*learning_rate'
    with pytest.raises(RunFailed, match=said):
        sentinels.judge(7, math.nan, 1.0)


def test_a_state_goes_through_a_checkpoint_and_what_was_learned_since_stays(
    tmp_path: Path,
) -> None:
    sentinels = made(tmp_path)
    calm(sentinels, 1, 30)
    saved = json.loads(json.dumps(sentinels.to_json()))
    calm(sentinels, 31, 40)
    sentinels.judge(41, 9.0, 50.0)
    sentinels.restore(saved)
    assert len(sentinels.spikes.losses) == 30
    calm(sentinels, 31, 40)
    assert sentinels.judge(41, 3.0, 1.0).known
    other = made(tmp_path / "other")
    other.restore(saved)
    assert other.spikes == type(other.spikes).from_json(saved)
    later = sentinels.to_json()
    other = made(tmp_path / "forked")
    other.restore(later, upto=40)
    assert other.spikes.skips == ()
    assert other.spikes.losses == sentinels.spikes.losses
    other.restore(None)  # of a version that had no sentinels
    assert other.spikes.losses == ()


def test_replicas_are_named_once_it_is_known(tmp_path: Path) -> None:
    sentinels = made(tmp_path)
    verdict = sentinels.compare(10, [(1,), (2,)])
    sentinels.record_difference(verdict, ["layers.0.up.weight"], 8)
    named = sentinels.compare(10, [(2,), (2,)])
    assert named.kind == "agree"
    sentinels.record_fault(10, named.replicas, named.certain)
    (first, differ), (second, fault) = told(tmp_path)
    assert (first, second) == ("replicas_differ", "replica_at_fault")
    assert (differ["replicas"], differ["certain"], differ["back_to"]) == ([0, 1], False, 8)
    assert (fault["replicas"], fault["certain"], fault["step"]) == ([0], True, 10)


def test_a_replica_that_stays_wrong_ends_the_run(tmp_path: Path) -> None:
    sentinels = made(tmp_path)
    for _ in range(LIMIT):
        assert sentinels.compare(10, [(1,), (2,), (1,)]).kind == "rollback"
    with pytest.raises(RunFailed, match="replicas 1 do not hold the same"):
        sentinels.compare(10, [(1,), (2,), (1,)])


def test_a_wrong_weight_is_not_held_against_the_batch(tmp_path: Path) -> None:
    sentinels = made(tmp_path)
    calm(sentinels, 1, 30)
    assert sentinels.judge(31, math.nan, 1.0).kind == "skip"
    assert sentinels.compare(31, [(1,), (2,)]).kind == "rollback"
    assert sentinels.judge(31, 3.0, 1.0).kind == "good"
