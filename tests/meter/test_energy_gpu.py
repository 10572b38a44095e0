"""On a GPU: the counter and the power agree, and a run's report has its energy. CI has none."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.launch.start import start
from penstock.ledger.causes import Cause
from penstock.meter import devices, nvml, power
from penstock.meter.nvml import Nvml
from penstock.run.load import load
from penstock.watch.facts.energy import energy_of
from penstock.watch.facts.run_view import RunView

pytestmark = pytest.mark.gpu


def test_a_gpu_is_read_by_its_uuid():
    found = devices.find()
    meter = nvml.find(found.uuids[:1])
    assert isinstance(meter, Nvml)
    assert meter.devices[0].name == found.name
    (reading,) = meter.read()
    assert reading.joules
    assert reading.watts
    assert reading.limit_w
    assert 20 < reading.watts < reading.limit_w + 50
    assert reading.clock_mhz
    assert reading.temperature_c


def test_the_gauge_of_the_probe_tells_watts():
    found = power.gauge("cuda", devices.find().uuids)
    assert found is not None
    time.sleep(1.5)
    watts = found.watts()
    assert watts is not None
    assert 20 < watts < 1500


def test_a_run_has_its_energy_on_record(run_file: Callable[..., Path]):
    fields = {
        "cluster.accelerators": 1,
        "model.layers": 8,
        "model.hidden": 512,
        "model.heads": 8,
        "model.kv_heads": 8,
        "model.ffn": 1408,
        "train.steps": 400,
        "train.batch_tokens": 4096,
        "train.learning_rate": 1e-4,
        "evaluate.every": "never",
        "train.compile": "off",
    }
    before = nvml.find(devices.find().uuids[:1])
    assert isinstance(before, Nvml)
    first_j, began_s = before.read()[0].joules, time.perf_counter()
    folder = start(load(run_file("metered", **fields)))
    last_j, spent_s = before.read()[0].joules, time.perf_counter() - began_s
    view = RunView(folder)
    found = energy_of(view)
    assert found is not None
    print(json.dumps(found.to_json(), indent=1))
    assert found.accelerator_j.source == "measured"
    (device,) = found.devices
    assert device.uuid == f"GPU-{devices.find().uuids[0]}"
    # From outside: the same counter before and after, less what start and end of it add.
    outside_w = (last_j - first_j) / spent_s
    assert found.accelerator_j.joules / view.account.wall_s == pytest.approx(outside_w, rel=0.1)
    assert found.accelerator_by_cause[Cause.COMPUTE] > 0
    assert found.node_j.joules > found.accelerator_j.joules
