"""The parts of a drill: the scratch run, damage to files, a shifted clock, a door that shuts."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from journal_lines import line_of
from penstock.cli.main import app
from penstock.drill import damage, scratch_run
from penstock.drill.attempts import read_attempts
from penstock.drill.catalog import FAULTS
from penstock.drill.clock import PhaseBeat
from penstock.drill.clock_shift import ClockShift
from penstock.drill.faults import OFFSET_S, InjectedFault, ScratchScale
from penstock.drill.needs import missing
from penstock.drill.store_proxy import StoreProxy
from penstock.errors import PenstockError
from penstock.guard.detect.pulse import Pulse
from penstock.run.load import load

MakeFile = Callable[..., Path]


def test_the_scratch_run_is_the_users_own_cut_down(run_file: MakeFile, tmp_path: Path) -> None:
    own = load(
        run_file(
            **{
                "train.steps": None,
                "train.tokens": "1M",
                "train.warmup": "5K steps",
                "budget.hours": 3,
                "guard.durable": "s3://bucket/runs",
                "guard.timeout": "20 s",
                "evaluate.patience": 1,
            }
        )
    )
    made = load(scratch_run.write_run_file(own, tmp_path, "kill_all", ScratchScale(), ranks=2))
    assert made.folder == tmp_path / "kill_all"
    assert made.model == own.model
    assert made.data == own.data
    assert made.steps() == 24
    assert made.batch_samples == 3
    assert made.guard.durable is None
    assert made.budget.hours is None
    assert made.evaluate.patience is None
    assert made.guard.timeout == 20
    assert str(made.guard.fast) == "3 steps"
    assert str(made.guard.checkpoint) == "8 steps"


def test_a_small_batch_stays_as_it_is(run_file: MakeFile, tmp_path: Path) -> None:
    own = load(run_file(**{"train.batch_tokens": 32}))
    assert (
        load(scratch_run.write_run_file(own, tmp_path, "x", ScratchScale(), ranks=8)).batch_samples
        == 2
    )


def test_damage_is_one_bit_a_block_half_or_all_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = bytes(range(256)) * 10_000
    path.write_bytes(content)
    damage.flip(path)
    found = path.read_bytes()
    different = [i for i, (a, b) in enumerate(zip(content, found, strict=True)) if a != b]
    assert len(different) == 3  # blocks of 1 MiB
    assert all((content[i] ^ found[i]).bit_count() == 1 for i in different)
    damage.cut(path)
    assert path.read_bytes() == found[: len(found) // 2]
    damage.delete(path)
    assert not path.exists()


@pytest.mark.parametrize("harm", [damage.flip, damage.cut, damage.delete])
def test_damaged_data_can_be_mended(harm: damage.Harm, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    tokens = tmp_path / "shards" / "tokens"
    tokens.write_bytes(b"tokens" * 100)
    (tmp_path / "shards" / "sums").write_bytes(b"sums")
    mend = damage.shards(tmp_path, harm)
    assert not tokens.exists() or tokens.read_bytes() != b"tokens" * 100
    mend()
    assert tokens.read_bytes() == b"tokens" * 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shards"]


def test_the_time_of_day_jumps_and_the_monotonic_clock_does_not(tmp_path: Path) -> None:
    shift = ClockShift(tmp_path)
    env = os.environ | shift.env()
    code = (
        "import time\nfrom penstock.meter.clock import now\n"
        "for line in iter(input, ''): print(time.time(), time.monotonic(), now(), flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=-1, stdout=-1, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask() -> list[float]:
            process.stdin.write("x\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            return [float(word) for word in process.stdout.readline().split()]  # type: ignore[union-attr]

        before = ask()
        shift.to(86_400.0)
        after = ask()
        process.stdin.write("\n")
    assert after[0] - before[0] > 86_000
    assert after[1] - before[1] < 1_000
    assert after[2] - before[2] < 1_000


@pytest.fixture
def echo() -> Iterator[str]:
    """A server that says everything back."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            while data := client.recv(100):
                client.sendall(data)
            client.close()

    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()


def test_a_door_that_is_shut_breaks_what_passes_and_opens_again(echo: str) -> None:
    door = StoreProxy(echo)

    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", int(door.url.rsplit(":", 1)[1])), timeout=20)

    first = connect()
    first.sendall(b"hello")
    assert first.recv(100) == b"hello"
    door.shut()
    assert first.recv(100) == b""
    second = connect()
    try:
        second.sendall(b"hello")
        heard = second.recv(10)
    except OSError:  # reset, or closed, by the moment
        heard = b""
    assert heard == b""
    door.open()
    third = connect()
    third.sendall(b"again")
    assert third.recv(100) == b"again"
    door.close()


def test_lives_are_read_from_the_pulses_of_the_ranks(tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    audit.mkdir()
    for attempt in (0, 1):
        pulse = Pulse(tmp_path, 0, attempt, audit=audit)
        pulse.at("ready", 0)
        pulse.at("fetch", 1)
        pulse.beat()  # still there
        pulse.at("end")
        blow = InjectedFault(0.0, 0, 0, "kill", lethal=True)
    with (audit / "pulse-a0001-r00000").open("ab") as file:
        file.write(b"torn")
    supervised = [
        line_of(1.0, "invocation"),
        line_of(2.0, "launch", attempt=0),
        line_of(3.0, "fault", attempt=0),
        line_of(4.0, "launch", attempt=1),
    ]
    first, second = read_attempts(audit, supervised, [blow], ranks=2)
    assert [(beat.step, beat.phase) for beat in second.beats[0]] == [
        (0, "start"),
        (0, "ready"),
        (1, "fetch"),
        (1, "end"),
    ]
    assert isinstance(first.beats[0][0], PhaseBeat)
    assert first.beats[1] == []
    assert (first.died, first.opens, first.cut) == (0.0, True, False)
    assert (second.died, second.opens) == (None, False)


def test_a_rank_that_the_others_went_on_without_is_no_end_of_a_life(tmp_path: Path) -> None:
    Pulse(tmp_path, 0, 0, audit=tmp_path).at("ready", 0)
    supervised = [
        line_of(1.0, "invocation"),
        line_of(2.0, "launch", attempt=0),
        line_of(8.0 + OFFSET_S, "lost", attempt=0, payload={"ranks": [2, 3], "rank": 3}),
    ]
    blow = InjectedFault(7.5, 0, 3, "kill", lethal=True)
    (life,) = read_attempts(tmp_path, supervised, [blow], ranks=4)
    assert life.died is None
    assert life.losses == {2: [7.5], 3: [7.5]}


def test_what_is_missing_is_said(run_file: MakeFile, monkeypatch: pytest.MonkeyPatch) -> None:
    run = load(run_file())
    assert missing(FAULTS["kill_forward"], run, 1, ScratchScale()) == ""
    assert "two replicas" in missing(FAULTS["flip_weight"], run, 1, ScratchScale())
    assert "guard.durable" in missing(FAULTS["store_outage"], run, 2, ScratchScale())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in missing(FAULTS["disk_full"], run, 2, ScratchScale())
    mixed = load(run_file(**{"data.dataset": "s3://bucket/set"}))
    assert "on this machine" in missing(FAULTS["shard_flip"], mixed, 2, ScratchScale())


def test_the_tables_of_the_page_are_made_from_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = Path(__file__).parents[2] / "scripts"
    monkeypatch.syspath_prepend(scripts)
    import drill_table

    row = {
        "fault": "kill_all", "what": "all killed", "passed": True, "why": [], "skipped": "",
        "detected_by": "fault", "detection_s": 0.1, "recovery_s": 2.0, "steps_redone": 2,
        "lost": 0, "doubled": 0, "weights": "equal", "blows": ["kill"],
    }  # fmt: skip
    (tmp_path / "drills").mkdir()
    lines = [row, row | {"recovery_s": 4.0}, row | {"recovery_s": 3.0}]
    (tmp_path / "drills" / "restart.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    seeds = [row | {"fault": f"seed-{i}", "recovery_s": float(i)} for i in range(3)]
    campaigns = tmp_path / "drills" / "campaigns.jsonl"
    campaigns.write_text("".join(json.dumps(r) + "\n" for r in seeds))
    page = tmp_path / "faults.md"
    page.write_text(
        "before\n<!-- drills: restart -->\nold\n<!-- end -->\nbetween\n"
        "<!-- drills: campaigns -->\n<!-- end -->\nafter\n"
    )
    monkeypatch.setattr(drill_table, "DOCS", tmp_path)
    for _ in range(2):
        drill_table.main()
        text = page.read_text()
        assert "| all killed (× 3) | exit of a rank | 0.10 | 3.00 | 2 | 0 | 0 | equal |" in text
        assert "3 campaigns with 3 faults: 3 passed" in text
        assert "median 1.00 s, at most 2.00 s" in text
        assert "old" not in text
        assert [word for word in ("before", "between", "after") if word in text.split("\n")]


@pytest.mark.parametrize("name", ["checkpoint_flip", "checkpoint_cut", "checkpoint_gone"])
def test_a_run_that_is_too_short_for_two_checkpoints_is_said(name: str, run_file: MakeFile) -> None:
    run = load(run_file())
    needed = ScratchScale().steps_for_two_checkpoints()
    assert missing(FAULTS[name], run, 1, ScratchScale(needed)) == ""
    said = f"needs two checkpoints: at least {needed} steps"
    assert missing(FAULTS[name], run, 1, ScratchScale(needed - 1)) == said
    assert missing(FAULTS["kill_forward"], run, 1, ScratchScale(12)) == ""
    # Asked for by name, it is refused before anything runs.
    words = ["drill", str(run_file()), "--steps", "12", "--faults", f"kill_forward,{name}"]
    refused = CliRunner().invoke(app, words)
    assert isinstance(refused.exception, PenstockError)
    assert str(refused.exception) == f"--steps 12: {name} {said}"
