"""The rule of thumb that the planner has to beat."""

from pathlib import Path

import pytest

from measured_rows import rows
from penstock.plan.backtest.baseline import MeasuredStep, fit, precision_class, predictions
from penstock.plan.job.job import Job

H100_PEAK = 989.4e12  # bf16, dense


def points(path: Path, *changes: dict[str, object], mfu: float = 0.4) -> list[MeasuredStep]:
    """Rows that all reach the same share of the peak, whatever `step_time_s` says."""
    found = []
    for row in rows(path, *changes):
        assert row.job
        found.append(MeasuredStep(row.job, _at(row.job, mfu), row.source))
    return found


def _at(job: Job, mfu: float) -> float:
    peak = job.machine.peak_flops[precision_class(job.precision)]
    return job.tokens * job.shape.flops_per_token(job.sequence) / job.layout.ranks / peak / mfu


def test_the_step_of_a_known_share_by_hand(tmp_path: Path) -> None:
    (point,) = points(tmp_path / "a.csv", {})
    matmul = 16 * (2048 * 2048 * 2 + 2048 * 512 * 2 + 3 * 2048 * 8192) + 32000 * 2048
    norms = 16 * 2 * 2048 + 2048
    work = 6 * (matmul + norms) + 12 * 16 * 2048 * 2048
    assert point.job.machine.peak_flops["bf16"] == pytest.approx(H100_PEAK, rel=1e-3)
    by_hand = 64 * 2048 * work / 8 / H100_PEAK / 0.4
    assert point.step_s == pytest.approx(by_hand, rel=2e-3)
    assert fit([point]).step_s(point.job) == pytest.approx(point.step_s)


def test_the_share_is_the_median_of_the_rows(tmp_path: Path) -> None:
    (point,) = points(tmp_path / "a.csv", {})
    three = [MeasuredStep(point.job, _at(point.job, mfu), "lab") for mfu in (0.2, 0.3, 0.9)]
    assert fit(three).step_s(point.job) == pytest.approx(_at(point.job, 0.3))


def test_left_out_it_falls_back_to_the_precision_and_then_to_all(tmp_path: Path) -> None:
    seen = points(tmp_path / "a.csv", {"source": "x"}, mfu=0.4)
    seen += points(tmp_path / "b.csv", {"source": "y", "gpu": "A100-80GB"}, mfu=0.5)
    seen += points(tmp_path / "c.csv", {"source": "z", "gpu": "B200", "precision": "fp8"}, mfu=0.2)
    h100, a100, b200 = predictions(seen, leave_one_out=True)
    assert h100 == pytest.approx(_at(seen[0].job, 0.5))  # 16-bit elsewhere: the A100's share
    assert a100 == pytest.approx(_at(seen[1].job, 0.4))
    assert b200 == pytest.approx(_at(seen[2].job, 0.45))  # no fp8 elsewhere: the median of all
    assert predictions(seen, leave_one_out=False) == pytest.approx([p.step_s for p in seen])


def test_left_out_a_source_does_not_see_its_own_rows(tmp_path: Path) -> None:
    own = points(tmp_path / "a.csv", {"source": "x"}, {"source": "x"}, mfu=0.1)
    other = points(tmp_path / "b.csv", {"source": "y"}, mfu=0.5)
    found = predictions([*own, *other], leave_one_out=True)
    assert found[:2] == pytest.approx([_at(own[0].job, 0.5)] * 2)
    assert found[2] == pytest.approx(_at(other[0].job, 0.1))


def test_one_source_alone_has_nothing_to_learn_from(tmp_path: Path) -> None:
    assert predictions(points(tmp_path / "a.csv", {}), leave_one_out=True) == [None]


def test_an_adapter_is_less_work(tmp_path: Path) -> None:
    full, lora = points(tmp_path / "a.csv", {}, {"kind": "lora"})
    model = fit([full])
    assert model.step_s(lora.job) == pytest.approx(full.step_s * 2 / 3)


def test_precision_classes() -> None:
    of = ("bf16", "fp16", "fp8", "mxfp8", "fp8-rowwise", "fp4", "fp32", "tf32")
    assert [precision_class(p) for p in of] == [
        "bf16", "bf16", "fp8", "fp8", "fp8", "fp4", "fp32", "tf32"
    ]  # fmt: skip
