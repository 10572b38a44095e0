"""A run on two hosts that come, leave and die: here two groups of processes on one machine."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from hosts_lab import Lab
from made_probe import known_watts
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import file_name
from penstock.run.load import load

MakeFile = Callable[..., Path]
pytestmark = pytest.mark.timeout(900)  # a busy machine takes minutes for so many starts


@pytest.fixture(
    params=["a folder each", pytest.param("one folder", marks=pytest.mark.slow)],
)
def lab(request: pytest.FixtureRequest, tmp_path: Path, run_file: MakeFile) -> Iterator[Lab]:
    own = request.param == "a folder each"
    file = run_file(
        "two",
        **{
            "cluster.nodes": 2,
            "cluster.accelerators": 1,
            "cluster.wait": "60 s",
            "train.steps": 100_000,
            "evaluate.every": "never",
            "guard.checkpoint": "50 steps",
            "guard.durable": str(tmp_path / "durable") if own else None,
        },
    )
    found = Lab(tmp_path, file, "two", own_folders=own)
    yield found
    found.close()


def test_hosts_find_each_other_and_go_on_without_those_that_are_lost(lab: Lab) -> None:
    lab.start("a")
    lab.start("b")
    attempt = lab.until_on("a", "b")
    head = lab.leader()
    other = "b" if head == "a" else "a"

    lab.kill(other)
    attempt = lab.until_on(head, after=attempt)
    [lost] = lab.events("host_lost")
    assert lost.payload["node"] == other
    [fault] = lab.events("fault")
    assert f"host {other} was lost" in str(fault.payload["reason"])

    lab.start(other)
    attempt = lab.until_on("a", "b", after=attempt)

    lab.signal(other, signal.SIGTERM)  # notice: it is to go
    attempt = lab.until_on(head, after=attempt)
    assert lab.ends(other) == 0
    assert "two    left" in lab.said(other) or not lab.own_folders
    assert len(lab.events("fault")) == 1  # nothing was lost by that

    lab.start(other)
    attempt = lab.until_on("a", "b", after=attempt)

    lab.kill(head)
    attempt = lab.until_on(other, after=attempt)
    assert lab.leader() == other

    lab.signal(other, signal.SIGINT)  # a person: the run is to stop
    assert lab.ends(other) == 0
    [ended] = lab.events("ended")
    assert ended.payload["result"] == "stopped"
    attempts = [e.attempt for e in lab.events("mustered")]
    assert attempts == sorted(set(attempts))


@pytest.mark.slow
def test_a_leader_that_is_stopped_has_no_ranks_when_another_leads(lab: Lab) -> None:
    """Nobody of it is awake to end them; when it wakes up, it follows."""
    for host in "ab":
        lab.start(host)
    attempt = lab.until_on("a", "b")
    head = lab.leader()
    other = "b" if head == "a" else "a"
    [start] = [
        event
        for event in read_events(
            lab.run_folder(head).journal / file_name(attempt, range(1), "events")
        )
        if event.kind == "start"
    ]
    pid = int(str(start.payload["pid"]))
    lab.signal(head, signal.SIGSTOP)
    lab.until(lambda: lab.events("took_over"), "another host leads")
    assert not Path(f"/proc/{pid}").exists()
    attempt = lab.until_on(other, after=attempt)
    lab.signal(head, signal.SIGCONT)
    lab.until_on("a", "b", after=attempt)
    assert lab.leader() == other
    lab.signal(other, signal.SIGINT)
    assert [lab.ends(host) for host in "ab"] == [0, 0], str(lab)


# The loss is lowest at step 6, and the run stops at step 15: see test_best_runs.py.
EARLY = [
    "train.steps=40",
    "train.learning_rate=3.0",
    "train.warmup=75%",
    "train.clip=0",
    "train.precision=fp64",
    "evaluate.every=3 steps",
    "evaluate.patience=3",
    "evaluate.keep_best=true",
]


def test_hosts_stop_early_together_and_know_it_when_asked_again(lab: Lab) -> None:
    for host in "ab":
        lab.start(host, *EARLY)
    assert [lab.ends(host) for host in "ab"] == [0, 0], str(lab)
    [ended] = lab.events("ended")
    assert ended.payload["result"] == "stopped early"
    assert lab.reached() == 15
    for host in "ab":
        assert "stopped early" in lab.said(host), str(lab)
    before = len(lab.events())
    for host in "ab":
        lab.start(host, *EARLY)
    assert [lab.ends(host) for host in "ab"] == [0, 0], str(lab)
    for host in "ab":
        assert "has stopped early at step 15" in " ".join(lab.said(host).split()), str(lab)
    assert len(lab.events()) == before  # nothing was started


@pytest.mark.slow
def test_hours_with_power_for_one_host_are_trained_on_it(lab: Lab, tmp_path: Path) -> None:
    """The other host stays, waits, and ends with the run."""
    path = tmp_path / "hours.csv"
    own = ["train.steps=30", f"budget.hours_csv={path}", "budget.finish_within=30 days"]

    def write(limit_w: float) -> None:
        rows = [f"{hour},0.1,{limit_w}" for hour in range(24)]
        path.write_text("\n".join(["hour,usd_per_kwh,grid_limit_w", *rows]) + "\n")

    with known_watts():
        write(1e6)
        planned = penstock.plan(load(lab.run_file, own)).hours
        assert planned is not None
        full, one = planned.terms.levels
        write((full.needs_w + one.needs_w) / 2)
        for host in "ab":
            lab.start(host, *own)
        assert [lab.ends(host) for host in "ab"] == [0, 0], str(lab)
    [ended] = lab.events("ended")
    assert ended.payload["result"] == "done"
    assert lab.reached() == 30
    [size] = lab.events("resized")
    assert (size.payload["ranks"], size.payload["of"]) == (1, 2)
    [mustered] = lab.events("mustered")
    hosts = mustered.payload["hosts"]
    assert sorted(len(host["ranks"]) for host in hosts) == [0, 1]  # type: ignore[index, attr-defined]
    assert not lab.events("fault")
