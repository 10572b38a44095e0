"""Modules of transformers as models of a run: the same numbers, documents kept apart, adapters."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from generic_models import OTHERS, TRAINED, VOCAB, saved
from penstock.catalog.open.folder import read_config, shape_of_model
from penstock.catalog.open.generic import document_problem, linear_modules
from penstock.errors import PenstockError
from penstock.model.adapter.lora import add_module_adapters, draw_adapters
from penstock.model.open.module import (
    TransformersModel,
    allocate,
    build_module,
    find_plain_head,
    refuse_seen_documents,
)
from penstock.model.open.module_weights import ModuleWeights, load_module_weights
from penstock.run.schema.adapter import AdapterSection, module_params
from penstock.train.parallel.shard import fsdp_units

CPU = torch.device("cpu")
PACKED = ["gpt_neox", "starcoder2", "cohere", "stablelm", "granite", "gpt2", "opt", "falcon"]
PLAIN = {"gpt_neox", "starcoder2", "stablelm", "gpt2", "opt", "falcon", "bloom", "mamba"}
pytestmark = pytest.mark.filterwarnings("ignore")


def loaded(folder: Path, adapter: AdapterSection | None = None) -> TransformersModel:
    """Build a folder's module as a rank does."""
    model = build_module(folder, torch.float32)
    assert all(param.is_meta for param in model.parameters())
    weights = ModuleWeights(folder, model)
    if adapter:
        add_module_adapters(model, fsdp_units(model), adapter)
    allocate(model, CPU)
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    load_module_weights(named, weights, CPU)
    draw_adapters({n: t for n, t in named.items() if n.endswith(("_a", "_b"))}, CPU, 0)
    assert isinstance(model, TransformersModel)
    return model


@pytest.mark.parametrize("name", [*TRAINED, *OTHERS])
def test_the_loss_and_gradients_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    theirs = saved(name, tmp_path).train()
    ours = loaded(tmp_path).train()
    find_plain_head(ours, CPU)
    assert ours.plain_head == (name in PLAIN)
    assert shape_of_model(str(tmp_path)).params() == sum(p.numel() for p in theirs.parameters())
    tokens, targets = torch.randint(VOCAB, (2, 2, 24), generator=torch.Generator().manual_seed(1))
    counted = torch.rand(2, 24, generator=torch.Generator().manual_seed(2)) < 0.7
    logits = theirs(tokens).logits
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    expected = (losses * counted.flatten()).sum()
    loss = ours(tokens, None, targets, counted)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    expected.backward()
    loss.backward()
    grads = {n: p.grad for n, p in theirs.named_parameters()}
    assert grads.keys() == {n for n, _ in ours.named_parameters()}
    for key, param in ours.named_parameters():
        torch.testing.assert_close(param.grad, grads[key], rtol=1e-3, atol=1e-4, msg=key)


@pytest.mark.parametrize("name", PACKED)
def test_packed_documents_are_read_as_if_alone(name: str, tmp_path: Path) -> None:
    saved(name, tmp_path)
    assert document_problem(read_config(tmp_path), 64) == ""
    model = loaded(tmp_path).eval()
    refuse_seen_documents(model, CPU)
    tokens = torch.randint(VOCAB, (1, 30), generator=torch.Generator().manual_seed(3))
    starts = torch.zeros(1, 30, dtype=torch.bool)
    starts[0, [0, 7, 8, 21]] = True
    model.eval()
    with torch.no_grad():
        packed = model(tokens, starts)
        alone = [model(tokens[:, a:b]) for a, b in ((0, 7), (7, 8), (8, 21), (21, 30))]
        mixed = model(tokens)
    torch.testing.assert_close(packed, torch.cat(alone, 1), rtol=1e-4, atol=1e-5)
    assert (mixed - packed).abs().max() > 1e-2  # without the mask they do see each other


@pytest.mark.parametrize("name", ["bloom", "mamba"])
def test_models_that_cannot_keep_documents_apart_are_refused(name: str, tmp_path: Path) -> None:
    saved(name, tmp_path)
    assert name in document_problem(read_config(tmp_path), 64)
    with pytest.raises(PenstockError, match=f'"{name}" cannot keep the documents'):
        refuse_seen_documents(loaded(tmp_path), CPU)


def test_a_window_shorter_than_the_sequence_is_a_problem() -> None:
    config = {"model_type": "starcoder2", "sliding_window": 32}
    assert "window of 32" in document_problem(config, 64)
    assert document_problem(config, 32) == ""


@pytest.mark.parametrize("kind", ["lora", "qlora"])
def test_adapters_go_to_modules_by_name(kind: str, tmp_path: Path) -> None:
    theirs = saved("gpt_neox", tmp_path)
    section = AdapterSection(kind=kind, rank=4, targets=("query_key_value", "dense"))
    model = loaded(tmp_path, section)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    layer = "gpt_neox.layers.1.attention"
    assert {n.rpartition(".")[0] for n in trained if n.startswith("gpt_neox.layers.1.")} == {
        f"{layer}.query_key_value",
        f"{layer}.dense",
    }
    assert sum(p.numel() for p in trained.values()) == module_params(
        section, linear_modules(tmp_path)
    )
    narrow = [n for n, p in model.named_parameters() if p.dtype == torch.uint8]
    assert len(narrow) == (8 if kind == "qlora" else 0)  # four matrices in each of two layers
    tokens = torch.randint(VOCAB, (1, 9), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        apart = (model.eval()(tokens) - theirs(tokens).logits).abs().max()
    assert apart == 0 if kind == "lora" else 0 < apart < 3


def test_layers_without_linears_get_no_adapter(tmp_path: Path) -> None:
    saved("gpt2", tmp_path)
    with pytest.raises(PenstockError, match=r"no nn\.Linear of these names"):
        loaded(tmp_path, AdapterSection())


def test_tensors_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    saved("gpt_neox", tmp_path)
    file = tmp_path / "model.safetensors"
    held = load_file(file)
    held["old.name"] = held.pop("gpt_neox.final_layer_norm.bias")
    save_file(held, file)
    with pytest.raises(PenstockError, match=r"final_layer_norm\.bias is missing; old\.name has no"):
        loaded(tmp_path)
    bare = {n.removeprefix("gpt_neox."): t for n, t in held.items() if n != "old.name"}
    save_file(bare | {"final_layer_norm.bias": held["old.name"]}, file)
    loaded(tmp_path)  # files of the inner model alone leave out its prefix
