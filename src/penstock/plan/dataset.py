"""What a built dataset tells a plan, read from its manifest alone: no tokens are opened."""

from dataclasses import dataclass

from penstock.data.manifest import read_manifest
from penstock.errors import PenstockError
from penstock.home import home
from penstock.run.file import Run


@dataclass(frozen=True)
class Sizes:
    """As the trainer would count them (`data/stream.py`)."""

    vocab: int
    samples: int  # of one epoch
    held_out_tokens: int


def sizes(run: Run) -> Sizes | None:
    """The dataset of `run` if it is built here and its name means one version; else None."""
    name, _, version = run.data.dataset.partition("@")
    folders = [f for f in (home() / "datasets").glob(f"{name}@{version or '*'}") if f.is_dir()]
    if run.data.mix or len(folders) != 1:
        return None
    manifest = read_manifest(folders[0])
    total = max(manifest.tokens - 1, 0) // run.sequence
    held_out = max(1, int(total * run.evaluate.holdout)) if run.evaluate.holdout else 0
    return Sizes(manifest.vocab, max(0, total - held_out), held_out * run.sequence)


def needed(run: Run) -> Sizes | None:
    """The same; an error for a run whose length only the dataset tells."""
    found = sizes(run)
    if run.train.epochs and found is None:
        raise PenstockError(
            f"train.epochs = {run.train.epochs:g}: how long that is, only the dataset tells, and "
            f"{run.data.dataset} is not built here; build it, or plan with train.tokens=1B"
        )
    return found
