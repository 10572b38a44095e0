"""Whole runs of models that are not native: two ranks that share the weights, killed, resumed,
exported, and loaded by transformers with the same logits.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import penstock
from generic_models import TRAINED, VOCAB, made, saved
from open_families import add_tokenizer
from penstock.errors import PenstockError
from penstock.guard.detect.failpoints import Failpoint, arm
from penstock.launch.start import start
from penstock.ledger.journal.records import journal_files
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.train.export.generate import generate_text
from penstock.train.export.model import export
from penstock.train.parallel.materialize import materialize_unsharded
from penstock.watch.facts.run_view import RunView

MakeFile = Callable[..., Path]
TEXTS = [f"def f{i}(x):\n    return x * {i % 9} + {i}\n" for i in range(300)]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
NO_SHAPE = dict.fromkeys(
    f"model.{field}" for field in ("layers", "hidden", "heads", "kv_heads", "ffn", "tied")
)
LORA = {"model.adapter.kind": "lora", "model.adapter.rank": 4}
QLORA = {"model.adapter.kind": "qlora", "model.adapter.rank": 4}
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """models("gpt_neox"): the folder of a tiny model with a tokenizer of its own."""
    root = tmp_path_factory.mktemp("generic")

    def folder(name: str) -> Path:
        if not (root / name).exists():
            saved(name, root / name)
            add_tokenizer(root / name, TEXTS, 300, TEMPLATE)
        return root / name

    return folder


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("raw") / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return file


@pytest.fixture
def generic_file(run_file: MakeFile, raw: Path) -> MakeFile:
    """generic_file("name", folder, **fields): a run of two ranks from a model's folder."""

    def write(name: str, model: Path, **fields: Any) -> Path:
        values = {
            "model.from": str(model),
            "data.dataset": str(raw),
            "data.across_documents": False,
            "train.steps": 6,
            "train.learning_rate": 1e-2,
            "evaluate.every": "3 steps",
            "guard.checkpoint": "2 steps",
            "cluster.accelerators": 2,
            "layout.shard": 2,
        }
        return run_file(name, **NO_SHAPE, **values | fields)

    return write


def logits_of_run(folder: RunFolder, tokens: Tensor) -> Tensor:
    """Return the logits of the run's newest checkpoint, by the module that ranks train."""
    from penstock.guard import checkpoints
    from penstock.train.export.model import choose_checkpoint
    from penstock.train.parallel.parts import ModelParts

    parts = ModelParts(
        [materialize_unsharded(load(folder.run_file), VOCAB, torch.device("cpu")).eval()]
    )
    found, _ = choose_checkpoint(folder)
    named = {**parts.trained(), **parts.named_buffers()}
    checkpoints.load(found, {f"model/{n}": t.detach() for n, t in named.items()}, None)
    with torch.no_grad():
        return parts.single_module(tokens)


def killed_resumed_and_exported(
    generic_file: MakeFile, model: Path, fields: dict[str, Any], out: Path
) -> None:
    from transformers import AutoModelForCausalLM

    calm = penstock.train(generic_file("calm", model, **fields))
    folder = RunFolder(calm.folder.parent / "killed")
    arm(folder.traps, Failpoint("a", "kill", "forward", rank=1, step=4))
    killed = penstock.train(generic_file("killed", model, **fields))
    assert killed.faults == 1
    assert killed.weights_hash == calm.weights_hash
    assert killed.validation == calm.validation

    adapter = "model.adapter.kind" in fields
    export(folder, out / "whole", dtype="fp32", merged=adapter)
    tokens = torch.randint(VOCAB, (2, 24), generator=torch.Generator().manual_seed(5))
    ours = logits_of_run(folder, tokens)
    theirs = AutoModelForCausalLM.from_pretrained(out / "whole", dtype=torch.float32).eval()
    before = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, ours, rtol=1e-4, atol=1e-4)
        assert (before(tokens).logits - ours).abs().max() > 0.05  # it did learn
    if not adapter:
        from safetensors import safe_open

        with (
            safe_open(model / "model.safetensors", "pt") as first,
            safe_open(out / "whole" / "model.safetensors", "pt") as second,
        ):
            assert sorted(first.keys()) == sorted(second.keys())
        return
    from peft import PeftModel

    export(folder, out / "adapter")
    if fields["model.adapter.kind"] == "lora":
        with torch.no_grad():
            beside = PeftModel.from_pretrained(before, out / "adapter").eval()(tokens).logits
        torch.testing.assert_close(beside, ours, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "fields"), [("gpt_neox", {}), ("cohere", LORA)])
def test_killed_and_resumed_equals_undisturbed_and_exports(
    name: str, fields: dict[str, Any], models: Any, generic_file: MakeFile, tmp_path: Path
) -> None:
    killed_resumed_and_exported(generic_file, models(name), fields, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, LORA, QLORA], ids=["full", "lora", "qlora"])
@pytest.mark.parametrize("name", TRAINED)
def test_every_architecture_is_killed_resumed_and_exported(
    name: str, fields: dict[str, Any], models: Any, generic_file: MakeFile, tmp_path: Path
) -> None:
    killed_resumed_and_exported(generic_file, models(name), fields, tmp_path)


def test_text_chat_examples_and_the_plan(
    models: Any, generic_file: MakeFile, tmp_path: Path
) -> None:
    """Conversations by the model's own template; activations are recomputed."""
    rows = [
        {"messages": [{"role": "user", "content": t}, {"role": "assistant", "content": t[::-1]}]}
        for t in TEXTS[:60]
    ]
    chats = tmp_path / "chats.jsonl"
    chats.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = {
        "data.dataset": str(chats),
        "data.sequence": 64,
        "train.batch_tokens": 256,
        "train.steps": 2,
        "evaluate.every": "never",
        "layout.recompute": "full",
        "model.adapter.kind": "qlora",
        "model.adapter.targets": ["q_proj", "c_fc"],
    }
    folder = start(load(generic_file("chat", models("starcoder2"), **fields)))
    plan = folder.read_plan()
    assert plan["masked"]
    assert plan["params"] == sum(p.numel() for p in made("starcoder2").parameters())
    assert plan["trained"] == 2 * 16 * (32 + 32 + 32 + 64)
    assert plan["predicted"].get("memory") or plan["predicted"]["none"]
    said = generate_text(folder, "def", 5, 1.0, 0, chat=True)
    assert said.step == 2


@pytest.mark.slow
def test_compiled_layers_give_the_same_losses(models: Any, generic_file: MakeFile) -> None:
    fields = {"train.steps": 3, "evaluate.every": "never", "guard.timeout": "5 min"}
    plain, compiled = (
        start(load(generic_file(how, models("gpt_neox"), **fields, **{"train.compile": how})))
        for how in ("off", "on")
    )
    expected = RunView(plain).curve["loss"].tolist()
    assert RunView(compiled).curve["loss"].tolist() == pytest.approx(expected, rel=1e-4)


def refused(path: Path, *overrides: str) -> str:
    """Return the one message of a run that is refused before any process starts."""
    with pytest.raises(PenstockError) as error:
        start(load(path, list(overrides)))
    assert not list(path.parent.glob("runs/*"))
    assert "Traceback" not in str(error.value)
    return str(error.value)


def test_layouts_that_it_cannot_do_are_refused_by_name(models: Any, generic_file: MakeFile) -> None:
    path = generic_file("layout", models("gpt_neox"))
    for name in ("tensor", "pipeline", "context", "expert"):
        told = refused(path, "layout.shard=1", f"layout.{name}=2")
        assert f'layout.{name} = 2: "gpt_neox" runs through its module in transformers' in told
    assert '"gpt_neox"' in refused(path, "train.precision=fp8")
    targets = refused(path, 'model.adapter.targets=["q_proj"]')
    assert '"q_proj" is no matrix of its layers' in targets
    assert "query_key_value" in targets


def test_bad_models_are_one_message_each(
    models: Any, generic_file: MakeFile, tmp_path: Path, raw: Path
) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(models("gpt_neox"), bad)
    path = generic_file("bad", bad)
    config = json.loads((bad / "config.json").read_text())

    def with_config(**fields: Any) -> str:
        (bad / "config.json").write_text(json.dumps(config | fields))
        return refused(path)

    told = with_config(model_type="gpt_neoxx")
    assert 'model_type "gpt_neoxx" is neither a family of Penstock' in told
    assert "gpt_neox" in told.partition("transformers.")[2]  # the nearest one
    code = {"AutoModelForCausalLM": "modeling_strange.StrangeForCausalLM"}
    (bad / "modeling_strange.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    told = with_config(model_type="strange", auto_map=code)
    assert "modeling_strange.StrangeForCausalLM" in told
    assert "never runs such code" in told
    assert not (tmp_path / "ran").exists()
    assert "quantization_config" in with_config(quantization_config={"bits": 4})
    assert "is_encoder_decoder" in with_config(is_encoder_decoder=True)
    hollow = {k: v for k, v in config.items() if k != "num_hidden_layers"}
    (bad / "config.json").write_text(json.dumps(hollow))
    assert "no number of layers" in refused(path)
    (bad / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bad / name).unlink()
    told = refused(path)
    assert "tokenizer.json" in told
    assert str(bad) in told


def test_tensors_of_other_names_end_the_run_with_one_message(
    models: Any, generic_file: MakeFile, tmp_path: Path
) -> None:
    """Only ranks know the module's tensors; what they refuse is not tried again."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(models("gpt_neox"), tmp_path / "renamed")
    file = tmp_path / "renamed" / "model.safetensors"
    held = load_file(file)
    held["strange.bias"] = held.pop("gpt_neox.final_layer_norm.bias")
    save_file(held, file)
    with pytest.raises(PenstockError) as error:
        start(load(generic_file("renamed", tmp_path / "renamed")))
    assert "gpt_neox.final_layer_norm.bias is missing" in str(error.value)
    assert "strange.bias has no place" in str(error.value)
    folder = RunFolder(tmp_path / "runs" / "renamed")
    assert len(list(journal_files(folder.journal, "curve"))) <= 2  # one attempt of two ranks


def test_a_plan_counts_from_headers_without_torch_and_transformers(
    models: Any, generic_file: MakeFile
) -> None:
    path = generic_file("planned", models("gpt_neox"), **{"layout.shard": None, **LORA})
    code = (
        "import sys\n"
        "from penstock.cli.main import app\n"
        "try:\n"
        f"    app(['plan', {str(path)!r}, 'cluster.use=DGX H100', 'train.steps=1000', '--json'])\n"
        "finally:\n"
        "    assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert not {"tensor", "pipeline", "context", "expert"} & plan["layout"].keys()


def test_documents_that_cannot_be_kept_apart_are_refused(
    models: Any, generic_file: MakeFile
) -> None:
    told = refused(generic_file("alibi", models("bloom")))
    assert "data.across_documents = false" in told
    assert "ALiBi" in told
    told = refused(generic_file("state", models("mamba")))
    assert "carry a state" in told
