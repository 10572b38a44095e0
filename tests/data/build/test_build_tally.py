"""Tallies add up whatever the tasks were; results and optional fields come back as they were."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.build.parts import (
    DocumentPart,
    Extras,
    lenient_json,
    read_part,
    read_texts,
    result_columns,
)
from penstock.data.build.progress import SilentWatcher
from penstock.data.build.record import SampleDocument
from penstock.data.build.stage import StageRunner
from penstock.data.build.tally import KEPT, DocumentTally
from penstock.data.format.columns import write_columns
from penstock.data.format.manifest import MANIFEST, Manifest, Shard, read_manifest
from penstock.data.workers.pool import Task, WorkerPool
from penstock.errors import PenstockError


def sample(id: str) -> SampleDocument:
    return SampleDocument(id, "source", "text", 4, 0, "", {})


documents = st.lists(
    st.tuples(st.text(max_size=5), st.sampled_from([KEPT, "a", "b"]), st.integers(0, 1 << 40)),
    unique_by=lambda document: document[0],
    max_size=60,
)


def tallied(some: list[tuple[str, str, int]]) -> DocumentTally:
    tally = DocumentTally()
    for id, reason, length in some:
        tally.documents += 1
        tally.count("reasons", reason)
        tally.length("characters", length)
        tally.score(length % 1400 - 200)
        tally.sample(reason, id, lambda: sample(id))  # noqa: B023
    return tally


@settings(max_examples=40)
@given(documents, st.lists(st.integers(0, 60), max_size=4), st.randoms())
def test_tasks_do_not_show(some: list[tuple[str, str, int]], cuts: list[int], random) -> None:
    whole = tallied(some)
    shuffled = random.sample(some, len(some))
    bounds = [0, *sorted(cuts), len(some)]
    parts = [tallied(shuffled[a:b]) for a, b in pairwise(bounds)]
    total = DocumentTally()
    for part in parts:
        total.add(DocumentTally.from_json(json.loads(json.dumps(part.to_json()))))
    assert total.to_json() == whole.to_json()
    assert sum(total.histogram("characters")) == sum(total.scores()) == len(some)


def test_histograms_are_powers_of_two() -> None:
    tally = DocumentTally()
    for length in (0, 1, 2, 3, 4, 1023, 1024):
        tally.length("tokens", length)
    assert tally.histogram("tokens") == [2, 2, 1, 0, 0, 0, 0, 0, 0, 1, 1]


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
    )
)
def test_parts_come_back(tmp_path_factory, rows: list[tuple[str, str]]) -> None:
    path = tmp_path_factory.mktemp("part") / "part"
    part = DocumentPart(
        [text for text, _ in rows],
        [id for _, id in rows],
        [Extras({"n": n}, "en", {"q": n}).to_json() for n in range(len(rows))],
        np.arange(len(rows)),
    )
    write_columns(path, {**part.columns(), **result_columns({})})
    back = read_part(path)
    assert (back.texts, back.ids, back.extras) == (part.texts, part.ids, part.extras)
    assert read_texts(path)[0] == part.texts
    assert [Extras.from_json(one).columns["n"] for one in back.extras] == list(range(len(rows)))


def test_any_column_becomes_json() -> None:
    odd = {
        "nan": float("nan"),
        "bytes": b"\xff",
        3: {1.5: {4}},
        "path": Path("x"),
        "list": (1, None),
    }
    assert json.loads(lenient_json(odd)) == {
        "nan": None,
        "bytes": "\\xff",
        "3": {"1.5": [4]},
        "path": "x",
        "list": [1, None],
    }


HASHES = [f"{number:02d}" * 32 for number in range(6)]
SHARD = Shard(HASHES[0], 9, 18, HASHES[1], HASHES[2], 1)
PLAIN = Manifest("m", 1, "<u2", 9, 9, 1, HASHES[3], {}, {}, {}, (SHARD,))


def test_optional_fields_at_their_defaults_are_left_out_of_a_manifest(tmp_path: Path) -> None:
    stored = json.loads(PLAIN.to_json())
    assert not {"packed", "parents"} & stored.keys()
    assert not {"mask", "rows", "rows_bytes"} & stored["shards"][0].keys()
    full = replace(
        PLAIN,
        packed=4,
        parents=("a@1",),
        shards=(replace(SHARD, mask=HASHES[4], rows=HASHES[5], rows_bytes=7),),
    )
    assert full.shards[0].files()[f"shards/{HASHES[4]}.mask"] == (HASHES[4], 2)
    assert full.shards[0].files()[f"shards/{HASHES[5]}.rows"] == (HASHES[5], 7)
    versions = set()
    for manifest in (PLAIN, full, replace(PLAIN, packed=4), replace(PLAIN, parents=("a@1",))):
        (tmp_path / MANIFEST).write_text(manifest.to_json())
        assert read_manifest(tmp_path) == manifest
        versions.add(manifest.version)
    assert len(versions) == 4


def three(path: Path) -> dict[str, np.ndarray]:
    if path.exists():
        raise OSError(28, "No space left on device")
    return result_columns(3)


def test_a_crew_serves_many_stages_and_passes_errors_on(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    class Counts(SilentWatcher):
        def did(self, documents: int, bytes: int) -> None:
            told.append((documents, bytes))

    with WorkerPool(2) as pool:
        stages = StageRunner(pool, Counts())
        for name in ("one", "two"):
            tasks = [
                Task(tmp_path / name / str(n), three, (tmp_path / "no",), n) for n in range(20)
            ]
            stages.run(name, tasks, None, lambda path: 3)
            assert sorted(told) == [(3, n) for n in range(20)]
            told.clear()
            stages.run(name, tasks, None, lambda path: 3)
            assert told == []
            assert stages.clocks[name].tasks_before == 20
        (tmp_path / "full").touch()
        bad = [Task(tmp_path / "bad" / str(n), three, (tmp_path / "full",)) for n in range(5)]
        with pytest.raises(OSError, match="No space left"):
            stages.run("bad", bad, None, lambda path: 3)
    with pytest.raises(PenstockError, match="workers is 0"):
        WorkerPool(0)
