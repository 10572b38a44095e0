"""What built datasets tell a plan, read from their manifests alone: no tokens are opened."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from penstock.data.manifest import Manifest, read_manifest
from penstock.data.stream_sizes import Split, held_out_of
from penstock.errors import PenstockError
from penstock.home import home
from penstock.run.file import Run
from penstock.run.save import to_table

_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:@([0-9a-f]+))?")


@dataclass(frozen=True)
class Sizes:
    """As the trainer would count them (`data/stream.py`)."""

    vocab: int
    samples: int  # of one epoch; of a mixture, all there are
    held_out_tokens: int


def sizes(run: Run) -> Sizes | None:
    """Of the data of `run` if all of it is built here and its names mean one version; else None."""
    found = [manifest for spec, _ in run.data.parts if (manifest := _manifest(spec))]
    if len(found) < len(run.data.parts):
        return None
    run = fitted(run, found)
    splits = [Split.of(m.tokens, run.sequence, run.evaluate.holdout) for m in found]
    held_out = held_out_of(splits, [weight for _, weight in run.data.parts])
    samples = sum(split.samples for split in splits)
    return Sizes(max(m.vocab for m in found), samples, held_out * run.sequence)


def as_built(run: Run) -> Run:
    """The run with what its datasets decide, as far as they are built here."""
    return fitted(run, [manifest for spec, _ in run.data.parts if (manifest := _manifest(spec))])


def needed(run: Run) -> Sizes | None:
    """The same; an error for a run whose length only the dataset tells."""
    refuse_epochs_of_a_mixture(run)
    found = sizes(run)
    if run.train.epochs and found is None:
        raise PenstockError(
            f"train.epochs = {run.train.epochs:g}: how long that is, only the dataset tells, and "
            f"{run.data.dataset} is not built here; build it, or plan with train.tokens=1B"
        )
    return found


def refuse_epochs_of_a_mixture(run: Run) -> None:
    if run.train.epochs and run.data.mix:
        raise PenstockError(
            f"train.epochs = {run.train.epochs:g}: the parts of [[data.mix]] go through epochs of "
            'their own; write train.tokens, such as "1B", or train.steps'
        )


def fitted(run: Run, data: Sequence[Manifest]) -> Run:
    """The run with the length of sequence that its documents were packed for, if they were.

    A length that the file gives stays; the stream refuses one that does not fit.
    """
    packed = {manifest.packed for manifest in data if manifest.packed}
    if run.data.sequence or len(packed) != 1:
        return run
    (sequence,) = packed
    table = to_table(run)
    table["data"]["sequence"] = sequence
    try:
        return Run.model_validate(table)
    except ValidationError as error:  # what the file says does not go with that length
        names = ", ".join(manifest.name for manifest in data)
        what = "; ".join(str(one["msg"]) for one in error.errors())
        raise PenstockError(
            f"{what}. The documents of {names} are packed for sequences of {sequence} tokens, "
            "which decides data.sequence"
        ) from error


def _manifest(spec: str) -> Manifest | None:
    name = _NAME.fullmatch(spec)
    if not name:
        return None  # a recipe, a path or a URL: what it will give is known when it is built
    folders = (home() / "datasets").glob(f"{name[1]}@{name[2] or '*'}")
    found = [folder for folder in folders if folder.is_dir()]
    return read_manifest(found[0]) if len(found) == 1 else None
