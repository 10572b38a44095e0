"""Adapters of every family: PEFT finds each matrix where it belongs, and nothing else."""

import os
import warnings
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM

from open_families import VOCAB, saved
from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError
from penstock.model.adapter.export import merged_tensors, write_adapter
from penstock.model.adapter.lora import LoraMixin, add_adapters, load_base_and_adapters
from penstock.model.decoder import Decoder
from penstock.model.initialize import decoder_on_meta
from penstock.model.open.weights import OpenWeights
from penstock.run.schema.adapter import AdapterSection

FAMILIES = {
    "llama-3.2": ["attention", "ffn"],
    "qwen2": ["q", "v", "down"],
    "qwen3": ["attention", "ffn"],
    "mistral-window": ["attention", "ffn"],
    "mixtral": ["attention"],
    "qwen3-moe": ["attention"],
    "dots1": ["attention"],
    "deepseek-v3": ["attention"],
    "deepseek-v2-lite": ["q", "kv_down", "out"],
    "gpt-oss": ["attention"],
}


def adapted(folder: Path, section: AdapterSection) -> tuple[Decoder, OpenWeights]:
    """The open model in float32 with an adapter that has learned something."""
    weights = OpenWeights(folder)
    decoder = decoder_on_meta(weights.shape)
    add_adapters(decoder, section)
    load_base_and_adapters(decoder, weights, torch.device("cpu"), seed=0)
    for module in decoder.modules():
        if isinstance(module, LoraMixin):
            nn.init.normal_(module.adapter_b, std=0.1)
    return decoder.eval(), weights


def trained(decoder: Decoder) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in decoder.named_parameters() if p.requires_grad}


def tokens() -> torch.Tensor:
    return torch.randint(0, VOCAB, (2, 12), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("family", FAMILIES)
def test_peft_gives_our_logits(family: str, tmp_path: Path) -> None:
    saved(family, tmp_path / "base")
    section = AdapterSection(rank=4, alpha=6.0, targets=tuple(FAMILIES[family]))
    decoder, weights = adapted(tmp_path / "base", section)
    base = str(tmp_path / "base")
    named = trained(decoder)
    write_adapter(tmp_path / "out", weights.shape, weights.family, section, named, base, {})
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")  # of matrices that are missing, or that nobody has
        loaded = PeftModel.from_pretrained(model, tmp_path / "out")
        torch.testing.assert_close(loaded(tokens()).logits, decoder(tokens()), rtol=0, atol=2e-4)
    held = {n for n, p in loaded.named_parameters() if "lora_" in n}
    assert len(held) == len(named)


@pytest.mark.parametrize(
    ("family", "kind"),
    [("qwen2", "lora"), ("qwen2", "qlora"), ("dots1", "lora"), ("deepseek-v3", "lora")],
)
def test_merged_weights_give_our_logits(family: str, kind: str, tmp_path: Path) -> None:
    saved(family, tmp_path / "base")
    section = AdapterSection.model_validate({"kind": kind, "rank": 4, "targets": ["q", "ffn"]})
    decoder, weights = adapted(tmp_path / "base", section)
    plain = Decoder(weights.shape).eval()
    found = dict(merged_tensors(weights, section, trained(decoder)))
    with torch.no_grad():
        for name, param in [*plain.named_parameters(), *plain.named_buffers()]:
            if name in found:
                param.copy_(found[name])
        torch.testing.assert_close(plain(tokens()), decoder(tokens()), rtol=0, atol=2e-4)


def test_what_peft_would_load_wrongly_is_not_written(tmp_path: Path) -> None:
    saved("dots1", tmp_path / "base")
    section = AdapterSection(rank=4)
    decoder, weights = adapted(tmp_path / "base", section)
    with pytest.raises(PenstockError, match="--merged"):
        write_adapter(
            tmp_path / "out", weights.shape, "dots1", section, trained(decoder), "base", {}
        )


def test_a_folder_is_not_written_over_and_nothing_is_left_out(tmp_path: Path) -> None:
    saved("llama-3.2", tmp_path / "base")
    section = AdapterSection(rank=4)
    decoder, weights = adapted(tmp_path / "base", section)
    named = trained(decoder)
    given = (weights.shape, weights.family, section)
    with pytest.raises(PenstockError, match="there already"):
        write_adapter(tmp_path / "base", *given, named, "base", {})
    named.popitem()
    with pytest.raises(PenstockError, match=r"lacks layers.2.ffn.down.adapter_b"):
        write_adapter(tmp_path / "new", *given, named, "base", {})
    assert not (tmp_path / "new").exists()


def test_an_adapter_has_the_format_that_is_asked_for_and_usual_rights(tmp_path: Path) -> None:
    saved("llama-3.2", tmp_path / "base")
    section = AdapterSection(rank=4)
    decoder, weights = adapted(tmp_path / "base", section)
    given = (weights.shape, weights.family, section, trained(decoder), "base", {})
    before = os.umask(0o022)
    try:
        for dtype, expected in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            size = write_adapter(tmp_path / dtype, *given, dtype)
            file = tmp_path / dtype / "adapter_model.safetensors"
            held = load_file(file)
            assert {tensor.dtype for tensor in held.values()} == {expected}
            assert size == sum(tensor.nbytes for tensor in held.values())
            assert file.stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_an_adapter_of_a_part_of_their_matrix_is_written_merged_only(tmp_path: Path) -> None:
    shape = ModelShape(1, 32, 4, 2, 48, 96)
    with pytest.raises(PenstockError, match=r"phi3 has one matrix for several .*--merged"):
        write_adapter(tmp_path / "out", shape, "phi3", AdapterSection(), {}, "base", {})
    assert not list(tmp_path.iterdir())
