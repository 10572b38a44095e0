"""The sizes of built datasets for a plan, read from their manifests alone: no tokens are opened."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from penstock.data.format.manifest import Manifest
from penstock.data.read.samples import SampleSplit, held_out_samples, refuse_unreadable
from penstock.errors import PenstockError
from penstock.plan.built import BuiltDataset, find_built
from penstock.run.save import to_table
from penstock.run.schema.preference import NEXT_TOKEN
from penstock.run.schema.run import Run


@dataclass(frozen=True)
class DatasetSizes:
    """Counts as the trainer would make them (`data/read/stream.py`)."""

    vocab: int
    samples: int  # of one epoch; of a mixture, all there are
    held_out_tokens: int


@dataclass(frozen=True)
class KnownData:
    """The facts about a run's data that are known before it is opened."""

    run: Run  # with what its datasets decide
    sizes: DatasetSizes | None  # None: part of it is not built, or its name means several versions
    missing: tuple[str, ...] = ()  # why, a sentence for each part without its full stop
    unusable: PenstockError | None = None  # with which `penstock train` refuses what is built

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for a plan that has to assume what is missing."""
        enough = "as if there were data enough"
        assumed = f"planned with the model's own vocabulary, and {enough}"
        notes = tuple(f"data: {why}; {assumed}" for why in self.missing)
        if self.unusable:
            notes += (f"data: {str(self.unusable).rstrip('.')}; planned {enough}",)
        return notes


def look(run: Run) -> KnownData:
    """Read what lies built here. Data that cannot be used here is missing, as what is not built:
    a plan may be of another machine."""
    found = [_looked(run, spec) for spec, _ in run.data.parts]
    there = [one.manifest for one in found if isinstance(one, BuiltDataset)]
    run = fitted(run, there)
    if missing := tuple(one for one in found if isinstance(one, str)):
        return KnownData(run, None, missing)
    try:
        return KnownData(run, usable_sizes(run, there))
    except PenstockError as error:
        return KnownData(run, sizes_of(run, there), unusable=error)


def manifests(run: Run) -> list[Manifest]:
    """Read the manifests of the datasets that are built here."""
    found = (_looked(run, spec) for spec, _ in run.data.parts)
    return [one.manifest for one in found if isinstance(one, BuiltDataset)]


def _looked(run: Run, spec: str) -> BuiltDataset | str:
    try:
        return find_built(run, spec)
    except PenstockError as error:
        return f"{spec} cannot be used here: {str(error).rstrip('.')}"


def sizes_of(run: Run, manifests: Sequence[Manifest]) -> DatasetSizes:
    """Count the samples as the trainer does (`data/read/stream.py`), by the length of `run`."""
    splits = [
        SampleSplit.of(one.tokens, run.sample_tokens, run.evaluate.holdout) for one in manifests
    ]
    held_out = held_out_samples(splits, [weight for _, weight in run.data.parts])
    samples = sum(split.samples for split in splits)
    return DatasetSizes(max(one.vocab for one in manifests), samples, held_out * run.sample_tokens)


def usable_sizes(run: Run, data: Sequence[Manifest]) -> DatasetSizes:
    """Count the samples; refuse data that `run` cannot train on. `fitted` goes before.

    Launches, checks and plans of this machine all ask here, so that they refuse alike.
    """
    refuse_other_kind(run, data)
    weights = [weight for _, weight in run.data.parts]
    parts = list(zip(data, weights, strict=True))
    refuse_unreadable(parts, run.sample_tokens, run.evaluate.holdout)
    sizes = sizes_of(run, data)
    if run.batch_samples > sizes.samples:
        there = sizes.samples * run.sample_tokens
        if run.train.on_pairs:
            raise PenstockError(
                f"train.batch_tokens = {run.batch_tokens}: {run.batch_samples} pairs of "
                f"{run.sample_tokens} tokens, and {ids_of(data)} has {sizes.samples} without what "
                f"is held out; write {there} or less, by whole pairs"
            )
        raise PenstockError(
            f"train.batch_tokens = {run.batch_tokens}: more than {ids_of(data)} has, which is "
            f"{there} tokens without what is held out; write {there} or less, by whole sequences "
            f"of {run.sequence}"
        )
    return sizes


def refuse_other_kind(run: Run, data: Sequence[Manifest]) -> None:
    """Refuse pairs for an objective on text, and text for one on pairs."""
    for manifest in data:
        if run.train.on_pairs and not manifest.pairs:
            raise PenstockError(
                f'train.objective = "{run.train.objective}": {manifest.id} holds no pairs; it '
                f"needs rows of `prompt`, `chosen` and `rejected`. Name such files, or write "
                f'train.objective = "{NEXT_TOKEN}"'
            )
        if manifest.pairs and not run.train.on_pairs:
            raise PenstockError(
                f'train.objective = "{run.train.objective}": {manifest.id} holds pairs of a chosen '
                'and a rejected answer; write train.objective = "dpo", or another on pairs'
            )


def ids_of(data: Sequence[Manifest]) -> str:
    """Name the datasets of a run, for messages."""
    return " + ".join(manifest.id for manifest in data)


def needed(run: Run) -> KnownData:
    """Look as `look` does; raise an error if the run's length or vocabulary depends on missing
    data.

    Data that is too small for the run is refused for this machine, as `penstock train` does. A plan
    of another one gets a note: the data that it will read may lie there.
    """
    refuse_epochs_of_a_mixture(run)
    known = look(run)
    if known.unusable and run.cluster.use == "here":
        raise known.unusable
    shape = run.model.base()
    if known.sizes is None and shape and not shape.vocab:
        raise PenstockError(
            "model.vocab: not given, so that only the dataset tells it. "
            f"{known.missing[0]}. Or plan with model.vocab=32000"
        )
    if run.train.epochs and known.sizes is None:
        raise PenstockError(
            f"train.epochs = {run.train.epochs:g}: how long that is, only the dataset tells. "
            f"{known.missing[0]}. Or plan with train.tokens=1B"
        )
    return known


def refuse_epochs_of_a_mixture(run: Run) -> None:
    if run.train.epochs and run.data.mix:
        raise PenstockError(
            f"train.epochs = {run.train.epochs:g}: the parts of [[data.mix]] go through epochs of "
            'their own; write train.tokens, such as "1B", or train.steps'
        )


def fitted(run: Run, data: Sequence[Manifest]) -> Run:
    """Return the run with the sequence length that its documents were packed for, if they were.

    A length that the file gives stays; the stream refuses one that does not fit.
    """
    packed = {manifest.packed: manifest for manifest in data if manifest.packed}
    if len(packed) > 1:
        each = " and ".join(f"{one.name} for {length}" for length, one in packed.items())
        raise PenstockError(
            f"data.mix: documents are packed for sequences of different lengths, {each} tokens, "
            "and a run has one. Build them with the same `pack` in their recipes."
        )
    if run.data.sequence or not packed:
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
