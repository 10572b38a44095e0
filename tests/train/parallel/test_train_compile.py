"""Compiled layers: one graph for all of them, whatever the documents, and the same numbers.

Graphs are captured and differentiated as on a GPU, then run by torch's own operators.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from penstock.catalog.shapes import ModelShape
from penstock.model.decoder import Decoder
from penstock.model.initialize import decoder_on_meta, initialize
from penstock.plan.job.layout import Layout
from penstock.train.parallel.compile import compile_layers, compiles
from penstock.train.parallel.microbatch import Microbatch
from penstock.train.parallel.recompute import apply_recompute

SHAPE = ModelShape(layers=3, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=50)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.compile

    def compiled(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return real(forward, backend="aot_eager")

    monkeypatch.setattr(torch, "compile", compiled)
    torch._dynamo.reset()
    counters.clear()


def made() -> Decoder:
    decoder = decoder_on_meta(SHAPE).double()
    initialize(decoder, torch.device("cpu"), 0)
    return decoder


@pytest.mark.parametrize("how", ["none", "selective"])
def test_one_graph_serves_all_layers(captured: Any, how: str) -> None:
    plain, compiled = made(), made()
    if how != "none":
        apply_recompute(compiled, how)
    compile_layers(compiled)
    draw = torch.Generator().manual_seed(0)
    for _ in range(3):
        tokens = torch.randint(SHAPE.vocab, (2, 33), generator=draw)
        starts = torch.rand(2, 32, generator=draw) < 0.1
        losses = [d(tokens[:, :-1], starts, tokens[:, 1:]) for d in (plain, compiled)]
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-12)
        for loss in losses:
            loss.backward()
    for (name, one), other in zip(plain.named_parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-9, atol=1e-12, msg=name)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def test_evaluation_compiles_nothing(captured: Any) -> None:
    """The graph of training serves it, also for fewer rows; another length has its own graph."""
    plain, compiled = made(), made()
    compile_layers(compiled)
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(SHAPE.vocab, (3, 33), generator=draw)
    compiled(tokens[:, :-1], None, tokens[:, 1:]).backward()
    few = Microbatch(tokens[:2, :-1], tokens[:2, 1:], 1.0)
    grads = {name: param.grad.clone() for name, param in compiled.named_parameters()}
    for micro in (Microbatch(tokens[:, :-1], tokens[:, 1:], 1.0), few.padded(3)):
        with torch.no_grad():
            losses = [
                d.eval()(micro.inputs_bs, None, micro.targets_bs, micro.counted_bs)
                for d in (plain, compiled)
            ]
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-12)
        assert not losses[1].requires_grad
    with torch.no_grad():
        unpadded = plain(few.inputs_bs, None, few.targets_bs)
    assert unpadded.item() == pytest.approx(losses[1].item(), rel=1e-12)
    assert counters["stats"]["unique_graphs"] == 1
    for name, param in compiled.named_parameters():
        assert torch.equal(param.grad, grads[name]), name
    with torch.no_grad():
        compiled(tokens[:, :-5], None, tokens[:, 1:-4])
    assert counters["stats"]["unique_graphs"] == 2


def test_names_of_parameters_stay() -> None:
    compiled = made()
    compile_layers(compiled)
    assert [n for n, _ in compiled.named_parameters()] == [n for n, _ in made().named_parameters()]


class Place:
    def __init__(self, cuda: bool) -> None:
        self.cuda = cuda


def test_when() -> None:
    cpu, gpu = Place(False), Place(True)
    assert compiles("auto", Layout(), gpu)  # type: ignore[arg-type]
    assert compiles("on", Layout(), cpu)  # type: ignore[arg-type]
    for asked, layout, place in [
        ("auto", Layout(), cpu),
        ("auto", Layout(tensor=2), gpu),
        ("auto", Layout(context=2), gpu),
        ("off", Layout(), gpu),
    ]:
        assert not compiles(asked, layout, place)  # type: ignore[arg-type]
