"""`penstock catalog`: lists, records, JSON, and mistakes."""

import json

import pytest
import typer
from typer.testing import CliRunner

from penstock.catalog import accelerators, sites
from penstock.cli import catalog as verb
from penstock.errors import PenstockError

app = typer.Typer()
app.command()(verb.catalog)


def run(*args: str) -> str:
    result = CliRunner().invoke(app, args, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_without_a_kind_it_lists_the_kinds():
    text = run()
    for kind, count in (("accelerators", len(accelerators.TABLE)), ("sites", len(sites.TABLE))):
        assert any(line.split()[:2] == [kind, str(count)] for line in text.splitlines())
    kinds = json.loads(run("--json"))["kinds"]
    assert [k["kind"] for k in kinds] == list(verb.KINDS)


@pytest.mark.parametrize("kind", verb.KINDS)
def test_lists_fit_a_pipe_and_name_every_record(kind):
    text = run(kind)
    assert max(len(line) for line in text.splitlines()) <= 100
    unwrapped = "".join(text.split())
    for record in verb.KINDS[kind].table:
        first = next(iter(verb.KINDS[kind].columns.values()))
        start = str(getattr(record, first)).split()[0]
        assert start in unwrapped


@pytest.mark.parametrize("kind", verb.KINDS)
def test_columns_are_fields_and_json_has_every_record(kind):
    answer = json.loads(run(kind, "--json"))
    assert answer["kind"] == kind
    assert len(answer["records"]) == len(verb.KINDS[kind].table)
    for record in answer["records"]:
        assert set(verb.KINDS[kind].columns.values()) <= set(record)
        assert record["source"]


def test_a_record_shows_units_basis_and_source_last():
    lines = run("accelerators", "h200").splitlines()
    text = "\n".join(lines)
    assert lines[0].split() == ["name", "H200", "SXM"]
    assert "989 TFLOP/s\n" in text.replace(" \n", "\n").replace("  ", "")
    assert "141 GiB" in text
    assert "4800 GB/s" in text
    assert "700 W" in text
    assert "794.5 TFLOP/s (measured)" in text
    assert "32,000 USD (estimated)" in text
    at = next(i for i, line in enumerate(lines) if line.startswith("source"))
    assert all(line.startswith(" ") for line in lines[at + 1 :])


def test_unpublished_is_a_dash():
    line = next(x for x in run("accelerators", "tpu v5e").splitlines() if x.startswith("tdp_w"))
    assert line.split() == ["tdp_w", "–"]


def test_several_matches_show_all():
    text = run("prices", "H100")
    assert text.count("H100 SXM5 ") >= 3
    for term in ("on-demand", "spot", "reserved-1y"):
        assert f"H100 SXM5 {term}" in text
    assert len(json.loads(run("accelerators", "a100", "--json"))["records"]) == 3


def test_a_model_shows_its_counts_and_only_the_parts_it_has():
    dense = run("models", "llama-8b")
    assert "8,030,261,248" in dense
    assert "experts" not in dense
    record = json.loads(run("models", "mixtral-8x7b", "--json"))["records"][0]
    assert record["params"] == record["published_params"] == 46_702_792_704
    assert record["experts_active"] == 2


def test_json_gives_the_sources_of_single_fields():
    record = json.loads(run("accelerators", "H100", "--json"))["records"][0]
    assert record["sources"]["matmul_bf16_tflops"].startswith("measured")
    assert record["fp8_tflops"] == 1979


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["acelerators"], "Did you mean 'accelerators'"),
        (["zzz"], "no catalog of 'zzz'. There are accelerators, nodes"),
        (["models", "lama-8b"], "Did you mean 'llama-8b'"),
    ],
)
def test_mistakes_say_how_to_fix_them(args, says):
    with pytest.raises(PenstockError, match=says):
        run(*args)
