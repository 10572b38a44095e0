"""4-bit NormalFloat: the published code, what is lost, and that nothing wide is kept."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.nf4 import BLOCK, CODE, Nf4Linear, dequantize, nf4_linear, quantize, row_bytes


def test_the_code_is_quantiles_of_the_normal_distribution():
    """As published: eight above zero, seven below, evenly spaced in probability up to 0.9677."""
    most = 0.9677083
    above = torch.special.ndtri(torch.linspace(most, 0.5, 9, dtype=torch.float64))[:-1]
    below = -torch.special.ndtri(torch.linspace(most, 0.5, 8, dtype=torch.float64))[:-1]
    code = torch.cat((above, torch.zeros(1, dtype=torch.float64), below)).sort().values
    code /= code.max()
    torch.testing.assert_close(torch.tensor(CODE, dtype=torch.float64), code, rtol=0, atol=2e-7)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 5),
    width=st.integers(1, 200),
    scale=st.sampled_from([1e-6, 0.02, 1.0, 1e4]),
    seed=st.integers(0, 99),
)
def test_each_weight_is_the_nearest_value_of_its_block(rows, width, scale, seed):
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, width, generator=draw) * scale
    stored = quantize(weight)
    assert stored.shape == (rows, row_bytes(width))
    read = dequantize(stored, width, torch.float32)
    for block, back in zip(weight.split(BLOCK, 1), read.split(BLOCK, 1), strict=True):
        largest = block.abs().amax(1, keepdim=True)
        # The widest gap of the code is 0.304; magnitudes are rounded to 1/255 of their range.
        spread = weight.abs().max() / 255
        assert ((block - back).abs() <= 0.153 * largest + spread).all()
    again = dequantize(quantize(read), width, torch.float32)
    # What was read is on the grid, up to a rounding of the range of magnitudes.
    torch.testing.assert_close(again, read, rtol=1e-5, atol=1e-5 * scale)


def test_zeros_and_the_largest_stay():
    weight = torch.zeros(3, 128)
    weight[1, 5] = -2.5
    assert torch.equal(dequantize(quantize(weight), 128, torch.float32), weight)


def test_the_error_on_normal_weights():
    """9 % of their root mean square, as blocks of 64 in NF4 have."""
    weight = torch.randn(256, 1024, generator=torch.Generator().manual_seed(0))
    off = dequantize(quantize(weight), 1024, torch.float32) - weight
    assert 0.085 < (off.square().mean() / weight.square().mean()).sqrt() < 0.1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_matmul_and_its_gradient(dtype):
    draw = torch.Generator().manual_seed(3)
    stored = quantize(torch.randn(20, 70, generator=draw))
    whole = dequantize(stored, 70, dtype)
    x = torch.randn(2, 5, 70, generator=draw, dtype=dtype, requires_grad=True)
    bias = torch.randn(20, generator=draw, dtype=dtype)
    other = x.detach().clone().requires_grad_()
    got, wanted = nf4_linear(x, stored, bias), torch.nn.functional.linear(other, whole) + bias
    assert torch.equal(got, wanted)
    got.sum().backward()
    wanted.sum().backward()
    assert torch.equal(x.grad, other.grad)


def test_no_wide_copy_is_kept_for_the_backward_pass():
    kept: list[torch.Tensor] = []
    linear = Nf4Linear(128, 64, bias=False)
    linear.weight.data = quantize(torch.randn(64, 128))
    x = torch.randn(2, 128, requires_grad=True)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        linear(x)
    assert [tensor.dtype for tensor in kept] == [torch.uint8]


def test_bits_per_weight():
    assert row_bytes(4096) * 8 / 4096 == 4 + 8 / 64 + 64 / 4096
