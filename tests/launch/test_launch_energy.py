"""Real runs beside a counter in files: N ranks on a node have the energy of the node, once."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.launch.start import start
from penstock.ledger.journal.energy import EnergySource, read_nodes
from penstock.run.load import load
from penstock.watch.facts.energy import energy_of
from penstock.watch.facts.run_view import RunView

WATTS = 80.0
RANGE_J = 2000.0  # wraps within the test
REFRESH_S = 0.02  # how old a reading should be: a fast machine finishes a run in a few of these


@contextmanager
def drawing(root: Path) -> Iterator[Callable[[], float]]:
    """A package that draws `WATTS` whatever runs on it; how old a reading of it was, at most."""
    zone = root / "intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0\n")
    (zone / "max_energy_range_uj").write_text(f"{RANGE_J * 1e6:.0f}\n")
    began, over = time.perf_counter(), threading.Event()
    oldest_s = REFRESH_S

    def count() -> None:
        nonlocal oldest_s
        before = began
        while True:
            now, made = time.perf_counter(), zone / "made"
            made.write_text(f"{(1900.0 + WATTS * (now - began)) % RANGE_J * 1e6:.0f}\n")
            made.replace(zone / "energy_uj")  # a file of the kernel is never half there
            oldest_s = max(oldest_s, time.perf_counter() - before)  # this thread waits for others
            before = now
            if over.wait(REFRESH_S):
                return

    thread = threading.Thread(target=count)
    thread.start()
    while not (zone / "energy_uj").exists():
        time.sleep(0.01)
    try:
        yield lambda: oldest_s
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_of_a_node_share_its_energy(
    tmp_path: Path,
    run_file: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    ranks: int,
):
    monkeypatch.setenv("PENSTOCK_POWERCAP", str(tmp_path / "powercap"))
    fields = {"cluster.accelerators": ranks, "train.steps": 100, "evaluate.every": "never"}
    with drawing(tmp_path / "powercap") as oldest_s:
        folder = start(load(run_file("metered", **fields)))
    view = RunView(folder)
    found = energy_of(view)
    assert found is not None
    assert view.account.ranks == ranks
    # Exact to 3 % and to the age of the first and the last reading.
    allowed_j = 0.03 * WATTS * view.account.wall_s + 2 * WATTS * oldest_s()
    assert abs(found.accelerator_j.joules - WATTS * view.account.wall_s) <= allowed_j
    (device,) = found.devices
    assert device.kind == "package"
    # The first span has no counter to differ from and is filled by the mean.
    (node,) = read_nodes(folder.journal)
    assert (node.records["source"] == EnergySource.COUNTER).sum() >= 1
    assert sum(found.by_cause.values()) == pytest.approx(found.node_j.joules)
    assert [line.kind for line in node.lines] == ["meters", "closed"]
    json.dumps(found.to_json(), allow_nan=False)
