"""Batches on their way to a GPU: nothing is overwritten while it is still being read."""

import itertools

import numpy as np
import pytest
import torch

from penstock.catalog.shapes import ModelShape
from penstock.data.read.batch import Batch
from penstock.data.read.feed import Feed
from penstock.model.initialize import decoder_on_meta, initialize
from penstock.train.parallel.microbatch import DeviceLoader, Microbatch
from penstock.train.parallel.runner import microbatch_loss

pytestmark = pytest.mark.gpu
SHAPE = (64, 4097)


class Numbered:
    """Batches that hold nothing but their number."""

    def read(self, start: int, stop: int) -> Batch:
        number = start // SHAPE[0]
        odd = np.full(SHAPE, number % 2 > 0)
        return Batch(np.full(SHAPE, number, dtype=np.int64), odd, ~odd)

    def plan_ahead(self, ranges: object) -> None:
        pass


def test_batches_stay_whole_while_a_slow_device_reads_them() -> None:
    """The device is kept far behind the host, so that memory given back too early would be
    filled by later batches before it was read."""
    device = torch.device("cuda", 0)
    ranges = ((at, at + SHAPE[0]) for at in itertools.count(0, SHAPE[0]))
    feed = Feed(DeviceLoader(Numbered(), device), ranges, depth=4)
    busy = torch.randn(6000, 6000, device=device)
    seen = []
    for _ in range(150):
        micros = feed.next().micros(2, 32)
        for _ in range(3):
            busy = (busy @ busy).clamp(-1, 1)
        for micro in micros:
            assert micro.counted_bs is not None
            assert micro.starts_bs is not None
            least, most = micro.inputs_bs.min(), micro.targets_bs.max()
            seen.append(torch.stack((least, most, micro.counted_bs.sum(), micro.starts_bs.sum())))
        del micros, micro
    feed.close()
    found = torch.stack(seen).cpu().reshape(150, 2, 4)
    for number, halves in enumerate(found.tolist()):
        whole = 32 * (SHAPE[1] - 1)
        odd = whole if number % 2 else 0
        assert halves == [[number, number, odd, whole - odd]] * 2


def test_a_slow_copy_is_waited_for() -> None:
    """Each copy stands behind tenths of a second of other work on its stream."""
    device = torch.device("cuda", 0)
    loader = DeviceLoader(Numbered(), device)
    for number in range(5):
        with torch.cuda.stream(loader._copy_stream):
            torch.cuda._sleep(300_000_000)
        start = (7 + number) * SHAPE[0]
        (micro,) = loader.read(start, start + SHAPE[0]).micros(1, SHAPE[0])
        assert micro.inputs_bs.min().item() == 7 + number


@pytest.mark.parametrize("deterministic", [False, True])
def test_documents_are_apart_on_the_gpu_too(deterministic: bool) -> None:
    device = torch.device("cuda", 0)
    shape = ModelShape(layers=2, hidden=64, heads=4, kv_heads=2, ffn=96, vocab=50)
    torch.use_deterministic_algorithms(deterministic)
    try:
        model = decoder_on_meta(shape)
        initialize(model, device, 0)
        tokens = torch.randint(50, (2, 40), generator=torch.Generator().manual_seed(0)).to(device)
        starts = torch.zeros(2, 40, dtype=torch.bool, device=device)
        starts[:, [0, 13, 29]] = True
        alone = [model(tokens[:, a:b]) for a, b in ((0, 13), (13, 29), (29, 40))]
        torch.testing.assert_close(model(tokens, starts), torch.cat(alone, 1), rtol=1e-4, atol=1e-4)
        microbatch_loss(model)(Microbatch(tokens, tokens, 1.0, ~starts, starts)).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    finally:
        torch.use_deterministic_algorithms(False)
