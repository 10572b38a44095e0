"""Lives at a site that lacks power: the limit that `plan` advises, with its speed and draw."""

from pathlib import Path

import pytest

from penstock.run.clusters.file import FailuresSection
from penstock.run.load import load_table
from penstock.run.schema.run import Run
from penstock.simulate.conditions import conditions
from penstock.simulate.simulate import planned


def _run_on(cluster: Path) -> Run:
    return load_table(
        {
            "name": "underfed",
            "model": {"preset": "llama-1b"},
            "data": {"sequence": 4096},
            "train": {"tokens": "25B", "batch_tokens": "1Mi", "precision": "bf16"},
            "cluster": {"use": str(cluster), "nodes": 4},
        }
    )


def test_an_underfed_site_is_simulated_as_planned_under_a_power_limit(tmp_path: Path) -> None:
    lines = 'nodes = 4\n[accelerator]\nname = "H100 SXM5"\n{}[site]\npower_limit_w = "{} kW"\n'
    fed, starved = tmp_path / "fed.toml", tmp_path / "starved.toml"
    starved.write_text(lines.format("", 26))
    first, found = planned(_run_on(starved), FailuresSection())
    cap_w = first.job.machine.cap_w
    assert cap_w is not None
    assert cap_w < 700
    assert any(f"limit of {cap_w:.0f} W" in words for words in found.warnings)
    fed.write_text(lines.format(f"cap_w = {cap_w}\n", 26))
    second, found = planned(_run_on(fed), FailuresSection())
    assert not any("power_limit_w" in words for words in found.warnings)
    assert first.step.step_s == second.step.step_s
    assert first.bill.energy_kwh == pytest.approx(second.bill.energy_kwh)
    own = conditions(_run_on(starved), first, FailuresSection())
    assert own.step_s == first.step.step_s
