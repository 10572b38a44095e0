"""An open model trained through the whole system, beside transformers doing the same; and back."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from open_families import add_tokenizer, in_double, made, saved
from penstock.catalog.open.folder import read_config
from penstock.cli.main import app
from penstock.data.read.open import open_planned, open_stream
from penstock.errors import PenstockError
from penstock.launch.start import start
from penstock.model.open.weights import OpenWeights
from penstock.run.load import load
from penstock.train.export.model import export
from penstock.watch.facts.run_view import RunView

MakeFile = Callable[..., Path]
VOCAB = 304
TEXTS = [f"def f{i}(x):\n    return x * {i % 9} + {i}\n" for i in range(600)]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
NO_SHAPE = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "tied"))
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied Llama 3.2 with a tokenizer of its own."""
    folder = tmp_path_factory.mktemp("open") / "llama"
    saved("llama-3.2", folder, vocab_size=VOCAB)
    add_tokenizer(folder, TEXTS, 300, TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("raw") / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return file


@pytest.fixture
def open_file(run_file: MakeFile, model: Path, raw: Path) -> MakeFile:
    """open_file("name", **fields): a run from the model on the raw texts."""

    def write(name: str, **fields: Any) -> Path:
        none = {f"model.{field}": None for field in NO_SHAPE}
        return run_file(
            name, **none, **{"model.from": str(model), "data.dataset": str(raw)} | fields
        )

    return write


def test_training_is_what_transformers_would_have_done(
    open_file: MakeFile, model: Path, tmp_path: Path
) -> None:
    """Two ranks that share the weights, in float64; then exported, and loaded by transformers."""
    path = open_file(
        "same",
        **{
            "train.steps": 3,
            "train.precision": "fp64",
            "train.learning_rate": 1e-2,
            "train.warmup": 0,
            "train.final": 1.0,
            "train.clip": 0,
            "evaluate.every": "never",
            "cluster.accelerators": 2,
            "layout.shard": 2,
        },
    )
    folder = start(load(path))
    run = load(folder.run_file)
    stream = open_stream(run, open_planned(run, folder.read_launch_record().dataset))
    other = in_double(made("llama-3.2", vocab_size=VOCAB)).train()
    decayed = [p for p in other.parameters() if p.dim() > 1]
    plain = [p for p in other.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(3):
        read = stream.read(step * run.batch_samples, (step + 1) * run.batch_samples)
        tokens = torch.from_numpy(read.tokens)
        logits = other(tokens[:, :-1]).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    ours = RunView(folder).curve["loss"].tolist()
    assert ours == pytest.approx(losses, rel=1e-7)

    done = export(folder, tmp_path / "out", dtype="fp32")
    assert (done.step, done.family, done.kind) == (3, "llama", "model")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    trained = {n: p.detach().float() for n, p in other.named_parameters()}
    first = dict(made("llama-3.2", vocab_size=VOCAB).named_parameters())
    for name, param in loaded.named_parameters():
        torch.testing.assert_close(param, trained[name], rtol=0.0, atol=1e-6, msg=name)
        assert (param - first[name]).abs().max() > 1e-3, name  # it did learn
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.decode(tokenizer(TEXTS[0])["input_ids"]) == TEXTS[0]
    said = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(said, tokenize=False) == "user: hi<|end|>"
    again = read_config(tmp_path / "out")
    assert again == read_config(model) | {"dtype": "float32"}


@pytest.fixture
def spoilt(model: Path, tmp_path: Path) -> Path:
    shutil.copytree(model, tmp_path / "spoilt")
    return tmp_path / "spoilt"


def refused(path: Path, match: str, *overrides: str) -> str:
    """Refused before any process starts, and no run is left behind."""
    with pytest.raises(PenstockError, match=match) as error:
        start(load(path, list(overrides)))
    assert not (path.parent / "runs" / path.stem).exists()
    assert not list(path.parent.glob("runs/*"))
    return str(error.value)


def test_what_cannot_be_started_from_is_refused_before_any_process(
    open_file: MakeFile, spoilt: Path, tiny: str
) -> None:
    refused(open_file("gone", **{"model.from": "no/such/folder"}), "no such folder")
    refused(open_file("tokens", **{"data.dataset": tiny}), "built with another tokenizer")
    path = open_file("spoilt", **{"model.from": str(spoilt)})
    weights = spoilt / "model.safetensors"
    weights.rename(spoilt / "pytorch_model.bin")
    refused(path, "as pickle")
    (spoilt / "pytorch_model.bin").rename(weights)
    (spoilt / "tokenizer.json").unlink()
    refused(path, r"there is no tokenizer\.json")
    assert "304" in refused(
        open_file("vocab", **{"model.from": str(spoilt), "data.dataset": _wide(spoilt)}),
        "embedding of the model",
    )
    config = read_config(spoilt)
    (spoilt / "config.json").write_text(json.dumps(config | {"model_type": "gemma33"}))
    said = refused(path, 'model_type "gemma33"')
    assert "qwen3_moe" in said
    assert "model.from = " in said


def _wide(folder: Path) -> str:
    """A built dataset with more tokens than the model has."""
    import numpy as np

    from penstock.data.format.locate import datasets_home
    from penstock.data.format.writer import DatasetWriter
    from penstock.data.tokenize.tokenizer import train_code_tokenizer

    tokenizer = train_code_tokenizer(TEXTS, 340)
    assert tokenizer.vocab > VOCAB
    with DatasetWriter(datasets_home(), "wide", tokenizer.vocab, tokenizer.to_json()) as writer:
        for tokens in tokenizer.encode_batch(TEXTS):
            writer.add(np.append(tokens, tokenizer.end))
        return writer.finish({"kind": "test"}, {"files": 1}, {}).name


def test_check_and_plan_know_the_model_from_its_config(
    open_file: MakeFile, model: Path, spoilt: Path
) -> None:
    path = open_file("look")
    done = CliRunner().invoke(app, ["check", str(path), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["parameters"] == OpenWeights(model).shape.params()
    shown = CliRunner().invoke(app, ["check", str(path)]).stdout
    assert "from " in shown
    assert "The file is right" in shown
    long = open_file("long", **{"data.sequence": 256, "train.batch_tokens": 256})
    with pytest.raises(PenstockError, match=r"context of 128 tokens; write 128$"):
        load(long)
    config = read_config(spoilt) | {"model_type": "mistral", "sliding_window": 24}
    (spoilt / "config.json").write_text(json.dumps(config))
    fields = {"model.from": str(spoilt), "data.sequence": 32}
    with pytest.raises(PenstockError, match=r"sliding window of 24 tokens; write 24$"):
        load(open_file("window", **fields))
    missing = open_file("missing", **{"model.from": str(model / "gone")})
    assert isinstance(CliRunner().invoke(app, ["check", str(missing)]).exception, PenstockError)
    (spoilt / "model.safetensors").write_bytes(b"")
    torn = CliRunner().invoke(app, ["check", str(open_file("torn", **{"model.from": str(spoilt)}))])
    assert "cut short" in str(torn.exception)


def test_a_run_is_shown_when_its_model_is_gone(open_file: MakeFile, spoilt: Path) -> None:
    path = open_file("shown", **{"model.from": str(spoilt)})
    run = load(path)
    assert run.model.base() is not None
    shutil.rmtree(spoilt)
    gone = load(path)
    assert gone.model.base() is None
    assert gone.learning_rate == run.learning_rate == 2e-5
    with pytest.raises(PenstockError, match="no such folder"):
        gone.model.shape(None)
