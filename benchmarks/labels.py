"""How well and how fast documents are labelled: classifier, heuristic, language, boilerplate.

    python benchmarks/labels.py                   # accuracy on two tasks, then speed
    python benchmarks/labels.py --documents 500   # a shorter run

The corpus is what a machine has at hand: documentation under /usr/share/doc and docstrings of the
standard library, against change logs, logs and source. Files of one package are all learned from or
all tested on. The second task has the words of each line in another order: only pairs can tell.
The peer is a logistic regression in float32 (torch, full batch, Adam) on the same words and pairs;
its rate is the best of four on a part of the packages that are learned from, never on the tested.
"""

import argparse
import ast
import gzip
import random
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from blake3 import blake3

from penstock.data.clean import language
from penstock.data.clean.boilerplate import Boilerplate, strip
from penstock.data.label import heuristic
from penstock.data.label.classifier import Training, train
from penstock.data.label.features import features

BYTES = 3000
PIECES = 4  # of a file, at most
DOCUMENTS = 3000  # of a kind
PEER_RATES = (0.01, 0.05, 0.2, 1.0)
Labelled = tuple[str, str]  # package, text


def read(path: Path) -> str:
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return content[: 40 * BYTES].decode()
    except (OSError, ValueError, EOFError):
        return ""


def pieces(package: str, text: str) -> Iterator[Labelled]:
    for at in range(0, min(len(text), PIECES * BYTES) - BYTES // 3, BYTES):
        yield package, text[at : at + BYTES]


def documentation() -> Iterator[Labelled]:
    for path in sorted(Path("/usr/share/doc").glob("*/*")):
        name = path.name.lower().removesuffix(".gz")
        if name.startswith(("readme", "faq", "howto", "intro")) or name.endswith((".md", ".txt")):
            yield from pieces(path.parent.name, read(path))
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        tree = ast.parse(read_all(path))
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef
        found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
        yield from pieces(path.stem, "\n\n".join(doc for doc in found if doc and len(doc) > 80))


def read_all(path: Path) -> str:
    return path.read_text(errors="surrogateescape")


def noise() -> Iterator[Labelled]:
    for path in sorted(Path("/usr/share/doc").glob("*/changelog*")):
        yield from list(pieces(path.parent.name, read(path)))[:1]
    for path in sorted(Path("/var/log").glob("*.log")):
        yield from pieces(path.stem, read(path))
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = read_all(path)
        yield from list(pieces(path.stem, text[len(text) // 2 :]))[:2]


def shuffled(texts: list[Labelled]) -> Iterator[Labelled]:
    rng = random.Random(5)
    for package, text in texts:
        lines = [line.split() for line in text.split("\n")]
        for line in lines:
            rng.shuffle(line)
        yield package, "\n".join(map(" ".join, lines))


def some(found: Iterator[Labelled], most: int) -> list[Labelled]:
    """In an order that no kind of file leads."""
    once = {text: package for package, text in sorted(found, reverse=True)}
    order = sorted(once, key=lambda text: blake3(text.encode(errors="replace")).digest())
    return [(once[text], text) for text in order[:most]]


def set_aside(package: str, draw: int = 0) -> bool:
    return blake3(package.encode()).digest()[draw] % 3 == 0


def halves(texts: list[Labelled]) -> tuple[list[str], list[str]]:
    return [t for p, t in texts if not set_aside(p)], [t for p, t in texts if set_aside(p)]


def area(good: np.ndarray, bad: np.ndarray) -> float:
    """How often a good text is scored above a bad one; of equals the half."""
    ranked = np.sort(bad)
    below = np.searchsorted(ranked, good, "left") + np.searchsorted(ranked, good, "right")
    return float(below.sum() / 2 / len(good) / len(bad))


def tuned(good: list[Labelled], bad: list[Labelled]) -> float:
    """The peer's rate: by a part of what it learns from, other packages again."""

    def right(rate: float) -> float:
        learn = [[t for p, t in kind if not set_aside(p, 1)] for kind in (good, bad)]
        check = [[t for p, t in kind if set_aside(p, 1)] for kind in (good, bad)]
        scores = peer(learn[0], learn[1], check[0] + check[1], rate)
        return accuracy(scores, len(check[0]))

    return max(PEER_RATES, key=right)


def accuracy(scores: np.ndarray, good: int) -> float:
    """Both kinds weighted alike; the first ones are good."""
    return float(((scores[:good] >= 500).mean() + (scores[good:] < 500).mean()) / 2)


def peer(good: list[str], bad: list[str], test: list[str], rate: float) -> np.ndarray:
    """Scores of `test` in thousandths."""
    torch.manual_seed(0)
    bits = Training().bits

    def embed(texts: list[str]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        found = features(texts, bits)
        sizes = np.diff(found.offsets)
        scale = np.repeat(1 / np.sqrt(np.maximum(sizes, 1)), sizes).astype(np.float32)
        return (*map(torch.from_numpy, (found.buckets, found.offsets[:-1].copy(), scale)),)

    weights = torch.zeros(1 << bits, 1, requires_grad=True)
    bias = torch.zeros(1, requires_grad=True)

    def margins(rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
        buckets, offsets, scale = rows
        bag = torch.nn.functional.embedding_bag
        summed = bag(buckets, weights, offsets, mode="sum", per_sample_weights=scale)
        return summed[:, 0] + bias

    rows = embed(good + bad)
    target = torch.tensor([1.0] * len(good) + [0.0] * len(bad))
    balance = torch.where(target > 0, 0.5 / len(good), 0.5 / len(bad))
    optimizer = torch.optim.Adam([weights, bias], lr=rate)
    for _ in range(60):
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            margins(rows), target, weight=balance, reduction="sum"
        )
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return (torch.sigmoid(margins(embed(test))) * 1000).numpy()


def compare(name: str, good: list[Labelled], bad: list[Labelled]) -> None:
    (good_learn, good_test), (bad_learn, bad_test) = halves(good), halves(bad)
    print(f"{name}: learns from {len(good_learn)} + {len(bad_learn)}, "
          f"tested on {len(good_test)} + {len(bad_test)} of other packages")  # fmt: skip
    test = good_test + bad_test
    start = time.process_time()
    model = train(good_learn, bad_learn)
    spent = time.process_time() - start
    print(f"  trained in {spent:.1f} CPU-seconds, sureness {model.sureness}/16, "
          f"held-out accuracy {model.held_out.accuracy:.3f}")  # fmt: skip
    rate = tuned([p for p in good if not set_aside(p[0])], [p for p in bad if not set_aside(p[0])])
    found = {
        "classifier": model.scores(test),
        "torch": peer(good_learn, bad_learn, test, rate),
        "heuristic": heuristic.scores(test, {}),
    }
    for label, scores in found.items():
        above, below = scores[: len(good_test)], scores[len(good_test) :]
        right = accuracy(scores, len(good_test))
        print(f"  {label:10} accuracy {right:.3f}, area under ROC {area(above, below):.4f}")
    print(f"  (torch with rate {rate})")
    calibration(found["classifier"], len(good_test))


def calibration(scores: np.ndarray, good: int) -> None:
    """Of the documents with a score around s, how many are good; kinds weighted alike."""
    is_good = np.arange(len(scores)) < good
    weight = np.where(is_good, 0.5 / good, 0.5 / (len(scores) - good))
    rows = []
    for low in range(0, 1000, 200):
        inside = (scores >= low) & (scores < low + 200 + (low == 800))
        if inside.sum() >= 20:
            share = (weight * is_good)[inside].sum() / weight[inside].sum()
            rows.append(f"{low}–{low + 200}: {share:.2f} good ({inside.sum()})")
    print("  scores " + ", ".join(rows))


def speed(name: str, texts: list[str], work: Callable[[list[str]], object]) -> None:
    work(texts[:20])
    best = min(_spent(work, texts) for _ in range(3))
    size = sum(map(len, texts)) / len(texts)
    print(f"  {name:12} {len(texts) / best:8,.0f} documents of {size:,.0f} characters "
          f"per CPU-second")  # fmt: skip


def _spent(work: Callable[[list[str]], object], texts: list[str]) -> float:
    start = time.process_time()
    work(texts)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    most = parser.parse_args().documents
    torch.set_num_threads(1)
    good, bad = some(documentation(), most), some(noise(), most)
    compare("documentation against change logs, logs and source", good, bad)
    compare("documentation against its words in another order", good, list(shuffled(good)))
    texts = [text for _, text in good + bad][:2000]
    model = train(texts[:200], texts[-200:])
    print("speed")
    speed("classifier", texts, model.scores)
    speed("heuristic", texts, lambda some: heuristic.scores(some, {}))  # takes the measures too
    speed("language", texts, language.identify)
    speed("boilerplate", texts, lambda some: strip(some, Boilerplate()))


if __name__ == "__main__":
    main()
