"""The backtest of whole files, with a planner whose answers are known."""

import csv
import json
from pathlib import Path

import pytest

from measured_rows import MEMORY, MOE, THROUGHPUT, write
from penstock.errors import PenstockError
from penstock.plan.backtest import steps
from penstock.plan.backtest.columns import COLUMNS
from penstock.plan.backtest.rows import NEEDED, MeasuredRow, RowSkipped
from penstock.plan.job import constants
from penstock.plan.step import step

KEYS = {
    "rows", "predicted", "skipped", "mape", "median_ape", "bias", "macro_mape", "by_source",
    "by_accelerator", "regret", "oom_missed", "oom_false", "items", "kind", "dense", "moe",
    "kendall_tau",
}  # fmt: skip


def tenth_more(row: MeasuredRow) -> float:
    return (row.step_s or 0) * 1.1


def memory_by_sequence(row: MeasuredRow) -> tuple[float, bool]:
    """44 GiB, and it does not fit with long sequences."""
    assert row.job
    return 44.0, row.job.sequence < 8192


def test_throughput(tmp_path: Path) -> None:
    file = write(
        tmp_path / "a.csv",
        {"step_time_s": 2.0},
        {"source": "other", "gpu": "A100-80GB"} | MOE,
        {"gpu": "Abacus"},
        {"step_time_s": ""},
    )
    report = steps.run(file, time_of=tenth_more)
    found = report.to_json()
    assert found.keys() >= KEYS | {"baseline", "sweeps", "sweeps_fixed_software"}
    assert (found["kind"], found["rows"], found["predicted"]) == ("throughput", 4, 2)
    for name in ("mape", "median_ape", "bias", "macro_mape"):
        assert found[name] == pytest.approx(10)
    assert found["by_source"].keys() == {"lab", "other"}  # type: ignore[attr-defined]
    assert found["by_accelerator"].keys() == {"H100 SXM5", "A100 SXM4 80GB"}  # type: ignore[attr-defined]
    assert [found["dense"]["rows"], found["moe"]["rows"]] == [1, 1]  # type: ignore[index]
    assert [(s["row"], s["reason"]) for s in found["skipped"]] == [  # type: ignore[attr-defined]
        (2, "the catalog has no accelerator 'Abacus'"),
        (3, "step_time_s and tokens_per_s_per_gpu are blank"),
    ]
    assert found["regret"] is None
    assert [i["row"] for i in found["items"]] == [0, 1]  # type: ignore[attr-defined]
    assert found["items"][0]["predicted"] == pytest.approx(2.2)  # type: ignore[index]
    assert found["items"][0]["measured"] == 2.0  # type: ignore[index]
    json.dumps(found, allow_nan=False)


def test_speed_stands_in_for_time(tmp_path: Path) -> None:
    base = {k: v for k, v in THROUGHPUT.items() if k != "step_time_s"}
    file = write(tmp_path / "a.csv", {}, base=base | {"tokens_per_s_per_gpu": 64 * 2048 / 8 / 4})
    (item,) = steps.run(file, time_of=lambda row: 5.0).items
    assert item.measured == pytest.approx(4.0)
    assert item.error == pytest.approx(25)


def test_layouts_of_one_job_give_regret(tmp_path: Path) -> None:
    sweep = [{"tp": t, "step_time_s": s} for t, s in ((1, 2.0), (2, 2.2), (4, 3.0))]
    report = steps.run(write(tmp_path / "a.csv", *sweep), time_of=lambda row: 4 - row.step_s)  # type: ignore[operator]
    found = report.to_json()
    assert found["regret"] == pytest.approx(50)
    assert found["kendall_tau"] == pytest.approx(-1)
    assert found["sweeps"]["worst_regret"] == pytest.approx(50)  # type: ignore[index]


def test_the_rule_of_thumb_stands_beside_it_on_the_same_rows(tmp_path: Path) -> None:
    changes = [{"step_time_s": s} for s in (1.0, 2.0, 4.0)] + [{"source": "b", "step_time_s": 8.0}]
    found = steps.run(write(tmp_path / "a.csv", *changes), time_of=tenth_more).to_json()
    # MFU goes with 1 / time: the median of 1, 1/2, 1/4, 1/8 is 3/8, so every step is 8/3 s long.
    in_sample = [abs(8 / 3 / s - 1) * 100 for s in (1.0, 2.0, 4.0, 8.0)]
    block = found["baseline"]["in_sample"]  # type: ignore[index]
    assert block["mape"] == pytest.approx(sum(in_sample) / 4)
    # Without b the median is 1/2, so b's step is 2 s long, three quarters off.
    left_out = found["baseline"]["leave_one_out"]["by_source"]  # type: ignore[index]
    assert left_out["b"]["mape"] == pytest.approx(75)


def test_leave_one_out_uses_the_constants_without_the_rows_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Answer:
        def __init__(self, step_s: float) -> None:
            self.step_s = step_s

    monkeypatch.setattr(constants, "fitted_without", lambda source: {"a": 3.0, "b": 5.0}[source])
    monkeypatch.setattr(step, "predict", lambda job, constants=1.0: Answer(constants))
    file = write(tmp_path / "a.csv", {"source": "a"}, {"source": "b"})
    assert [i.predicted for i in steps.run(file).items] == [1.0, 1.0]
    report = steps.run(file, leave_one_out=True)
    assert [i.predicted for i in report.items] == [3.0, 5.0]
    assert report.rival is report.baseline_left_out


def test_memory(tmp_path: Path) -> None:
    long = {"seq_len": 8192}
    file = write(
        tmp_path / "m.csv",
        {},  # 44 for 40 GiB: +10 %
        {"peak_mem_gib": 8.0},  # a small one, scored apart
        {"peak_mem_gib": "", "reserved_gib": 55.0, "oom": ""} | MOE,  # -20 %
        {"peak_mem_gib": "", "oom": "1"},  # ran out, and the planner says that it fits
        {"peak_mem_gib": 79.0, "oom": "1"} | long,  # ran out, and the planner says so
        long,  # ran, and the planner says that it does not fit; +10 %
        {"peak_mem_gib": "", "oom": ""},
        {"component": "activations", "oom": ""} | long,  # a part: no call; +10 %
        {"component": "activations(relative)", "mem_metric": "PERCENT of the usual: 55", "oom": ""},
        base=MEMORY | {"mem_metric": ""},
    )
    found = steps.run(file, memory_of=memory_by_sequence).to_json()
    assert found.keys() >= KEYS | {"small", "oom_calls"}
    assert (found["kind"], found["rows"], found["predicted"]) == ("memory", 9, 8)
    assert found["mape"] == pytest.approx((10 + 20 + 10 + 10) / 4)
    assert found["bias"] == pytest.approx((10 - 20 + 10 + 10) / 4)
    assert found["small"]["mape"] == pytest.approx(450)  # type: ignore[index]
    assert (found["oom_missed"], found["oom_false"]) == (1, 1)
    assert [c["row"] for c in found["oom_calls"]] == [0, 1, 2, 3, 4, 5]  # type: ignore[attr-defined]
    assert [i["row"] for i in found["items"]] == [0, 1, 2, 5, 7, 8]  # type: ignore[attr-defined]
    assert [i["unit"] for i in found["items"]] == ["GiB"] * 5 + ["%"]  # type: ignore[attr-defined]
    assert found["relative"]["mape"] == pytest.approx(20)  # type: ignore[index]
    assert found["skipped"] == [
        {"row": 6, "reason": "peak_mem_gib, reserved_gib and oom are blank"}
    ]


def test_a_row_that_the_planner_refuses_is_skipped_with_its_reason(tmp_path: Path) -> None:
    def picky(row: MeasuredRow) -> float:
        if row.number == 0:
            raise RowSkipped("no such precision here")
        if row.number == 1:
            raise PenstockError("does not divide")
        return 1.0

    report = steps.run(write(tmp_path / "a.csv", {}, {}, {}), time_of=picky)
    assert report.skipped == ((0, "no such precision here"), (1, "does not divide"))
    assert report.predicted == len(report.items) == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seq_len": "8k"}, r"row 1 \(the first is 0\), column seq_len: '8k' is not a number"),
        ({"step_time_s": "nan"}, "column step_time_s: 'nan' is not a number"),
        ({"step_time_s": "inf"}, "column step_time_s: 'inf' is not a number"),
        ({"tp": "-2"}, "column tp: '-2' is not a number of zero or more"),
    ],
)
def test_a_cell_that_is_no_number(tmp_path: Path, change: dict[str, object], told: str) -> None:
    file = write(tmp_path / "a.csv", {}, change)
    with pytest.raises(PenstockError, match=told):
        steps.run(file, time_of=tenth_more)


def test_a_file_of_which_nothing_can_be_predicted(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", {"gpu": "Abacus"}, {"tp": 3})
    with pytest.raises(PenstockError, match=r"none of the 2 rows .*row 0: .*'Abacus'"):
        steps.run(file, time_of=tenth_more)


def test_memory_left_out_uses_the_constants_without_the_rows_source(tmp_path: Path) -> None:
    source = "torchtitan"
    assert constants.stranded_without(source) != constants.stranded()
    row = {"source": source, "peak_mem_gib": "", "reserved_gib": 40}
    file = write(tmp_path / "m.csv", row, base=MEMORY)
    usual, left_out = (steps.run(file, leave_one_out=out).items[0] for out in (False, True))
    assert left_out.predicted != usual.predicted
    other = write(tmp_path / "o.csv", row | {"source": "our lab"}, base=MEMORY)
    assert steps.run(other, leave_one_out=True).items[0].predicted == usual.predicted


def test_every_needed_column_is_listed_as_needed() -> None:
    needed = {column.name for column in COLUMNS if column.needed}
    assert NEEDED["throughput"] | NEEDED["memory"] <= needed
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)


def test_the_example_of_the_docs_works(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "backtest.md").read_text()
    file = tmp_path / "docs.csv"
    file.write_text(page.split("```csv\n")[1].split("```")[0])
    with file.open() as table:
        assert len(list(csv.DictReader(table))) == 3
    report = steps.run(file, time_of=tenth_more)
    assert (report.predicted, report.skipped) == (3, ())
    assert len(report.sweeps) == 1
    assert all(f"`{column.name}`" in page for column in COLUMNS)


def test_the_planner_itself_answers_for_an_unknown_source(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", {"source": "nobody knows"}, MOE)
    fitted = [item.predicted for item in steps.run(file).items]
    assert len(fitted) == 2
    assert min(fitted) > 0
    left_out = steps.run(file, leave_one_out=True).items
    assert [item.predicted for item in left_out] == fitted  # no fit ever saw these sources
    (peak,) = steps.run(write(tmp_path / "m.csv", {}, base=MEMORY)).items
    assert 1 < peak.predicted < 80
