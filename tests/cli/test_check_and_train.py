"""What `penstock train` refuses, `penstock check` refuses: the same words, the same exit code.

Every case is a run that must not start. Both verbs run in this process, from `main` on, so that a
traceback or a process that starts by mistake would show.
"""

import json
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from made_sets import made_set
from penstock.cli.main import main
from penstock.data.format.manifest import MANIFEST, TOKENIZER
from penstock.data.store import objects
from penstock.meter.devices import cpu_cores
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.save import save
from penstock.run.schema.run import Run
from range_server import serve

MakeFile = Callable[..., Path]
MODULE = [f"model.{name}=none" for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "tied")]
NET = """
import sys
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, into=300, out=300, broken=None, positions=0):
        super().__init__()
        self.embed, self.head = nn.Embedding(into, 8), nn.Linear(8, out)
        self.places = nn.Embedding(positions, 8) if positions else None
        self.broken = broken

    def forward(self, tokens):
        x = self.embed(tokens)
        if self.places:
            x = x + self.places(torch.arange(tokens.shape[1]))
        if self.broken == "shapes":
            return self.head(x @ torch.ones(3, 3))
        if self.broken == "name":
            return self.tail(x)
        if self.broken == "detached":
            return self.head(x).detach()
        if self.broken == "nan":
            return self.head(x) / 0 * 0
        if self.broken == "table":
            return {"logits": self.head(x)}
        return self.head(x).mean(-1) if self.broken == "mean" else self.head(x)

def build(): return Net()
def few_inputs(): return Net(into=100)
def few_outputs(): return Net(out=100)
def few_places(): return Net(positions=8)
def shapes(): return Net(broken="shapes")
def name(): return Net(broken="name")
def mean(): return Net(broken="mean")
def detached(): return Net(broken="detached")
def nan(): return Net(broken="nan")
def table(): return Net(broken="table")
def idle():
    net = Net()
    net.idle = nn.Linear(2, 2)
    return net
def raises(): raise RuntimeError("no weights here")
def leaves(): sys.exit(3)
def wants(size): return Net()
def nothing(): return None
def linear(): return nn.Linear(300, 300)
def frozen(): return Net().requires_grad_(False)
def lazy():
    net = Net()
    net.head = nn.LazyLinear(300)
    return net
def sparse():
    net = Net()
    net.embed = nn.Embedding(300, 8, sparse=True)
    return net
def complex_():
    net = Net()
    net.phase = nn.Parameter(torch.ones(8, dtype=torch.complex64))
    return net
"""

LOSS = """
import torch.nn.functional as F

def good(logits, targets): return F.cross_entropy(logits, targets, reduction="none")
def raises(logits, targets): return logits.no_such_thing
def mean(logits, targets): return good(logits, targets).mean()
def number(logits, targets): return 1.0
def detached(logits, targets): return good(logits, targets).detach()
def nan(logits, targets): return good(logits, targets) / 0 * 0
"""


def cases() -> dict[str, tuple[list[str], str]]:
    """By name: what is put on the command line, and part of what is said."""
    many = 4 * cpu_cores() + 1
    data = {
        "fineweb": "Dataset 'fineweb' is not in",
        "tiny@0000": "There: tiny@",
        "twice": "has several versions",
        "renamed": "the folder was renamed or its content replaced",
        "no/such.jsonl": "there is no such file",
        "missing.jsonl": "is no file in",
        "missing.toml": "is no file in",
        "nothing-*.txt": "names no file",
        "empty": "names no file",
        "odd": "no file that can be read",
        "other-fields": "line 1: no text (no field 'text'; found body)",
        "broken.jsonl": "could be read as a document: broken JSON (2)",
        "blank.txt": "The first is blank.txt: empty file",
        "x" * 300: "File name too long",
        "a name!": "it is not a name",
        "~nobody-here/x": "home directory",
        "torn": "is damaged",
        "other-format": "has format 99",
        "no-shards": "is missing",
        "no-tokenizer": "tokenizer.json is missing",
        "wrong.toml": "no such field",
        "nowhere.toml": "names no file",
        "not-toml.toml": "not TOML",
    }
    found = {f"data {spec[:20]}": ([f"data.dataset={spec}"], said) for spec, said in data.items()}
    few = ["data.dataset=raw", "model.vocab=256"]
    found["few tokens"] = few, "model.vocab = 256: a tokenizer is trained on"
    modules = {
        "missing.py:build": "no such file and function",
        "net.py:absent": "has no function 'absent'",
        "torn.py:build": "SyntaxError",
        "net.py:raises": "it raised RuntimeError: no weights here",
        "net.py:leaves": "it raised SystemExit",
        "net.py:wants": "it raised TypeError",
        "net.py:nothing": "gave NoneType, not an nn.Module",
        "net.py:frozen": "nothing to train",
        "net.py:lazy": "head.weight has no shape yet",
        "net.py:sparse": "embed is an embedding with sparse=True",
        "net.py:complex_": "phase is complex",
        "net.py:few_inputs": "the module fails for token 299 (IndexError",
        "net.py:few_outputs": "the module fails for token 299 (IndexError",
        "net.py:few_places": "forward raised IndexError",
        "net.py:shapes": "its forward raised RuntimeError",
        "net.py:name": "forward raised AttributeError",
        "net.py:mean": "must give logits",
        "net.py:table": "forward gave a dict with 'logits' (return the tensor in it) for tokens",
        "net.py:detached": "its output does not depend on the parameters",
        "net.py:nan": "its output is NaN before the first step",
        "net.py:idle": "no gradient reached idle.weight, idle.bias",
        "net.py:linear": "look them up in an nn.Embedding first",
        "net.py": "not a file and a function",
    }
    found |= {spec: ([f"model.module={spec}", *MODULE], said) for spec, said in modules.items()}
    own = ["model.module=net.py:build", *MODULE]
    losses = {
        "missing": "has no function 'missing'",
        "raises": "it raised AttributeError",
        "mean": "it must return one loss per token",
        "number": "it gave a float; it must return one loss per token",
        "detached": "its losses do not depend on the logits",
        "nan": "its loss is NaN before the first step",
    }
    for name, said in losses.items():
        found[f"loss {name}"] = [f"train.loss=loss.py:{name}"], said
        found[f"own module, loss {name}"] = [*own, f"train.loss=loss.py:{name}"], said
    four = "cluster.accelerators=4"
    apart = ["train.sync.local_steps=2", "layout.replicate=2", "cluster.accelerators=2"]
    rest = {
        "own module, documents apart": ([*own, "data.across_documents=false"], "keep documents"),
        "own module, tensor": ([*own, "layout.tensor=4", four], "model.module is your own code"),
        "own module, recompute": ([*own, "layout.recompute=full"], "torch.utils.checkpoint"),
        "own module, fp8": ([*own, "train.precision=fp8"], "its matrices are not replaced"),
        "own module, muon": ([*own, "train.optimizer=muon"], "has no matrix for it"),
        "own module, compile": ([*own, "train.compile=on"], "call torch.compile inside"),
        "own module, many ranks": ([*own, f"cluster.accelerators={many}"], "only wait for"),
        "own module, raw data": ([*own[1:], "model.module=net.py:raises", RAW], "it raised"),
        "mixed tokenizers": (["mix=tiny,made"], "have different tokenizers"),
        "mixed twice": (["mix=tiny,tiny"], "stands there twice"),
        "mixed unknown": (["mix=tiny,fineweb"], "Dataset 'fineweb' is not in"),
        "mixed epochs": (["mix=made,other", "train.epochs=2", "train.steps=none"], "epochs of"),
        "mixed lengths": (["mix=packed,longer", *NO_LENGTH], "different lengths"),
        "mixed, one weight of nothing": (["mix=made,other:0.0000001"], "less than one sample"),
        "packed for another length": (["data.dataset=packed"], "packed for sequences of 48"),
        "packed, batch does not fit": (
            ["data.dataset=packed", "data.sequence=none", "train.batch_tokens=2048"],
            "packed for sequences of 48",
        ),
        "set too small": (
            ["data.dataset=short", "data.sequence=64"],
            "is too small",
        ),
        "all held out": (["data.dataset=short", "evaluate.holdout=0.9"], "more than short@"),
        "batch too large": (["train.batch_tokens=1Mi"], "more than tiny@"),
        "chat template": ([RAW, "data.chat_template=missing.jinja"], "no such file"),
        "small vocabulary": (["model.vocab=100"], "set model.vocab = 300 or more"),
        "model folder": (["model.from=/no/such", *MODULE], "no such folder"),
        "model without weights": (["model.from=bare", *MODULE], "has no weights"),
        "model of another family": (["model.from=strange", *MODULE], "strangest"),
        "large model": (["model.preset=llama-405b", *MODULE], "parameters need"),
        "large model, raw data": (["model.preset=llama-405b", *MODULE, RAW], "parameters need"),
        "latent attention": (["model.preset=deepseek-v3", *MODULE], "parameters need"),
        "many ranks": ([f"cluster.accelerators={many}"], "only wait for each other"),
        "many ranks, raw data": ([f"cluster.accelerators={many}", RAW], "only wait for"),
        "tensor": (["layout.tensor=4", four], "does not divide the model's kv_heads of 2"),
        "tensor, raw data": (["layout.tensor=4", four, RAW], "the model's kv_heads of 2"),
        "pipeline": (["layout.pipeline=4", four], "more than the model's 2 layers"),
        "interleave": (["layout.interleave=2"], "there is no pipeline"),
        "context": (
            ["layout.context=4", "data.sequence=20", "train.batch_tokens=80", four],
            "layout.context = 4",
        ),
        "expert": (["layout.expert=4", "layout.shard=4", four], "the model is dense"),
        "product": (["layout.shard=3", four], "3"),
        "fp8": (["train.precision=fp8"], "no 8-bit matrix products"),
        "live alone": (["guard.mode=live", "cluster.accelerators=1"], "this layout has one"),
        "elsewhere": (["cluster.use=H100"], "H100 SXM5 nodes, and this machine has"),
        "elsewhere, unknown data": (
            ["cluster.use=H100", "data.dataset=fineweb"],
            "H100 SXM5 nodes",
        ),
        "ssh": (["cluster.launcher=ssh"], "cluster.ssh.hosts: missing; write hosts"),
        "sky": (["cluster.launcher=sky"], "cluster.sky.accelerators: missing; write what to rent"),
        "pods": (["cluster.launcher=kubernetes"], "cluster.kubernetes.image: missing; build one"),
        "url": (["dir=s3://bucket/runs"], "a run at a URL"),
        "mlflow": (["log.mlflow=here"], "MLFLOW_TRACKING_URI is not set"),
        "replicas of local steps": (["train.sync.local_steps=4"], "layout.replicate = 2 or more"),
        "rounds": ([*apart, "train.sync.local_steps=9999"], "so replicas would never agree"),
        "local steps, live": ([*apart, "guard.mode=live"], "replicas agree in every step there"),
        "local steps, narrow": (
            [*apart, "train.precision=bf16", "train.weights=bf16"],
            "mostly rounding",
        ),
        "codec of gradients": (["train.sync.compress=int4"], "too coarse for gradients"),
        "tensorboard": (["log.tensorboard=raw.jsonl"], "is a file; write a folder"),
        "trackio": (["log.trackio=a/b"], "no name of a project"),
        "webhook": (["log.webhook=nowhere"], "webhook"),
        "no price": (["budget.usd=1"], "usd_per_hour"),
        "unknown field": (["train.token=1"], "no such field"),
        "bad quantity": (["train.tokens=many", "train.steps=none"], "train.tokens"),
        "two lengths": (["train.tokens=1M", "train.epochs=2"], "train.epochs"),
        "bad choice": (["train.precision=fp12"], "not a choice"),
        "bad batch": (["train.batch_tokens=100"], "batch_tokens"),
        "two models": (["model.preset=llama-3m", "model.from=bare"], "is given too"),
        "unknown preset": (["model.preset=llama-9000b", *MODULE], "no such preset"),
        "adapter of nothing": (["model.adapter.rank=8"], "needs weights to start from"),
        "heads": (["model.heads=3"], "heads"),
        "name": (["name=a/b"], "name"),
    }
    return found | rest


NO_LENGTH = ["data.sequence=none", "train.batch_tokens=none"]
RAW = "data.dataset=raw"  # text that is still to be built
FAILED = {"over the budget": (["budget.hours=1e-7"], "budget.hours")}  # right, and does not do


@pytest.fixture
def bad(tmp_path: Path, run_file: MakeFile, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with everything that the cases name, and a run file that is right."""
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "home" / "datasets"
    own.mkdir(parents=True)
    for folder in (home / "datasets").glob("tiny@*"):
        (own / folder.name).symlink_to(folder)
    monkeypatch.setenv("PENSTOCK_HOME", str(own.parent))
    count = np.arange(9601) % 300
    for name, packed in (("made", 0), ("other", 0), ("packed", 48), ("longer", 96)):
        made_set(own, count, [0], name=name, packed=packed)
    made_set(own, count[:60], [0], name="short")
    made_set(own, count, [0], name="moved").folder.rename(own / "renamed@0123456789ab")
    made_set(own, count, [0], name="twice")
    made_set(own, count[:5000], [0], name="twice")
    for name in ("torn", "other-format", "no-shards", "no-tokenizer"):
        made = made_set(tmp_path, count, [0], name=name).folder.rename(tmp_path / name)
        if name == "torn":
            (made / MANIFEST).write_text("{")
        elif name == "other-format":
            (made / MANIFEST).write_text(json.dumps({"format": 99}))
        elif name == "no-tokenizer":
            (made / TOKENIZER).unlink()
        else:
            next((made / "shards").glob("*.bin")).unlink()
    for name in ("empty", "odd", "raw", "bare", "strange"):
        (tmp_path / name).mkdir()
    (tmp_path / "odd" / "picture.png").write_bytes(b"no text")
    (tmp_path / "other-fields").mkdir()
    (tmp_path / "other-fields" / "rows.jsonl").write_text('{"body": "x"}\n')
    (tmp_path / "broken.jsonl").write_text("text\ntext\n")
    (tmp_path / "blank.txt").write_text("")
    (tmp_path / "raw" / "a.txt").write_text("some text")
    (tmp_path / "raw.jsonl").write_text('{"messages": []}\n')
    config = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 32, "vocab_size": 300}
    config |= {"num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 64}
    (tmp_path / "bare" / "config.json").write_text(json.dumps(config))
    (tmp_path / "strange" / "config.json").write_text('{"model_type": "strangest"}')
    (tmp_path / "wrong.toml").write_text('sources = 1\n[[source]]\npath = "raw"\n')
    (tmp_path / "nowhere.toml").write_text('[[source]]\npath = "nowhere"\n')
    (tmp_path / "not-toml.toml").write_text("[[source\n")
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "loss.py").write_text(LOSS)
    (tmp_path / "torn.py").write_text("def build(:\n")
    return run_file()


def refused(
    verb: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """Return the exit code and the message of a verb that must refuse."""
    monkeypatch.setattr(sys, "argv", ["penstock", verb, *words])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr()
    assert "Traceback" not in said.err + said.out
    _, found, message = said.err.partition("error: ")
    assert found, f"{verb} said nothing: {said.out}"
    assert isinstance(left.value.code, int)
    return left.value.code, message


def with_fields(file: Path, words: list[str]) -> list[str]:
    """The command line; what it cannot say (a field left out, a mixture) goes into the file."""
    given: list[str] = []
    lines = file.read_text().splitlines()
    for word in words:
        field, _, value = word.partition("=")
        name = field.rpartition(".")[2]
        if value == "none":
            lines = [line for line in lines if not line.startswith(f"{name} =")]
        elif field == "mix":
            lines = [line for line in lines if not line.startswith("dataset =")]
            for part in value.split(","):
                dataset, _, weight = part.partition(":")
                lines += ["[[data.mix]]", f'dataset = "{dataset}"', f"weight = {weight or 1}"]
        else:
            given.append(word)
    if any(word.startswith("model.module=") for word in words):
        given.append("train.learning_rate=0.01")
    file.write_text("\n".join(lines) + "\n")
    return [str(file), *given]


@pytest.mark.parametrize("case", [*cases(), *FAILED])
def test_both_verbs_refuse_alike(
    case: str, bad: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, part = (cases() | FAILED)[case]
    command = with_fields(bad, words)
    code, said = refused("check", command, monkeypatch, capsys)
    assert part in said
    assert code == (1 if case in FAILED else 2), said
    assert refused("train", command, monkeypatch, capsys) == (code, said)
    assert not (bad.parent / "runs").exists() or not list((bad.parent / "runs").iterdir())


def test_a_url_that_cannot_be_reached_or_has_nothing(
    bad: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(objects, "FIRST_PATIENCE_S", 0.2)
    with closing(socket.socket()) as free:  # a port that nobody listens on: refused at once
        free.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{free.getsockname()[1]}"
        (bad.parent / "web").mkdir()
        with serve(bad.parent / "web") as (url, _):
            for spec, said in {
                f"{away}/web@abc": "cannot be reached: ",
                f"{away}/rows.jsonl": "cannot be reached: ",
                f"{url}/rows.jsonl": "cannot be listed: ",
            }.items():
                told = [
                    refused(verb, [str(bad), f"data.dataset={spec}"], monkeypatch, capsys)
                    for verb in ("check", "train")
                ]
                assert told[0] == told[1]
                assert told[0][0] == 2
                assert f"{spec} {said}" in told[0][1]
            (bad.parent / "web" / "rows.jsonl").write_text('{"text": "a row"}\n')
            monkeypatch.setattr(
                sys, "argv", ["penstock", "check", str(bad), f"data.dataset={url}/rows.jsonl"]
            )
            with pytest.raises(SystemExit) as left:
                main()
            assert left.value.code == 0
            assert "`penstock train` builds one from the files there" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("package", "spec", "said"),
    [
        ("zstandard", "raw", "Building a dataset needs zstandard"),
        ("pyarrow", "table.parquet", "Reading Parquet needs pyarrow"),
    ],
)
def test_data_that_needs_a_package_which_is_not_installed(
    package: str,
    spec: str,
    said: str,
    bad: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (bad.parent / "table.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, package, None)
    told = [
        refused(verb, [str(bad), f"data.dataset={spec}"], monkeypatch, capsys)
        for verb in ("check", "train")
    ]
    assert told[0] == told[1]
    assert told[0][0] == 2
    assert said in told[0][1]


def test_a_run_that_exists_with_another_file(
    bad: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run: Run = load(bad)
    RunFolder(run.folder).make()
    save(run, RunFolder(run.folder).run_file)
    told = [
        refused(verb, [str(bad), "train.seed=7"], monkeypatch, capsys)
        for verb in ("check", "train")
    ]
    assert told[0] == told[1]
    assert told[0][0] == 2
    assert "exists with another run file" in told[0][1]
