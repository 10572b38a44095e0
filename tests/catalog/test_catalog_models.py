"""Model presets: our count of each shape stands by the one its maker published."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.catalog import models
from penstock.catalog.models import PublishedCount
from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError

PRESETS = models.all()

EXACT = {  # from the weights on the Hugging Face hub
    "llama-1b": 1_235_814_400,
    "llama-3b": 3_212_749_824,
    "llama-8b": 8_030_261_248,
    "llama-70b": 70_553_706_496,
    "llama-405b": 405_853_388_800,
    "llama2-7b": 6_738_415_616,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-32b": 32_762_123_264,
    "qwen3-235b-a22b": 235_093_634_560,
    "mistral-7b": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "deepseek-v2-lite": 15_706_484_224,
}


@pytest.mark.parametrize("preset", PRESETS, ids=lambda p: p.name)
def test_our_count_is_the_published_one(preset):
    assert preset.published.agrees(preset.shape.params())


@pytest.mark.parametrize(("name", "params"), EXACT.items())
def test_counts_of_known_weights(name, params):
    assert models.preset(name).params() == params


def test_deepseek_v3_differs_from_its_weights_by_the_routing_biases_only():
    v3 = models.preset("deepseek-v3")
    biases = v3.experts * (v3.layers - v3.dense_layers)
    assert v3.params() + biases == 671_026_419_200


@pytest.mark.parametrize("preset", [p for p in PRESETS if p.shape.moe], ids=lambda p: p.name)
def test_active_counts(preset):
    # Makers count the active parameters with the input embedding or without.
    with_embedding = preset.shape.params(active=True)
    without = with_embedding - preset.shape.embedding_params()
    assert preset.published_active is not None
    assert any(preset.published_active.agrees(n) for n in (with_embedding, without))


@pytest.mark.parametrize("preset", PRESETS, ids=lambda p: p.name)
def test_shapes_hang_together(preset):
    shape = preset.shape
    assert shape.heads % shape.kv_heads == 0
    assert shape.head_dim or shape.hidden % shape.heads == 0
    assert shape.kv_rank or shape.head_width % 2 == 0, "rotary turns pairs"
    assert shape.moe == bool(shape.experts_active) == bool(shape.expert_ffn)
    assert shape.experts_active <= shape.experts
    assert shape.moe == (preset.published_active is not None)
    assert bool(shape.kv_rank) == bool(shape.rope_dim) == bool(shape.nope_dim) == bool(shape.v_dim)
    assert shape.context >= 256


def test_own_presets_are_as_the_design_has_them():
    tiny = models.preset("llama-3m")
    assert tiny == ModelShape(2, 256, 4, 2, 512, 4096, context=256)
    assert models.preset("llama-160m") == ModelShape(12, 768, 12, 12, 2048, 50304, context=1024)
    for name, millions in (
        ("3m", 3.28),
        ("15m", 14.6),
        ("60m", 59.8),
        ("160m", 162),
        ("350m", 350),
    ):
        assert models.preset(f"llama-{name}").params() / 1e6 == pytest.approx(millions, rel=0.01)


def test_names_in_order_and_by_hub_id():
    assert models.names()[0] == "llama-3m"
    assert "deepseek-v3" in models.names()
    assert models.preset("meta-llama/Llama-3.1-8B") is models.preset("llama-8b")
    with pytest.raises(PenstockError, match="Did you mean 'mixtral-8x7b'"):
        models.preset("mixtral-8x8b")


@pytest.mark.parametrize(
    ("printed", "params", "unit"),
    [
        (7, 7, 1),
        ("671B", 671 * 10**9, 10**9),
        ("36.6B", 36_600_000_000, 10**8),
        ("60M", 6 * 10**7, 10**6),
    ],
)
def test_printed_counts(printed, params, unit):
    assert PublishedCount.parse(printed) == PublishedCount(params, unit)


def test_agreement_is_one_in_the_last_digit():
    assert PublishedCount.parse("2.4B").agrees(2_451_435_008)
    assert not PublishedCount.parse("2.4B").agrees(2_500_000_000)
    assert not PublishedCount.parse(100).agrees(101)


@given(
    layers=st.integers(2, 6),
    dense=st.integers(0, 1),
    width=st.integers(1, 8),
    experts=st.integers(2, 12),
    shared=st.integers(0, 2),
)
@settings(max_examples=50)
def test_active_parameters_grow_to_all_of_them(layers, dense, width, experts, shared):
    def shape(active: int) -> ModelShape:
        return ModelShape(
            layers=layers,
            hidden=16 * width,
            heads=width,
            kv_heads=1,
            ffn=64,
            vocab=128,
            experts=experts,
            experts_active=active,
            expert_ffn=32,
            shared_experts=shared,
            dense_layers=dense,
        )

    counts = [shape(k).params(active=True) for k in range(1, experts + 1)]
    assert counts == sorted(set(counts))
    assert counts[-1] == shape(1).params(), "a token that visits every expert touches everything"
