"""What all tests share: a home of their own, a small dataset, and real ranks in real processes."""

import gc
import os
import random
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

import made_sets
import real_ranks
from penstock.launch.supervisor import environment, fork_client, preload
from penstock.launch.supervisor.preload import PreloadClient

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Shells start background jobs with Ctrl-C ignored, nohup has SIGHUP ignored; children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# `make test` draws the same cases every time; `make test-slow` draws new and more ones
# (--hypothesis-profile=random). Machines are shared: a case that takes long is no failure.
settings.register_profile("steady", deadline=None, derandomize=True, database=None)
settings.register_profile("random", deadline=None, derandomize=False, max_examples=1000)
settings.load_profile("steady")


def pytest_configure(config: pytest.Config) -> None:
    """Keep Hypothesis from drawing numbers that stand in our code, except for random cases.

    It takes those of the modules that are imported by then. So the cases of a test would depend on
    which other tests ran before it in this process, and with them whether it fails.
    """
    if not config.getoption("--hypothesis-profile"):
        constants = providers._local_constants
        providers._get_local_constants = lambda: constants


TESTS = Path(__file__).parent
LONGEST = ("guard", "train", "drill", "launch", "watch", "meter")  # ranks, and a browser
# What commands of the tests import besides what ranks do, without a thread.
LATE_IMPORTS = ("typer", "rich.console", "torch.distributed.pipelining")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the rooms whose tests take longest: no core is left idle at the end."""

    def place(item: pytest.Item) -> int:
        room = item.path.relative_to(TESTS).parts[0]
        return LONGEST.index(room) if room in LONGEST else len(LONGEST)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Leave what is imported and collected out of garbage collection, which was 7 % of CPU time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_draws(request: pytest.FixtureRequest) -> None:
    """Seed the global generators by the name of the test, whatever ran before in this process."""
    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    np.random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(seed)  # not its GPUs: that takes long


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets of the test session live in a folder of its own."""
    path = tmp_path_factory.mktemp("home")
    os.environ["PENSTOCK_HOME"] = str(path)
    return path


@pytest.fixture(scope="session")
def tiny(home: Path) -> str:
    """A built dataset of 30,000 tokens with structure to learn: the name `tiny`."""
    return made_sets.tiny_dataset(home)


@pytest.fixture(scope="session")
def warm(home: Path) -> Iterator[PreloadClient]:
    """A process with torch loaded, from which runs take theirs (launch/supervisor/preload.py)."""
    env = environment.for_fork_server(1)
    with preload.serving(
        env, [*fork_client.MODULES, "penstock.launch.start", *LATE_IMPORTS]
    ) as found:
        yield found


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """No warm process: everything is started and imported as it is for a user."""
    monkeypatch.delenv(preload.ENVIRONMENT, raising=False)


@pytest.fixture
def run_file(tmp_path: Path, tiny: str, warm: PreloadClient) -> Callable[..., Path]:
    """run_file(name, **{"train.steps": 5}): a run file for the small dataset, in tmp_path."""

    def write(name: str = "test", **fields: Any) -> Path:
        from penstock.run import toml

        values = {
            "model.layers": 2,
            "model.hidden": 32,
            "model.heads": 4,
            "model.kv_heads": 2,
            "model.ffn": 64,
            "model.tied": True,
            "data.dataset": tiny,
            "data.sequence": 16,
            "train.steps": 10,
            "train.batch_tokens": 128,
            "train.precision": "fp32",  # bf16 is 50 times slower on CPUs that do not have it
            "evaluate.every": "5 steps",
            "guard.timeout": "30 s",
        } | fields
        table: dict[str, Any] = {"name": name, "dir": str(tmp_path / "runs")}
        for field, value in values.items():
            if value is None:
                continue
            *path, key = field.split(".")
            at = table
            for part in path:
                at = at.setdefault(part, {})
            at[key] = value
        file = tmp_path / f"{name}.toml"
        file.write_text("\n".join(toml.format_document(table)) + "\n")
        return file

    return write


@pytest.fixture(scope="session")
def ranks() -> Callable[..., list[Any]]:
    """ranks(4, job, *args): run `job` in four processes that can join a world; their results."""
    return real_ranks.run
