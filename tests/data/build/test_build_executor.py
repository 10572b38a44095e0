"""A build is the same whatever runs its tasks and wherever its files are."""

import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from build_corpus import recipe, write_corpus

from penstock.data.build import build as build_module
from penstock.data.build import pipeline, shards, tokenizer
from penstock.data.build.build import build
from penstock.data.dedup import runs
from penstock.data.read.dataset import Dataset
from penstock.data.store.object_path import ObjectPath
from penstock.data.workers.pool import Task

CHANGES = {
    "dedup": {"lines": True},
    "label": {"copies": [[0.0, 0.9], [0.8, 1.5]]},
    "shards": {"size": "4 KiB"},
}


class Killed(Exception):
    """The end of a driver."""


class AnyOrder:
    """Tasks in this process as a cluster runs them: in any order, and some of them twice.

    `lives` is the number of tasks after which the driver dies.
    """

    workers, memory_bytes = 3, 0

    def __init__(self, seed: int, lives: int = 1 << 30) -> None:
        self.rng, self.lives = random.Random(seed), lives
        self.ran: list[Path] = []

    def as_completed(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, int]]:
        done = []
        for task in self.rng.sample(tasks, len(tasks)):
            if len(self.ran) == self.lives:
                raise Killed
            self.ran.append(task.path)
            done.append((task, task.run()))
            if self.rng.random() < 0.3:  # its worker died before it could tell
                task.run()
        self.rng.shuffle(done)
        yield from done

    def close(self) -> None:
        pass


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build_module, "PART_BYTES", 2500)
    return write_corpus(tmp_path / "corpus", files=3, documents=15)


def stored(dataset: Path) -> dict[str, bytes]:
    """The files of a dataset but its record, which has times.

    A local object store that copies a file twice leaves a link with # in its name.
    """
    files = {str(path.relative_to(dataset)): path for path in dataset.rglob("*") if path.is_file()}
    return {
        name: path.read_bytes()
        for name, path in files.items()
        if name != "build.json" and "#" not in name
    }


def built_by(executor: AnyOrder, corpus: Path, home: Path) -> Dataset:
    start = lambda sources, work: nullcontext(executor)  # noqa: E731
    return build(recipe(corpus, **CHANGES), home=home, start=start)


@pytest.mark.parametrize("objects", [False, True])
def test_any_order_gives_the_same_version(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, objects: bool
) -> None:
    monkeypatch.setattr(tokenizer, "SAMPLE_BYTES", 1000)
    expected = build(recipe(corpus, **CHANGES), workers=1)
    folder = tmp_path / "other"
    # The texts that train the tokenizer are found by tasks, as in a large set. The first limit of
    # their hashes is too small.
    monkeypatch.setattr(pipeline, "SAMPLE_FROM_BYTES", 0)
    monkeypatch.setattr(pipeline, "sample_limit", lambda size: tokenizer.sample_limit(20 * size))
    # So are the parts of a large set: merged before keys are compared, and before shards.
    monkeypatch.setattr(runs, "RUNS_FROM", 2)
    monkeypatch.setattr(runs, "RUN_PARTS", 2)
    monkeypatch.setattr(shards, "MERGE_FROM", 2)
    monkeypatch.setattr(shards, "_MERGED_PARTS", 3)
    monkeypatch.setattr(shards, "_MERGED_BYTES", 2000)
    for seed in range(2):
        place = folder / str(seed)
        home = ObjectPath(f"file://{place}") if objects else place
        dataset = built_by(AnyOrder(seed), corpus, home)
        assert dataset.id == expected.id
        assert stored(place / expected.id) == stored(expected.folder)
        left = [path for path in place.rglob("*") if path.is_file() and ".building" in str(path)]
        assert left == []


@pytest.mark.parametrize("objects", [False, True])
def test_a_driver_that_is_killed_again_and_again_goes_on(
    tmp_path: Path, corpus: Path, objects: bool
) -> None:
    expected = build(recipe(corpus, **CHANGES), workers=1)
    place = tmp_path / "other"
    home = ObjectPath(f"file://{place}") if objects else place
    ran: list[Path] = []
    deaths = 0
    while True:
        executor = AnyOrder(deaths, lives=25)
        try:
            dataset = built_by(executor, corpus, home)
            break
        except Killed:
            deaths += 1
        finally:
            ran += executor.ran
    assert deaths > 3
    assert dataset.id == expected.id
    assert stored(place / expected.id) == stored(expected.folder)
    assert len(ran) == len(set(ran))  # no task twice


def test_what_is_built_is_found_again(corpus: Path, tmp_path: Path) -> None:
    home = ObjectPath(f"file://{tmp_path}/other")
    first = built_by(AnyOrder(0), corpus, home)
    again = AnyOrder(0)
    assert built_by(again, corpus, home).id == first.id
    assert again.ran == []
