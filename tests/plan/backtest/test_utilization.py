"""Published utilisation of another implementation, and the rule that predicts it."""

from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.plan.backtest import utilization
from penstock.plan.backtest.row_file import lines
from penstock.plan.backtest.rows import RowSkipped

PUBLISHED = Path(__file__).parents[3] / "benchmarks/facts/utilization.csv"


def row(**cells):
    given = {"params_b": 10, "step_s": 0.8, "local_steps": 100, "gbit_per_s": 2, "utilization": 0.5}
    return utilization.read_row(0, {name: str(cell) for name, cell in (given | cells).items()})


def test_every_published_point_is_within_15_percent():
    report = utilization.run(PUBLISHED, lines(PUBLISHED))
    assert len(report.items) == report.rows >= 100
    assert report.close == report.rows
    assert report.to_json()["mape"] < 4


def test_half_of_the_time_computing_is_an_exchange_as_long_as_a_round():
    # 10B values of 16 bits are 160 Gbit: 80 s at 2 Gbit/s, as long as 100 steps of 0.8 s.
    assert utilization.predict(row()) == pytest.approx(0.5)
    assert utilization.predict(row(value_bits=4)) == pytest.approx(0.8)
    assert utilization.predict(row(replicas=4, collective="gather")) == pytest.approx(0.25)
    assert utilization.predict(row(replicas=4)) == pytest.approx(80 / (80 + 120))
    assert utilization.predict(row(hop_ms=40_000)) == pytest.approx(80 / (80 + 160))


def test_what_travels_behind_steps_is_not_waited_for():
    assert utilization.predict(row(parts=4)) == pytest.approx(1.0)
    assert utilization.predict(row(parts=4, late_steps=0)) == pytest.approx(0.5)
    assert utilization.predict(row(behind=0.5)) == pytest.approx(80 / (80 + 79.6))


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"gbit_per_s": ""}, "gbit_per_s is blank"),
        ({"gbit_per_s": 0}, "gbit_per_s is 0"),
        ({"utilization": 80}, "not a share from 0 to 1"),
        ({"collective": "star"}, "not ring or gather"),
        ({"step_s": "fast"}, "step_s is 'fast'"),
    ],
)
def test_a_row_that_cannot_be_predicted_says_why(cells, reason):
    with pytest.raises(RowSkipped, match=reason):
        row(**cells)


def test_a_table_without_a_needed_column_is_refused(tmp_path):
    file = tmp_path / "some.csv"
    file.write_text("utilization,params_b\n0.5,1\n")
    with pytest.raises(PenstockError, match="no column step_s, local_steps, gbit_per_s"):
        utilization.run(file, lines(file))
