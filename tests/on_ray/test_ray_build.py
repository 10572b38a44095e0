"""Builds on a real Ray cluster of three nodes, with sources and datasets in a real S3 server."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.data.store.objects import Store
from ray_lab import BUCKET, CLIENT_PORT, PATIENCE_S, RayLab, kill_group

sys.path.insert(0, str(Path(__file__).parents[1] / "data" / "build"))
from build_corpus import text

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
SOURCES = 8  # each is a part of its own, so stages have so many tasks
HELD = "Held here"  # begins the document at which a build waits

# A step that waits at one document of each source until the test says go, and says who waits.
STEP = """
import os, time
def keep(text, row):
    if text.startswith("Held here"):
        number = row["source_number"]
        open(os.path.join({folder!r}, f"waits-{{number}}-{{os.getpid()}}"), "w").close()
        while not os.path.exists(os.path.join({folder!r}, f"go-{{number}}")):
            time.sleep(0.02)
    return True
"""


class Corpus:
    """Files in the bucket, the recipe for them, and the step at which it waits."""

    def __init__(self, folder: Path, lab: RayLab, name: str) -> None:
        self.folder, self.lab, self.name = folder, lab, name
        self.signs = folder / "signs"
        self.signs.mkdir()
        (folder / "step.py").write_text(STEP.format(folder=str(self.signs)))
        for key, value in lab.storage.items():
            os.environ[key] = value
        store = Store(f"{BUCKET}/raw-{name}")
        recipe = f'name = "{name}"\n'
        for number in range(SOURCES):
            rows = [f"{HELD}: {text(10 * number)}", *(text(1000 * number + n) for n in range(30))]
            rows += [text(77777), f"{rows[3]} Indeed."]
            lines = [json.dumps({"text": row, "source_number": number}) for row in rows]
            store.put(f"{number}.jsonl", ("\n".join(lines) + "\n").encode())
            recipe += f'[[source]]\npath = "{BUCKET}/raw-{name}/{number}.jsonl"\n'
        recipe += '[clean]\npreset = "code"\n[[clean.step]]\nmodule = "step.py:keep"\n'
        recipe += '[dedup]\nlines = true\n[tokens]\nvocab = 400\n[shards]\nsize = "16 KiB"\n'
        (folder / f"{name}.toml").write_text(recipe)

    @property
    def recipe(self) -> str:
        return str(self.folder / f"{self.name}.toml")

    def go(self, *numbers: int) -> None:
        for number in numbers or range(SOURCES):
            (self.signs / f"go-{number}").touch()

    def halt(self) -> None:
        for sign in self.signs.iterdir():
            sign.unlink()

    def waited(self) -> list[tuple[int, int]]:
        """Each process and source at which it has waited."""
        found = [path.name.split("-") for path in self.signs.glob("waits-*")]
        return sorted((int(process), int(number)) for _, number, process in found)

    def waited_at(self, source: int) -> list[int]:
        return [process for process, number in self.waited() if number == source]

    def plain(self) -> str:
        """The id of the dataset built without Ray."""
        self.go()
        home = self.folder / "plain"
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "data", "build", self.recipe, "--json", "--quiet"],
            env={**os.environ, "PENSTOCK_HOME": str(home)},
            capture_output=True,
            text=True,
            check=True,
        )
        self.halt()
        return str(json.loads(done.stdout)["dataset"])

    def args(self, *more: str) -> list[str]:
        return ["data", "build", self.recipe, "--on", "ray", "--to", f"{BUCKET}/sets", *more]


@pytest.fixture
def corpus(tmp_path: Path, lab: RayLab, request: pytest.FixtureRequest) -> Corpus:
    # The S3 server is in the lab's network, and so are the tests: on a host where no node runs.
    lab.enter(4)
    name = request.node.name.removeprefix("test_")[:40].replace("[", "-").replace("]", "")
    return Corpus(tmp_path, lab, name.replace("_", "-"))


def wait_until(what: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


def built(told: str) -> str:
    lines = [line for line in told.splitlines() if "@" in line and " " not in line]
    assert lines, told
    return lines[0]


def files(corpus: Corpus, dataset: str) -> dict[str, bytes]:
    """The files of the plain dataset and those in the bucket must be equal; these are returned."""
    store = Store(f"{BUCKET}/sets/{dataset}")
    return {one.name: store.get(one.name) for one in store.list() if one.name != "build.json"}


def check_equal(corpus: Corpus, dataset: str) -> None:
    folder = corpus.folder / "plain" / "datasets" / dataset
    here = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "build.json"
    }
    assert files(corpus, dataset) == here
    left = [one.name for one in Store(f"{BUCKET}/sets").list() if ".building-" in one.name]
    assert left == []


def test_a_killed_worker(lab: RayLab, corpus: Corpus) -> None:
    """The task whose worker is killed runs again; the dataset is that of a plain build."""
    expected = corpus.plain()
    process = lab.start(*corpus.args())
    wait_until(lambda: corpus.waited())
    victim, source = corpus.waited()[0]
    os.kill(victim, signal.SIGKILL)
    # The task waits again, in another process, once there is room for it.
    corpus.go(*(set(range(SOURCES)) - {source}))
    wait_until(lambda: len(corpus.waited_at(source)) == 2)
    corpus.go()
    told, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, told
    assert built(told) == expected
    check_equal(corpus, expected)


def test_a_killed_driver(lab: RayLab, corpus: Corpus) -> None:
    """Its tasks end with it; the same command goes on with what was done."""
    expected = corpus.plain()
    corpus.go(*range(SOURCES - 1))  # all but the last
    process = lab.start(*corpus.args())
    work = Store(f"{BUCKET}/sets")

    def cleaned() -> int:
        return sum("/clean/" in one.name for one in work.list())

    wait_until(lambda: cleaned() == SOURCES - 1 and corpus.waited_at(SOURCES - 1))
    kill_group(process)
    wait_until(
        lambda: not any(Path(f"/proc/{one}").exists() for one in corpus.waited_at(SOURCES - 1))
    )
    corpus.go()
    status, told = lab.run(*corpus.args())
    assert status == 0, told
    assert f"clean: {SOURCES - 1} of {SOURCES} tasks were done before" in told
    assert built(told) == expected
    check_equal(corpus, expected)


def test_a_killed_node(lab: RayLab, corpus: Corpus) -> None:
    """What ran on it runs elsewhere; a node that comes back is used again."""
    expected = corpus.plain()
    process = lab.start(*corpus.args())
    wait_until(lambda: len(corpus.waited()) == 3)  # on all nodes
    lab.kill_node(3)
    corpus.go()
    told, _ = process.communicate(timeout=PATIENCE_S)
    # Else the new node answers, at the same address, for the one that is dead.
    wait_until(lambda: lab.alive() == 2)
    lab.start_node(3)
    wait_until(lambda: lab.alive() == 3)
    assert process.returncode == 0, told
    assert built(told) == expected
    check_equal(corpus, expected)


def test_the_client_server_and_two_drivers(lab: RayLab, corpus: Corpus) -> None:
    """By ray://; a second driver waits for the first and finds the dataset."""
    expected = corpus.plain()
    corpus.go(*range(1, SOURCES))
    address = ["--on", f"ray://{lab.address(1)}:{CLIENT_PORT}"]
    args = ["data", "build", corpus.recipe, "--to", f"{BUCKET}/sets", *address]
    first = lab.start(*args, node=2)
    wait_until(lambda: corpus.waited_at(0))
    second = lab.start(*args, node=3)
    assert second.stdout is not None
    lines = []
    while not lines or "waits for it" not in lines[-1]:
        lines.append(second.stdout.readline())
        assert lines[-1], lines
    corpus.go()
    told, _ = first.communicate(timeout=PATIENCE_S)
    also, _ = second.communicate(timeout=PATIENCE_S)
    assert built(told) == built(also) == expected
    assert "clean" not in "".join(lines) + also.partition(expected)[0]  # it built nothing
    check_equal(corpus, expected)


def test_a_folder_that_all_nodes_share(lab: RayLab, corpus: Corpus, tmp_path: Path) -> None:
    expected = corpus.plain()
    corpus.go()
    home = {"PENSTOCK_HOME": str(tmp_path / "shared")}
    status, told = lab.run("data", "build", corpus.recipe, "--on", "ray", "--json", env=home)
    assert status == 0, told
    dataset = json.loads(told[told.index("{") :])
    assert dataset["dataset"] == expected
    record = dataset["build"]["machine"]
    assert record["workers"] == 3
    assert 50 << 20 < record["memory_bytes"] < 600 << 20
    verified, told = lab.run("data", "verify", expected, env=home)
    assert verified == 0, told
