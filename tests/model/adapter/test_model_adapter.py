"""LoRA and QLoRA on the decoder: what is trained, what is frozen, and what it computes."""

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from penstock.catalog.shapes import ModelShape
from penstock.model.adapter.lora import (
    A,
    LoraLinear,
    LoraMixin,
    QloraLinear,
    add_adapters,
    cast_frozen,
)
from penstock.model.adapter.names import adapter_shapes, peft_config, peft_name
from penstock.model.decoder import Decoder
from penstock.model.nf4 import Nf4Linear, dequantize, quantize
from penstock.run.schema.adapter import AdapterSection, misfits, unknown_target

SHAPE = ModelShape(layers=2, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=64, attention_bias=True)
MIXED = replace(
    SHAPE,
    layers=3,
    experts=4,
    experts_active=2,
    expert_ffn=16,
    shared_experts=1,
    dense_layers=1,
    attention_bias=False,
)


def section(**fields: object) -> AdapterSection:
    return AdapterSection.model_validate({"rank": 4, "alpha": 8.0, **fields})


def adapted(given: AdapterSection, shape: ModelShape = SHAPE) -> tuple[Decoder, Decoder]:
    """A decoder, and the same with a trained adapter in it."""
    torch.manual_seed(0)
    base = Decoder(shape).double()
    made = Decoder(shape).double()
    made.load_state_dict(base.state_dict())
    add_adapters(made, given)
    for module in made.modules():
        if isinstance(module, LoraMixin):
            for thin in (module.adapter_a, module.adapter_b):
                nn.init.normal_(thin, std=0.3)
    weights = dict(base.named_parameters())
    for name, module in made.named_modules():
        if isinstance(module, Nf4Linear):
            module.weight.data = quantize(weights[f"{name}.weight"])
    return base, made


def tokens() -> torch.Tensor:
    return torch.randint(0, 64, (2, 9), generator=torch.Generator().manual_seed(1))


def test_only_adapters_are_trained_and_names_stay():
    base, made = adapted(section(targets=["attention", "down"]))
    trained = {name for name, p in made.named_parameters() if p.requires_grad}
    assert trained == set(adapter_shapes(SHAPE, section(targets=["attention", "down"])))
    assert {n for n, p in made.named_parameters() if not p.requires_grad} == {
        name for name, _ in base.named_parameters()
    }
    dimensions = {name: tuple(p.shape) for name, p in made.named_parameters() if p.requires_grad}
    assert dimensions == adapter_shapes(SHAPE, section(targets=["attention", "down"]))


def test_a_new_adapter_changes_nothing():
    base, made = adapted(section())
    for name, param in made.named_parameters():
        if name.endswith("adapter_b"):
            param.data.zero_()
    assert torch.equal(made(tokens()), base(tokens()))


@pytest.mark.parametrize("shape", [SHAPE, MIXED])
def test_it_is_what_the_sum_of_the_weights_would_be(shape):
    base, made = adapted(section(), shape)
    weights = dict(base.named_parameters())
    with torch.no_grad():
        for name, module in made.named_modules():
            if isinstance(module, LoraLinear):
                product = module.adapter_b @ module.adapter_a
                weights[f"{name}.weight"] += product * 8.0 / 4
    torch.testing.assert_close(made(tokens()), base(tokens()), rtol=1e-10, atol=1e-10)


def test_gradients_are_those_of_the_formula():
    _, made = adapted(section(targets=["v"]))
    made(tokens()).square().sum().backward()
    layer = made.layers["0"].attention.v
    with torch.no_grad():
        step = 1e-6
        layer.adapter_a[1, 2] += step
        more = made(tokens()).square().sum()
        layer.adapter_a[1, 2] -= 2 * step
        less = made(tokens()).square().sum()
    slope = (more - less) / (2 * step)
    torch.testing.assert_close(layer.adapter_a.grad[1, 2], slope, rtol=1e-5, atol=1e-6)
    assert layer.weight.grad is None


def test_dropout_is_for_training_alone():
    _, made = adapted(section(dropout=0.5))
    made.eval()
    assert torch.equal(made(tokens()), made(tokens()))
    made.train()
    assert not torch.equal(made(tokens()), made(tokens()))


def test_four_bit_weights_compute_what_they_say():
    base, made = adapted(section(kind="qlora", targets=["attention"]))
    ffn = made.layers["0"].ffn.gate
    assert type(ffn) is Nf4Linear  # all matrices are narrow, also those without an adapter
    assert isinstance(made.layers["0"].attention.q, QloraLinear)
    weights = dict(base.named_parameters())
    with torch.no_grad():
        for name, module in made.named_modules():
            if isinstance(module, Nf4Linear):
                whole = dequantize(module.weight, module.in_features, torch.float64)
                if isinstance(module, LoraMixin):
                    whole += module.adapter_b @ module.adapter_a * module.scale
                weights[f"{name}.weight"].copy_(whole)
    torch.testing.assert_close(made(tokens()), base(tokens()), rtol=1e-5, atol=1e-5)
    made(tokens()).square().sum().backward()
    trained = set(adapter_shapes(SHAPE, section(targets=["attention"])))
    assert {n for n, p in made.named_parameters() if p.grad is not None} == trained


def test_frozen_weights_are_narrow_and_trained_ones_are_not():
    _, made = adapted(section(kind="qlora"))
    cast_frozen(made, torch.bfloat16)
    kinds = {p.dtype for p in made.parameters() if not p.requires_grad}
    assert kinds == {torch.bfloat16, torch.uint8}
    assert {p.dtype for p in made.parameters() if p.requires_grad} == {torch.float64}


@pytest.mark.parametrize("shape", [SHAPE, MIXED])
def test_the_count_of_what_is_trained(shape):
    for given in (section(), section(targets=["q", "up"])):
        _, made = adapted(given, shape)
        held = sum(p.numel() for p in made.parameters() if p.requires_grad)
        assert given.trained(shape) == held


def test_routed_experts_get_none():
    _, made = adapted(section(), MIXED)
    names = {name for name, p in made.named_parameters() if p.requires_grad}
    assert any("ffn.shared.up" in name for name in names)
    assert not any("experts" in name or "router" in name for name in names)


def test_what_a_model_cannot_have():
    assert misfits(section(), SHAPE) == misfits(section(), MIXED) == []
    routed = replace(MIXED, shared_experts=0, dense_layers=0)
    assert "routed experts" in misfits(section(), routed)[0]
    assert misfits(section(targets=["attention"]), routed) == []
    assert 'kind = "lora"' in misfits(section(kind="qlora"), MIXED)[0]
    latent = replace(MIXED, kv_heads=4, kv_rank=8, rope_dim=4, nope_dim=4, v_dim=6)
    assert misfits(section(), latent) == misfits(section(targets=["q", "kv"]), latent) == []
    (told,) = misfits(section(targets=["q_down", "q", "v"]), latent)
    assert told.startswith("model.adapter.targets: q_down, v: the attention of this model has no")
    assert "write of q, kv_down, kv, out, or" in told
    assert "of q, k, v, out, or" in misfits(section(targets=["kv"]), MIXED)[0]


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        (["q_proj"], '"q"'),
        (["o_proj"], '"out"'),
        (["all-linear"], '"attention", "ffn"'),
        (["atention"], "attention"),
    ],
)
def test_unknown_targets(targets, says):
    assert says in unknown_target(section(targets=targets))


def test_no_target_is_refused():
    with pytest.raises(ValidationError, match="nothing is trained"):
        section(targets=[])
    assert unknown_target(section(targets=["attention", "up"])) == ""


def test_names_for_peft():
    ours = f"layers.1.attention.out.{A}"
    theirs = "base_model.model.model.layers.1.self_attn.o_proj.lora_A.weight"
    assert peft_name(ours, SHAPE, "qwen2") == theirs
    dense = peft_config(SHAPE, "qwen2", section(targets=["q", "down"]), "base")
    assert dense["target_modules"] == ["down_proj", "q_proj"]
    hub = peft_config(SHAPE, "qwen2", section(), "hf:org/name@main")
    assert (hub["base_model_name_or_path"], hub["revision"]) == ("org/name", "main")
