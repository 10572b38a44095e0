"""The run files of `examples/`: each loads, is planned for its machine, and trains when shrunk."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import pair_peer
from lora_peer import make_model, write_chats
from penstock.cli.check import check
from penstock.launch.start import start
from penstock.plan.hardware.cluster import machine_for
from penstock.plan.make import make
from penstock.plan.plan import Plan
from penstock.plan.step import notes
from penstock.run.load import load
from penstock.run.unsupported import refuse_unsupported
from penstock.watch.report.screen import summary

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
LLAMA_8B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
# A step or two of anything, in seconds on one core.
SHORT = (
    "train.steps=3",
    "train.batch_tokens=256",
    "data.sequence=64",
    "train.precision=fp32",
    "train.warmup=0",
    "evaluate.every=never",
    "cluster.accelerators=1",
    "guard.timeout=60 s",
)
pytestmark = pytest.mark.usefixtures("warm")
SHRUNK = ("model.hidden=32", "model.heads=4", "model.kv_heads=2", "model.layers=2")


@pytest.fixture(scope="module")
def open_8b(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of an 8B model, as far as a plan looks into it."""
    folder = tmp_path_factory.mktemp("models") / "Llama-3.1-8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    return f"model.from={folder}"


def planned(name: str, *overrides: str) -> Plan:
    run = load(EXAMPLES / f"{name}.toml", overrides)
    found = machine_for(run)
    return make(run, found.machine, found.warnings)


def trained(name: str, tmp_path: Path, *overrides: str) -> dict[str, Any]:
    run = load(EXAMPLES / f"{name}.toml", [*SHORT, f"dir={tmp_path / 'runs'}", *overrides])
    return summary(start(run))


def test_every_example_says_what_it_is_how_to_start_it_and_can_be_trained_here() -> None:
    files = {
        path.stem: path for path in EXAMPLES.glob("*.toml") if "[[source]]" not in path.read_text()
    }
    assert files.keys() >= {"pretrain-1b", "finetune-8b", "lora-8b", "dpo-8b", "moe"}
    assert files.keys() >= {"own-model", "stdlib"}
    for name, path in files.items():
        text = path.read_text()
        assert text.startswith("# "), name
        assert f'name = "{name}"' in text
        if name == "code-8b":  # for `penstock plan` alone
            continue
        assert re.search(rf"penstock train +examples/{name}\.toml", text), name
        refuse_unsupported(load(path))


def test_a_1b_model_is_pretrained_on_8_gpus(tmp_path: Path, tiny: str) -> None:
    plan = planned("pretrain-1b", "cluster.use=H100")
    assert plan.memory.fits
    assert plan.job.layout.ranks == 8
    assert planned("pretrain-1b", "cluster.use=A100 40GB").memory.fits
    small = [*SHRUNK, "model.ffn=64", "model.vocab=300", f"data.dataset={tiny}"]
    report = trained("pretrain-1b", tmp_path, *small)
    assert (report["status"], report["steps"]) == ("done", 3)


def test_a_mixture_of_experts_is_trained(tmp_path: Path, tiny: str) -> None:
    plan = planned("moe", "cluster.use=H100")
    assert plan.memory.fits
    assert plan.job.shape.params() == pytest.approx(2.6e9, rel=0.01)
    assert plan.job.shape.params(active=True) == pytest.approx(0.5e9, rel=0.02)
    assert planned("moe", "cluster.use=H100", "layout.shard=8", "layout.expert=8",
                   "layout.microbatch=4").memory.fits  # fmt: skip
    small = [*SHRUNK, "model.expert_ffn=16", "model.experts=8", "model.experts_active=2"]
    report = trained("moe", tmp_path, *small, "model.vocab=300", f"data.dataset={tiny}")
    assert (report["status"], report["steps"]) == ("done", 3)


def test_an_open_8b_model_is_adapted_on_8_gpus_or_one(open_8b: str) -> None:
    length = "train.tokens=10M"
    whole = planned("finetune-8b", open_8b, length, "cluster.use=H100")
    assert whole.memory.fits
    assert whole.job.layout.ranks == 8
    half = ("train.weights=bf16", "train.states=bf16", "cluster.accelerators=4")
    assert planned("finetune-8b", open_8b, length, "cluster.use=H100", *half).memory.fits
    for machine, kind in (("V100 SXM2 16GB", "qlora"), ("RTX 4090", "lora")):
        one = ("cluster.use=" + machine, f"model.adapter.kind={kind}")
        plan = planned("lora-8b", open_8b, length, *one)
        assert plan.job.layout.ranks == 1
        assert plan.memory.fits, (machine, kind)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["finetune-8b", "lora-8b"])
def test_an_open_model_learns_from_conversations(name: str, tmp_path: Path) -> None:
    make_model(tmp_path / "model")
    write_chats(tmp_path / "chats.jsonl", 60)
    report = trained(
        name,
        tmp_path,
        f"model.from={tmp_path / 'model'}",
        f"data.dataset={tmp_path / 'chats.jsonl'}",
    )
    assert (report["status"], report["steps"]) == ("done", 3)


def test_an_open_model_learns_from_pairs(open_8b: str, tmp_path: Path) -> None:
    length = ("train.tokens=10M", "cluster.use=A100 40GB")
    plan = planned("dpo-8b", open_8b, *length)
    assert plan.memory.fits
    alone = planned("dpo-8b", open_8b, *length, "train.objective=next_token")
    assert plan.job.tokens == alone.job.tokens
    assert plan.step.parts["reference"] > 0.2 * plan.step.parts["matmul"]
    without = planned("dpo-8b", open_8b, *length, "train.objective=orpo")  # it has no reference
    assert "reference" not in without.step.parts
    assert any("there is no reference" in note for note in notes.lines(without.job))
    base = pair_peer.make_model("llama-3.1", tmp_path / "model")
    data = pair_peer.write_rows(tmp_path / "pairs.jsonl", pair_peer.pair_rows(30))
    report = trained("dpo-8b", tmp_path, f"model.from={base}", f"data.dataset={data}")
    assert (report["status"], report["steps"]) == ("done", 3)
    assert report["rewards"]["accuracy"] > 0


def test_an_own_model_is_trained(
    tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # its file is named from here
    check(EXAMPLES / "own-model.toml", [f"data.dataset={tiny}", "cluster.accelerators=1"])
    report = trained("own-model", tmp_path, f"data.dataset={tiny}")
    assert (report["status"], report["steps"]) == ("done", 3)
