"""`[model] from`, before any process starts: fetched, whole, and in the tokens of the data.

The small files (config, tokenizer) are kept with the run, so that what it makes can be exported
when the model has been moved.
"""

import shutil
from pathlib import Path

from penstock.catalog.open.folder import fetch_weights, model_folder, read_small_files
from penstock.data.read.dataset import Dataset
from penstock.data.tokenize.match import refuse_other_tokenizer
from penstock.files import write_synced
from penstock.model.open.files import check_open_files
from penstock.run.schema.run import Run


def fetch(run: Run) -> None:
    """The weights are here and are those of the config; headers are read, no weights."""
    if run.model.from_:
        check_open_files(fetch_weights(run.model.from_))


def refuse_other_data(run: Run, datasets: list[Dataset]) -> None:
    if run.model.from_:
        for dataset in datasets:
            refuse_other_tokenizer(dataset, model_folder(run.model.from_))


def keep(run: Run, folder: Path) -> None:
    """Its small files in `folder`, once: all of them, or the folder is not there."""
    if run.model.from_ and not folder.is_dir():
        aside = folder.with_name(f".{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)  # left by a start that was killed
        aside.mkdir(parents=True)
        for name, content in read_small_files(model_folder(run.model.from_)).items():
            write_synced(aside / name, content)
        aside.rename(folder)
