"""The loader: speed beside others, time to the first batch, and the cost of a resume.

    python benchmarks/loader.py [--tokens 64] [--rounds 7] [--peers PYTHON]

Sequences of 2048 tokens in batches of 8, shuffled over the whole set, int64 tensors out, one
process without workers. Each loader runs in a fresh process in every round, the loaders taking
turns; figures are medians. `ours` is the call with which the trainer's thread gets each batch;
`ours, fed` is what its loop does, which takes them over from that thread. `dataloader` is torch's
DataLoader over a memory map, which checks nothing; `litdata` runs where `--peers` names an
interpreter that has it, on tokens that its own `optimize` wrote. Timing starts after 600 batches,
when every file has been touched. Speed is per CPU-second of all threads: what others do on the
machine meanwhile does not count.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from penstock.train.parallel.microbatch import DeviceLoader

SEQUENCE, BATCH, WARM, TIMED = 2048, 8, 600, 1500
SAMPLES = 10**12  # of the order that a resume is timed with


def trainer(folder: Path) -> "DeviceLoader":
    import torch

    from penstock.data.read.dataset import Dataset
    from penstock.data.read.stream import Stream
    from penstock.train.parallel.microbatch import DeviceLoader

    stream = Stream(Dataset.open(next(folder.glob("bench@*"))), SEQUENCE, seed=0, holdout=0.005)
    return DeviceLoader(stream, torch.device("cpu"))


def ranges() -> Iterator[tuple[int, int]]:
    return ((start, start + BATCH) for start in itertools.count(0, BATCH))


def ours(folder: Path) -> Iterator[object]:
    loader = trainer(folder)
    for start, stop in ranges():
        yield loader.read(start, stop).tokens_ns


def fed(folder: Path) -> Iterator[object]:
    from penstock.data.read.feed import Feed

    feed = Feed(trainer(folder), ranges())
    while True:
        yield feed.next().tokens_ns


def dataloader(folder: Path) -> Iterator[object]:
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Mapped(Dataset):
        def __init__(self) -> None:
            self.tokens = np.memmap(folder / "flat.bin", dtype="<u2", mode="r")

        def __len__(self) -> int:
            return (len(self.tokens) - 1) // SEQUENCE

        def __getitem__(self, i: int) -> object:
            crop = self.tokens[i * SEQUENCE : i * SEQUENCE + SEQUENCE + 1]
            return torch.from_numpy(crop.astype(np.int64))

    loader = DataLoader(Mapped(), batch_size=BATCH, shuffle=True, drop_last=True)
    while True:
        yield from loader


def litdata(folder: Path) -> Iterator[object]:
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    dataset = StreamingDataset(
        str(folder / "lit"), item_loader=TokensLoader(SEQUENCE + 1), shuffle=True, drop_last=True
    )
    while True:
        for batch in StreamingDataLoader(dataset, batch_size=BATCH, num_workers=0):
            yield batch.long()


LOADERS = {"ours": ours, "ours, fed": fed, "dataloader": dataloader, "litdata": litdata}


def measure(name: str, folder: Path) -> None:
    """In a process of its own: seconds to the first batch, then tokens per CPU-second."""
    import torch

    torch.set_num_threads(1)
    if name.startswith("ours"):
        import penstock.train.parallel.microbatch  # noqa: F401
    batches = LOADERS[name](folder)
    began = time.perf_counter()
    batch = next(batches)
    first_s = time.perf_counter() - began
    assert tuple(batch.shape) == (BATCH, SEQUENCE + 1), batch.shape  # type: ignore[attr-defined]
    assert str(batch.dtype) == "torch.int64"  # type: ignore[attr-defined]
    for _ in range(WARM):
        next(batches)
    began = time.process_time()
    for _ in range(TIMED):
        next(batches)
    rate = TIMED * BATCH * SEQUENCE / (time.process_time() - began)
    print(json.dumps({"first_s": first_s, "tokens_per_s": rate}), flush=True)
    os._exit(0)  # past the background threads of others


def write(folder: Path, tokens: int) -> None:
    """The same tokens for all: in our shards, and in one flat file."""
    from penstock.data.format.writer import DatasetWriter

    ids = np.random.default_rng(0).integers(0, 50_000, tokens, dtype=np.uint16)
    ids.tofile(folder / "flat.bin")
    with DatasetWriter(folder, "bench", 50_000, b"{}") as writer:
        for start in range(0, tokens, 1000):
            writer.add(ids[start : start + 1000])
        writer.finish({}, {}, {})


# Runs in the peer's interpreter; it needs a file, since workers import the function by name.
OPTIMIZE = """
import sys
import numpy as np, torch
from litdata import TokensLoader, optimize

folder = sys.argv[1]

def documents(start):
    ids = np.memmap(f"{folder}/flat.bin", dtype="<u2", mode="r")
    yield torch.from_numpy(ids[start : start + (1 << 20)].astype(np.int32))

if __name__ == "__main__":
    total = len(np.memmap(f"{folder}/flat.bin", dtype="<u2", mode="r"))
    optimize(documents, list(range(0, total, 1 << 20)), f"{folder}/lit", chunk_size=2049 * 8192,
             num_workers=1, item_loader=TokensLoader(2049))
"""


def write_litdata(folder: Path, python: str) -> None:
    script = folder / "optimize_tokens.py"
    script.write_text(OPTIMIZE)
    subprocess.run([python, str(script), str(folder)], check=True, capture_output=True)


def resume() -> dict[str, float]:
    """Milliseconds to know the next samples at a random place among 10**12, the first time in a
    process included. On a busy machine the worst is a wait for the processor; its CPU is not."""
    from penstock.data.read.order import OrderLookup, ShuffleOrder, WindowOrder

    draw = np.random.default_rng(0)
    found = {}
    for order in (ShuffleOrder(SAMPLES, 0), WindowOrder(SAMPLES, 0, block=1024)):
        times, cpu = [], []
        for position in draw.integers(0, 10 * SAMPLES, 200).tolist():
            began, began_cpu = time.perf_counter(), time.process_time()
            OrderLookup(order).index(position, position + BATCH)
            times.append(1e3 * (time.perf_counter() - began))
            cpu.append(1e3 * (time.process_time() - began_cpu))
        found[f"{order.name}, median ms"] = statistics.median(times)
        found[f"{order.name}, worst ms"] = max(times)
        found[f"{order.name}, worst ms of CPU"] = max(cpu)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=float, default=64, help="size of the set, millions")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers", help="an interpreter that has litdata and torch")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.measure[0], Path(args.measure[1]))
        return
    pythons = dict.fromkeys(("ours", "ours, fed", "dataloader"), sys.executable)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, int(args.tokens * 1e6))
        if args.peers:
            write_litdata(folder, args.peers)
            pythons["litdata"] = args.peers
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in pythons}
        for _ in range(args.rounds):
            for name, python in pythons.items():
                command = [python, __file__, "--measure", name, str(folder)]
                ran = subprocess.run(command, check=True, capture_output=True, text=True)
                rounds[name].append(json.loads(ran.stdout.splitlines()[-1]))
    rates = {n: statistics.median(r["tokens_per_s"] for r in f) for n, f in rounds.items()}
    for name, found in rounds.items():
        first_ms = 1e3 * statistics.median(r["first_s"] for r in found)
        spread = [r["tokens_per_s"] / 1e6 for r in found]
        print(
            f"{name:<11}{rates[name] / 1e6:9.1f} M tokens per CPU-second ({min(spread):.1f} to "
            f"{max(spread):.1f}), first batch {first_ms:.1f} ms, ours is "
            f"{rates['ours'] / rates[name]:.2f} times as fast"
        )
    print("resume among 10**12 samples:")
    for what, ms in resume().items():
        print(f"  {what}: {ms:.3f}")


if __name__ == "__main__":
    main()
