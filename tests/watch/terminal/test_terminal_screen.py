"""The screen fits every terminal, shows what matters, and prints no control codes of a run."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.save import save
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.terminal.chart import LABEL, MARK, BrailleChart, scale
from penstock.watch.terminal.display import TerminalDisplay, has_room, progress_line
from penstock.watch.terminal.screen import Footer, RunScreen, lines

EVIL = "boom \x1b[2J\x1b]0;owned\x07 [red]"


@pytest.fixture
def view(run_file: Callable[..., Path]) -> RunView:
    """60 steps of two ranks, the second of which died once."""
    run = load(run_file("shown", **{"train.steps": 100}))
    folder = RunFolder(run.folder)
    folder.make()
    save(run, folder.run_file)
    folder.plan_file.write_text(
        '{"ranks": 2, "steps": 100, "batch_tokens": 128, "params": 3000000, "machine": "2 cores",'
        ' "layout": {"replicate": 2, "shard": 1}, "dataset": "tiny"}'
    )
    supervisor = SupervisorJournal(folder.journal, clock=lambda: 1000.0)
    supervisor.event("invocation", t=1000.0, ranks=2)
    supervisor.event("launch", t=1001.0, attempt=0)
    for rank in (0, 1):
        with Journal(folder.journal, 0, range(rank, rank + 1), clock=lambda: 1002.0) as journal:
            journal.event("ready", t=1002.0)
            for step in range(1, 61):
                journal.step(step, 1002.0 + step, 0.9, 0.0, 0.8, 0.1)
                if rank == 0:
                    journal.curve(step, 9 - step / 10, 1, 1e-3, 128.0 * step, t=1003.0 + step)
            if rank == 0:
                journal.event("saved", t=1060.0, step=50, tier="disk", bytes=3 << 20)
                journal.span("evaluate", 1063.0, 1064.0, step=60, val_loss=3.5)
    supervisor.event("fault", t=1070.0, attempt=0, rank=1, reason=EVIL, action="restart")
    supervisor.close()
    return RunView(folder)


@pytest.mark.parametrize(
    ("columns", "rows"), [(80, 24), (40, 8), (140, 50), (300, 90), (60, 14), (112, 24)]
)
@pytest.mark.parametrize("helped", [False, True])
def test_it_fills_the_terminal_and_no_more(
    view: RunView, columns: int, rows: int, helped: bool
) -> None:
    made = lines(RunFacts(view), Footer(keys=True, help=helped), columns, rows)
    assert len(made) == rows
    console = Console(width=columns, height=rows, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(RunScreen(RunFacts(view), Footer(keys=True, help=helped)), end="")
    drawn = captured.get().split("\n")
    assert len(drawn) == rows
    assert {len(one) for one in drawn} == {columns}


def test_the_important_lines_fit_80_by_24(view: RunView) -> None:
    text = "\n".join(one.plain for one in lines(RunFacts(view), Footer(keys=True), 80, 24))
    for words in (
        "shown", "3M parameters", "60%", "step 60 of 100", "loss    3.450", "validation 3.500",
        "tokens/s", "compute", "●●", "1 down", "saved   step 50", "disk, 3.0 MiB", "save now",
    ):  # fmt: skip
        assert words in text, text
    assert MARK in text
    assert any(0x2800 < ord(c) <= 0x28FF for c in text)


def test_energy_and_money_where_they_are_known(view: RunView) -> None:
    assert "$" not in _text(view)
    plan = view.folder.read_plan()
    plan["rates"] = {
        "usd_per_hour": {"value": 36.0, "source": "a quote"},
        "gco2e_per_kwh": {"value": 1e6, "source": "a table"},
    }
    view.folder.plan_file.write_text(json.dumps(plan))
    shown = _text(RunView(view.folder))
    assert "(estimated)" in shown
    assert "$1.40 + $" in shown  # two ranks, 70 s
    assert " g CO2e" in shown


def _text(view: RunView) -> str:
    return "\n".join(one.plain for one in lines(RunFacts(view), Footer(), 80, 24))


def test_control_codes_of_a_run_are_not_printed(view: RunView) -> None:
    console = Console(width=100, height=40, force_terminal=True)
    with console.capture() as captured:
        console.print(RunScreen(RunFacts(view), Footer()))
    assert "boom �[2J�]0;owned� [red]" in captured.get()
    assert "\x1b[2J" not in captured.get()


def test_a_run_that_has_not_begun_has_a_page(view: RunView) -> None:
    for file in view.folder.journal.iterdir():
        file.unlink()
    text = "\n".join(one.plain for one in lines(RunFacts(RunView(view.folder)), Footer(), 80, 24))
    assert "starting 2 ranks" in text


def test_the_progress_line_for_logs(view: RunView) -> None:
    assert progress_line(RunFacts(view)).startswith("step 60/100  loss 3.450  val 3.500  142 tok/s")


def test_a_validation_loss_of_an_earlier_step_names_it(view: RunView) -> None:
    vars(view)["validation"] = [(20, 5.0), (40, 3.6)]
    assert progress_line(RunFacts(view)).startswith(
        "step 60/100  loss 3.450  val 3.600 (step 40)  142 tok/s"
    )


def test_no_screen_without_a_terminal(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as file:
        assert not has_room(Console(file=file))
        assert not has_room(Console(file=file, force_terminal=True))  # nobody's foreground


def test_control_codes_in_the_reason_of_a_fault_are_not_printed() -> None:
    console = Console(width=80, height=24, force_terminal=True, color_system=None)
    with console.capture() as captured:
        TerminalDisplay(console).fault(1, EVIL, "restart")
    assert captured.get().startswith("fault: rank 1: boom �[2J�]0;owned� [red]; restarting")
    assert "\x1b" not in captured.get()


numbers = st.floats(allow_nan=True, allow_infinity=True, width=32)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(numbers, max_size=300),
    st.integers(1, 200),
    st.integers(0, 40),
    st.lists(st.tuples(st.integers(-5, 400), numbers), max_size=5),
)
def test_a_chart_of_anything_has_its_size(
    values: list[float], columns: int, rows: int, marks: list[tuple[float, float]]
) -> None:
    y = np.array(values, np.float64)
    with np.errstate(all="ignore"):
        drawn = BrailleChart(columns, rows).lines(np.arange(len(y)), y, marks)
    assert len(drawn) in (0, rows)
    assert all(one.cell_len == columns for one in drawn[:-1])


def test_a_falling_curve_falls_on_the_screen() -> None:
    drawn = BrailleChart(40, 9).lines(np.arange(100), np.linspace(5, 1, 100))
    places = [
        one.plain[LABEL + 1 :].strip(" ") and one.plain.rindex(_last(one.plain))
        for one in drawn[:-1]
    ]
    assert places == sorted(places)
    assert drawn[0].plain.startswith("  4.")
    assert drawn[-2].plain.startswith("  1.0")


def _last(text: str) -> str:
    return text.rstrip(" ")[-1]


def test_the_scale_leaves_out_the_fall_at_the_beginning() -> None:
    low, high = scale([100.0, 50.0, *[4.0] * 60, *[3.0] * 60])
    assert (low, high) == (3.0, 4.0)
    assert scale([math.nan]) == (0.0, 1.0)
    low, high = scale([2.0] * 10)
    assert low < 2.0 < high
