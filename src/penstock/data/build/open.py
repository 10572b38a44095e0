"""The datasets of a run at launch: built where they are missing, or as the run read them before."""

from typing import Any

from penstock.data.build.home import open_dataset
from penstock.data.format.types import Progress
from penstock.data.read.dataset import Dataset
from penstock.data.read.open import cache_environment, open_planned
from penstock.run.schema.run import Run


def open_first(run: Run, progress: Progress | None = None) -> list[Dataset]:
    """Open the datasets of a new run, in the order of the file; build those that are missing."""
    shape = run.model.base()
    vocab = (shape.vocab if shape else None) or None
    # A raw source is tokenized for the model that will read it.
    tokenizer, template = run.model.tokenizer(), run.data.chat_template
    with cache_environment(run):
        return [
            open_dataset(spec, progress, tokenizer, vocab, run.sequence, template)
            for spec, _ in run.data.parts
        ]


def open_for_launch(
    run: Run, plan: dict[str, Any], progress: Progress | None = None
) -> list[Dataset]:
    """Open the datasets that the plan of a run names; those of the file where it names none."""
    return open_planned(run, plan) if "dataset" in plan else open_first(run, progress)
