"""Every form of `[data] dataset`, and how a dataset is found again."""

import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from build_corpus import text, write_corpus

from penstock.data.build import build as build_module
from penstock.data.build.open import open_dataset
from penstock.data.build.pipeline import Pipeline
from penstock.data.format.locate import datasets_home
from penstock.errors import PenstockError

RECIPE = """
name = "mine"
[[source]]
path = "corpus"
[clean]
preset = "none"
[tokens]
vocab = 300
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(build_module, "default_workers", lambda sources: 1)
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "corpus", files=2, documents=5)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what was really built."""
    done: list[str] = []
    run = Pipeline.run
    monkeypatch.setattr(Pipeline, "run", lambda self: done.append(self.recipe.name) or run(self))
    return done


def test_a_recipe_is_built_once(tmp_path: Path, builds: list[str]) -> None:
    (tmp_path / "mine.toml").write_text(RECIPE)
    first = open_dataset("mine.toml")
    assert first.manifest.name == "mine"
    assert open_dataset(str(tmp_path / "mine.toml")).id == first.id
    assert open_dataset("mine").id == open_dataset(first.id).id == first.id
    assert open_dataset(str(first.folder)).id == first.id
    assert builds == ["mine"]
    (tmp_path / "mine.toml").write_text(RECIPE.replace("300", "301"))
    assert open_dataset("mine.toml").id != first.id
    assert builds == ["mine"] * 2


@pytest.mark.parametrize("spec", ["corpus", "./corpus", "corpus/**/*.jsonl", "corpus/0.jsonl"])
def test_raw_files_are_built(spec: str, builds: list[str]) -> None:
    first = open_dataset(spec, vocab=300)
    assert first.vocab == 300
    assert open_dataset(spec, vocab=300).id == first.id
    assert len(builds) == 1
    assert first.folder.parent == datasets_home()


def test_a_changed_source_is_a_new_version_and_says_so(tmp_path: Path, builds: list[str]) -> None:
    told: list[str] = []

    def progress(what: str, done: int, total: int) -> None:
        told.append(what)

    first = open_dataset("corpus", progress, vocab=300)
    assert not [what for what in told if "is new" in what]
    (tmp_path / "corpus" / "more.txt").write_text(text(123))
    second = open_dataset("corpus", progress, vocab=300)
    assert second.id != first.id
    assert [what for what in told if f"{second.id} is new" in what]
    # A run that goes on names its version.
    assert open_dataset(first.id).id == first.id
    # Looks changed, is not: read again, the same dataset.
    os.utime(tmp_path / "corpus" / "more.txt", (1, 1))
    told.clear()
    assert open_dataset("corpus", progress, vocab=300).id == second.id
    assert not [what for what in told if "is new" in what]
    assert len(builds) == 3
    stages = {f"{name}, bytes" for name in ("read", "clean", "tokenize", "shard")}
    assert stages <= set(told)


def test_a_tokenizer_of_another_dataset(tmp_path: Path) -> None:
    first = open_dataset("corpus", vocab=300)
    (tmp_path / "other.txt").write_text(text(5))
    second = open_dataset("other.txt", tokenizer=first.id)
    assert second.manifest.tokenizer == first.manifest.tokenizer


class _Quietly(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    serve = partial(_Quietly, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_a_url_of_raw_files_is_built(server: str, builds: list[str]) -> None:
    local = open_dataset("corpus/0.jsonl", vocab=300)
    remote = open_dataset(f"{server}/corpus/0.jsonl", vocab=300)
    assert remote.id == local.id
    assert len(builds) == 2


def test_missing_things_are_reported(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="it is not a name"):
        open_dataset("no/such/folder")
    with pytest.raises(PenstockError, match="names no file"):
        open_dataset("corpus/*.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PenstockError, match="names no file"):
        open_dataset("empty")


def test_parts_are_small_enough_for_the_memory_of_a_build() -> None:
    assert build_module.PART_BYTES <= 64 << 20
