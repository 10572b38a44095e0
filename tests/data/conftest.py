"""Small datasets, written by the real writer."""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from penstock.data.format.writer import SHARD_BYTES, DatasetWriter
from penstock.data.read.dataset import Dataset


@pytest.fixture
def dataset(tmp_path: Path) -> Callable[..., Dataset]:
    """dataset(documents, ...): writes, by default into a home of its own, and opens the result."""
    count = itertools.count()

    def make(
        documents: Iterable[np.ndarray],
        home: Path | None = None,
        name: str = "small",
        vocab: int = 1 << 16,
        shard_bytes: int = SHARD_BYTES,
    ) -> Dataset:
        home = home or tmp_path / f"home{next(count)}"
        with DatasetWriter(home, name, vocab, b"{}", shard_bytes) as writer:
            for document in documents:
                writer.add(document)
            return Dataset.open(writer.finish({"kind": "test"}, {"files": 1}, {}))

    return make
