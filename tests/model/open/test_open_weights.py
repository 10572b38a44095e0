"""Open models of every family: read, computed, trained a step, written and read again."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from open_families import ALL, MOE, VOCAB, in_double, made, saved
from penstock.catalog.open.folder import read_config
from penstock.catalog.open.headers import INDEX, SINGLE
from penstock.catalog.open.models import config_of
from penstock.errors import PenstockError
from penstock.model.decoder import Decoder
from penstock.model.open.files import check_open_files
from penstock.model.open.names import is_buffer, tensor_locations, tensor_shapes
from penstock.model.open.weights import OpenWeights, copy_open_tensors
from penstock.model.open.write import generation_config, write_model

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each family as `save_pretrained` writes it; Mixtral in several files."""
    root = tmp_path_factory.mktemp("open")
    for name in ALL:
        saved(name, root / name, shard="40KB" if name == "mixtral" else "5GB")
    return {name: root / name for name in ALL}


def named(model: nn.Module) -> dict[str, Tensor]:
    balances = {name: b for name, b in model.named_buffers() if is_buffer(name)}
    return {**dict(model.named_parameters()), **balances}


def imported(folder: Path) -> Decoder:
    weights = OpenWeights(folder)
    decoder = Decoder(weights.shape)
    copy_open_tensors(named(decoder), weights, CPU)
    return decoder


def tokens(sequence: int = 60) -> Tensor:
    return torch.randint(0, VOCAB, (2, sequence), generator=torch.Generator().manual_seed(1))


def theirs(folder: Path, double: bool = False) -> nn.Module:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, experts_implementation="eager"
    )
    return in_double(model) if double else model


@pytest.mark.parametrize("name", ALL)
def test_logits_are_those_of_transformers(folders: dict[str, Path], name: str) -> None:
    ours, other = imported(folders[name]), made(name)
    with torch.no_grad():
        wide = name in MOE or ALL[name][0] == "phi3"  # whose fused matrices sum in another order
        exact = {"rtol": 0.0, "atol": 5e-6 if wide else 1e-6}
        torch.testing.assert_close(ours(tokens()), other(tokens()).logits, **exact)
        found, expected = ours.double()(tokens()), in_double(other)(tokens()).logits
    assert expected.abs().max() > 1  # logits that say something
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("name", ALL)
def test_a_step_moves_every_weight_as_in_transformers(folders: dict[str, Path], name: str) -> None:
    """The loss, and the gradient of each parameter through the mapping of names."""
    ours, other = imported(folders[name]).double(), in_double(made(name)).train()
    x, targets = tokens()[:, :-1], tokens()[:, 1:]
    loss = ours(x, targets_bs=targets) / targets.numel()
    loss.backward()
    logits = other(x).logits  # their own loss would be in float32
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0.0)
    shape, family = ours.shape, ALL[name][0]
    gradients = {n: p.grad for n, p in other.named_parameters() if p.grad is not None}
    compared = 0
    for our_name, param in ours.named_parameters():
        assert param.grad is not None, our_name
        found = _gradient(our_name, gradients, shape, family)
        torch.testing.assert_close(param.grad, found, rtol=1e-9, atol=1e-12, msg=our_name)
        compared += 1
    assert compared == len(tensor_shapes(shape)) - sum(map(is_buffer, tensor_shapes(shape)))


def _gradient(name: str, theirs: dict[str, Tensor], shape: Any, family: str) -> Tensor:
    """In memory they keep the experts of a layer in one tensor, and Mixtral's block is `mlp`."""
    place = tensor_locations(name, shape, family)[-1]
    found = theirs[place.names[0].replace("block_sparse_moe", "mlp")]
    found = found[place.index((slice(None),))]
    return found.mT if place.transposed else found


@pytest.mark.parametrize("name", ALL)
def test_what_is_written_is_read_by_both(
    folders: dict[str, Path], name: str, tmp_path: Path
) -> None:
    decoder, family = imported(folders[name]), ALL[name][0]
    shape = decoder.shape
    config = config_of(shape, family)
    kept = [(n, t) for n, t in named(decoder).items() if n in tensor_shapes(shape)]
    written = write_model(tmp_path / "out", shape, family, kept, config, {}, "fp32", 30_000)
    assert (tmp_path / "out" / INDEX).is_file()  # so small a limit makes several files
    assert written == 4 * sum(t.numel() for _, t in kept)
    again, other = imported(tmp_path / "out"), theirs(tmp_path / "out")
    original = made(name)
    with torch.no_grad():
        assert torch.equal(again(tokens()), decoder(tokens()))
        assert torch.equal(other(tokens()).logits, original(tokens()).logits)
    before, after = original.state_dict(), other.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[n], after[n]) for n in before)


@pytest.mark.parametrize("name", ["llama-3.2", "dots1"])
def test_bf16_is_half_as_large_and_keeps_the_balance(
    folders: dict[str, Path], name: str, tmp_path: Path
) -> None:
    decoder, family = imported(folders[name]), ALL[name][0]
    shape = decoder.shape
    given = [(n, t) for n, t in named(decoder).items() if n in tensor_shapes(shape)]
    config = config_of(shape, family) | {"eos_token_id": 7}
    beside = {"tokenizer.json": b"{}", **generation_config(config)}
    write_model(tmp_path / "out", shape, family, given, config, beside)
    assert read_config(tmp_path / "out")["dtype"] == "bfloat16"
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == {
        "eos_token_id": 7
    }
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == b"{}"
    weights = OpenWeights(tmp_path / "out")
    for our_name, tensor in given:
        stored = weights.read(our_name)
        assert stored.dtype == (torch.float32 if is_buffer(our_name) else torch.bfloat16)
        assert torch.equal(stored, tensor.detach().to(stored.dtype))
    assert not list(tmp_path.glob(".*"))  # nothing is left aside


@pytest.mark.parametrize("name", ["llama-2", "mixtral", "dots1", "phi-4", "gpt-oss"])
def test_a_part_is_read_alone(folders: dict[str, Path], name: str) -> None:
    weights = OpenWeights(folders[name])
    for our_name, dimensions in weights.dimensions.items():
        whole = weights.read(our_name)
        assert tuple(whole.shape) == dimensions
        part = weights.slice(our_name)
        assert part.shape == dimensions
        assert torch.equal(part[1:3], whole[1:3])
        if len(dimensions) > 1:
            assert torch.equal(part[1:3, 2:5], whole[1:3, 2:5])
        if len(dimensions) > 2:
            assert torch.equal(part[1:3, 2:5, 3:9], whole[1:3, 2:5, 3:9])


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe", "dots1"])
def test_fused_experts_are_read_too(folders: dict[str, Path], name: str, tmp_path: Path) -> None:
    """As transformers 5 keeps them in memory, and some files on the hub have them."""
    shutil.copy(folders[name] / "config.json", tmp_path)
    fused = made(name).state_dict()
    renamed = {n.replace("mlp.gate.weight", _gate(name)): t for n, t in fused.items()}
    save_file(renamed, tmp_path / SINGLE)
    one, other = OpenWeights(tmp_path), OpenWeights(folders[name])
    for our_name in other.dimensions:
        assert torch.equal(one.read(our_name), other.read(our_name)), our_name
    our_name = "layers.2.ffn.experts.up"
    assert torch.equal(one.slice(our_name)[1:3, 2:9, :4], other.slice(our_name)[1:3, 2:9, :4])


def _gate(name: str) -> str:
    return "block_sparse_moe.gate.weight" if name == "mixtral" else "mlp.gate.weight"


@pytest.fixture
def broken(folders: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of a good model, to be spoilt."""
    shutil.copytree(folders["llama-2"], tmp_path / "model")
    return tmp_path / "model"


def change(folder: Path, **tensors: Tensor | None) -> None:
    held = load_file(folder / SINGLE)
    for name, tensor in tensors.items():
        if tensor is None:
            del held[name]
        else:
            held[name] = tensor
    save_file(held, folder / SINGLE)


def test_tensors_that_are_not_the_models_are_all_told_at_once(broken: Path) -> None:
    change(
        broken,
        **{
            "model.norm.weight": None,
            "lm_head.weight": torch.zeros(VOCAB, 31),
            "model.layers.3.input_layernorm.weight": torch.zeros(32),
            "model.layers.0.mlp.up_proj.weight": torch.zeros(48, 32, dtype=torch.int8),
        },
    )
    with pytest.raises(PenstockError) as error:
        check_open_files(broken)
    said = str(error.value)
    assert "model.norm.weight is missing" in said
    assert "lm_head.weight is (96, 31), not (96, 32)" in said
    assert "model.layers.3.input_layernorm.weight has no place" in said
    assert "up_proj.weight is stored as I8" in said


def test_harmless_leftovers_are_passed_over(broken: Path) -> None:
    change(broken, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)})
    assert OpenWeights(broken).read("norm.weight").shape == (32,)


def test_a_layer_that_predicts_ahead_is_passed_over_where_the_family_has_one(
    folders: dict[str, Path], broken: Path, tmp_path: Path
) -> None:
    extra = {"model.layers.3.eh_proj.weight": torch.zeros(32, 64)}
    shutil.copytree(folders["glm-4.5"], tmp_path / "glm")
    change(tmp_path / "glm", **extra)
    assert OpenWeights(tmp_path / "glm").read("norm.weight").shape == (32,)
    change(tmp_path / "glm", **{"model.layers.4.norm.weight": torch.zeros(32)})
    with pytest.raises(PenstockError, match=r"model\.layers\.4\.norm\.weight has no place"):
        check_open_files(tmp_path / "glm")
    change(broken, **extra)
    with pytest.raises(PenstockError, match=r"eh_proj\.weight has no place"):
        check_open_files(broken)


def test_a_tied_model_may_keep_its_head(folders: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(folders["qwen2"], tmp_path / "model")
    change(tmp_path / "model", **{"lm_head.weight": torch.zeros(VOCAB, 32)})
    assert "head.weight" not in OpenWeights(tmp_path / "model")


def test_a_file_that_is_cut_short_is_noticed(broken: Path) -> None:
    content = (broken / SINGLE).read_bytes()
    (broken / SINGLE).write_bytes(content[:-1])
    with pytest.raises(PenstockError, match="cut short"):
        check_open_files(broken)
    (broken / SINGLE).write_bytes(content[:40])
    with pytest.raises(PenstockError, match="cut short"):
        check_open_files(broken)
    (broken / SINGLE).write_bytes(b"version https://git-lfs.github.com/spec/v1\n" * 3)
    with pytest.raises(PenstockError, match="not a safetensors file"):
        check_open_files(broken)


def test_a_pickle_is_not_opened(broken: Path) -> None:
    (broken / SINGLE).rename(broken / "pytorch_model.bin")
    with pytest.raises(PenstockError, match=r"as pickle \(pytorch_model.bin\)"):
        check_open_files(broken)
    (broken / "pytorch_model.bin").unlink()
    with pytest.raises(PenstockError, match="no weights"):
        check_open_files(broken)


def test_missing_files_of_an_index_are_named(folders: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(folders["mixtral"], tmp_path / "model")
    next((tmp_path / "model").glob("model-00002-*")).unlink()
    with pytest.raises(PenstockError, match=r"lacks 1 of \d+ files of weights: model-00002"):
        check_open_files(tmp_path / "model")


def test_an_index_that_lies_is_noticed(folders: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(folders["mixtral"], tmp_path / "model")
    index = json.loads((tmp_path / "model" / INDEX).read_text())
    files = sorted(set(index["weight_map"].values()))
    moved = next(n for n, f in index["weight_map"].items() if f == files[0])
    index["weight_map"][moved] = files[1]
    (tmp_path / "model" / INDEX).write_text(json.dumps(index))
    with pytest.raises(PenstockError, match=f"has no {moved}"):
        check_open_files(tmp_path / "model")


def test_a_model_of_another_shape_is_not_filled(folders: dict[str, Path]) -> None:
    weights = OpenWeights(folders["llama-2"])
    with pytest.raises(PenstockError, match=r"embed.weight is \(96, 32\)"):
        copy_open_tensors(named(Decoder(replace(weights.shape, vocab=100))), weights, CPU)
    with pytest.raises(PenstockError, match="q_norm"):
        copy_open_tensors(named(Decoder(replace(weights.shape, qk_norm=True))), weights, CPU)


def test_what_is_not_whole_is_not_written(folders: dict[str, Path], tmp_path: Path) -> None:
    decoder = imported(folders["llama-2"])
    shape, config = decoder.shape, config_of(decoder.shape, "llama")
    given = dict(decoder.named_parameters())
    del given["norm.weight"]
    with pytest.raises(PenstockError, match=r"lacks norm\.weight"):
        write_model(tmp_path / "out", shape, "llama", given.items(), config, {})
    assert not list(tmp_path.iterdir())
    (tmp_path / "out").mkdir()
    with pytest.raises(PenstockError, match="is there already"):
        write_model(tmp_path / "out", shape, "llama", [], config, {})
