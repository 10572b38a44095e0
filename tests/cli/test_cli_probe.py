"""`penstock probe`: what it prints, where it writes, and that an interrupted one writes nothing."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from made_probe import probed
from penstock.cli.probe import probe
from penstock.plan.hardware.cluster import here_file
from penstock.run.clusters.load import load_cluster
from penstock.run.clusters.price import Amount

app = typer.Typer()
app.command()(probe)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("penstock.meter.probe.probe", lambda show, quick: probed("x"))
    return tmp_path


def test_it_writes_what_here_reads_and_says_where() -> None:
    done = CliRunner().invoke(app, [])
    assert done.exit_code == 0, done.output
    assert load_cluster(here_file()) == probed("x")
    assert f"written to {here_file()}" in done.output
    assert "2 ranks of 1 thread" in done.output


def test_json_is_the_file_and_its_place(home: Path) -> None:
    to = home / "sub" / "mine.toml"
    done = CliRunner().invoke(app, ["--json", "--out", str(to)])
    told = json.loads(done.stdout)
    assert told["file"] == str(to)
    assert told["probe"]["ranks"] == 2
    assert to.is_file()
    assert not here_file().exists()


def test_an_interrupted_probe_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(show: object, quick: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.meter.probe.probe", stopped)
    assert CliRunner().invoke(app, []).exit_code != 0
    assert not here_file().exists()


def test_a_new_probe_keeps_the_site_and_the_price_that_a_person_wrote() -> None:
    CliRunner().invoke(app, [])
    here = here_file()
    here.write_text(here.read_text() + '\n[site]\nname = "us-east-1"\n[price]\nusd_per_hour = 2\n')
    assert CliRunner().invoke(app, []).exit_code == 0
    found = load_cluster(here)
    assert (found.site.name, found.price.usd_per_hour) == ("us-east-1", Amount(2.0))
    assert found.probe == probed("x").probe


def test_a_damaged_file_is_no_reason_not_to_probe() -> None:
    here_file().parent.mkdir(parents=True)
    here_file().write_text("nodes = [")
    assert CliRunner().invoke(app, []).exit_code == 0
    assert load_cluster(here_file()) == probed("x")
