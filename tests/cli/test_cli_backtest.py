"""`penstock backtest` on small files: what it prints, and how mistakes are told."""

import json
from functools import partial
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from measured_rows import MEMORY, MOE, THROUGHPUT, write
from penstock.cli import backtest as verb
from penstock.errors import PenstockError
from penstock.plan.backtest import steps
from penstock.plan.backtest.columns import COLUMNS
from penstock.plan.backtest.rows import MeasuredRow

app = typer.Typer()
app.command()(verb.backtest)


@pytest.fixture(autouse=True)
def known_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth more time than measured; 44 GiB, and long sequences do not fit."""

    def time_of(row: MeasuredRow) -> float:
        return (row.step_s or 0) * 1.1

    def memory_of(row: MeasuredRow) -> tuple[float, bool]:
        assert row.job
        return 44.0, row.job.sequence < 8192

    run = partial(steps.run, time_of=time_of, memory_of=memory_of)
    monkeypatch.setattr(verb, "run", run)


def say(*words: str) -> str:
    done = CliRunner().invoke(
        app, words, catch_exceptions=False, env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"}
    )
    assert done.exit_code == 0, done.output
    return done.output


def refused(*words: str) -> str:
    with pytest.raises(PenstockError) as caught:
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert caught.value.exit_code == 2
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def file(tmp_path: Path) -> str:
    sweep: list[dict[str, object]] = [
        {"tp": t, "step_time_s": s} for t, s in ((1, 2.0), (2, 2.2), (4, 3.0))
    ]
    moe = {"source": "other", "gpu": "A100-80GB"} | MOE
    return str(write(tmp_path / "runs.csv", *sweep, moe, {"gpu": "Abacus"}, {"recompute": ""}))


def test_the_screen(file: str) -> None:
    screen = say(file)
    lines = [line.split() for line in screen.splitlines()]
    assert "step time: 5 of 6 rows predicted; errors in percent" in screen
    assert next(w for w in lines if w[:1] == ["lab"])[1:5] == ["4", "10.0", "10.0", "+10.0"]
    assert next(w for w in lines if w[:2] == ["H100", "SXM5"])[2:4] == ["4", "10.0"]
    assert "constant MFU" in screen
    assert "own 1B on 8 H100-80GB (lab)" in screen
    assert "recompute none" in screen  # what was assumed of a worst row
    assert "skipped 1 row: the catalog has no accelerator 'Abacus' (row 4)" in screen
    last = screen.splitlines()[-1]
    assert last.startswith("The planner's step times are 10.0 % off, mean over 2 sources")
    assert "choice of layout costs 0.0 %" in last


def test_worst_says_how_many(file: str) -> None:
    assert "worst rows" in say(file, "--worst", "1")
    assert "worst rows" not in say(file, "--worst", "0")
    assert len(say(file, "--worst", "1")) < len(say(file, "--worst", "4"))


def test_json_is_one_object(file: str) -> None:
    found = json.loads(say(file, "--json"))
    assert found["predicted"] == 5
    assert found["items"][0] | {"row": 0, "measured": 2.0} == found["items"][0]
    assert found["leave_one_out"] is False


def test_a_source_where_the_rule_of_thumb_is_closer_is_named(tmp_path: Path) -> None:
    # Twelve equal rows: one constant MFU is exact, the planner a tenth off.
    screen = say(str(write(tmp_path / "a.csv", *[{"source": "twelve"}] * 12)))
    assert "The constant MFU is closer on twelve." in screen
    assert "closer" not in say(str(write(tmp_path / "b.csv", *[{"source": "nine"}] * 9)))


def test_memory(tmp_path: Path) -> None:
    file = write(
        tmp_path / "m.csv",
        {},
        {"peak_mem_gib": 8.0},
        {"peak_mem_gib": "", "oom": "1"},
        {"seq_len": 8192},
        base=MEMORY,
    )
    screen = say(str(file))
    assert "peak memory: 4 of 4 rows predicted" in screen
    assert "constant MFU" not in screen
    last = screen.splitlines()[-1]
    assert "10.0 % off on runs of at least 10 GiB and 450.0 % off on runs below 10 GiB." in last
    assert "missed 1 of 1 run that ran out of memory" in last
    assert "turned down 1 of 3 runs that ran." in last


def test_help_lists_every_column() -> None:
    text = say("--help")
    for column in COLUMNS:
        assert f"{'*' if column.needed else ' '} {column.name}" in text
        assert column.about in text


def test_mistakes_in_the_file(tmp_path: Path) -> None:
    assert "No such file" in refused(str(tmp_path / "none.csv"))
    assert "Is a directory" in refused(str(tmp_path))
    picture = tmp_path / "picture.csv"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe\x00")
    assert "is not a CSV file" in refused(str(picture))
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    assert "has no rows" in refused(str(empty))
    header = write(tmp_path / "header.csv")
    assert "has no rows" in refused(str(header))
    base = {k: v for k, v in THROUGHPUT.items() if k != "gpu"}
    assert "has no column gpu" in refused(str(write(tmp_path / "c.csv", {}, base=base)))
    bad = refused(str(write(tmp_path / "d.csv", {"tp": "two"})))
    assert "row 0" in bad
    assert "column tp: 'two' is not a number" in bad


def test_power(tmp_path: Path) -> None:
    file = tmp_path / "power.csv"
    file.write_text(
        "submitter,gpu,gpus,nodes,cooling,benchmark,mean_run_s,mean_node_w\n"
        "lab,H100,8,1,immersion,bert,300,7000\n"
        "lab,H100,8,1,,bert,300,8200\n"
        "lab,Abacus,8,1,,bert,300,8200\n"
    )
    screen = say(str(file))
    assert "power of a node: 2 of 3 rows predicted" in screen
    for word in (
        "TDP of the accelerators × time",
        "best single share",
        "cooling unknown",
        "in band",
    ):
        assert word in screen
    assert "skipped 1 row: the catalog has no accelerator 'Abacus' (row 2)" in screen
    assert "The planner's node power is" in screen.splitlines()[-1]
    found = json.loads(say(str(file), "--json"))
    assert (found["kind"], found["predicted"]) == ("power", 2)
    assert "drop --leave-one-out" in refused(str(file), "--leave-one-out")
