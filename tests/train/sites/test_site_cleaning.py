"""Old objects go from the bucket, and nothing that a site can still need."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from object_server import object_server
from penstock.errors import PenstockError
from penstock.policy.sites import LeaseCut, Publication
from penstock.train.sites.bucket import MOST_DELETED, RoundsGone
from penstock.train.sites.objects import seal
from site_members import SECRET, SavedSite, Site, together

LONG = LeaseCut(steps=40, length=1, parts=2)  # 40 rounds where two sites keep up
TWO: dict[str, Any] = {"cut": LONG, "grace_s": 60.0}
ONE: dict[str, Any] = {
    "cut": LeaseCut(steps=14, length=1, parts=2),
    "grace_s": 0.0,
}  # 28 rounds of a site alone


def objects(site: Site) -> dict[str, int]:
    """Return all objects of the run's sites that a site sees."""
    place, folder = site.place, Path(str(site.place)) / "published"
    of_sites = [f"published/{path.name}" for path in folder.iterdir()]
    return {k: v for one in ("rounds", "snapshots", *of_sites) for k, v in place.list(one).items()}


def assert_whole(site: Site) -> None:
    """Everything that the newest round says is needed must be there."""
    bucket = site.member.bucket
    bucket.read_rounds()
    there, state = objects(site), bucket.newest
    assert all(f"snapshots/{number:06d}" in there for number in state.snapshots)
    for number in range(max(1, state.floor), state.number + 1):
        assert f"rounds/{number:06d}" in there
    for number in range(max(state.floor, bucket.states[0].number) + 1, state.number + 1):
        for one in bucket.members(number):
            assert f"published/{one.base:06d}/{one.site}" in there


def test_the_bucket_stays_small_over_many_rounds(tmp_path: Path) -> None:
    a, b = Site(tmp_path, "a", **TWO), Site(tmp_path, "b", **TWO)
    sizes: list[int] = []
    a.worked = lambda: sizes.append(sum(objects(a).values()))
    together(a.live, b.live)
    assert [one.number for one in a.rounds] == list(range(1, 42))
    assert torch.equal(a.outer.anchor, b.outer.anchor)
    left = objects(a)
    snapshots = [name for name in left if name.startswith("snapshots/")]
    published = [name for name in left if name.startswith("published/")]
    rounds = [name for name in left if name.startswith("rounds/")]
    assert 2 <= len(snapshots) <= 3
    # Every second round has a snapshot, which is announced a round later.
    assert len(rounds) <= 1 + 2 * 3
    assert len(published) <= 2 * (2 * 3 + 1)
    # One reading alone may fall just before or just after a deletion.
    assert max(sizes[10:]) <= 1.5 * max(sizes[:11])
    assert_whole(a)
    c = Site(tmp_path, "c", **TWO)
    for part in c.outer.views(c.outer.anchor).values():
        part.add_(1.0)
    assert c.live() == "end"
    assert torch.equal(a.outer.anchor, c.outer.anchor)
    assert c.member.bucket.states[0].number >= 36


def test_the_bucket_stays_small_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the requests of S3, which has one of its own for deletions."""
    with object_server() as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        a = Site("s3://data/sites", "a", **ONE)
        assert a.live() == "end"
        assert a.not_cleaned == []
        assert len(a.place.list("rounds")) <= 1 + 2 * 3
        assert len(a.place.list("published")) <= 2 * 3 + 1
        assert 2 <= len(a.place.list("snapshots")) <= 3
        assert len(server.objects) <= 20


def test_what_a_restart_of_a_site_needs_stays(tmp_path: Path) -> None:
    a, b = Site(tmp_path, "a", **TWO), Site(tmp_path, "b", **TWO)
    saves: list[SavedSite] = []

    def save_in_round_5() -> None:
        b.saved = min(b.member.here.at, 5)
        if len(b.leases) == 5:
            saves.append(SavedSite(b))

    b.worked = save_in_round_5
    stops_a, stops_b = (lambda one=one: one.live(leases=30) for one in (a, b))
    together(stops_a, stops_b)
    assert a.member.bucket.newest.floor == 5
    assert_whole(a)
    again = Site(tmp_path, "b", **TWO)
    saves[0].load_into(again)
    assert again.member.here.at == 5
    together(lambda: a.live(resumed=True), lambda: again.live(resumed=True))
    assert again.jumps == []
    assert torch.equal(a.outer.anchor, again.outer.anchor)
    assert again.leases == list(range(9, LONG.total, 2))  # also what was merged, exactly


@pytest.mark.parametrize("holds", [False, True])
def test_a_site_that_was_away_for_too_long_goes_on_from_a_snapshot(
    tmp_path: Path, holds: bool
) -> None:
    """Its process may have been frozen meanwhile, or dead: then it has a checkpoint."""
    a = Site(tmp_path, "a", **ONE)
    b = Site(tmp_path, "b", **ONE)
    together(lambda: a.live(leases=2), lambda: b.live(leases=1))
    saved = SavedSite(b)
    a.live(leases=20, resumed=True)
    assert a.member.bucket.newest.floor > saved.position["at"] + 1
    again = b
    if not holds:
        again = Site(tmp_path, "b", **ONE)
        saved.load_into(again)
    together(lambda: a.live(resumed=True), lambda: again.live(resumed=True))
    assert len(again.jumps) == 1
    assert torch.equal(a.outer.anchor, again.outer.anchor)
    assert a.member.finished
    assert again.member.finished


def test_a_frozen_site_notices_that_the_rounds_are_gone(tmp_path: Path) -> None:
    """It must not write its own rounds into the gap, and go on alone."""
    a = Site(tmp_path, "a", **ONE)
    b = Site(tmp_path, "b", **ONE)
    together(lambda: a.live(leases=2), lambda: b.live(leases=1))
    at_start = Site(tmp_path, "c", **ONE)
    at_start.member.bucket.open(at_start.member.weights.anchor_hash())
    a.live(leases=20, resumed=True)
    for late in (b, at_start):
        bucket = late.member.bucket
        number, before = bucket.newest.number, objects(a)
        with pytest.raises(RoundsGone, match=f"round {number + 1} was deleted"):
            bucket.check_newest()
        own = bucket.newest.held.get(late.name)
        said = Publication(late.name, own.base if own else number, own.number if own else None)
        with pytest.raises(RoundsGone):
            bucket.write_round((said,), "")
        assert objects(a).keys() - before.keys() == {f"rounds/{number + 1:06d}"}
    assert a.live(resumed=True) == "end"
    assert at_start.live() == "end"  # what it wrote into the gap is not read
    assert torch.equal(a.outer.anchor, at_start.outer.anchor)


class Killed(BaseException):
    """The end of a process between two requests."""


def test_a_site_that_is_killed_while_it_deletes_leaves_all_that_is_needed(tmp_path: Path) -> None:
    """At every request of its deletions, one after another; the next round goes on with them."""
    site, killed = Site(tmp_path, "a", **ONE), 0
    deletes = site.place.delete

    def dies(name: str) -> None:
        if len(site.leases) > 6 and name != dies.last:  # type: ignore[attr-defined]
            dies.last = name  # type: ignore[attr-defined]
            raise Killed
        deletes(name)

    dies.last = ""  # type: ignore[attr-defined]
    site.place.delete = dies  # type: ignore[method-assign]
    resumed = False
    while True:
        try:
            assert site.live(resumed=resumed) == "end"
            break
        except Killed:
            killed, resumed = killed + 1, True
            assert_whole(site)
            site.member.clock = iter(range(10**6)).__next__
    assert killed > 20
    assert_whole(site)
    assert len(site.leases) == ONE["cut"].total
    newcomer = Site(tmp_path, "b", **ONE)
    assert newcomer.live() == "end"
    assert torch.equal(site.outer.anchor, newcomer.outer.anchor)


def test_a_place_that_refuses_to_delete_is_told_once_and_the_run_goes_on(tmp_path: Path) -> None:
    a = Site(tmp_path, "a", **ONE)

    def refuses(name: str) -> None:
        raise PermissionError(f"{name}: access was refused")

    a.place.delete = refuses  # type: ignore[method-assign]
    assert a.live() == "end"
    assert len(a.not_cleaned) == 1
    assert "access was refused" in a.not_cleaned[0]


def test_a_site_whose_disk_is_lost_where_the_newest_round_has_a_snapshot(tmp_path: Path) -> None:
    """Nobody writes a round that would tell it so, but its lease is still its own."""
    a = Site(tmp_path, "a", **ONE)
    a.live(leases=5)
    while f"snapshots/{a.member.here.at:06d}" not in objects(a):
        a.live(leases=len(a.leases) + 1, resumed=True)
    again = Site(tmp_path, "a", **ONE)
    assert again.live() == "end"
    assert again.refused == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (lambda site: b"weights", "is not signed"),
        (
            lambda site: bytes(10 * site.member.weights.snapshot_sizes[0] + (1 << 17)),
            "are the most",
        ),
    ],
)
def test_a_bad_snapshot_is_refused_and_the_one_before_is_taken(
    tmp_path: Path, content: Callable[[Site], bytes], why: str
) -> None:
    a = Site(tmp_path, "a", **ONE)
    a.live()
    newest = max(name for name in objects(a) if name.startswith("snapshots/"))
    a.place.put(newest, content(a))
    b = Site(tmp_path, "b", **ONE)
    assert b.live() == "end"
    assert [name for name, _ in b.refused] == [newest]
    assert why in b.refused[0][1]
    assert torch.equal(a.outer.anchor, b.outer.anchor)


def test_a_snapshot_in_whose_place_a_stranger_was_first_is_written_over(tmp_path: Path) -> None:
    a = Site(tmp_path, "a", **ONE)
    a.live(leases=3)
    a.place.put("snapshots/000006", b"weights")
    assert a.live(resumed=True) == "end"
    assert ("snapshots/000006", "is not signed") in a.refused


def test_without_any_snapshot_a_site_that_was_away_says_what_is_wrong(tmp_path: Path) -> None:
    a, b = Site(tmp_path, "a", **ONE), Site(tmp_path, "b", **ONE)
    together(lambda: a.live(leases=2), lambda: b.live(leases=1))
    a.live(leases=20, resumed=True)
    for name in a.place.list("snapshots"):
        a.place.delete(name)
    with pytest.raises(PenstockError, match="there is no snapshot of a later round"):
        b.live(resumed=True)


def test_many_rounds_are_deleted_some_at_a_time(tmp_path: Path) -> None:
    """A site waits for its deletions, so there is a bound for one round."""
    a, deleted = Site(tmp_path, "a", **ONE), threading.local()
    deleted.now = 0
    a.saved = 0
    deletes = a.place.delete

    def counts(name: str) -> None:
        deleted.now += name.startswith("rounds/")
        deletes(name)

    a.place.delete = counts  # type: ignore[method-assign]
    a.live(leases=14)
    assert deleted.now == 0
    a.saved, most = None, 0
    for leases in range(15, 22):
        deleted.now = 0
        a.live(leases=leases, resumed=True)
        most = max(most, deleted.now)
    assert most == MOST_DELETED


PARTS: dict[str, Any] = ONE | {"part_bytes": 1024}  # so that a snapshot has four of them


def test_a_large_snapshot_is_several_objects_that_come_and_go_together(tmp_path: Path) -> None:
    a = Site(tmp_path, "a", **PARTS)
    assert len(a.member.weights.snapshot_sizes) == 4
    a.live()
    names = [name for name in objects(a) if name.startswith("snapshots/")]
    whole = [name for name in names if "." not in name]
    assert 2 <= len(whole) <= 3
    assert sorted(names) == sorted(
        [*whole, *(f"{name}.part{part}" for name in whole for part in range(4))]
    )
    b = Site(tmp_path, "b", **PARTS)
    for part in b.outer.views(b.outer.anchor).values():
        part.add_(1.0)
    assert b.live() == "end"
    assert torch.equal(a.outer.anchor, b.outer.anchor)
    assert torch.equal(a.outer.velocity, b.outer.velocity)
    assert b.member.bucket.states[0].number > 20  # it did not merge all rounds
    assert b.refused == []


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda site, name: site.place.put(name, b"weights"), "is not signed"),
        (lambda site, name: site.place.delete(name), ""),
        (
            lambda site, name: site.place.put(name, seal(name, {}, bytes(1024), SECRET)),
            "has another part 2 than it names",
        ),
    ],
)
def test_a_snapshot_with_a_bad_part_is_refused_and_the_one_before_is_taken(
    tmp_path: Path, damage: Callable[[Site, str], None], why: str
) -> None:
    """Two of its parts are loaded by then, and are written over."""
    a = Site(tmp_path, "a", **PARTS)
    a.live()
    newest = max(name for name in objects(a) if name.startswith("snapshots/") and "." not in name)
    damage(a, f"{newest}.part2")
    b = Site(tmp_path, "b", **PARTS)
    assert b.live() == "end"
    assert b.refused == ([(newest, why)] if why else [])
    assert b.member.bucket.states[0].number < int(newest.rpartition("/")[2])
    assert torch.equal(a.outer.anchor, b.outer.anchor)


def test_a_site_that_is_killed_between_the_parts_of_a_snapshot_leaves_none(tmp_path: Path) -> None:
    a = Site(tmp_path, "a", **PARTS)
    creates = a.place.create

    def dies(name: str, content: bytes) -> bool:
        if name == "snapshots/000006.part2":
            a.place.create = creates  # type: ignore[method-assign]
            raise Killed
        return creates(name, content)

    a.place.create = dies  # type: ignore[method-assign]
    with pytest.raises(Killed):
        a.live()
    b = Site(tmp_path, "b", **PARTS)
    b.live(leases=0)
    assert b.member.bucket.states[0].number == 4
    a.live(resumed=True)
    assert "snapshots/000028" in objects(a)
    assert b.live(resumed=True) == "end"
    assert torch.equal(a.outer.anchor, b.outer.anchor)
