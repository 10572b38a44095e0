"""The open model of `[model] from`: fetched and checked before any process starts.

The small files (config, tokenizer) are copied into the run, so that it can be exported after the
model was moved.
"""

import shutil
from pathlib import Path

from penstock.catalog.open.folder import (
    fetch_weights,
    model_folder,
    read_config,
    read_small_files,
)
from penstock.catalog.open.generic import document_problem, is_generic, refuse_missing_library
from penstock.data.read.dataset import Dataset
from penstock.data.tokenize.match import refuse_other_tokenizer
from penstock.errors import PenstockError
from penstock.files import write_synced
from penstock.model.open.files import check_weight_files
from penstock.run.schema.run import Run


def fetch(run: Run) -> None:
    """Fetch the weights and check by their headers that they are those of the config."""
    if run.model.from_:
        check_weight_files(fetch_weights(run.model.from_))


def refuse_impossible(run: Run) -> None:
    """Refuse a generic model without transformers, or whose documents cannot be kept apart."""
    if not run.model.from_:
        return
    config = read_config(model_folder(run.model.from_))
    try:
        refuse_missing_library(config)
    except PenstockError as error:
        raise PenstockError(f'model.from = "{run.model.from_}": {error}') from None
    if run.data.across_documents or not is_generic(config):
        return
    if why := document_problem(config, run.sequence):
        raise PenstockError(
            f"data.across_documents = false: {why}, so that documents of one sample would see each "
            "other; write true, or take another model"
        )


def refuse_other_data(run: Run, datasets: list[Dataset]) -> None:
    if run.model.from_:
        for dataset in datasets:
            refuse_other_tokenizer(dataset, model_folder(run.model.from_))


def copy_small_files(run: Run, folder: Path) -> None:
    """Copy the small files to `folder`, once: all of them, or the folder is not made."""
    if run.model.from_ and not folder.is_dir():
        aside = folder.with_name(f".{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)  # left by a start that was killed
        aside.mkdir(parents=True)
        for name, content in read_small_files(model_folder(run.model.from_)).items():
            write_synced(aside / name, content)
        aside.rename(folder)
