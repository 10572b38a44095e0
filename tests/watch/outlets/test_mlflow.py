"""Runs in MLflow, with its own client against its own server: `make test-mlflow` installs both.

MLflow asks for older packages than the other tests have. So the process beside the run is started
with the Python of `.mlflow`; where that is missing, these tests are skipped.
"""

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.save import save
from penstock.watch.facts.deliveries import run_id
from penstock.watch.outlets.mlflow_log import address_experiment
from tracked_launches import follow, launched, logged_folder

HERE = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("PENSTOCK_MLFLOW", HERE / ".mlflow")) / "bin" / "python"
PASSWORD = "pw-5ecret-5ecret"
needs_mlflow = pytest.mark.skipif(not PYTHON.exists(), reason="no MLflow: make test-mlflow")


@dataclass
class Server:
    """A real tracking server, asked over its REST API."""

    url: str

    def ask(self, path: str, **body: Any) -> Any:
        data = json.dumps(body).encode() if body else None
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/api/2.0/mlflow/{path}", data, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def runs(self, experiment: str) -> list[Any]:
        number = self.ask(f"experiments/get-by-name?experiment_name={experiment}")
        found = self.ask("runs/search", experiment_ids=[number["experiment"]["experiment_id"]])
        runs: list[Any] = found.get("runs", [])
        return runs

    def history(self, run: str, metric: str) -> list[tuple[int, float]]:
        found = self.ask(f"metrics/get-history?run_id={run}&metric_key={metric}")
        return sorted((int(m["step"]), float(m["value"])) for m in found["metrics"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    words += ["--backend-store-uri", f"sqlite:///{root}/m.db", "--artifacts-destination", str(root)]
    with open(root / "log", "wb") as log:
        process = subprocess.Popen(
            [PYTHON, "-m", "mlflow", *words],
            stdout=log,
            stderr=log,
            cwd=root,
            start_new_session=True,
        )
    made = Server(f"http://127.0.0.1:{port}")
    until = time.monotonic() + 200
    try:
        while True:
            try:
                made.ask("experiments/search?max_results=1")
                break
            except OSError:
                assert process.poll() is None, (root / "log").read_text()
                assert time.monotonic() < until, (root / "log").read_text()
                time.sleep(0.2)
        yield made
    finally:
        os.killpg(process.pid, 15)  # it starts workers
        process.wait(30)


@pytest.fixture
def folder(run_file: Callable[..., Path], server: Server) -> RunFolder:
    """Make the folder of a run whose address holds a password."""
    address = server.url.replace("://", f"://user:{PASSWORD}@")
    return logged_folder(run_file, **{"log.mlflow": address})


def env() -> dict[str, str]:
    return {"PYTHONPATH": str(HERE / "src"), "MLFLOW_EXPERIMENT_NAME": "trained"}


@needs_mlflow
@pytest.mark.slow
def test_a_resumed_run_continues_the_same_mlflow_run(folder: RunFolder, server: Server) -> None:
    rewards = {1: (0.0, 0.0, 0.0), 2: (0.5, 0.25, 0.75), 3: (0.5, -0.5, 1.0), 4: (1.0, 0.5, 1.0)}
    launched(folder, 0, {1: 5.0, 2: 4.0, 3: 3.5}, "failed", validation={2: 4.5}, rewards=rewards)
    said = follow(folder, 0, 0, env(), str(PYTHON))
    (run,) = server.runs("trained")
    number = run["info"]["run_id"]
    assert f", experiment trained, run {number}" in said
    assert run["info"]["run_name"] == "logged"
    assert run["info"]["status"] == "FAILED"
    assert server.history(number, "train/loss") == [(1, 5.0), (2, 4.0), (3, 3.5)]
    assert server.history(number, "validation/loss") == [(2, 4.5)]

    # A longer run is a change that a resume allows; MLflow lets no param change.
    save(load(folder.run_file, ["train.steps=20"]), folder.run_file)
    launched(folder, 1, {3: 3.5, 4: 3.0}, "done", t=2000.0, rewards=rewards)
    said += follow(folder, 4, 1, env(), str(PYTHON))
    (run,) = server.runs("trained")
    assert run["info"]["run_id"] == number
    assert run["info"]["status"] == "FINISHED"
    assert server.history(number, "train/loss") == [(1, 5.0), (2, 4.0), (3, 3.5), (4, 3.0)]
    assert server.history(number, "rewards/margin") == [(1, 0.0), (2, 0.25), (3, 1.0), (4, 0.5)]
    assert server.history(number, "rewards/accuracy") == [(1, 0.0), (2, 0.75), (3, 1.0), (4, 1.0)]
    assert server.history(number, "validation_rewards/chosen") == [(2, 0.5)]
    tags = {tag["key"]: tag["value"] for tag in run["data"]["tags"]}
    assert tags["penstock.id"] == run_id(folder)
    assert tags["penstock.status"] == "done"
    assert tags["changed.train.steps"] == "20"
    assert [key.split()[-1] for key in sorted(tags) if key.startswith("event ")].count("crash") >= 1
    params = {param["key"]: param["value"] for param in run["data"]["params"]}
    assert params["train.batch_tokens"] == "128"
    metrics = {metric["key"]: metric["value"] for metric in run["data"]["metrics"]}
    assert metrics["rank_s/compute"] > 0
    assert "no more is sent" not in said
    assert PASSWORD not in said + json.dumps(run)
    assert "http://…@127.0.0.1" in said


@needs_mlflow
@pytest.mark.slow
def test_a_server_that_is_not_there_is_reported_once_without_its_password(
    run_file: Callable[..., Path],
) -> None:
    folder = logged_folder(run_file, **{"log.mlflow": f"http://user:{PASSWORD}@127.0.0.1:1"})
    launched(folder, 0, {1: 5.0}, "done")
    quick = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    said = follow(folder, 0, 0, env() | quick, str(PYTHON))
    lines = [line for line in said.splitlines() if line.startswith("mlflow: ")]
    assert len(lines) == 1, said
    assert lines[0].endswith("no more is sent")
    assert PASSWORD not in said


def test_the_run_file_names_a_server_or_an_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    at = "http://host:5000"
    assert address_experiment(at, {}) == (at, "penstock")
    assert address_experiment(at, {"MLFLOW_EXPERIMENT_NAME": "e"}) == (at, "e")
    assert address_experiment("e", {"MLFLOW_TRACKING_URI": at}) == (at, "e")
    monkeypatch.setenv("AN_ADDRESS", at)
    assert address_experiment("$AN_ADDRESS", {}) == (at, "penstock")
    with pytest.raises(PenstockError, match=r"log\.mlflow = e: .*MLFLOW_TRACKING_URI is not set"):
        address_experiment("e", {})
    with pytest.raises(PenstockError, match=r"log\.mlflow = .NO_SUCH: .* is not set"):
        address_experiment("$NO_SUCH", {})
