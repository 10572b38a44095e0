"""The power model against metered nodes: the errors as printed, and no row tells its own answer."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.catalog import accelerators
from penstock.catalog import power as metered
from penstock.plan.backtest import power as backtest
from penstock.plan.backtest.power_busy import LEAST, busy
from penstock.plan.backtest.power_fit import fit, others
from penstock.plan.backtest.power_rows import NodeConfig
from penstock.plan.backtest.scores import mape

MORE = Path(__file__).parents[3] / "benchmarks" / "facts" / "power_more.csv"
HEADER = "submitter,gpu,gpus,nodes,cooling,meter,benchmark,global_batch,mean_run_s,mean_node_w"


def of(nodes: int = 8, **changed: object) -> NodeConfig:
    chip = accelerators.find("H100 SXM5")
    made = NodeConfig(chip, 700.0, 8, nodes, "immersion", 0.96, "llama2_70b_lora", 8.0, 318.2, None)
    return replace(made, **changed)  # type: ignore[arg-type]


@pytest.fixture
def fitted_rows(tmp_path: Path) -> Path:
    """The runs of the catalog as a table."""
    path = tmp_path / "power.csv"
    lines = [HEADER]
    for run in metered.all():
        cells = (run.accelerators, run.nodes, run.cooling, "AC", run.benchmark, run.global_batch)
        lines.append(",".join(map(str, ("smc", "H100", *cells, run.run_s, run.node_w))))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_errors_on_the_fitted_nodes_each_left_out(fitted_rows: Path) -> None:
    report = backtest.run(fitted_rows)
    assert report.predicted == report.rows == 9
    assert mape(report.items) == pytest.approx(2.4, abs=0.1)  # promised: 7
    assert mape(report.tdp) == pytest.approx(14.6, abs=0.1)
    assert mape(report.rated) == pytest.approx(59.6, abs=0.1)
    assert mape(report.constant) == pytest.approx(10.5, abs=0.1)


def test_errors_on_nodes_that_no_constant_has_seen() -> None:
    """Other benchmarks, meters, makers, cooling, and another accelerator."""
    report = backtest.run(MORE)
    assert report.predicted == 20
    assert mape(report.items) == pytest.approx(3.0, abs=0.1)
    by_source = {k: mape(v) for k, v in backtest.scores.by_source(report.items).items()}
    assert by_source["Dell v4.1"] < 4  # type: ignore[operator]
    assert by_source["Lenovo v5.0"] < 5  # type: ignore[operator]
    assert sum(item.inside for item in report.items) >= 16  # four of five


@pytest.mark.parametrize(
    ("column", "most"),
    [
        ("cooling", 9),
        ("global_batch", 6),
        ("mean_run_s", 6),
        ("benchmark", 5),
        ("meter", 4),
        ("nodes", 4),
        ("gpus", 4),
    ],
)
def test_a_missing_column_costs_little(column: str, most: float, tmp_path: Path) -> None:
    with MORE.open() as file:
        rows = list(csv.DictReader(file))
    path = tmp_path / "less.csv"
    with path.open("w", newline="") as file:
        left = [name for name in rows[0] if name != column]
        writer = csv.DictWriter(file, left, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    report = backtest.run(path)
    assert report.predicted == 20
    assert (mape(report.items) or 0) < most


def config_of(run: metered.MeteredRun) -> NodeConfig:
    each, batch = run.accelerators // run.nodes, float(run.global_batch)
    made = of(run.nodes, per_node=each, benchmark=run.benchmark, batch=batch, run_s=run.run_s)
    return replace(made, cooling=run.cooling)


@pytest.mark.parametrize("run", metered.all(), ids=lambda run: run.name)
def test_no_prediction_changes_with_its_own_meter(
    run: metered.MeteredRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(run)
    other = next(r for r in metered.all() if r is not run and r.nodes == 1)
    before, beside = backtest.predict(config), backtest.predict(config_of(other))
    doubled = tuple(replace(r, node_w=2 * r.node_w) if r is run else r for r in metered.all())
    monkeypatch.setattr(backtest.metered, "all", lambda: doubled)
    assert backtest.predict(config) == before
    if run.whole:  # the others do learn from it
        assert backtest.predict(config_of(other)) != beside


def test_a_run_is_left_out_of_its_own_fit_whoever_metered_it() -> None:
    config = of()
    known = others(config, metered.all())
    assert len(known) == len(metered.all()) - 1
    assert not [r for r in known if r.nodes == 8 and r.benchmark == "llama2_70b_lora"]
    # By another meter and in another spelling it is the same run.
    assert (
        others(replace(config, supplies=1.0, benchmark="Llama2 70B-LoRA"), metered.all()) == known
    )
    assert fit(known) != fit(metered.all())
    assert others(replace(config, benchmark="flux"), metered.all()) == list(metered.all())


def test_how_busy_one_node_is() -> None:
    assert busy(of(1), metered.all()).share == 1.0
    assert busy(of(1, busy=0.4), metered.all()).share == 0.4


def test_how_busy_many_nodes_are_by_the_time_of_one() -> None:
    known = metered.all()
    assert busy(of(), known).share == pytest.approx(8 * 1687.93 / (64 * 318.2), abs=1e-3)
    # The same length on chips of twice the rate is half the work.
    b200 = accelerators.find("B200 SXM")
    faster = busy(of(accelerator=b200), known)
    peaks = b200.bf16_tflops / accelerators.find("H100").bf16_tflops  # type: ignore[operator]
    assert faster.share == pytest.approx(busy(of(), known).share / peaks)
    assert faster.off > busy(of(), known).off


def test_a_run_of_the_same_table_tells_the_time_of_one_node() -> None:
    one = of(1, benchmark="flux", run_s=800.0)
    many = of(8, benchmark="flux", run_s=125.0)
    assert busy(many, metered.all(), [one, many]).share == pytest.approx(0.8)
    assert "assumed" in busy(many, metered.all()).words


def test_another_batch_is_compared_by_samples_per_accelerator() -> None:
    config = of(64, batch=64.0, run_s=117.2)
    found = busy(config, others(config, metered.all()))
    assert "8 nodes llama2 lora" in found.words
    assert 0.5 < found.share < 0.663  # of that run; a shorter one stands by for more of its time
    # With one node to compare, by what of a step does not shrink with the batch.
    alone = busy(of(8, run_s=None), others(of(8), metered.all()))
    assert "1 node llama2 lora" in alone.words
    assert alone.share == pytest.approx(0.663, abs=0.05)
    assert busy(of(8, run_s=None, batch=64.0), others(of(8), metered.all())).share > 0.9


@given(
    st.sampled_from(["H100 SXM5", "A100 SXM4 80GB", "B200 SXM", "MI300X", "RTX 4090"]),
    st.integers(1, 16),
    st.integers(1, 2048),
    st.sampled_from(["air", "liquid", "immersion", "unknown"]),
    st.sampled_from(["bert", "llama2_70b_lora", "gpt3", ""]),
    st.none() | st.floats(1, 1e6),
    st.none() | st.floats(1, 1e7),
)
@settings(deadline=None, max_examples=80)
def test_any_node_gets_sane_watts_and_a_band_around_them(
    name: str,
    per_node: int,
    nodes: int,
    cooling: str,
    benchmark: str,
    batch: float | None,
    run_s: float | None,
) -> None:
    chip = accelerators.find(name)
    assert chip.tdp_w
    made = NodeConfig(
        chip, chip.tdp_w, per_node, nodes, cooling, 0.96, benchmark, batch, run_s, None
    )
    watts, off, assumed = backtest.predict(made)
    assert per_node * chip.tdp_w * LEAST < watts < per_node * chip.tdp_w * 1.5 + 1500
    assert 0.05 <= off < 0.5
    assert any(word.startswith("busy") for word in assumed)


def test_what_is_not_said_widens_the_band() -> None:
    sure = backtest.predict(of(1))[1]
    unsaid, off, _ = backtest.predict(of(1, cooling="unknown"))
    assert off > sure
    for cooling in ("air", "liquid", "immersion"):  # whichever it is
        assert unsaid * (1 - off) < backtest.predict(of(1, cooling=cooling))[0] < unsaid * (1 + off)
    assert backtest.predict(of(1, accelerator=accelerators.find("B200 SXM")))[1] > sure
    assert backtest.predict(of(8, benchmark="flux"))[1] > backtest.predict(of(8))[1]


def test_json_has_every_figure(fitted_rows: Path) -> None:
    found = backtest.run(fitted_rows).to_json()
    assert found["kind"] == "power"
    assert found["scored_rows"] == 9
    assert set(found["baseline"]) == {"tdp", "rated", "constant"}  # type: ignore[call-overload]
    item = found["items"][0]  # type: ignore[index]
    assert item["band"]["low"] < item["predicted"] < item["band"]["high"]
    assert item["assumed"]


def test_rows_are_skipped_with_their_reason_and_none_left_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    row = "lab,H100,8,1,air,AC,bert,8,100,8000"
    path.write_text("\n".join([HEADER, row, row.replace("H100", "Abacus")]) + "\n")
    assert [number for number, _ in backtest.run(path).skipped] == [1]
    path.write_text("\n".join([HEADER, row.replace("H100", "Abacus")]) + "\n")
    with pytest.raises(backtest.PenstockError, match="none of the 1 rows"):
        backtest.run(path)


def test_the_table_of_unseen_nodes_has_no_fitted_one() -> None:
    with MORE.open() as file:
        rows = list(csv.DictReader(file))
    fitted = {(r.nodes, r.benchmark, "AC") for r in metered.all()}
    h100 = [r for r in rows if "smc" in r["submitter"]]
    assert not fitted & {(int(r["nodes"]), r["benchmark"], r["meter"]) for r in h100}
