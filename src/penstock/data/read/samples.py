"""Samples of datasets: how many there are, which are held out, in which order they are read.

Also the checks that datasets can be read as one stream. The planner and the stream both call these
functions. Imports no numpy, which a plan of one dataset does without.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.data.format.manifest import Manifest
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.data.read.order import Order

OrderKind = Literal["auto", "shuffle", "window"]

# A set up to this size stays in the memory of any training machine; larger sets are read locally.
MAX_SHUFFLED_BYTES = 1 << 30
# At the end of each block a run reads one storage block more, for its last target alone: 1/16.
ORDER_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True)
class SampleSplit:
    """The training samples of a dataset, and the held-out ones after them."""

    samples: int
    held_out: int

    @classmethod
    def of(cls, tokens: int, sequence: int, holdout: float) -> "SampleSplit":
        """Split a dataset of so many tokens; `holdout` is a share.

        Sample i takes tokens [i*S, i*S + S + 1): its last target is the first token of the next.
        """
        total = max(tokens - 1, 0) // sequence
        held_out = max(1, int(total * holdout)) if holdout > 0 else 0
        return cls(max(0, total - held_out), held_out)


def held_out_samples(splits: Sequence[SampleSplit], weights: Sequence[float]) -> int:
    """Return how many held-out samples an evaluation can read while it keeps to the weights."""
    if len(splits) == 1:
        return splits[0].held_out
    from penstock.data.read.mix import mixing_cycle  # imports numpy

    return mixing_cycle(weights).reach([split.held_out for split in splits])


def choose_order(
    kind: OrderKind, set_bytes: int, sample_bytes: int, samples: int, seed: int
) -> "Order":
    """Return the order in which a dataset is read: it depends on dataset and run file alone.

    `set_bytes` is the size of all tokens, held-out ones included: what a cache would hold.
    """
    from penstock.data.read.order import ShuffleOrder, WindowOrder  # imports numpy

    if kind == "shuffle" or (kind == "auto" and set_bytes <= MAX_SHUFFLED_BYTES):
        return ShuffleOrder(samples, seed)
    return WindowOrder(samples, seed, block=max(1, ORDER_BLOCK_BYTES // sample_bytes))


def refuse_unreadable(
    data: Sequence[tuple[Manifest, float]], sequence: int, holdout: float
) -> None:
    """Raise an error if the datasets (with weights) cannot be read as one stream of samples.

    `sequence` is the tokens of a sample, which is both sequences of a pair.
    """
    manifests = [manifest for manifest, _ in data]
    _refuse_mismatch(manifests)
    for manifest in manifests:
        _refuse_length(manifest, sequence, holdout)
    if len(data) > 1:
        from penstock.data.read.mix import mixing_quotas  # imports numpy

        mixing_quotas([weight for _, weight in data])


def _refuse_mismatch(manifests: Sequence[Manifest]) -> None:
    """Refuse a mixture with different tokenizers, or with a dataset twice."""
    first, ids = manifests[0], [manifest.id for manifest in manifests]
    for i, manifest in enumerate(manifests[1:], start=1):
        if manifest.tokenizer != first.tokenizer:
            raise PenstockError(
                f"data.mix: {ids[i]} and {ids[0]} have different tokenizers "
                f"({manifest.vocab} and {first.vocab} tokens), so that the same number means "
                f"another text in each. Build one with the other's: [tokens] tokenizer = "
                f'"{ids[0]}" in its recipe.'
            )
        if manifest.pairs != first.pairs:
            pairs, other = (ids[i], ids[0]) if manifest.pairs else (ids[0], ids[i])
            raise PenstockError(
                f"data.mix: {pairs} holds pairs of answers and {other} none; a run learns from one "
                "kind"
            )
        if ids[i] in ids[:i]:
            raise PenstockError(
                f"data.mix: {ids[i]} stands there twice; list it once, with both weights added"
            )


def _refuse_length(manifest: Manifest, sequence: int, holdout: float) -> None:
    packed, each = manifest.packed_sample, 2 if manifest.pairs else 1
    if packed and packed != sequence:
        raise PenstockError(
            f"data.sequence = {sequence // each}: the documents of {manifest.id} are packed for "
            f"sequences of {manifest.packed} tokens; write {manifest.packed}, or leave the field "
            "out"
        )
    split = SampleSplit.of(manifest.tokens, sequence, holdout)
    if split.samples:
        return
    total = max(manifest.tokens - 1, 0) // sequence
    if manifest.pairs:
        raise PenstockError(
            f"Dataset {manifest.id} is too small: it has {total} pair{'s' if total != 1 else ''}"
            f"{f', of which {split.held_out} would be held out' if split.held_out else ''}, and "
            "training needs at least one. Use more pairs or a smaller holdout."
        )
    kept = f", of which {split.held_out} would be held out" if split.held_out else ""
    raise PenstockError(
        f"Dataset {manifest.id} is too small: {manifest.tokens} tokens make {total} "
        f"sample{'s' if total != 1 else ''} of {sequence} tokens{kept}, and training "
        "needs at least one. Use a shorter sequence, a smaller holdout or a larger dataset."
    )
