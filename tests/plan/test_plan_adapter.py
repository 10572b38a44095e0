"""Runs with an adapter before they start: what they need, and what is refused with a way out."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.catalog.models import preset
from penstock.catalog.open.models import config_of, family_of
from penstock.plan.hardware.machine import of_catalog
from penstock.plan.job import legal
from penstock.plan.job.layout import Layout
from penstock.plan.memory import memory
from penstock.plan.search.choose import choose_layout
from penstock.run.load import load

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
