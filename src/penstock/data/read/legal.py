"""Which datasets can be read as one stream, by their manifests alone: the one place that knows."""

from collections.abc import Sequence

from penstock.data.format.manifest import Manifest
from penstock.data.read.sizes import Split
from penstock.errors import PenstockError


def refuse_unreadable(
    data: Sequence[tuple[Manifest, float]], sequence: int, holdout: float
) -> None:
    """Raise an error for datasets (with their weights) that make no stream of such samples."""
    manifests = [manifest for manifest, _ in data]
    _refuse_mismatch(manifests)
    for manifest in manifests:
        _refuse_length(manifest, sequence, holdout)
    if len(data) > 1:
        from penstock.data.read.mix import quotas_of  # numpy, which one dataset does without

        quotas_of([weight for _, weight in data])


def _refuse_mismatch(manifests: Sequence[Manifest]) -> None:
    """Refuse parts of a mixture that cannot be read as one."""
    first, ids = manifests[0], [manifest.id for manifest in manifests]
    for i, manifest in enumerate(manifests[1:], start=1):
        if manifest.tokenizer != first.tokenizer:
            raise PenstockError(
                f"data.mix: {ids[i]} and {ids[0]} have different tokenizers "
                f"({manifest.vocab} and {first.vocab} tokens), so that the same number means "
                f"another text in each. Build one with the other's: [tokens] tokenizer = "
                f'"{ids[0]}" in its recipe.'
            )
        if ids[i] in ids[:i]:
            raise PenstockError(
                f"data.mix: {ids[i]} stands there twice; list it once, with both weights added"
            )


def _refuse_length(manifest: Manifest, sequence: int, holdout: float) -> None:
    packed = manifest.packed
    if packed and packed != sequence:
        raise PenstockError(
            f"data.sequence = {sequence}: the documents of {manifest.id} are packed for "
            f"sequences of {packed} tokens; write {packed}, or leave the field out"
        )
    split = Split.of(manifest.tokens, sequence, holdout)
    if split.samples:
        return
    total = max(manifest.tokens - 1, 0) // sequence
    kept = f", of which {split.held_out} would be held out" if split.held_out else ""
    raise PenstockError(
        f"Dataset {manifest.id} is too small: {manifest.tokens} tokens make {total} "
        f"sample{'s' if total != 1 else ''} of {sequence} tokens{kept}, and training "
        "needs at least one. Use a shorter sequence, a smaller holdout or a larger dataset."
    )
