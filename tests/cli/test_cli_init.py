"""`penstock init finetune` writes a run that trains on the examples it was given."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from made_sets import made_set
from open_families import add_tokenizer, saved
from penstock.cli.main import app
from penstock.data.build.estimate import TokenEstimate, estimate_tokens
from penstock.data.build.open import open_or_build
from penstock.launch.prepare.nodes import find_devices
from penstock.launch.prepare.prepare import settle_choices
from penstock.launch.verify import verify
from penstock.run.init import ENOUGH, InitLengths, choose_lengths, template
from penstock.run.load import load
from penstock.run.schema.run import Run


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    saved("llama-2", tmp_path / "model", vocab_size=300, max_position_embeddings=4096)
    texts = [f"Question {n}: how many? Answer: {n * 7}." for n in range(300)]
    add_tokenizer(tmp_path / "model", texts, 300)
    return tmp_path / "model"


def written(data: str) -> Run:
    said = ["init", "finetune", "--model", "model", "--data", data, "--out", "run.toml", "--force"]
    done = CliRunner().invoke(app, said, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return load(Path("run.toml"))


@pytest.mark.parametrize("rows", [6, 40, 400])
@pytest.mark.parametrize("kind", ["pairs", "text"])
def test_few_examples_make_a_run_that_trains(kind: str, rows: int, model: Path) -> None:
    """Before the data is built as after it."""
    words = [
        f"The answer to question {n} is {n * 7}; the next one is {n * 11}." for n in range(rows)
    ]
    pair = [{"prompt": f"Question {n}?", "completion": said} for n, said in enumerate(words)]
    made = pair if kind == "pairs" else [{"text": said} for said in words]
    Path("few.jsonl").write_text("".join(json.dumps(one) + "\n" for one in made))
    run = written("few.jsonl")
    assert verify(run).refused is None
    settled = settle_choices(run, [one.manifest for one in open_or_build(run)], find_devices())
    assert verify(run).refused is None
    assert settled.data.samples >= run.batch_samples
    assert settled.data.held_out_tokens
    assert settled.run.steps(settled.data.samples) >= 3 * (10 if rows > 6 else 1)


def test_a_built_dataset_decides_by_its_tokens(model: Path) -> None:
    home = model.parent / "home" / "datasets"
    made_set(home, np.arange(96 * 40 + 1) % 300, [0], name="packed", packed=96)
    run = written("packed")
    assert verify(run).run.sequence == 96
    assert run.batch_tokens == 384


def test_what_is_large_or_not_here_leaves_the_template_as_it_is(model: Path) -> None:
    as_it_is = template("finetune", "model", "large.jsonl")
    Path("large.jsonl").write_text('{"text": "%s"}\n' % ("many words " * 60_000))
    written("large.jsonl")
    assert Path("run.toml").read_text() == as_it_is
    for spec in ("hf:org/name", "s3://bucket/x.jsonl", "away.jsonl", "a name!"):
        assert estimate_tokens(spec, ENOUGH) is None
        assert written(spec).train.batch_tokens == 8192


def test_copies_of_text_count_once_and_rows_of_conversations_each(model: Path) -> None:
    Path("text.jsonl").write_text('{"text": "the same six words each time"}\n' * 100)
    Path("chat.jsonl").write_text('{"prompt": "Hello", "completion": "Hi there, friend"}\n' * 100)
    once, each = estimate_tokens("text.jsonl", ENOUGH), estimate_tokens("chat.jsonl", ENOUGH)
    assert once
    assert each
    assert once.tokens < 10 < 100 < each.tokens
    assert estimate_tokens("chat.jsonl", 10) is None


def test_lengths(model: Path) -> None:
    assert choose_lengths(None) == InitLengths(8192)
    assert choose_lengths(None, ENOUGH // 2) == InitLengths(4096)
    assert choose_lengths(None, 5000, longest=100) == InitLengths(256, 256)
    assert choose_lengths(None, 5000, longest=1000) == InitLengths(1024, 1024)  # not cut
    assert choose_lengths(None, 5000, longest=9000) == InitLengths(
        1024, 1024
    )  # cut: samples are few
    assert choose_lengths(None, 50) == InitLengths(16, 16)
    saved("llama-2", Path("odd"), max_position_embeddings=1000)
    assert choose_lengths("odd") == InitLengths(8000)  # a batch is whole sequences
    assert TokenEstimate(1).packed == 0


@pytest.mark.parametrize(("context", "sequence"), [(4096, 1024), (256, 256)])
def test_pairs_fit_the_context_of_the_model(context: int, sequence: int, model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": context}))
    row = {"prompt": "How many?", "chosen": "Answer: 7.", "rejected": "No."}
    Path("pairs.jsonl").write_text(f"{json.dumps(row)}\n" * 40)
    said = ["init", "preference", "--model", "model", "--data", "pairs.jsonl"]
    done = CliRunner().invoke(app, said, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    run = load(Path("run.toml"))
    assert (run.sequence, run.batch_samples) == (sequence, 16)
    assert verify(run).refused is None
    assert f"16 × 2 sequences × {sequence}\n" in Path("run.toml").read_text()


def test_pairs_of_answers_are_for_another_kind_of_run(model: Path) -> None:
    row = {"prompt": "How many?", "chosen": "Seven.", "rejected": "None."}
    Path("pairs.jsonl").write_text(json.dumps(row) + "\n")
    said = ["init", "finetune", "--model", "model", "--data", "pairs.jsonl"]
    done = CliRunner().invoke(app, said, catch_exceptions=False)
    assert "Note: pairs.jsonl holds chosen and rejected answers" in done.output
    assert "`penstock init preference`" in done.output
    said[1] = "preference"
    done = CliRunner().invoke(app, [*said, "--force"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "Note" not in done.output
