"""The report of runs written by hand, in every state and with files cut anywhere."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from made_run import T0, made_run
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.watch.facts.advice import advice
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.report import html
from penstock.watch.report.screen import screen, summary
from penstock.watch.terminal import display as terminal
from penstock.watch.terminal import screen as terminal_screen
from written_run import BEGIN, PLAN, T, Written, facts, shown

NAN = float("nan")


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def finished(written: Written) -> dict[str, Any]:
    written.supervisor(*BEGIN, (60.0, "ended", {"result": "done", "error": ""}))
    written.ranks(0, 1.0, range(1, 21))
    journal = written.folder.journal / "a0000-r00000.events"
    spans: list[tuple[str, float, float, dict[str, object]]] = [
        ("checkpoint", 46.0, 48.0, {"step": 20}),
        ("evaluate", 48.0, 50.0, {"step": 0, "val_loss": 9.5}),
        ("evaluate", 50.0, 52.0, {"step": 20, "val_loss": 7.25}),
        ("evaluate", 52.0, 53.0, {"prompt": "def [bold]", "sample": "f(x):"}),
    ]
    with journal.open("a") as file:
        for kind, start, end, payload in spans:
            line = {"t": T + start, "end": T + end, "kind": kind, **payload}
            file.write(json.dumps(line) + "\n")
    written.end(0, 54.0, result="done", weights_hash="abcd" * 16)
    checkpoint = written.folder.checkpoints / "step-00000020"
    checkpoint.mkdir()
    (checkpoint / "manifest.json").write_text("{}")
    return facts(written.folder)


def test_the_summary_of_a_finished_run(written: Written) -> None:
    found = finished(written)
    assert found["run"] == "hand"
    assert found["status"] == "done"
    assert (found["steps"], found["steps_planned"], found["tokens"]) == (20, 20, 20_000)
    assert found["loss"] == pytest.approx(sum(10 - i / 10 for i in range(11, 21)) / 10)
    assert found["val_loss"] == 7.25
    assert found["val_losses"] == [[0, 9.5], [20, 7.25]]
    assert found["tokens_per_s"] == 500
    assert found["mfu"] is None  # a CPU has no published peak: never a guess
    assert (found["wall_s"], found["ranks"], found["faults"]) == (60, 2, 0)
    assert found["useful"] == pytest.approx(2 * 20 * 1.5 / 120)
    assert found["ledger"]["data_wait"] == pytest.approx(2 * 20 * 0.25)
    assert found["resumed_from"] is None
    assert found["checkpoint"] == str(written.folder.checkpoints / "step-00000020")
    assert found["weights_hash"] == "abcd" * 16
    assert found["sample"] == "f(x):"
    assert (found["machine"], found["params"]) == ("2 CPU cores", 3_000_000)


def test_the_screen_of_a_finished_run(written: Written) -> None:
    finished(written)
    text = shown(screen(written.folder))
    assert "done, step 20 of 20" in text
    assert "3M parameters, bf16 on 2 CPU cores, 2 replicate × 1 shard" in text
    assert "validation 9.500 → 7.250" in text
    assert "500 tokens/s" in text
    assert "1 min 00 s" in text  # the wall-clock
    assert "useful 50.0%" in text
    assert "def [bold]\n" in text  # not taken for markup
    assert "the model writes\nf(x):" in text
    assert "compute" in text
    assert "bubble" not in text  # took no time


@pytest.mark.parametrize(
    ("samples", "passes", "said"),
    [
        (156, 1.282, "1.3 passes over 15.6K tokens"),
        (200, 1.0, "1.0 pass over 20K tokens"),
        (4000, 0.05, "0.05 passes over 400K tokens"),
        (1, 200.0, "200 passes over 100 tokens"),
    ],
)
def test_the_number_of_passes_over_the_data(
    tmp_path: Path, samples: int, passes: float, said: str
) -> None:
    written = Written(tmp_path, PLAN | {"samples": samples, "sequence": 100})
    written.ranks(0, 0, range(1, 21))
    found = summary(written.folder)
    assert found["passes"] == pytest.approx(passes, abs=1e-3)
    assert found["epoch_tokens"] == samples * 100
    assert f"data   {said}" in shown(screen(written.folder))
    assert said in html.page(written.folder)


@pytest.mark.parametrize("plan", [{"dataset": ["a@1", "b@2"], "sequence": 100}, {}])
def test_passes_over_a_mixture_or_without_a_length_are_not_made_up(
    tmp_path: Path, plan: dict[str, Any]
) -> None:
    written = Written(tmp_path, PLAN | {"samples": 156} | plan)
    written.ranks(0, 0, range(1, 21))
    assert summary(written.folder)["passes"] is None
    assert " over " not in shown(screen(written.folder)).partition("where it went")[0]
    assert summary(written.folder)["best"] is None


def test_the_summary_of_a_run_before_its_first_step(written: Written) -> None:
    written.supervisor(*BEGIN)
    with written.folder.lock():
        found = facts(written.folder)
        assert "2 ranks" in shown(terminal_screen.RunScreen(RunFacts(RunView(written.folder))))
    assert found["status"] == "running"
    assert (found["steps"], found["tokens"], found["loss"]) == (0, 0, None)
    assert (found["val_loss"], found["tokens_per_s"], found["checkpoint"]) == (None, None, None)
    assert found["ledger"]["startup"] == pytest.approx(found["wall_s"] * 2)


def test_the_summary_of_a_running_run(written: Written) -> None:
    written.supervisor(*BEGIN)
    written.ranks(0, 1.0, range(1, 11))
    with written.folder.lock():
        found = facts(written.folder)
        view = RunView(written.folder)
        assert view.remaining_s == pytest.approx(2 * 10)
        assert "20 s left" in shown(terminal_screen.RunScreen(RunFacts(view)))
    assert (found["status"], found["steps"], found["weights_hash"]) == ("running", 10, None)
    assert facts(written.folder)["status"] == "killed"  # the lock is gone


def test_a_run_without_an_end_was_killed(written: Written) -> None:
    written.supervisor(*BEGIN)
    written.ranks(0, 1.0, range(1, 8))
    found = facts(written.folder)
    assert (found["status"], found["steps"]) == ("killed", 7)
    assert found["wall_s"] == 1 + 5 + 2 * 7  # to the last record
    assert found["weights_hash"] is None


def test_a_failed_run_shows_its_fault(written: Written) -> None:
    reason = "OSError: [Errno 28] no space left on [/]"
    written.supervisor(
        *BEGIN,
        (20.0, "fault", {"attempt": 0, "rank": 1, "reason": reason, "action": "give_up"}),
        (21.0, "ended", {"result": "failed", "error": reason}),
    )
    written.ranks(0, 1.0, range(1, 8))
    written.end(0, 20.0, result="failed", error=reason)
    found = facts(written.folder)
    assert (found["status"], found["faults"], found["weights_hash"]) == ("failed", 1, None)
    assert found["ledger"]["down"] == pytest.approx(2 * 1.0)
    assert f"rank 1: {reason}" in shown(screen(written.folder))


def test_a_loss_that_is_not_a_number_is_shown_as_a_dash(written: Written) -> None:
    """The step that was refused is on the curve; programs still get JSON, and people a dash."""
    written.supervisor(*BEGIN, (40.0, "ended", {"result": "failed"}))
    written.ranks(0, 1.0, range(1, 4), losses={3: NAN})
    with Journal(written.folder.journal, 1) as journal:
        journal.span("evaluate", T + 20, T + 21, step=3, val_loss=NAN)
    found = facts(written.folder)
    assert (found["steps"], found["loss"], found["val_loss"]) == (3, None, None)
    assert found["val_losses"] == [[3, None]]
    assert "9.900 → –, validation – (step 3)" in shown(screen(written.folder))
    assert "loss –" in terminal.progress_line(RunFacts(RunView(written.folder)))


@pytest.mark.parametrize("losses", [dict.fromkeys(range(1, 31), NAN), {2: float("inf"), 3: NAN}])
def test_a_curve_that_is_not_finite_is_drawn(written: Written, losses: dict[int, float]) -> None:
    written.supervisor(*BEGIN)
    written.ranks(0, 1.0, range(1, 31), losses)
    assert facts(written.folder)["steps"] == 30
    assert facts(written.folder)["steps"] == 30


def restarted(written: Written) -> None:
    """Killed at step 9 after a save at 5; the second attempt has come to step 7."""
    written.supervisor(
        *BEGIN,
        (30.0, "fault", {"attempt": 0, "rank": 1, "reason": "died", "action": "restart"}),
        (31.0, "launch", {"attempt": 1}),
    )
    written.ranks(0, 1.0, range(1, 10), losses={6: 99.0, 9: 99.0})
    written.ranks(1, 31.0, range(6, 8))


def test_after_a_restart_only_steps_that_count_are_on_the_curve(written: Written) -> None:
    restarted(written)
    with written.folder.lock():
        found = facts(written.folder)
        view = RunView(written.folder)
        assert view.remaining_s is not None
        assert view.remaining_s > 0
    assert (found["steps"], found["tokens"]) == (7, 7000)
    assert view.curve["step"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert max(view.curve["loss"]) < 10
    assert found["resumed_from"] == 5
    assert found["faults"] == 1
    assert found["ledger"]["redo"] > 0


def test_a_second_invocation_says_where_it_went_on(written: Written) -> None:
    written.supervisor(*BEGIN, (50.0, "ended", {"result": "stopped"}))
    written.ranks(0, 1.0, range(1, 11))
    written.end(0, 40.0, result="stopped", weights_hash="first")
    assert facts(written.folder)["weights_hash"] == "first"
    written.supervisor(
        (1000.0, "invocation", {"ranks": 2}),
        (1001.0, "launch", {"attempt": 1}),
        (1050.0, "ended", {"result": "done"}),
    )
    written.ranks(1, 1001.0, range(11, 21))
    written.end(1, 1040.0, result="done", weights_hash="second")
    found = facts(written.folder)
    assert (found["status"], found["resumed_from"], found["weights_hash"]) == (
        "done",
        10,
        "second",
    )
    assert found["wall_s"] == 100
    assert "resumed from step 10" in shown(screen(written.folder))


def test_a_run_that_was_made_but_never_launched(tmp_path: Path) -> None:
    found = facts(Written(tmp_path, plan=None).folder)
    assert (found["status"], found["steps"], found["wall_s"]) == ("new", 0, 0)
    assert (found["useful"], found["effective"]) == (None, None)


def test_a_fork_that_was_never_launched_has_a_report(tmp_path: Path) -> None:
    """Its plan says only where it comes from."""
    plan = {"forked_from": {"run": "other", "step": 5}, "dataset": "tiny@1"}
    found = facts(Written(tmp_path, plan).folder)
    assert (found["status"], found["dataset"], found["layout"]) == ("new", "tiny@1", None)


def test_a_custom_module_has_no_size(tmp_path: Path) -> None:
    written = Written(tmp_path, PLAN | {"params": None, "flops_per_token": None})
    finished(written)
    assert "own module" in shown(screen(written.folder))


def test_mfu_of_a_known_device(tmp_path: Path) -> None:
    plan = PLAN | {"device": "cuda", "device_name": "NVIDIA H100 80GB HBM3", "machine": "H100"}
    found = finished(Written(tmp_path, plan))
    assert found["mfu"] == pytest.approx(2e7 * 500 / (989e12 * 2), rel=0.01)
    assert "MFU" in shown(screen(Written(tmp_path, plan).folder))


def cuts(data: bytes) -> Iterator[bytes]:
    for at in {0, 1, 30, 64, 65, len(data) // 2, len(data) - 1}:
        yield data[: max(0, at)]


@pytest.mark.parametrize(
    "name",
    ["supervisor.events", "a0000-r00000.events", "a0000-r00000.steps", "a0000-r00000.curve"],
)
@pytest.mark.parametrize("held", [False, True], ids=["dead", "running"])
def test_half_written_files_have_a_report(written: Written, name: str, held: bool) -> None:
    finished(written)
    path = written.folder.journal / name
    for part in cuts(path.read_bytes()):
        path.write_bytes(part)
        with written.folder.lock() if held else nullcontext():
            facts(written.folder)


def test_half_written_checkpoints_are_not_named(written: Written) -> None:
    written.supervisor(*BEGIN)
    for name in (".writing-00000005", "step-00000005", ".damaged-00000004"):
        (written.folder.checkpoints / name).mkdir()
    (written.folder.checkpoints / ".damaged-00000004" / "manifest.json").write_text("{}")
    assert facts(written.folder)["checkpoint"] is None


@pytest.mark.parametrize("missing", ["journal", "checkpoints", "control"])
def test_missing_folders_have_a_report(written: Written, missing: str) -> None:
    (written.folder.path / missing).rmdir()
    assert facts(written.folder)["status"] == "new"


def test_the_lines_of_a_running_run_and_immediate_messages(written: Written) -> None:
    restarted(written)
    console = Console(record=True, width=100, file=StringIO())
    display = terminal.TerminalDisplay(console)
    display.launching(written.folder, PLAN)
    for _ in range(3):
        display.next_s = 0.0
        display.tick()
    display.fault(1, "died", "restart")
    display.stopping()
    display.close()
    text = console.export_text()
    assert text.count("step 7/20") == 1  # no new step, no new line
    assert "fault: rank 1: died; restarting" in text  # now, and not those of earlier launches
    assert text.count("fault") == 1
    assert "once more ends it at once" in text


def test_the_report_says_why_auto_chose_its_precision(tmp_path: Path) -> None:
    why = "bf16 matmuls are 2.1 × faster than fp32 on this CPU (measured)"
    written = Written(tmp_path, PLAN | {"precision_why": why})
    found = finished(written)
    assert (found["precision"], found["precision_why"]) == ("bf16", why)
    assert f"chosen by this machine: {why}" in " ".join(shown(screen(written.folder)).split())
    assert why in html.page(written.folder)


def test_a_restart_is_no_start_in_the_advice(tmp_path: Path) -> None:
    """The start took 3.0 s; what the restart took is `down`."""
    (one,) = [
        a
        for a in advice(RunView(made_run(tmp_path, killed_at=20)), most=20)
        if a.cause == "startup"
    ]
    assert one.words == "a start takes 3.0 s, which matters less in a longer run"


def validated(written: Written, *samples: int) -> None:
    """Write a finished run of 20 steps with validations on so many samples."""
    written.supervisor(*BEGIN, (60.0, "ended", {"result": "done", "error": ""}))
    written.ranks(0, 1.0, range(1, 21))
    with (written.folder.journal / "a0000-r00000.events").open("a") as file:
        for at, count in enumerate(samples):
            span = {"t": T + 46 + 2 * at, "end": T + 48 + 2 * at, "kind": "evaluate"}
            file.write(json.dumps(span | {"step": 0, "val_loss": 9.5, "samples": count}) + "\n")
    written.end(0, 54.0, result="done", weights_hash="abcd" * 16)


@pytest.mark.parametrize("raised", [False, True])
def test_an_error_in_code_is_not_to_be_recovered_from(tmp_path: Path, raised: bool) -> None:
    folder = made_run(tmp_path, killed_at=20)
    if raised:
        end = {"t": T0 + 30, "kind": "end", "result": "failed", "error": "ValueError: mine"}
        with (folder.journal / "a0000-r00001.events").open("a") as file:
            file.write(json.dumps(end) + "\n")
    (lost,) = [a for a in advice(RunView(folder), most=20) if a.cause == "redo"]
    assert ("raised an error" in lost.words) is raised
    assert (lost.field is None) is raised


@pytest.mark.parametrize(("samples", "halves"), [(6, 3), (1, None)])
def test_advice_halves_what_is_held_out_and_not_what_could_be(
    written: Written, samples: int, halves: int | None
) -> None:
    validated(written, samples, samples)
    view = RunView(written.folder)
    found = [one for one in advice(view, most=20) if one.cause == "evaluate"]
    if halves is None:
        assert not found
        return
    (one,) = found
    sample_tokens = view.run.batch_tokens // view.run.batch_samples
    assert (one.field, one.value) == ("evaluate.tokens", halves * sample_tokens)


def test_one_validation_alone_is_shown_with_its_step(written: Written) -> None:
    validated(written, 6)
    assert "validation 9.500 (step 0)" in shown(screen(written.folder))


@pytest.mark.parametrize(
    ("more", "said"),
    [(1, "2 starts took 3.0 s and 4.0 s: fewer"), (5, "6 starts took 3.0 s to 8.0 s: fewer")],
)
def test_the_advice_lists_the_measured_starts(tmp_path: Path, more: int, said: str) -> None:
    folder = made_run(tmp_path)
    supervisor = SupervisorJournal(folder.journal)
    for number in range(1, more + 1):
        t = T0 + 1000 * number
        supervisor.event("invocation", t=t, ranks=2)
        supervisor.event("launch", t=t + 1, attempt=number, ranks=2)
        with Journal(folder.journal, number, range(2)) as journal:
            journal.event("ready", t=t + 3 + number)
            journal.step(40 + number, t + 3 + number, 0.5, 0.0, 0.4, 0.0)
            journal.event("end", t=t + 10, result="done")
        supervisor.event("ended", t=t + 10, result="done", error="")
    supervisor.close()
    (one,) = [a for a in advice(RunView(folder), most=20) if a.cause == "startup"]
    assert said in one.words
