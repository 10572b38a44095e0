"""The angles of rotary positions are those of transformers, to the bit."""

import pytest
import torch

from penstock.catalog.open.models import shape_of
from penstock.catalog.shapes import ModelShape
from penstock.model.layers import document_positions, frequencies, rotary_cos_sin

CPU = torch.device("cpu")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize("width", [64, 80, 128])
@pytest.mark.parametrize("theta", [1e4, 5e5, 1e6])
@pytest.mark.parametrize("scaling", [None, LLAMA3, LLAMA3 | {"factor": 32.0}])
def test_the_angles_are_those_of_transformers(
    width: int, theta: float, scaling: dict | None
) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=2 * width,
        num_attention_heads=2,
        intermediate_size=8,
        num_hidden_layers=1,
        vocab_size=8,
        max_position_embeddings=131072,
        rope_theta=theta,
        rope_scaling=scaling and dict(scaling),  # it is written into
    )
    shape = shape_of(config.to_dict())
    assert (shape.rope_scaling is None) == (scaling is None)
    theirs = LlamaRotaryEmbedding(config)
    assert torch.equal(frequencies(shape, CPU), theirs.inv_freq)
    positions = torch.tensor([[0, 1, 17, 4095, 8192, 131071]])
    cos, sin = theirs(torch.zeros(1), positions)
    ours = rotary_cos_sin(positions, shape)
    assert torch.equal(ours[0], cos[..., : width // 2])
    assert torch.equal(ours[1], sin[..., : width // 2])


def test_scaling_slows_the_slow_and_keeps_the_fast() -> None:
    plain = ModelShape(1, 128, 1, 1, 8, 8, rope_theta=5e5)
    scaled = shape_of(
        {
            "model_type": "llama",
            "hidden_size": 128,
            "num_attention_heads": 1,
            "num_hidden_layers": 1,
            "intermediate_size": 8,
            "vocab_size": 8,
            "max_position_embeddings": 131072,
            "rope_theta": 5e5,
            "rope_scaling": LLAMA3,
        }
    )
    ratio = frequencies(scaled, CPU) / frequencies(plain, CPU)
    assert ratio[0] == 1.0
    assert ratio[-1] == pytest.approx(1 / 8)
    assert (ratio.diff() <= 0).all()
    assert ((ratio > 0.126) & (ratio < 0.999)).any()  # some are in between


def test_places_begin_anew_with_each_document() -> None:
    starts = torch.tensor([[False, False, True, False], [True, True, False, True]])
    assert document_positions(starts).tolist() == [[0, 1, 0, 1], [0, 0, 1, 0]]
