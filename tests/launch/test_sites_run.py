"""Sites as whole runs over a folder: processes of their own, killed, late, and against replicas."""

import contextlib
import os
import queue
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hosts_lab import Lab
from penstock.guard.detect.failpoints import Failpoint, arm
from penstock.launch.verify import verify
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import journal_files
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.train.site_rounds import RestartSteps
from penstock.train.sites.bucket import open_place
from penstock.train.sites.objects import seal
from whole_runs import At, go, reached

SECRET = "0123456789abcdef0123456789abcdef"
FIELDS = {
    "train.steps": 12,
    "train.sync.local_steps": 4,
    "train.sync.compress": "int4",
    "cluster.accelerators": 1,
    "layout.microbatch": 2,
    "guard.checkpoint": "2 steps",
    "guard.fast": "never",
    "evaluate.every": "4 steps",
}
TWO = {"cluster.accelerators": 2, "layout.replicate": 2}  # the same without sites
SHARDED = {"cluster.accelerators": 2, "layout.shard": 2}
MakeFile = Callable[..., Path]


class Site:
    """A site: a process of `penstock train`, and the folder of its run."""

    def __init__(self, file: Path, name: str, *overrides: str) -> None:
        self.name = name
        where = file.parent / name
        self.folder = RunFolder(where / file.stem)
        self.command = [
            *(sys.executable, "-m", "penstock", "train", str(file), f"dir={where}"),
            *(f"sites.name={name}", f"sites.bucket={file.parent / 'bucket'}", *overrides),
        ]
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        environment = os.environ | {"PENSTOCK_SITES_SECRET": SECRET}
        self.process = subprocess.Popen(
            self.command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self) -> None:
        assert self.process is not None
        text, _ = self.process.communicate(timeout=240)
        assert self.process.returncode == 0, text

    def events(self, kind: str) -> list[dict[str, object]]:
        files = journal_files(self.folder.journal, "events")
        lines = [line for file in files for line in read_events(file.path)]
        return [line.payload for line in lines if line.kind == kind]

    def weights(self) -> object:
        return [e["weights_hash"] for e in self.events("end") if e.get("weights_hash")][-1]

    def kill_at(self, step: int) -> None:
        """Kill all its processes when it has reached a step."""
        assert self.process is not None
        while reached(self.folder) < step:
            assert self.process.poll() is None, self.process.communicate()[0]
            time.sleep(0.01)
        self.kill()

    def signal(self, number: int) -> None:
        """Send a signal to its processes: the supervisor first, or it would see the rank's end."""
        assert self.process is not None
        pids = [int(str(event["pid"])) for event in self.events("start")[-1:]]
        for pid in [self.process.pid, *pids]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        assert self.process is not None
        self.signal(signal.SIGKILL)
        self.process.communicate()


def merged_leases(site: Site) -> set[tuple[str, int]]:
    """Return the leases whose work was merged, by site and round; refuse one that was twice.

    A restarted site merges rounds again, which are the same.
    """
    rounds = {one["number"]: one["sites"] for one in site.events("site_round")}
    merged = [(name, base) for sites in rounds.values() for name, base in sites.items()]
    assert len(merged) == len(set(merged))
    return set(merged)


def test_a_site_alone_trains_on_all_leases_and_goes_on_after_a_stop(
    run_file: MakeFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is one of two, so it takes every lease of a run in turn, in twice as many steps.

    What its three checkpoints do not need goes from the bucket. It goes on with two ranks, and they
    are alike whenever that is looked at.
    """
    monkeypatch.setenv("PENSTOCK_SITES_SECRET", SECRET)
    where = {"sites.bucket": str(tmp_path / "bucket"), "sites.name": "a", "sites.grace": "200 ms"}
    where["sites.snapshot"] = "1"
    file = run_file("lone", **FIELDS, **where)
    listener = At(5, lambda folder: folder.request("stop"))
    first = go(file, listener=listener)
    assert first["status"] == "stopped"
    two = run_file("lone", **FIELDS | TWO, **where, **{"guard.compare": "1 step"})
    report = go(two)
    assert (report["status"], report["steps"]) == ("done", 24)
    found = Site(file, "a")
    found.folder = RunFolder(tmp_path / "runs" / "lone")
    assert merged_leases(found) == {("a", number) for number in range(1, 7)}
    assert report["val_loss"] < report["val_losses"][0][1]
    kept = sorted(int(path.name) for path in (tmp_path / "bucket/lone/rounds").iterdir())
    assert kept[0] == 0
    assert 2 <= kept[1] <= 5  # the oldest of its checkpoints is of step 20, in round 5
    assert len(list((tmp_path / "bucket/lone/snapshots").iterdir())) <= 3
    assert found.events("bucket_not_cleaned") == []
    for kind in ("local_state_dropped", "replicas_differ", "checkpoint_rejected"):
        assert found.events(kind) == []
    finished = [one["weights_hash"] for one in found.events("end") if one.get("weights_hash")]
    assert len(set(finished[-2:])) == 1


def test_steps_that_a_restart_may_go_on_from_are_listed_aside() -> None:
    """A store that does not answer changes nothing, and holds nobody up."""
    answers: queue.Queue[list[int] | OSError] = queue.Queue()

    def find() -> list[int]:
        found = answers.get()
        if isinstance(found, OSError):
            raise found
        return found

    restarts = RestartSteps(find)
    assert restarts.steps() is None
    answers.put([4, 6])
    while restarts.steps() is None:
        time.sleep(0.001)
    answers.put(OSError("away"))
    answers.put([6, 8])
    seen = [restarts.steps()]
    while seen[-1] != [6, 8]:
        time.sleep(0.001)
        seen.append(restarts.steps())
    assert all(one == [4, 6] for one in seen[:-1])


@pytest.mark.slow
def test_two_sites_end_with_the_weights_of_two_replicas(run_file: MakeFile) -> None:
    """One of them is killed inside a round and goes on from its checkpoint."""
    replicas = go(run_file("replicas", **FIELDS | TWO))
    file = run_file("sites", **FIELDS, **{"sites.bucket": "x", "sites.name": "x"})
    a, b = Site(file, "a", "sites.grace=10 min"), Site(file, "b", "sites.grace=10 min")
    a.start()
    b.start()
    b.kill_at(6)
    b.start()
    a.end()
    b.end()
    assert a.weights() == b.weights() == replicas["weights_hash"]
    rounds = a.events("site_round")
    assert [one["number"] for one in rounds] == [1, 2, 3, 4]
    assert all(one["sites"] == {"a": n, "b": n} for n, one in enumerate(rounds[1:], 1))
    assert all(int(str(one["sent_bytes"])) > 0 for one in rounds)
    assert a.events("site_refused") == b.events("site_refused") == []


def test_a_site_that_cannot_be_is_one_message_at_check(
    run_file: MakeFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**fields: object) -> str:
        path = run_file("s", **FIELDS | {"sites.bucket": "x", "sites.name": "a"} | fields)
        return str(verify(load(path)).refused)

    monkeypatch.delenv("PENSTOCK_SITES_SECRET", raising=False)
    assert "the variable PENSTOCK_SITES_SECRET is not set" in refused()
    monkeypatch.setenv("PENSTOCK_SITES_SECRET", SECRET)
    assert refused() == "None"
    assert refused(**TWO) == "None"
    for name in ("tensor", "shard", "context", "pipeline"):
        assert refused(**{"cluster.accelerators": 2, f"layout.{name}": 2}) == "None"
    for layout in ({"layout.replicate": 2}, {"layout.shard": 2}, {"layout.pipeline": 2}):
        assert refused(**{"cluster.nodes": 2} | layout) == "None"


@pytest.mark.slow
def test_two_sites_of_two_ranks_resume_exactly_inside_a_round(run_file: MakeFile) -> None:
    """Also with another loss of a rank; the weights are those of sites that nothing happened to."""
    fields = FIELDS | TWO | {"guard.compare": "1 step", "sites.grace": "10 min"}
    ended = []
    for name, faults in (("calm", ()), ("faults", (5, 6, 11))):
        file = run_file(name, **fields, **{"sites.bucket": "x", "sites.name": "x"})
        a, b = Site(file, "a"), Site(file, "b")
        a.start()
        b.start()
        for number, step in enumerate(faults):
            victim = (a, b)[number % 2]
            victim.kill_at(step)
            victim.start()
        a.end()
        b.end()
        assert a.weights() == b.weights()
        assert [one["number"] for one in a.events("site_round")] == [1, 2, 3, 4]
        for site in (a, b):
            both = [one["weights_hash"] for one in site.events("end") if one.get("weights_hash")]
            assert len(set(both)) == 1
            for kind in ("replicas_differ", "site_refused", "local_state_dropped"):
                assert site.events(kind) == []
        ended.append(a.weights())
    assert ended[0] == ended[1]


def ended_alone(file: Path, *lives: dict[str, Any], bucket: Path) -> dict[str, Any]:
    """Train a site alone, stopped in the first round and at the end of the next, and so on."""
    report: dict[str, Any] = {}
    for number, layout in enumerate(lives):
        words = [f"{name}={value}" for name, value in layout.items()]
        words += [f"sites.bucket={bucket}", "sites.name=a", "sites.grace=200 ms"]
        last = number == len(lives) - 1
        step = 3 + 5 * number  # inside a round, where only the checkpoint has what is owed
        listener = None if last else At(step, lambda folder: folder.request("stop"))
        report = go(file, *words, **({} if last else {"listener": listener}))
        assert report["status"] == ("done" if last else "stopped")
    return report


@pytest.mark.slow
def test_a_site_goes_on_in_another_layout_with_all_that_it_owes(
    run_file: MakeFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In fp64 its layouts differ by rounding alone. A newcomer then starts from its snapshot."""
    monkeypatch.setenv("PENSTOCK_SITES_SECRET", SECRET)
    fields = FIELDS | {"train.precision": "fp64", "train.sync.compress": "int2"}
    fields["sites.snapshot"] = 2
    del fields["cluster.accelerators"]
    one = {"cluster.accelerators": 1}
    losses = []
    for name, lives in (
        ("calm", (one,)),
        ("moved", (SHARDED, one, SHARDED, one)),
    ):
        file = run_file(name, **fields, **{"sites.bucket": "x", "sites.name": "x"})
        report = ended_alone(file, *lives, bucket=tmp_path / "bucket")
        losses.append(report["val_loss"])
        site = Site(file, "a")
        site.folder = RunFolder(tmp_path / "runs" / name)
        assert merged_leases(site) == {("a", number) for number in range(1, 7)}
        for kind in ("local_state_dropped", "checkpoint_rejected", "site_refused"):
            assert site.events(kind) == []
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    before = report["weights_hash"]
    newcomer = Site(file, "b", *(f"{name}={value}" for name, value in SHARDED.items()))
    newcomer.start()
    newcomer.end()
    assert newcomer.weights() == before
    assert min(int(str(one["number"])) for one in newcomer.events("site_round")) > 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        SHARDED,
        {"cluster.accelerators": 2, "layout.pipeline": 2},
        {"cluster.accelerators": 4, "layout.shard": 2, "layout.tensor": 2},
        {"cluster.accelerators": 4, "layout.replicate": 2, "layout.context": 2},
    ],
    ids=lambda layout: " ".join(name.partition(".")[2] for name in list(layout)[1:]),
)
def test_a_site_that_cuts_its_model_and_one_of_one_rank_end_with_equal_weights(
    run_file: MakeFile, layout: dict[str, int]
) -> None:
    """Both are killed inside a round; the anchors of a round are compared by their hashes."""
    file = run_file("sites", **FIELDS, **{"sites.bucket": "x", "sites.name": "x"})
    cut = (f"{name}={value}" for name, value in layout.items())
    a = Site(file, "a", "sites.grace=10 min", *cut)
    b = Site(file, "b", "sites.grace=10 min")
    a.start()
    b.start()
    a.kill_at(6)
    a.start()
    b.kill_at(7)
    b.start()
    a.end()
    b.end()
    assert a.weights() == b.weights()
    rounds = a.events("site_round")
    assert sorted({int(str(one["number"])) for one in rounds}) == [1, 2, 3, 4]
    assert merged_leases(a) == {(name, number) for name in "ab" for number in range(1, 4)}
    for site in (a, b):
        for kind in ("site_refused", "site_lease_lost", "local_state_dropped"):
            assert site.events(kind) == []


@pytest.mark.slow
@pytest.mark.parametrize("own_folders", [True, False])
def test_a_site_of_two_hosts_loses_one_and_ends_with_the_weights_of_the_other_site(
    run_file: MakeFile, tmp_path: Path, own_folders: bool
) -> None:
    """The model is cut between the hosts, each of which dies once: either may talk to the bucket,
    before and after."""
    fields = FIELDS | {"layout.shard": 2, "cluster.nodes": 2, "cluster.wait": "60 s"}
    fields |= {"train.steps": 40, "guard.durable": str(tmp_path / "durable")}
    where = {"sites.bucket": str(tmp_path / "bucket"), "sites.name": "a", "sites.grace": "10 min"}
    file = run_file("sites", **fields, **where)
    env = {"PENSTOCK_SITES_SECRET": SECRET}
    lab = Lab(tmp_path, file, "sites", own_folders=own_folders, env=env)
    one_rank = ("cluster.nodes=1", "layout.shard=1", f"guard.durable={tmp_path / 'other'}")
    b = Site(file, "b", "sites.grace=10 min", *one_rank)
    try:
        b.start()
        lab.start("p")
        lab.start("q")
        for number in range(2):
            attempt = lab.until_on("p", "q")
            lab.until_step(6 + 12 * number)
            head = lab.leader()
            victim = head if number else ("q" if head == "p" else "p")
            lab.kill(victim)
            lab.start(victim)
            lab.until_on("p", "q", after=attempt)
        assert [lab.ends(host) for host in "pq"] == [0, 0], str(lab)
        b.end()
    finally:
        lab.close()
    ends = []
    for host in "pq":
        site = Site(file, host)
        site.folder = lab.run_folder(host)
        ends += [e["weights_hash"] for e in site.events("end") if e["result"] == "done"]
        for kind in ("site_refused", "site_lease_lost", "local_state_dropped"):
            assert site.events(kind) == []
    assert set(ends) == {b.weights()}
    assert merged_leases(b) == {(name, number) for name in "ab" for number in range(1, 11)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [TWO, {"cluster.accelerators": 4, "layout.replicate": 2, "layout.shard": 2}],
    ids=["replicas", "replicas that are sharded"],
)
def test_a_wrong_rank_of_a_site_is_found_before_it_publishes(
    run_file: MakeFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, layout: dict[str, int]
) -> None:
    """A bit of a weight of rank 0, which publishes for all, flips in the last step of a round."""
    monkeypatch.setenv("PENSTOCK_SITES_SECRET", SECRET)
    ended = []
    for name in ("calm", "flip"):
        where = {"sites.bucket": str(tmp_path / name), "sites.name": "a", "sites.grace": "200 ms"}
        file = run_file(name, **FIELDS | layout | {"guard.checkpoint": "3 steps"}, **where)
        folder = RunFolder(tmp_path / "runs" / name)
        if name == "flip":
            arm(folder.traps, Failpoint("t", "flip", "updated", rank=0, step=8))
        ended.append(go(file)["weights_hash"])
    site = Site(file, "a")
    site.folder = folder
    assert len(site.events("replicas_differ")) == 1
    assert ended[0] == ended[1]


@pytest.mark.slow
def test_a_site_of_two_ranks_ends_with_one_message_where_the_bucket_is_not_theirs(
    run_file: MakeFile, tmp_path: Path
) -> None:
    file = run_file("sites", **FIELDS | TWO, **{"sites.bucket": "x", "sites.name": "x"})
    place = open_place(str(tmp_path / "bucket"), "sites")
    place.create("rounds/000000", seal("rounds/000000", {}, b"", b"the secret of others"))
    site = Site(file, "a")
    site.start()
    assert site.process is not None
    text, _ = site.process.communicate(timeout=240)
    assert site.process.returncode == 2, text
    assert "round 0 there is signed with another secret" in text


@pytest.mark.slow
def test_a_site_killed_between_its_publication_and_the_round_publishes_once(
    run_file: MakeFile,
) -> None:
    replicas = go(run_file("replicas", **FIELDS | TWO))
    file = run_file("sites", **FIELDS, **{"sites.bucket": "x", "sites.name": "x"})
    a, b = Site(file, "a", "sites.grace=10 min"), Site(file, "b", "sites.grace=10 min")
    a.start()
    b.start()
    while not (reached(a.folder) and reached(b.folder)):
        time.sleep(0.001)
    a.signal(signal.SIGSTOP)
    number = len(list((file.parent / "bucket/sites/rounds").iterdir())) - 1
    published = file.parent / f"bucket/sites/published/{number:06d}"
    while not (published / "b").exists():
        time.sleep(0.05)
    content = (published / "b").read_bytes()
    b.kill()
    a.signal(signal.SIGCONT)
    b.start()
    a.end()
    b.end()
    assert (published / "b").read_bytes() == content
    assert a.weights() == b.weights() == replicas["weights_hash"]


@pytest.mark.slow
def test_sites_killed_at_random_points_lose_nothing(run_file: MakeFile) -> None:
    fields = FIELDS | {"train.steps": 60}
    replicas = go(run_file("replicas", **fields | TWO))
    file = run_file("sites", **fields, **{"sites.bucket": "x", "sites.name": "x"})
    both = [Site(file, name, "sites.grace=10 min") for name in "ab"]
    for site in both:
        site.start()
    draw = random.Random(0)
    for _ in range(8):
        site = draw.choice(both)
        time.sleep(draw.uniform(0.0, 8.0))
        site.kill()
        site.start()
    for site in both:
        site.end()
    assert both[0].weights() == both[1].weights() == replicas["weights_hash"]
    assert len(merged_leases(both[0])) == 30


@pytest.mark.slow
@pytest.mark.parametrize("late", [1000, 1])
def test_a_frozen_site_is_merged_late_or_loses_its_lease(run_file: MakeFile, late: int) -> None:
    file = run_file("sites", **FIELDS, **{"sites.bucket": "x", "sites.name": "x"})
    rules = ("sites.grace=1 s", f"sites.late={late}", "train.steps=40")
    a, b = Site(file, "a", *rules), Site(file, "b", *rules)
    a.start()
    b.start()
    while not (reached(a.folder) and reached(b.folder)):
        time.sleep(0.001)
    b.signal(signal.SIGSTOP)
    begun = len(a.events("site_round"))
    while len(a.events("site_round")) < begun + 4:
        time.sleep(0.05)
    b.signal(signal.SIGCONT)
    a.end()
    b.end()
    assert a.weights() == b.weights()
    rounds = a.events("site_round")
    assert [one["number"] for one in rounds] == [one["number"] for one in b.events("site_round")]
    assert len(merged_leases(a)) == 20
    latest = max(behind for one in rounds for behind in one["late"].values())
    lost = b.events("site_lease_lost")
    assert (latest > 1, lost) == (True, []) if late > 1 else (latest <= 1, len(lost)) == (True, 1)


@pytest.mark.slow
def test_a_site_that_is_stopped_while_it_waits_goes_on_later(run_file: MakeFile) -> None:
    file = run_file("sites", **FIELDS, **{"sites.bucket": "x", "sites.name": "x"})
    a, b = (Site(file, name, "sites.quorum=2", "sites.grace=10 min") for name in "ab")
    a.start()
    waits = file.parent / "bucket" / "sites" / "published" / "000000" / "a"
    while not waits.exists():
        time.sleep(0.05)
    a.folder.request("stop")
    a.end()
    assert a.events("end")[-1]["result"] == "stopped"
    b.start()
    a.start()
    a.end()
    b.end()
    assert a.weights() == b.weights()
    assert reached(a.folder) == reached(b.folder) == 12


@pytest.mark.slow
def test_a_site_that_dies_is_replaced_by_a_new_one(run_file: MakeFile) -> None:
    file = run_file("sites", **FIELDS, **{"sites.bucket": "x", "sites.name": "x"})
    quick = ("sites.quorum=2", "sites.grace=2 s", "sites.late=1", "train.steps=40")
    a, b, c = (Site(file, name, *quick) for name in "abc")
    a.start()
    b.start()
    b.kill_at(6)
    c.start()
    a.end()
    c.end()
    assert a.weights() == c.weights()
    merged = merged_leases(a)
    assert len(merged) == 20  # every sample once
    assert {name for name, _ in merged} == {"a", "b", "c"}
