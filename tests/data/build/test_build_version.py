"""The version is content and recipe: not workers, not places, not names of folders, not time."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from build_corpus import recipe, write_corpus

from penstock.data.build import build as build_module
from penstock.data.build.build import build
from penstock.data.format.manifest import MANIFEST
from penstock.data.recipe.recipe import Recipe


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Called, it gives the version of a recipe, built in a home of its own."""
    monkeypatch.setattr(build_module, "PART_BYTES", 4000)
    count = 0

    def version(given: Recipe, workers: int = 1) -> str:
        nonlocal count
        count += 1
        monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / f"home{count}"))
        return build(given, workers=workers).version

    return version


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The version of a small corpus by the recipe as it is."""
    folder = tmp_path_factory.mktemp("unchanged")
    corpus = write_corpus(folder / "corpus", files=1, documents=6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_HOME", str(folder / "home"))
        return build(recipe(corpus), workers=1).version


def test_workers_change_nothing(homes: Any, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    given = recipe(corpus, dedup={"lines": True}, label={"copies": [[0.0, 0.9], [0.8, 1.5]]})
    first, second, third = (homes(given, workers) for workers in (1, 2, 3))
    assert first == second == third
    stored = [
        sorted((path.name, path.read_bytes()) for path in folder.rglob("*") if path.is_file())
        for home in ("home1", "home2")
        for folder in (tmp_path / home / "datasets" / f"small@{first}" / "shards",)
    ]
    assert stored[0] == stored[1]


def test_places_and_part_sizes_change_nothing(
    homes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = write_corpus(tmp_path / "corpus")
    first = homes(recipe(here))
    there = tmp_path / "elsewhere" / "other name"
    shutil.copytree(here, there)
    for path in there.rglob("*.jsonl"):
        os.utime(path, (1, 1))
    assert homes(recipe(there)) == first
    assert homes(recipe(there / "**" / "*.jsonl")) == first
    monkeypatch.setattr(build_module, "PART_BYTES", 1 << 20)
    assert homes(recipe(there)) == first


@pytest.mark.parametrize(
    "changes",
    [
        {"clean": {"repair": {"max_blank_lines": 1}}},
        {"clean": {"personal": {"email": "<MAIL>"}}},
        {"clean": {"c4": {"min_sentences": 1, "curly_bracket": False}}},
        {"label": {"least": 0.001}},
        {"label": {"copies": [[0.0, 0.5]]}},
        {"dedup": {"documents": False}},
        {"dedup": {"near": {"agree": 0.9}}},
        {"tokens": {"vocab": 401}},
        {"tokens": {"pack": 256}},
        {"shards": {"size": "8 KiB"}},
        {"name": "other"},
    ],
    ids=str,
)
def test_a_change_of_content_changes_the_version(
    homes: Any, tmp_path: Path, unchanged: str, changes: dict[str, Any]
) -> None:
    corpus = write_corpus(tmp_path / "corpus", files=1, documents=6)
    assert homes(recipe(corpus, **changes)) != unchanged


def test_a_changed_text_or_file_name_changes_the_version(
    homes: Any, tmp_path: Path, unchanged: str
) -> None:
    corpus = write_corpus(tmp_path / "corpus", files=1, documents=6)
    first = homes(recipe(corpus))
    assert first == unchanged
    stored = (corpus / "0.jsonl").read_text()
    (corpus / "0.jsonl").write_text(stored.replace("Indeed", "In deed"))
    second = homes(recipe(corpus))
    (corpus / "0.jsonl").write_text(stored)
    assert homes(recipe(corpus)) == first
    (corpus / "0.jsonl").rename(corpus / "1.jsonl")
    assert len({first, second, homes(recipe(corpus))}) == 3


def test_the_manifest_names_no_place(homes: Any, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", files=1, documents=6)
    version = homes(recipe(corpus))
    stored = (tmp_path / "home1" / "datasets" / f"small@{version}" / MANIFEST).read_text()
    assert str(tmp_path) not in stored
    assert "corpus" not in stored
