"""`penstock simulate` from the command line: the screen, the JSON, tables, pictures, mistakes."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.main import app
from penstock.errors import PenstockError, RunFailed

RUN = """name = "lived"
[model]
preset = "llama-8b"
[data]
sequence = 8192
[train]
tokens = "200B"
batch_tokens = 4194304
precision = "bf16"
[cluster]
use = "H100"
nodes = 64
[guard]
spares = 2
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return str(path)


def say(*words: str) -> str:
    words = ("simulate", *words, *(() if "--lives" in words else ("--lives", "10")))
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def answer(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(say(*words, "--json"))
    return found


def test_the_screen_names_what_matters(file: str) -> None:
    text = say(file, "--by", "30 days")
    for word in ("interruptions", "effective", "time", "cost", "energy", "cost most", "spares"):
        assert f"\n{word} " in text
    assert "of the lives end within 30 d" in text
    assert "nothing is known of this fleet, so the band is wide" in text


def test_json_has_distributions_and_a_ledger_that_adds_up(file: str) -> None:
    found = answer(file, "--by", "1 h")
    for name in ("effective", "useful", "days", "usd", "energy_kwh", "interruptions"):
        assert found[name]["p5"] <= found[name]["p50"] <= found[name]["p95"]
    assert set(found["interruptions"]["by_cause"]) >= {"accelerator"}
    assert found["in_time"] == 0
    assert found["finished"] == found["lives"] == 10
    total = sum(found["ledger"]["seconds"].values())
    assert found["accelerators"] == 512
    assert total / 512 / 86400 == pytest.approx(found["days"]["p50"], rel=0.1)
    assert found == answer(file, "--by", "1 h")
    assert found != answer(file, "--by", "1 h", "--seed", "1")


def test_what_is_stated_replaces_the_published_band(file: str, tmp_path: Path) -> None:
    cluster = tmp_path / "c.toml"
    cluster.write_text(
        'nodes = 64\n[accelerator]\nname = "H100"\n[failures]\nnode_mtbf = "200 days"\n'
        'software_mtbf = "30 days"\nstall = "10 min"\n'
    )
    stated = answer(file, f"cluster.use={cluster}", "--days", "100")
    assert stated["failures_per_1000_node_days"]["p5"] == pytest.approx(5)
    assert stated["failures_per_1000_node_days"]["source"] == "stated node_mtbf"
    same = answer(
        file,
        *("failures.node_mtbf=200 days", "failures.software_mtbf=30 days"),
        *("failures.stall=10 min", "--days", "100"),
    )
    assert same["interruptions"] == stated["interruptions"]
    worse = answer(file, "failures.node_mtbf=20 days", "--days", "100")
    assert worse["interruptions"]["p5"] > stated["interruptions"]["p95"]


def test_every_combination_is_a_row_and_a_picture(file: str, tmp_path: Path) -> None:
    picture = tmp_path / "v.svg"
    asked = ("--vary", "guard.spares=0,8", "--vary", "failures.repair=1 h,2 days")
    text = say(file, *asked, "--days", "20", "--svg", str(picture))
    assert len(text.strip().splitlines()) == 5
    ElementTree.fromstring(picture.read_text())
    found = answer(file, *asked, "--days", "20")["variants"]
    assert [one["spares"] for one in found] == [0, 0, 8, 8]
    assert found[0]["changes"] == {"guard.spares": "0", "failures.repair": "1 h"}


def test_a_picture_and_a_run_are_written(file: str, tmp_path: Path) -> None:
    picture = tmp_path / "a.svg"
    text = say(file, "--days", "2", "--svg", str(picture), "--out", "rehearsal")
    assert "penstock report runs/rehearsal" in text
    ElementTree.fromstring(picture.read_text())
    assert say(file, "--days", "2", "--svg", "-").startswith("<svg")
    found = penstock.report("rehearsal")
    assert found.status == "stopped"
    narrow = answer(file, "--calibrate", "rehearsal", "--days", "2")
    assert "this cluster's journals" in narrow["failures_per_1000_node_days"]["source"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("guard.spares=65",), "guard.spares = 65: more spares than the 64 nodes"),
        (("failures.repair=-3 h",), 'failures.repair = "-3 h": '),
        (("failures.repare=3 h",), "failures.repare: no such field. There are cut, cut_mtbf"),
        (("failures.node_mtbf=20 min",), "this run would never end: so many nodes are in repair"),
        (("failures.cut_mtbf=1 day",), "one site has no network to cut"),
        (("--days", "0"), "--days 0: out of range"),
        (("--lives", "0"), "--lives 0: write 1 to"),
        (("--by", "soon"), "--by: "),
        (("--vary", "guard.spares"), "--vary guard.spares: write FIELD=A,B,C"),
        (("--vary", "guard.spares=1,2", "--out", "x"), "--vary and --out"),
        (("--fleet", "Metta"), "no published fleet is called 'Metta'"),
        (("--trace", "none.csv"), "none.csv: cannot be read"),
    ],
)
def test_mistakes_are_refused_with_the_number(file: str, words: tuple[str, ...], why: str) -> None:
    with pytest.raises(PenstockError) as caught:
        say(file, *words)
    assert why in str(caught.value)


def test_a_trace_that_is_not_sorted_is_refused(file: str, tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("start_s,end_s,available\n10,20,4\n0,10,4\n")
    with pytest.raises(PenstockError, match=r"t.csv:3: starts at 0 s"):
        say(file, "--trace", str(trace))


def test_a_run_that_does_not_fit_is_not_lived(file: str) -> None:
    whole = ("layout.replicate=512", "layout.shard=1", "layout.microbatch=1")
    with pytest.raises(RunFailed, match="out of memory by"):
        say(file, *whole, "model.preset=llama-70b")


def test_python_lives_the_same(file: str) -> None:
    done = penstock.simulate(file, lives=10, days=20, failures={"node_mtbf": "100 days"})
    same = answer(file, "--days", "20", "failures.node_mtbf=100 days")
    assert done.to_json()["interruptions"] == same["interruptions"]
    assert done.effective.p50 == same["effective"]["p50"]
    assert isinstance(done, penstock.Simulation)
    with pytest.raises(PenstockError, match=r"override: failures\.stall = -1"):
        penstock.simulate(file, failures={"stall": -1})


TINY = """name = "tiny"
[model]
layers = 1
hidden = 16
heads = 2
ffn = 32
vocab = 300
[data]
sequence = 16
[train]
steps = 4
batch_tokens = 64
precision = "fp32"
[evaluate]
every = "2 steps"
[guard]
checkpoint = "2 steps"
[cluster]
accelerators = 1
"""


def test_a_run_that_mostly_evaluates_and_copies_ends(file: str) -> None:
    """Both shares are of the same time: together they leave some for the steps."""
    Path(file).write_text(TINY)
    told = json.loads(say(file, "--lives", "5", "--json"))
    assert told["days"]["p50"] < 0.01
    assert min(told["ledger"]["seconds"].values()) >= 0
    planned = json.loads(CliRunner().invoke(app, ["plan", file, "--json"]).stdout)
    assert told["effective"]["p50"] == pytest.approx(planned["effective"], abs=0.02)


def test_the_times_of_a_short_run_are_told_in_its_own_units(file: str, tmp_path: Path) -> None:
    """A run of seconds is not 0.000312 days: in the table, on the screen, under the picture."""
    Path(file).write_text(TINY)
    table = say(file, "--lives", "5", "--vary", "guard.spares=0,1")
    assert "days" not in table
    rows = [line for line in table.splitlines() if "–" in line]
    assert len(rows) == 2
    assert all(re.search(r"[\d.]+ (s|ms|min) \([\d.]+( \w+)?–[\d.]+ \w+\)", row) for row in rows)
    screen = say(file, "--lives", "5")
    assert re.search(r"^time +[\d.]+ (s|ms|min) \(", screen, re.M)
    part = say(file, "--lives", "5", "--days", "0.001")
    assert re.search(r"^progress .* steps in 86 s$", part, re.M)
    picture = tmp_path / "p.svg"
    say(file, "--lives", "5", "--svg", str(picture))
    words = [one.text for one in ElementTree.fromstring(picture.read_text()).iter()]
    assert {"s", "min", "ms"} & set(words)
    assert not {"hours", "days"} & set(words)
