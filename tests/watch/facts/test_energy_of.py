"""The energy of runs written by hand: metered, estimated, filled, on several nodes."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_meter import gpus
from penstock.ledger.causes import Cause
from penstock.ledger.journal.energy import EnergyJournal, EnergySource, EnergySpan, MeteredDevice
from penstock.ledger.journal.events import MeterOdd, MetersClosed
from penstock.plan.hardware.machine import of_catalog
from penstock.plan.job.outcome import STEP_CAUSES, StepTime
from penstock.plan.power import power
from penstock.plan.power.host import BOARD
from penstock.plan.power.server import server_w
from penstock.watch.facts.energy import energy_of
from penstock.watch.facts.energy_amounts import Energy
from penstock.watch.facts.run_view import RunView
from written_run import PLAN, T, Written

H200 = PLAN | {"device": "cuda", "device_name": "NVIDIA H200", "machine": "2 × H200, CUDA 13.0"}
END_S = 46.0  # 1 s to launch, 5 to be ready, 20 steps of 2 s
IDLE_W, BUSY_W = 100.0, 600.0


def run_of(home: Path, plan: dict[str, Any] = H200, cluster: str = "here") -> Written:
    written = Written(home, plan)
    file = written.folder.run_file
    file.write_text(file.read_text().replace('use = "here"', f'use = "{cluster}"'))
    written.supervisor(
        (0.0, "invocation", {"ranks": 2}),
        (1.0, "launch", {"attempt": 0}),
        (END_S, "ended", {"result": "done", "error": ""}),
    )
    written.ranks(0, 1.0, range(1, 21))
    written.end(0, END_S, result="done")
    return written


def meter(
    written: Written,
    devices: list[MeteredDevice],
    node: str = "a",
    upto: float = END_S,
    closed: bool = True,
    scale: float = 1.0,
    limit_w: float = 700.0,
) -> None:
    """Every device idle for 6 s and then busy, in spans of 2 s."""
    journal = EnergyJournal(written.folder.journal, node, devices)
    journal.opened(T, cores=2, cores_of_machine=2, notes=[])
    spans = [
        EnergySpan(
            i,
            T + end,
            2.0,
            scale * 2.0 * (IDLE_W if end <= 6 else BUSY_W),
            EnergySource.COUNTER,
            watts=BUSY_W,
            limit_w=limit_w,
        )
        for end in range(2, int(upto) + 1, 2)
        for i in range(len(devices))
    ]
    journal.write(spans)
    if closed:
        journal.write_line(MetersClosed(), T + upto)
    journal.close()


def energy(written: Written) -> Energy:
    found = energy_of(RunView(written.folder))
    assert found is not None
    assert sum(found.by_cause.values()) == pytest.approx(found.node_j.joules)
    assert sum(found.accelerator_by_cause.values()) == pytest.approx(found.accelerator_j.joules)
    for amount in (found.accelerator_j, found.host_j, found.node_j):
        assert amount.low <= amount.joules <= amount.high
    json.dumps(found.to_json(), allow_nan=False)
    return found


def test_metered_accelerators_by_cause(tmp_path: Path):
    written = run_of(tmp_path)
    meter(written, gpus(2))
    found = energy(written)
    assert found.accelerator_j.source == "measured"
    assert found.accelerator_j.joules == pytest.approx(2 * (6 * IDLE_W + 40 * BUSY_W))
    own = found.accelerator_by_cause
    assert own[Cause.STARTUP] == pytest.approx(2 * 6 * IDLE_W, rel=0.01)
    # 1.5 of 2 s computing, the rest waiting, which the model has at about a third of the watts.
    waiting = own[Cause.DATA_WAIT] + own[Cause.COMMUNICATE]
    assert own[Cause.COMPUTE] + waiting == pytest.approx(2 * 40 * BUSY_W, rel=0.01)
    levels = power.TdpShares().of(700.0)
    assert own[Cause.COMPUTE] / waiting == pytest.approx(3 * levels.busy_w / levels.wait_w, rel=0.1)
    assert found.host_j.source == "estimated"
    assert found.facility_j is None
    assert any("no PUE" in note for note in found.notes)
    assert [device.joules for device in found.devices] == pytest.approx([24_600.0] * 2)
    assert found.devices[0].limit_w == 700.0
    assert found.watts_now is None, "it does not run"


def test_the_energy_of_the_site_includes_cooling(tmp_path: Path):
    cluster = tmp_path / "mine.toml"
    cluster.write_text(
        'name = "mine"\n[accelerator]\nname = "H200 SXM"\n[node]\naccelerators = 2\nhost_w = 500\n'
        "[site]\npue = 1.5\n"
    )
    written = run_of(tmp_path, cluster=str(cluster))
    meter(written, gpus(2))
    found = energy(written)
    assert found.host_j.joules == pytest.approx(500 * END_S)
    assert found.facility_j is not None
    assert found.facility_j.joules == pytest.approx(1.5 * found.node_j.joules)


@pytest.mark.parametrize("plan", [H200, PLAN])
def test_without_a_meter_the_power_model_estimates(tmp_path: Path, plan: dict[str, Any]):
    found = energy(run_of(tmp_path, plan))
    assert found.accelerator_j.source == "estimated"
    assert found.accelerator_j.high > 1.1 * found.accelerator_j.joules
    if plan is PLAN:
        # 2 threads, a second half of them busy at the most.
        assert 0.7 * 46 * 2 < found.node_j.joules <= 3.5 * 46 * 2 + 1e-9
        assert any("Cloud Carbon Footprint" in note for note in found.notes)
    else:
        assert 46 * 2 * 70 < found.accelerator_j.joules < 46 * 2 * 700


def test_without_a_meter_a_report_has_the_watts_of_the_plan(tmp_path: Path):
    """One rule: what the plan says of a cause, the estimate of a report says too."""
    parts = {"matmul": 1.0, "elementwise": 1.0}
    written = run_of(tmp_path, H200 | {"predicted": {"step": parts}})
    found, machine = energy(written), of_catalog("H200", 2, 2)
    step = StepTime(parts, dict.fromkeys(STEP_CAUSES, 0.0) | {"compute": 2.0}, 2.0, 1, 1.0)
    draw = power.accelerator_draw(machine, step)
    assert draw
    seconds = RunView(written.folder).account.ledger.seconds
    computed_j = seconds[Cause.COMPUTE] * draw.by_cause[Cause.COMPUTE]
    assert found.accelerator_by_cause[Cause.COMPUTE] == pytest.approx(computed_j, rel=0.01)
    assert draw.by_cause[Cause.COMPUTE] == pytest.approx(700 * (0.992 + 0.757) / 2)

    (tmp_path / "cpu").mkdir()
    written = run_of(tmp_path / "cpu", PLAN)
    found = energy(written)
    seconds = RunView(written.folder).account.ledger.seconds
    for cause, watts in server_w(1).items():  # two ranks on two threads
        assert found.by_cause[cause] == pytest.approx(seconds[cause] * watts, rel=0.01, abs=0.01)


def test_an_unknown_device_without_a_meter_has_no_energy(tmp_path: Path):
    unknown = H200 | {"device_name": "Strange 9000"}
    assert energy_of(RunView(run_of(tmp_path, unknown).folder)) is None


def test_an_unknown_device_with_a_meter_has_an_energy(tmp_path: Path):
    written = run_of(tmp_path, H200 | {"device_name": "Strange 9000"})
    meter(written, gpus(2))
    found = energy(written)
    assert found.accelerator_j.source == "measured"
    assert 200 * END_S < found.host_j.joules < 2000 * END_S, "by the limit that the devices tell"
    meter(written, [MeteredDevice("GPU-y", "Strange 9000", "gpu")], limit_w=float("nan"), node="b")
    for file in written.folder.journal.glob("node-a.*"):
        file.unlink()
    silent = energy(written)
    assert silent.host_j.joules == 0.0
    assert any("the rest of the machines is not known" in note for note in silent.notes)


def test_a_gap_after_a_killed_supervisor_is_filled_and_noted(tmp_path: Path):
    written = run_of(tmp_path)
    meter(written, gpus(2), upto=36, closed=False)
    found = energy(written)
    seen_j = 2 * (6 * IDLE_W + 30 * BUSY_W)
    assert found.accelerator_j.joules == pytest.approx(seen_j * 46 / 36)
    assert found.accelerator_j.source == "estimated", "a fifth of it is filled"
    assert any("78" in note and "metered" in note for note in found.notes)


def test_two_writers_on_one_machine_count_once(tmp_path: Path):
    written = run_of(tmp_path)
    meter(written, gpus(2), node="a")
    meter(written, gpus(2), node="b")
    assert energy(written).accelerator_j.joules == pytest.approx(2 * (600 + 40 * BUSY_W))


def test_nodes_add_up_and_each_is_divided_by_its_own_ranks(tmp_path: Path):
    written = run_of(tmp_path)
    hosts = [{"node": "a", "ranks": [0]}, {"node": "b", "ranks": [1]}]
    written.supervisor((0.5, "mustered", {"attempt": 0, "hosts": hosts}))
    meter(written, gpus(1), node="a")
    meter(written, [MeteredDevice("GPU-x", "NVIDIA H200", "gpu")], node="b", scale=0.5)
    found = energy(written)
    assert found.accelerator_j.joules == pytest.approx(1.5 * (600 + 40 * BUSY_W))
    assert {device.node for device in found.devices} == {"a", "b"}


def test_cpus_are_the_accelerator_of_a_run_on_cpus(tmp_path: Path):
    written = run_of(tmp_path, PLAN)
    meter(written, [MeteredDevice("p", "package-0", "package"), MeteredDevice("d", "dram", "dram")])
    found = energy(written)
    assert found.accelerator_j.source == "measured"
    assert found.accelerator_j.joules == pytest.approx(2 * (600 + 40 * BUSY_W))
    assert found.node_j.joules == pytest.approx(found.accelerator_j.joules / 0.75)


def test_cpus_beside_gpus_are_the_host(tmp_path: Path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    plain = run_of(tmp_path / "one")
    meter(plain, gpus(2))
    metered = run_of(tmp_path / "two")
    meter(metered, [*gpus(2), MeteredDevice("p", "package-0", "package")])
    one, two = energy(plain), energy(metered)
    assert one.accelerator_j == two.accelerator_j
    cpu_j = 600 + 40 * BUSY_W
    modelled_j = END_S * BOARD.processors_w(2) / power.SUPPLIES
    assert two.host_j.joules - one.host_j.joules == pytest.approx(
        cpu_j / power.SUPPLIES - modelled_j
    )


def test_a_run_that_has_no_time_yet_has_no_energy(tmp_path: Path):
    assert energy_of(RunView(Written(tmp_path).folder)) is None


def test_a_start_that_was_not_metered_is_estimated(tmp_path: Path):
    written = run_of(tmp_path)
    written.supervisor(
        (100.0, "invocation", {"ranks": 2}),
        (101.0, "launch", {"attempt": 1}),
        (146.0, "ended", {"result": "done", "error": ""}),
    )
    written.ranks(1, 101.0, range(21, 41))
    written.end(1, 146.0, result="done")
    meter(written, gpus(2))
    found = energy(written)
    metered_j = 2 * (600 + 40 * BUSY_W)
    assert 1.5 * metered_j < found.accelerator_j.joules < 2.5 * metered_j
    assert found.accelerator_j.source == "estimated"
    assert any("1 of 2 starts" in note for note in found.notes)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 1), which=st.sampled_from(["energy", "meters"]))
def test_energy_files_cut_anywhere_still_give_an_energy(whole: Written, cut: float, which: str):
    (path,) = whole.folder.journal.glob(f"node-a.{which}")
    before = path.read_bytes()
    path.write_bytes(before[: int(cut * len(before))])
    try:
        # Past 60 s nobody knows whether a node was there; what is left of it is not made up.
        found = energy(whole)
        assert 0 <= found.accelerator_j.joules < 1.2 * 2 * 46 * BUSY_W
    finally:
        path.write_bytes(before)


@pytest.fixture
def whole(tmp_path: Path) -> Written:
    written = run_of(tmp_path)
    meter(written, gpus(2))
    return written


def test_an_unreadable_energy_file_is_noted(whole: Written):
    (path,) = whole.folder.journal.glob("node-a.energy")
    path.write_bytes(b"x" * 400)
    found = energy(whole)
    assert found.accelerator_j.source == "estimated"
    assert any("not a energy file" in note for note in found.notes)


def test_odd_readings_of_a_meter_are_noted(whole: Written):
    journal = EnergyJournal(whole.folder.journal, "a", gpus(2))
    journal.write_line(MeterOdd(device=1, what="the counter went from 9 to 0 J in 2.0 s"), T + 10)
    journal.write_line(MeterOdd(device=1, what="reads again"), T + 12)
    journal.close()
    odd = [note for note in energy(whole).notes if "counter went" in note]
    assert odd == ["NVIDIA H200: the counter went from 9 to 0 J in 2.0 s; filled by power"]
