"""The decoder computes what its shape says: sizes, causality, grouped heads, rotary positions."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penstock.catalog import models
from penstock.catalog.shapes import ModelShape
from penstock.model.decoder import Decoder
from penstock.model.initialize import decoder_on_meta, initialize
from penstock.model.layers import apply_rotary, rotary_cos_sin

CPU = torch.device("cpu")
SMALL = ModelShape(layers=2, hidden=16, heads=4, kv_heads=2, ffn=24, vocab=50)
DENSE = [p.name for p in models.all() if not (p.shape.moe or p.shape.kv_rank)]


def decoder(shape: ModelShape, seed: int = 0) -> Decoder:
    model = decoder_on_meta(shape).double()
    initialize(model, CPU, seed)
    return model


def tokens(batch: int, sequence: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(SMALL.vocab, (batch, sequence), generator=draw)


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    kv_heads, group, width = (draw(st.integers(1, 4)) for _ in range(3))
    heads = kv_heads * group
    own_width = draw(st.booleans())
    return ModelShape(
        layers=draw(st.integers(1, 3)),
        hidden=draw(st.integers(4, 40)) if own_width else 2 * width * heads,
        heads=heads,
        kv_heads=kv_heads,
        ffn=draw(st.integers(1, 50)),
        vocab=draw(st.integers(1, 60)),
        tied=draw(st.booleans()),
        head_dim=2 * width if own_width else None,
        qk_norm=draw(st.booleans()),
        attention_bias=draw(st.booleans()),
    )


def test_there_are_dense_presets_of_every_size() -> None:
    assert {"llama-3m", "llama-1b"} <= set(DENSE)
    assert max(models.preset(name).params() for name in DENSE) > 50e9


@pytest.mark.parametrize("name", DENSE)
def test_a_preset_has_the_parameters_its_shape_counts(name: str) -> None:
    shape = models.preset(name)
    # Every layer is built alike: two of them tell as much as a hundred, and faster.
    few = replace(shape, layers=min(shape.layers, 2))
    model = decoder_on_meta(few)
    assert sum(p.numel() for p in model.parameters()) == few.params()
    layer = sum(p.numel() for p in model.layers["0"].parameters())
    assert shape.params() == few.params() + (shape.layers - few.layers) * layer


@given(shapes())
@settings(max_examples=40, deadline=None)
def test_any_dense_shape_has_the_parameters_it_counts(shape: ModelShape) -> None:
    model = decoder_on_meta(shape)
    assert sum(p.numel() for p in model.parameters()) == shape.params()
    assert not list(model.buffers())  # nothing that `initialize` would leave without a value


@given(shapes(), st.integers(2, 12), st.data())
@settings(max_examples=25, deadline=None)
def test_a_later_token_never_changes_earlier_logits(
    shape: ModelShape, sequence: int, data: st.DataObject
) -> None:
    shape = replace(shape, vocab=max(2, shape.vocab))
    at = data.draw(st.integers(0, sequence - 1))
    before = torch.randint(shape.vocab, (2, sequence), generator=torch.Generator().manual_seed(1))
    after = before.clone()
    after[:, at] = (after[:, at] + 1) % shape.vocab
    model = decoder(shape)
    with torch.no_grad():
        old, new = model(before), model(after)
    assert old.shape == (2, sequence, shape.vocab)
    torch.testing.assert_close(old[:, :at], new[:, :at], rtol=1e-12, atol=1e-12)
    assert not torch.equal(old[:, at], new[:, at])


def test_a_later_token_does_see_the_earlier_ones() -> None:
    model = decoder(SMALL)
    before = tokens(1, 8)
    after = before.clone()
    after[0, 2] = (after[0, 2] + 1) % SMALL.vocab
    changed = (model(before) - model(after)).abs().amax(-1)[0] > 1e-9
    assert changed.tolist() == [False, False, True, True, True, True, True, True]


def test_samples_of_a_batch_do_not_see_each_other() -> None:
    model = decoder(SMALL)
    batch = tokens(3, 8)
    alone = torch.cat([model(row[None]) for row in batch])
    torch.testing.assert_close(model(batch), alone, rtol=1e-12, atol=1e-12)


def test_grouped_heads_are_full_heads_with_the_keys_and_values_repeated() -> None:
    grouped, full = decoder(SMALL), decoder(replace(SMALL, kv_heads=SMALL.heads))
    width, times = SMALL.head_width, SMALL.heads // SMALL.kv_heads
    weights = grouped.state_dict()
    for name, weight in weights.items():
        if name.endswith(("attention.k.weight", "attention.v.weight")):
            heads = weight.unflatten(0, (SMALL.kv_heads, width))
            weights[name] = heads.repeat_interleave(times, 0).flatten(0, 1)
    full.load_state_dict(weights)
    torch.testing.assert_close(grouped(tokens(2, 9)), full(tokens(2, 9)), rtol=1e-12, atol=1e-12)


def test_the_logits_are_those_of_the_formula_written_out() -> None:
    """The whole forward once more, with explicit scores and mask instead of torch's attention."""
    shape = replace(SMALL, qk_norm=True, attention_bias=True)
    model = decoder(shape)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if name.endswith(("bias", "norm.weight")):
                param.normal_(1.0, 0.3, generator=torch.Generator().manual_seed(len(name)))
    w = model.state_dict()
    tokens_bs = tokens(2, 7)

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + shape.norm_eps).sqrt() * weight

    def heads(x: Tensor, name: str, count: int) -> Tensor:
        full = x @ w[f"{name}.weight"].T + w[f"{name}.bias"]
        return full.unflatten(-1, (count, shape.head_width))

    x = w["embed.weight"][tokens_bs]
    cos_sin = rotary_cos_sin(torch.arange(7), shape)
    blocked = torch.ones(7, 7).triu(1).bool()
    for i in range(shape.layers):
        at = f"layers.{i}"
        h = norm(x, w[f"{at}.attention_norm.weight"])
        q = heads(h, f"{at}.attention.q", shape.heads)
        k = heads(h, f"{at}.attention.k", shape.kv_heads)
        v = heads(h, f"{at}.attention.v", shape.kv_heads)
        q = apply_rotary(norm(q, w[f"{at}.attention.q_norm.weight"]), cos_sin)
        k = apply_rotary(norm(k, w[f"{at}.attention.k_norm.weight"]), cos_sin)
        k, v = (t.repeat_interleave(shape.heads // shape.kv_heads, 2) for t in (k, v))
        scores = torch.einsum("bqhe,bkhe->bhqk", q, k) / shape.head_width**0.5
        share = scores.masked_fill(blocked, float("-inf")).softmax(-1)
        out = torch.einsum("bhqk,bkhe->bqhe", share, v).flatten(2)
        x = x + out @ w[f"{at}.attention.out.weight"].T
        h = norm(x, w[f"{at}.ffn_norm.weight"])
        gate, up = (h @ w[f"{at}.ffn.{part}.weight"].T for part in ("gate", "up"))
        x = x + (F.silu(gate) * up) @ w[f"{at}.ffn.down.weight"].T
    expected = norm(x, w["norm.weight"]) @ w["head.weight"].T
    torch.testing.assert_close(model(tokens_bs), expected, rtol=1e-10, atol=1e-10)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=30, deadline=None)
def test_rotary_scores_depend_on_the_distance_alone(at: int, other: int, shift: int) -> None:
    cos_sin = rotary_cos_sin(torch.arange(81), SMALL).double()
    draw = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, SMALL.head_width, dtype=torch.float64, generator=draw)

    def score(i: int, j: int) -> float:
        return float(
            (apply_rotary(q, cos_sin[:, i : i + 1]) * apply_rotary(k, cos_sin[:, j : j + 1])).sum()
        )

    assert score(at, other) == pytest.approx(score(at + shift, other + shift), abs=2e-5)
    # A rotation: position 0 is left alone, and no length changes.
    assert torch.equal(apply_rotary(q, cos_sin[:, :1]), q)
    assert float(apply_rotary(q, cos_sin[:, at : at + 1]).norm()) == pytest.approx(
        float(q.norm()), rel=1e-6
    )


def test_rotary_positions_are_told_apart_and_theta_sets_their_pace() -> None:
    shape = replace(SMALL, head_dim=8)
    cos, sin = rotary_cos_sin(torch.arange(5), shape)
    assert cos.shape == (5, 4)
    for pair in range(4):
        angle = torch.arange(5) * shape.rope_theta ** (-2 * pair / 8)
        torch.testing.assert_close(cos[:, pair], angle.cos())
        torch.testing.assert_close(sin[:, pair], angle.sin())
    slower = rotary_cos_sin(torch.arange(5), replace(shape, rope_theta=1e6))
    assert (slower[1, 1, 1:] < sin[1, 1:]).all()


def test_without_rotary_positions_a_repeated_token_would_say_nothing_of_its_place() -> None:
    model = decoder(SMALL)
    row = model(torch.tensor([[3, 7, 3, 3]]))[0]
    assert not torch.allclose(row[2], row[3], atol=1e-9)


def test_a_tied_head_is_the_embedding_itself() -> None:
    tied = decoder(replace(SMALL, tied=True))
    assert tied.head is None
    with torch.no_grad():
        before = tied(tokens(1, 4))
        tied.embed.weight[49] *= 2  # 49 is not among the inputs, so only the output side changes
        after = tied(tokens(1, 4))
    assert 49 not in tokens(1, 4)
    torch.testing.assert_close(after[..., :49], before[..., :49])
    torch.testing.assert_close(after[..., 49], 2 * before[..., 49])
    tied(tokens(1, 4)).sum().backward()
    grad = tied.embed.weight.grad
    assert grad is not None
    assert (grad.abs().sum(1) > 0).all()  # every row, not only those of the inputs


def test_an_untied_head_is_its_own() -> None:
    model = decoder(SMALL)
    assert model.head is not None
    assert model.head.weight.data_ptr() != model.embed.weight.data_ptr()
    with torch.no_grad():
        model.head.weight.zero_()
    assert not model(tokens(1, 4)).any()


def test_qk_norm_makes_the_scale_of_queries_and_keys_irrelevant() -> None:
    for qk_norm in (True, False):
        model = decoder(replace(SMALL, qk_norm=qk_norm, norm_eps=1e-12))
        with torch.no_grad():
            before = model(tokens(1, 6))
            for layer in model.layers.values():
                layer.attention.q.weight *= 30.0
                layer.attention.k.weight *= 0.1
            after = model(tokens(1, 6))
        assert torch.allclose(before, after, rtol=1e-6, atol=1e-6) == qk_norm
