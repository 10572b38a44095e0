"""Runs with an adapter before they start: what they need, and what is refused with a way out."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.catalog.models import preset
from penstock.catalog.open.models import config_of, family_of
from penstock.errors import PenstockError
from penstock.launch.prepare.prepare import find_data
from penstock.meter.devices import Devices
from penstock.plan.hardware.machine import of_catalog
from penstock.plan.job import legal
from penstock.plan.job.layout import Layout
from penstock.plan.memory import memory
from penstock.plan.search.choose import choose_layout
from penstock.run.launch_record import LaunchRecord
from penstock.run.load import load
from penstock.run.schema.run import Run

H100 = of_catalog("H100", 1)
Make = Callable[..., Any]


@pytest.fixture
def run_of(tmp_path: Path) -> Make:
    """A run that starts from the config of a preset; weights are not looked at by a plan."""

    def made(adapter: str = "", *overrides: str, model: str = "llama-8b") -> Any:
        shape = preset(model)
        (tmp_path / "base").mkdir(exist_ok=True)
        (tmp_path / "base" / "config.json").write_text(
            json.dumps(config_of(shape, family_of(shape)))
        )
        path = tmp_path / "run.toml"
        path.write_text(
            f'name = "x"\n[model]\nfrom = "{tmp_path / "base"}"\n{adapter}\n'
            '[data]\nsequence = 2048\n[train]\ntokens = "10M"\nbatch_tokens = 16384\n'
            "[layout]\nmicrobatch = 1\n"
        )
        return load(path, list(overrides))

    return made


def test_frozen_weights_need_less_and_four_bits_less_still(run_of: Make) -> None:
    peaks = {}
    for kind in ("lora", "qlora"):
        run = run_of(f'[model.adapter]\nkind = "{kind}"')
        peaks[kind] = memory.predict(choose_layout(run, H100).job).peak_bytes / 2**30
    assert 16 < peaks["lora"] < 32  # 8 billion weights in 16 bits, and the activations
    assert 6 < peaks["qlora"] < peaks["lora"] - 7
    full = run_of("", 'train.weights="bf16"', model="llama-1b")
    assert memory.predict(choose_layout(full, H100).job).peak_bytes / 2**30 > 12


def test_an_adapter_is_less_work(run_of: Make) -> None:
    shape = preset("llama-8b")
    rate = shape.flops_per_token(2048, frozen=True) / shape.flops_per_token(2048)
    assert 0.66 < rate < 0.7


def test_what_an_adapter_cannot_have_is_refused(run_of: Make) -> None:
    run = run_of('[model.adapter]\nkind = "qlora"')
    shape = run.model.base()
    (told,) = legal.problems(run, shape, Layout(tensor=2))
    assert "layout.tensor = 2" in told
    assert 'kind = "lora"' in told
    assert not legal.problems(run, shape, Layout(shard=2, pipeline=2))
    assert not legal.problems(run_of("[model.adapter]"), shape, Layout(tensor=2))
    assert not legal.problems(run_of("[model.adapter]", "train.precision=fp8"), shape, Layout())
    run = run_of('[model.adapter]\nkind = "qlora"', "train.precision=fp8")
    (told,) = legal.problems(run, shape, Layout())
    assert "train.precision" in told
    assert 'kind = "lora"' in told


@pytest.mark.parametrize(("kind", "bits"), [("lora", 16), ("qlora", 4)])
def test_a_preset_is_planned_with_an_adapter_and_no_weights(kind: str, bits: int) -> None:
    """Only `train` needs weights: a plan needs the shape."""
    asked = Run.model_validate(
        {
            "name": "tuned",
            "model": {"preset": "llama-8b", "adapter": {"kind": kind}},
            "data": {"sequence": 2048},
            "train": {"batch_tokens": 8 * 2048, "precision": "bf16"},
            "cluster": {"use": "H100"},
        }
    )
    job = choose_layout(asked, H100).job
    assert job.adapter
    assert job.adapter.bits == bits
    held = memory.predict(job)
    assert held.fits
    assert held.parts["weights"] < (bits / 8 + 0.6) * job.shape.params()
    with pytest.raises(PenstockError, match=r"model.adapter: an adapter needs weights"):
        find_data(asked, LaunchRecord(), Devices("cpu", 1, "", "", 2**30))
