"""The metrics: right, well-formed, few, and scraped by a real Prometheus."""

import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

from penstock.ledger.causes import Cause
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.meter.clock import now
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.save import save
from penstock.watch.facts.run_view import RunView
from penstock.watch.web import metrics
from penstock.watch.web.run_cache import RunCache
from penstock.watch.web.server import PageServer, open_server

needed = shutil.which("prometheus") and shutil.which("promtool")
real = pytest.mark.skipif(not needed, reason="no prometheus here; scripts/prometheus.sh")


@pytest.fixture
def made(run_file: Callable[..., Path]) -> Callable[..., RunFolder]:
    def make(name: str = "shown", ranks: int = 2, steps: int = 20) -> RunFolder:
        run = load(run_file(name))
        folder = RunFolder(run.folder)
        folder.make()
        save(run, folder.run_file)
        layout = {"replicate": ranks, "shard": 1}
        plan = {"ranks": ranks, "steps": 100, "batch_tokens": 128, "layout": layout}
        folder.plan_file.write_text(json.dumps(plan | {"machine": 'a "box"\\\n', "dataset": "d"}))
        t = now() - 1000
        supervisor = SupervisorJournal(folder.journal)
        supervisor.event("invocation", t=t, ranks=ranks)
        supervisor.event("launch", t=t + 1, attempt=0)
        for rank in range(ranks):
            with Journal(folder.journal, 0, range(rank, rank + 1), clock=lambda: t + 2) as journal:
                journal.event("ready", t=t + 2)
                for step in range(1, steps + 1):
                    journal.step(step, t + 2 + step, 0.9, 0.0, 0.8, 0.1)
                    if rank == 0:
                        journal.curve(step, 5.0, 1.5, 1e-3, 128.0 * step, t=t + 3 + step)
                if rank == 0:
                    journal.event("saved", step=10, tier="disk", bytes=4096)
        supervisor.event("fault", t=t + 40, attempt=0, rank=1, reason="killed", action="restart")
        supervisor.close()
        return folder

    return make


def values(text: str, name: str) -> dict[tuple[str, ...], float]:
    """By the labels but `run`, in the order of their names."""
    found = [s for f in parsed(text) for s in f.samples if s.name == name]
    return {tuple(v for k, v in sorted(s.labels.items()) if k != "run"): s.value for s in found}


def test_rewards_of_pairs_are_means_of_the_last_steps(made: Callable[..., RunFolder]) -> None:
    folder = made()
    assert not values(metrics.exposition([RunView(folder)]), "penstock_reward")
    with Journal(folder.journal, 1, range(1)) as journal:
        for step in range(1, 21):
            paid = {"chosen": step / 8, "rejected": -step / 8, "accuracy": 0.75}
            journal.event("rewards", step=step, **paid)
    text = metrics.exposition([RunView(folder)])
    mean = sum(range(11, 21)) / 10 / 8
    assert values(text, "penstock_reward") == {("chosen",): mean, ("rejected",): -mean}
    assert values(text, "penstock_reward_margin") == {(): 2 * mean}
    assert values(text, "penstock_reward_accuracy_ratio") == {(): 0.75}


def test_the_numbers_are_those_of_the_run(made: Callable[..., RunFolder]) -> None:
    view = RunView(made())
    text = metrics.exposition([view])
    assert values(text, "penstock_step") == {(): 20}
    assert values(text, "penstock_loss") == {(): 5.0}
    assert values(text, "penstock_tokens_trained") == {(): 128 * 20}
    assert values(text, "penstock_faults_total") == {(): 1}
    assert values(text, "penstock_checkpoints_total") == {("disk",): 1}
    assert values(text, "penstock_checkpoint_bytes") == {("disk",): 4096}
    assert values(text, "penstock_run_status")[("killed",)] == 1
    seconds = values(text, "penstock_ledger_seconds")
    assert seconds == {(str(c),): s for c, s in view.account.ledger.seconds.items()}
    assert len(seconds) == len(Cause)
    joules = values(text, "penstock_energy_joules")[("node", "estimated")]
    assert sum(values(text, "penstock_ledger_joules").values()) == pytest.approx(joules)
    assert not values(text, "penstock_cost_usd")  # nobody gave a price


def test_metric_names_follow_the_conventions() -> None:
    for family in metrics.FAMILIES:
        assert family.says.endswith(".")
        assert not family.name.endswith(("_total", "_ms", "_mb", "_percent", "_mhz"))
        assert family.name == family.name.lower()
    assert len({family.name for family in metrics.FAMILIES}) == len(metrics.FAMILIES)


def test_many_ranks_are_few_series(made: Callable[..., RunFolder]) -> None:
    few = metrics.exposition([RunView(made("few", ranks=64, steps=2))])
    many = metrics.exposition([RunView(made("many", ranks=65, steps=2))])
    assert len(values(few, "penstock_rank_healthy")) == 64
    assert values(many, "penstock_rank_healthy") == {}
    assert sum(values(many, "penstock_ranks").values()) == 65
    assert len(many.splitlines()) < 300


def test_a_damaged_run_does_not_hide_the_others(made: Callable[..., RunFolder]) -> None:
    good, bad = made("good"), made("bad")
    bad.run_file.write_text("{")
    text = metrics.exposition([RunView(bad), RunView(good)])
    assert values(text, "penstock_unreadable_runs") == {(): 1}
    assert values(text, "penstock_step") == {(): 20}


def test_two_runs_of_one_name_have_different_labels(
    made: Callable[..., RunFolder], tmp_path: Path
) -> None:
    one = made()
    other = RunFolder(Path(shutil.copytree(one.path, tmp_path / "elsewhere" / one.name)))
    text = metrics.exposition([RunView(one), RunView(other)])
    runs = [s.labels["run"] for f in parsed(text) for s in f.samples if s.name == "penstock_step"]
    assert runs == [str(one.path), str(other.path)]


@pytest.fixture
def server(made: Callable[..., RunFolder]) -> Iterator[PageServer]:
    folder = made()
    found = open_server(RunCache("nowhere", [folder]), port=0)
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield found
    found.closing.set()
    found.shutdown()
    thread.join()
    found.server_close()


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert "charset=utf-8" in answer.headers["Content-Type"]
        return str(answer.read().decode())


def test_the_page_serves_the_metrics(server: PageServer) -> None:
    text = fetched(f"http://127.0.0.1:{server.port}/metrics")
    assert values(text, "penstock_step") == {(): 20}


@real
@pytest.mark.prometheus
def test_promtool_finds_nothing_wrong(made: Callable[..., RunFolder]) -> None:
    text = metrics.exposition([RunView(made("one")), RunView(made("two"))])
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, text=True, capture_output=True, timeout=60
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@real
@pytest.mark.prometheus
def test_a_real_prometheus_scrapes_the_metrics(server: PageServer, tmp_path: Path) -> None:
    config, port = tmp_path / "prometheus.yml", free_port()
    config.write_text(
        "global: {scrape_interval: 3s, scrape_timeout: 3s}\n"
        "scrape_configs:\n- job_name: penstock\n"
        f"  static_configs: [{{targets: ['127.0.0.1:{server.port}']}}]\n"
    )
    with open(tmp_path / "log", "w+") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            step = until(lambda: asked(port, "penstock_step"), process)
            assert step["metric"]["run"] == "shown"
            assert step["value"][1] == "20"
            total = until(lambda: asked(port, "sum(penstock_ledger_seconds)"), process)
            account = RunView(server.cache.run("shown")).account
            assert float(total["value"][1]) == pytest.approx(account.ledger.total)
        finally:
            process.terminate()
            process.wait(60)


def free_port() -> int:
    """It names no port that it chose by itself."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def asked(port: int, query: str) -> dict[str, Any] | None:
    url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            result = json.load(answer)["data"]["result"]
    except OSError:
        return None
    return result[0] if result else None


def until(look: Callable[[], Any], process: subprocess.Popen[bytes], limit_s: float = 120.0) -> Any:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        assert process.poll() is None, "prometheus ended"
        if found := look():
            return found
        time.sleep(0.1)
    raise AssertionError("nothing came of it in time")
