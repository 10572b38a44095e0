"""Does the stream's shuffle train as well as a full one? Loss curves, order by order.

    python benchmarks/order_loss.py [--seeds 5] [--processes 6]
    python benchmarks/order_loss.py --small --seeds 2 --processes 1     # minutes on a CPU
    python benchmarks/order_loss.py --prepare      # the two sets alone; prints their names
    python benchmarks/order_loss.py --sets stdlib@… stdlib-by-path@…    # on another machine
    python benchmarks/order_loss.py --sets here --megabytes 150 --tokens 40M --rate 1e-3
    python benchmarks/order_loss.py --sets stdlib pieces --small --steps 1000   # half an hour, CPU

`window-1, 1/16` is the stream's local order with a window of a sixteenth of what is read.

One pass over the standard library, with its documents shuffled as the build does and in the order
of their paths. Both sets end with the same held-out documents. What a window mixes is documents:
`here` is a set with many more of them, from this machine's text files; `pieces` is the library cut
so that no document is longer than half a sample; `--tokens` and `--steps` read less of a set. The
runs of a seed have the same first weights. "Another permutation" against the first one shows what
two orders that are equally good differ by.
"""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path

import here
import numpy as np
from blake3 import blake3
from trial import (
    FULL,
    SMALL,
    Scale,
    Starts,
    document_starts,
    in_processes,
    mean_loss,
    spread,
    train,
)

from penstock.data.build import stdlib
from penstock.data.build.open import datasets_home, open_dataset
from penstock.data.format.writer import DatasetWriter
from penstock.data.read.dataset import Dataset
from penstock.data.read.order import SPAN, ShuffleOrder, WindowOrder
from penstock.run.schema.quantity import count

HELD_OUT = 0.03  # of the tokens, at least
MOST_HELD_OUT = 1024  # samples, from all of the held-out part
LOOKS = 8
BY_PATH = "stdlib-by-path"
PIECES = "stdlib-pieces"
MOST_SMALL = 256  # held-out samples of a small run
REFERENCE = "full permutation"

ORDERS: dict[str, Callable[[int, int], Starts]] = {
    REFERENCE: lambda samples, seed: permutation(samples, seed),
    "another permutation": lambda samples, seed: permutation(samples, seed + 999),
    "feistel-1": lambda samples, seed: ShuffleOrder(samples, seed).index(np.arange(samples)),
    "window-1, 1/16": lambda samples, seed: window(samples, seed, 16),
    "window-1, 1/8": lambda samples, seed: window(samples, seed, 8),
    "window-1, 1/4": lambda samples, seed: window(samples, seed, 4),
    "no shuffle": lambda samples, seed: np.arange(samples),
}


def permutation(samples: int, seed: int) -> Starts:
    return np.random.default_rng(seed).permutation(samples)


def window(samples: int, seed: int, windows: int) -> Starts:
    """As the stream's, on a small scale: so many windows in the set, of as many blocks as there."""
    return WindowOrder(samples, seed, block_samples(samples, windows)).index(np.arange(samples))


def block_samples(samples: int, windows: int) -> int:
    return max(1, samples // (windows * SPAN))


@dataclass(frozen=True)
class Run:
    set: str
    order: str
    seed: int
    scale: Scale
    tokens: int | None = None  # at most so many are read


def curve(run: Run) -> tuple[Run, list[float]]:
    dataset = open_dataset(run.set)
    sequence = run.scale.sequence
    cut = int(training_documents(dataset)[-1])
    tail = np.arange(cut, dataset.tokens - sequence - 1, sequence)
    tail = tail[:: -(-len(tail) // (MOST_SMALL if run.scale.most_steps else MOST_HELD_OUT))]
    samples = training_samples(dataset, run.scale, run.tokens)
    order = ORDERS[run.order](samples, run.seed) * sequence
    return run, train(
        dataset,
        run.scale,
        run.seed,
        order,
        LOOKS,
        lambda model, device: mean_loss(model, dataset, tail, sequence, device),
    )


def training_samples(dataset: Dataset, scale: Scale, tokens: int | None) -> int:
    last = int(training_documents(dataset)[-1])
    samples = (min(last, tokens or last) - 1) // scale.sequence
    return min(samples, scale.most_steps * scale.batch) if scale.most_steps else samples


def training_documents(dataset: Dataset) -> Starts:
    """Where each document for training begins, and where the last one ends."""
    starts = document_starts(dataset)
    return starts[starts <= dataset.tokens * (1 - HELD_OUT)]


def by_path(dataset: Dataset) -> Path:
    """The same documents in the order of their paths, with the same held-out ones at the end."""
    root = stdlib.library()
    paths: dict[str, str] = {}
    for path, _ in stdlib.python_files(root):
        paths.setdefault(blake3((root / path).read_bytes()).hexdigest(), path)
    kept = [digest for digest in sorted(paths) if _is_text((root / paths[digest]).read_bytes())]
    assert len(kept) == dataset.documents
    ends = np.append(document_starts(dataset), dataset.tokens)
    training = len(training_documents(dataset)) - 1
    order = sorted(range(training), key=lambda place: paths[kept[place]])
    with DatasetWriter(datasets_home(), BY_PATH, dataset.vocab, dataset.tokenizer_json()) as writer:
        for place in [*order, *range(training, len(kept))]:
            writer.add(dataset.read(int(ends[place]), int(ends[place + 1])))
        return writer.finish({"kind": BY_PATH}, {"from": dataset.id}, {})


def pieces(dataset: Dataset, most: int) -> Path:
    """The training documents cut into pieces of at most `most` tokens, all of them shuffled."""
    ends = np.append(document_starts(dataset), dataset.tokens)
    training = len(training_documents(dataset)) - 1
    end = int(dataset.read(int(ends[1]) - 1, int(ends[1]))[0])  # closes every document
    cuts = [
        (int(first), int(min(first + most, last)))
        for begin, last in pairwise(ends[: training + 1])
        for first in range(int(begin), int(last), most)
    ]
    order = np.random.default_rng(0).permutation(len(cuts)).tolist()
    with DatasetWriter(datasets_home(), PIECES, dataset.vocab, dataset.tokenizer_json()) as writer:
        for first, last in (cuts[place] for place in order):
            tokens = dataset.read(first, last)
            writer.add(tokens if tokens[-1] == end else np.append(tokens, end))
        for begin, last in pairwise(ends[training:]):
            writer.add(dataset.read(int(begin), int(last)))
        return writer.finish({"kind": PIECES, "most": most}, {"from": dataset.id}, {})


def _is_text(content: bytes) -> bool:
    try:
        return bool(content.decode().strip())
    except UnicodeDecodeError:
        return False


def prepare() -> list[str]:
    dataset = open_dataset(stdlib.NAME)
    return [dataset.id, by_path(dataset).name]


def tell_windows(runs: list[Run]) -> None:
    """What is read, and what a window mixes of it, stand with the result."""
    for name, order in dict.fromkeys((run.set, run.order) for run in runs):
        dataset = open_dataset(name)
        samples = training_samples(dataset, runs[0].scale, runs[0].tokens)
        tokens = samples * runs[0].scale.sequence
        documents = int(np.searchsorted(document_starts(dataset), tokens))
        if order == REFERENCE:
            mean = tokens / documents
            print(f"{name}: {tokens} tokens, {documents} documents, {mean:.0f} tokens each")
        if order.startswith("window-1"):
            windows = int(order.rpartition("/")[2])
            block = block_samples(samples, windows)
            mixed = f"about {documents / windows:.0f} documents"
            print(f"{name}: {order}: {SPAN} blocks of {block} samples, {mixed}")


def tell(curves: dict[tuple[str, str], dict[int, list[float]]]) -> None:
    for name in dict.fromkeys(name for name, _ in curves):
        reference = curves[name, REFERENCE]
        titles = f"{'order':<20} {'final loss':<17} {'minus full permutation':<23}"
        print(f"\n{name}\n{titles} {'at its largest':<25} all along")
        for order, own in ((order, own) for (of, order), own in curves.items() if of == name):
            gaps = [[own[seed][at] - reference[seed][at] for seed in own] for at in range(LOOKS)]
            means = [statistics.mean(gap) for gap in gaps]
            at = max(range(LOOKS), key=lambda at: abs(means[at]))
            final = spread([values[-1] for values in own.values()])
            largest = f"{spread(gaps[at])} at {at + 1}/{LOOKS}"
            along = " ".join(f"{mean:+.3f}" for mean in means)
            print(f"{order:<20} {final:<17} {spread(gaps[-1]):<23} {largest:<25} {along}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--steps", type=int, help="at most")
    parser.add_argument("--megabytes", type=float, default=150.0, help="of text, for `here`")
    parser.add_argument("--tokens", type=count, help="read at most, 40M say")
    parser.add_argument("--rate", type=float, help="peak learning rate")
    parser.add_argument("--json", type=Path, help="where all curves go")
    asked = parser.parse_args()
    sets = asked.sets or prepare()
    scale = replace(SMALL if asked.small else FULL, rate=asked.rate)
    if asked.steps:
        scale = replace(scale, most_steps=asked.steps)
    if "pieces" in sets:
        cut = pieces(open_dataset(stdlib.NAME), scale.sequence // 2)
        sets = [cut.name if name == "pieces" else name for name in sets]
    sets = [here.here(asked.megabytes).id if name == here.NAME else name for name in sets]
    print(*sets)
    if asked.prepare:
        return
    if asked.seeds < 2 or REFERENCE not in asked.orders:
        parser.error(f"a comparison takes two seeds at least, and {REFERENCE!r}")
    # Seed by seed, so that a run that is cut short has compared something.
    which = product(range(asked.seeds), sets, asked.orders)
    runs = [Run(name, order, seed, scale, asked.tokens) for seed, name, order in which]
    tell_windows(runs)
    curves: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(dict)
    for run, losses in in_processes(curve, runs, asked.processes):
        print(run.set, run.order, run.seed, *(f"{loss:.4f}" for loss in losses), flush=True)
        curves[run.set, run.order][run.seed] = losses
    if asked.json:
        asked.json.write_text(json.dumps([[*key, found] for key, found in curves.items()]))
    tell(curves)


if __name__ == "__main__":
    main()
