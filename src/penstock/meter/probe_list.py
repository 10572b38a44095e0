"""The list of a probe's items by kind of device, the most useful first."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

PRECISIONS = ("bf16", "fp32")
ELEMENTWISE = ("norm_s", "rotary_s", "gate_s", "add_s")


@dataclass(frozen=True)
class ProbeItem:
    """One reading: a table of the probe's file, a precision, and the size of the work."""

    table: str
    at: tuple[int, ...]
    precision: str = ""  # "" where there is only one

    @property
    def curve(self) -> tuple[str, str]:
        """Return what it is a point of."""
        return self.table, self.precision


@dataclass(frozen=True)
class ProbeSizes:
    """`sides` of products; `elements` of tensors; `logits`; attention; `parameters`; `messages`."""

    sides: tuple[int, ...]
    elements: tuple[int, ...]
    logits: tuple[int, ...]
    sequences: tuple[int, ...]
    head_widths: tuple[int, ...]
    attention_tokens: int  # sequence × heads of one attention reading
    unit_parameters: tuple[int, ...]
    all_parameters: tuple[int, ...]
    messages: tuple[int, ...]  # bytes


FRESH_BYTES = 16 << 20
MESSAGES = (4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20)
SIZES = {
    "cpu": ProbeSizes(
        sides=(64, 256, 1024, 4096),
        elements=(1 << 14, 1 << 17, 1 << 20, 1 << 23),
        logits=(1 << 17, 1 << 20, 1 << 22, 1 << 24),
        sequences=(128, 256, 512, 1024, 2048),  # its blocks change size in between
        head_widths=(32, 64, 128),
        attention_tokens=2048,
        unit_parameters=(1 << 16, 1 << 20, 1 << 23),
        all_parameters=(1 << 18, 1 << 21, 1 << 24),
        messages=MESSAGES,
    ),
    "cuda": ProbeSizes(
        sides=(256, 1024, 4096, 16384),
        elements=(1 << 16, 1 << 20, 1 << 24, 1 << 27),
        logits=(1 << 20, 1 << 24, 1 << 28),
        sequences=(512, 2048, 8192),
        head_widths=(64, 128),
        attention_tokens=1 << 18,
        unit_parameters=(1 << 20, 1 << 24, 1 << 27),
        all_parameters=(1 << 20, 1 << 24, 1 << 28),
        messages=MESSAGES,
    ),
}
QUICK = {
    "cpu": ProbeSizes(
        sides=(64, 512),
        elements=(1 << 14, 1 << 19),
        logits=(1 << 17, 1 << 21),
        sequences=(128, 512),
        head_widths=(64,),
        attention_tokens=2048,
        unit_parameters=(1 << 16, 1 << 20),
        all_parameters=(1 << 18, 1 << 21),
        messages=(4 << 10, 1 << 20, 8 << 20),
    ),
    "cuda": ProbeSizes(
        sides=(256, 4096),
        elements=(1 << 16, 1 << 24),
        logits=(1 << 20, 1 << 26),
        sequences=(512, 4096),
        head_widths=(64,),
        attention_tokens=1 << 17,
        unit_parameters=(1 << 20, 1 << 24),
        all_parameters=(1 << 20, 1 << 26),
        messages=(4 << 10, 1 << 20, 64 << 20),
    ),
}


def items(
    kind: str, ranks: int, fp8: bool = False, quick: bool = False, slow: tuple[str, ...] = ()
) -> list[ProbeItem]:
    """Return the items in order of size: when time runs out, the largest are extrapolated. The
    smallest of each table come first, since a plan needs a reading of each.

    Precisions that are `slow` here get only small products: a reading of a large one would take
    seconds, and nobody trains in them.
    """
    sizes = (QUICK if quick else SIZES)[kind]
    found = [ProbeItem("op_s", ())]
    for precision in (*PRECISIONS, *(("fp8",) if fp8 else ())):
        sides = sizes.sides[:2] if precision in slow else sizes.sides
        found += [ProbeItem("matmul_s", at, precision) for at in product(sides, repeat=3)]
    for precision in PRECISIONS:
        if precision not in slow:
            found += _by_precision(sizes, precision)
    found += [ProbeItem("update_s", (n,)) for n in sizes.all_parameters]
    if kind == "cpu":
        found.append(ProbeItem("fresh_s", (FRESH_BYTES,)))
    if ranks > 1:
        found += [ProbeItem("all_reduce_s", (n,)) for n in sizes.messages]
    found.sort(key=_work)
    first = {item.curve: item for item in reversed(found)}
    return sorted(found, key=lambda item: first[item.curve] != item)


def _by_precision(sizes: ProbeSizes, precision: str) -> Iterator[ProbeItem]:
    for table in ELEMENTWISE:
        yield from (ProbeItem(table, (n,), precision) for n in sizes.elements)
    yield from (ProbeItem("loss_s", (n,), precision) for n in sizes.logits)
    yield from (ProbeItem("shard_s", (n,), precision) for n in sizes.unit_parameters)
    for sequence, width in product(sizes.sequences, sizes.head_widths):
        heads = max(1, sizes.attention_tokens // sequence)
        yield ProbeItem("attention_s", (sequence, width, heads), precision)


def _work(item: ProbeItem) -> float:
    """Return a rough cost to sort by: multiply-adds of a product, passes over memory otherwise."""
    if item.table == "matmul_s":
        return float(item.at[0] * item.at[1] * item.at[2])
    if item.table == "attention_s":
        sequence, width, heads = item.at
        return 4.0 * sequence * sequence * width * heads
    return 200.0 * (item.at[0] if item.at else 0)
