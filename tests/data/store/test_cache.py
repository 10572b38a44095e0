"""The shared cache: fetched once, never over its bound, unharmed by killed processes."""

import errno
import fcntl
import io
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.store import cache as cache_entries
from penstock.data.store import cache_space, planned_reads
from penstock.data.store.cache import Cache, DamagedEntry
from penstock.data.store.planned_reads import SLOTS, PlannedReads, all_planned, live_plans
from penstock.errors import PenstockError

SIZE = 1000
spawn = multiprocessing.get_context("spawn")


def content_of(name: str) -> bytes:
    return (name.encode() * SIZE)[:SIZE]


def get(cache: Cache, name: str, fetched: list[str] | None = None) -> bytes:
    def fetch() -> bytes:
        if fetched is not None:
            fetched.append(name)
        return content_of(name)

    return bytes(cache.get_or_fetch(name, lambda found: bytes(found) == content_of(name), fetch))


def stored(cache: Cache) -> set[str]:
    return {path.name for path in (cache.folder / "blocks").rglob("*") if path.is_file()}


def stored_bytes(cache: Cache) -> int:
    total = 0
    for folder in ("blocks", "writing"):
        for path in (cache.folder / folder).rglob("*"):
            try:
                total += path.stat().st_size if path.is_file() else 0
            except FileNotFoundError:
                continue
    return total


def test_the_least_recently_used_entry_is_removed_first_and_planned_ones_stay(tmp_path):
    cache = Cache(tmp_path, 10 * SIZE)
    plan = cache.open_plan()
    plan.add(["aa1"])
    for n in range(8):
        get(cache, f"aa{n}")
        os.utime(cache._path(f"aa{n}"), ns=(n, n))
    os.utime(cache._path("aa0"))  # used just now
    get(cache, "bb1")
    get(cache, "bb2")
    get(cache, "bb3")
    assert stored(cache) >= {"aa0", "aa1", "bb1", "bb2", "bb3"}
    assert not stored(cache) & {"aa2", "aa3"}
    plan.remove(["aa1"])
    get(cache, "bb4")
    get(cache, "bb5")
    assert "aa1" not in stored(cache)


def test_a_cache_full_of_planned_content_is_passed_by(tmp_path):
    cache = Cache(tmp_path, 3 * SIZE)
    plan = cache.open_plan()
    names = ["aa1", "aa2", "aa3"]
    plan.add(names)
    for name in [*names, "bb1"]:
        assert get(cache, name) == content_of(name)
    assert stored(cache) == set(names)
    plan.close()  # nobody needs them any more
    get(cache, "bb1")
    assert "bb1" in stored(cache)


@settings(max_examples=15, deadline=None)
@given(
    uses=st.lists(st.integers(0, 12), max_size=40),
    bound=st.integers(1, 8),
)
def test_the_bound_holds_and_content_is_always_right(tmp_path_factory, uses, bound):
    cache = Cache(tmp_path_factory.mktemp("cache"), bound * SIZE + 10)
    for use in uses:
        name = f"aa{use}"
        assert get(cache, name) == content_of(name)
        assert stored_bytes(cache) <= cache.space.max_bytes
        assert cache.space.used_bytes() >= stored_bytes(cache)


def test_a_wrong_fetch_is_tried_twice(tmp_path):
    cache = Cache(tmp_path, 10 * SIZE)
    answers = [b"bad", b"good"]
    assert (
        cache.get_or_fetch("aa", lambda found: found == b"good", lambda: answers.pop(0)) == b"good"
    )
    calls: list[int] = []
    with pytest.raises(DamagedEntry):
        cache.get_or_fetch("bb", lambda found: False, lambda: calls.append(1) or b"")
    assert len(calls) == 2
    assert stored(cache) == {"aa"}


@pytest.mark.parametrize("kind", ["cut", "flipped", "empty", "longer", "folder", "full", "link"])
def test_an_entry_that_is_spoilt_is_fetched_again_and_kept(tmp_path, kind):
    cache = Cache(tmp_path, 10 * SIZE)
    get(cache, "aa1")
    path = cache._path("aa1")
    content = path.read_bytes()
    path.unlink()
    if kind == "link":
        path.symlink_to(tmp_path / "nowhere")
    elif kind in ("folder", "full"):
        path.mkdir()
        if kind == "full":
            (path / "file").write_text("not ours")
    else:
        spoilt = {"cut": content[:-1], "flipped": b"?" + content[1:], "empty": b""}
        path.write_bytes(spoilt.get(kind, content + b"?"))
    fetched: list[str] = []
    for _ in range(2):
        assert get(cache, "aa1", fetched) == content_of("aa1")
    assert fetched == ["aa1"]
    assert path.read_bytes() == content


def test_things_that_do_not_belong_there_do_not_stop_a_sweep(tmp_path):
    cache = Cache(tmp_path, 4 * SIZE)
    (tmp_path / "blocks" / "zz").write_text("a file among the folders")
    (tmp_path / "blocks" / "aa" / "aa0").mkdir(parents=True)
    os.utime(tmp_path / "blocks" / "aa" / "aa0", ns=(0, 0))
    for n in range(1, 9):
        get(cache, f"aa{n}")
        assert f"aa{n}" in stored(cache)


def test_a_lost_byte_count_is_counted_again(tmp_path):
    cache = Cache(tmp_path, 4 * SIZE)
    for n in range(4):
        get(cache, f"aa{n}")
    for lost in (b"", b"\0\0"):
        (tmp_path / "bytes").write_bytes(lost)
        get(cache, "bb" + lost.hex())
        assert stored_bytes(cache) <= 4 * SIZE


def test_a_folder_that_is_removed_under_a_reader_costs_only_the_keeping(tmp_path):
    cache = Cache(tmp_path / "cache", 4 * SIZE)
    plan = cache.open_plan()
    plan.add(["aa1"])
    shutil.rmtree(tmp_path / "cache")
    assert get(cache, "aa1") == content_of("aa1")
    assert cache.planned_share_bytes(plan, SIZE) > 0
    plan.close()


def test_a_disk_that_fills_takes_no_half_entries(tmp_path, monkeypatch):
    """A write that is cut short, as the last one before a disk is full is."""
    cache = Cache(tmp_path, 10 * SIZE)

    class Half(io.FileIO):
        def write(self, content):
            return super().write(memoryview(content)[: len(content) // 2])

    monkeypatch.setattr(
        cache_entries,
        "open",
        lambda file, *_, **more: Half(file, "wb", more["closefd"]),
        raising=False,
    )
    assert get(cache, "aa1") == content_of("aa1")
    assert stored(cache) == set()
    assert cache.space.used_bytes() == 0
    assert not list((tmp_path / "writing").iterdir())


def test_a_full_disk_leaves_no_open_files(tmp_path, monkeypatch):
    cache = Cache(tmp_path, 10 * SIZE)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_space.os, "ftruncate", full)
    before = len(os.listdir("/proc/self/fd"))
    for n in range(20):
        assert get(cache, f"aa{n}") == content_of(f"aa{n}")
    assert len(os.listdir("/proc/self/fd")) == before
    assert not list((tmp_path / "writing").iterdir())
    monkeypatch.setattr(planned_reads.os, "posix_fallocate", full)
    plan = cache.open_plan()  # kept to itself
    plan.add(["aa1"])
    plan.remove(["aa1"])
    plan.close()


def test_a_plan_that_is_taken_for_dead_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    real, looked = fcntl.flock, []

    def late(handle, how):
        if not looked and how == fcntl.LOCK_EX:
            looked.append(live_plans(tmp_path))  # another process comes by at the wrong moment
        real(handle, how)

    monkeypatch.setattr(planned_reads.fcntl, "flock", late)
    plan = PlannedReads(tmp_path)
    plan.add(["aa1"])
    assert looked == [[]]
    assert "aa1" in all_planned(tmp_path)


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PenstockError, match=r"PENSTOCK_CACHE"):
        Cache(tmp_path / "file" / "cache")


def test_the_environment_sets_the_folder_and_the_limit(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "named"))
    monkeypatch.setenv("PENSTOCK_CACHE_BYTES", "3 MiB")
    cache = Cache.from_environment()
    assert (cache.folder, cache.space.max_bytes) == (tmp_path / "named", 3 << 20)
    assert Cache.from_environment(tmp_path / "own", 7).space.max_bytes == 7
    monkeypatch.setenv("PENSTOCK_CACHE_BYTES", "4096")
    assert Cache.from_environment().space.max_bytes == 4096
    monkeypatch.setenv("PENSTOCK_CACHE_BYTES", "much")
    with pytest.raises(PenstockError, match="PENSTOCK_CACHE_BYTES = 'much': not a size"):
        Cache.from_environment()
    monkeypatch.delenv("PENSTOCK_CACHE_BYTES")
    assert 0 < Cache.from_environment().space.max_bytes <= 64 << 30


def worker(folder: str, seed: int, log: str, bound: int) -> None:
    """Reads 300 of 40 entries; each fetch is a line in the log."""
    cache = Cache(Path(folder), bound)
    rng = np.random.default_rng(seed)
    with open(log, "a") as file:
        for number in rng.integers(0, 40, 300):
            name, fetched = f"aa{number}", []
            assert get(cache, name, fetched) == content_of(name)
            with cache.space.locked():  # a sum over files that come and go is no sum
                assert stored_bytes(cache) <= bound
            if fetched:
                file.write(f"{name}\n")
                file.flush()


def together(folder: Path, log: Path, bound: int) -> list[str]:
    """What three processes fetched, working at once."""
    workers = [
        spawn.Process(target=worker, args=(str(folder), n, str(log), bound)) for n in range(3)
    ]
    for one in workers:
        one.start()
    for one in workers:
        one.join(60)
    assert [one.exitcode for one in workers] == [0, 0, 0]
    return log.read_text().split()


def test_several_processes_fetch_each_entry_once(tmp_path):
    fetched = together(tmp_path / "cache", tmp_path / "log", 1 << 20)
    assert len(fetched) == len(set(fetched)) == 40


def test_several_processes_keep_the_bound(tmp_path):
    fetched = together(tmp_path / "cache", tmp_path / "log", 12 * SIZE)
    assert len(fetched) > 40  # room for 12 of 40: there was something to remove
    cache = Cache(tmp_path / "cache", 12 * SIZE)
    assert not list((cache.folder / "writing").iterdir())


def die_writing(folder: str) -> None:
    """Killed while it holds room, a lock on an entry, and a plan."""
    cache = Cache(Path(folder), 4 * SIZE)
    cache.open_plan().add(["aa1", "aa2"])

    def fetch() -> bytes:
        with cache.space.reserve(2 * SIZE) as taken:
            assert taken is not None
            os.kill(os.getpid(), signal.SIGKILL)
        return b""

    cache.get_or_fetch("aa1", lambda found: True, fetch)


def test_leftovers_of_a_killed_process_do_no_harm(tmp_path):
    killed = spawn.Process(target=die_writing, args=(str(tmp_path),))
    killed.start()
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    cache = Cache(tmp_path, 4 * SIZE)
    assert len(list((tmp_path / "writing").iterdir())) == 1
    for name in ("aa1", "aa2", "aa3", "aa4", "aa5"):
        assert get(cache, name) == content_of(name)
    assert stored_bytes(cache) <= 4 * SIZE
    assert not list((tmp_path / "writing").iterdir())
    assert len(stored(cache)) >= 3
    assert live_plans(tmp_path / "plans") == []


def test_the_slots_of_a_plan_are_used_again(tmp_path):
    plan = PlannedReads(tmp_path)
    for n in range(3):
        names = [f"{n}-{k}" for k in range(SLOTS // 2)]
        plan.add(names)
        assert plan.free_slots == SLOTS // 2
        assert "0-0" in all_planned(tmp_path) or n
        if n < 2:
            plan.remove(names)
    known = all_planned(tmp_path)
    assert "2-0" in known
    assert names[-1] in known
    assert "1-5" not in known
    assert live_plans(tmp_path) != []
    plan.close()
    assert "2-0" not in all_planned(tmp_path)
