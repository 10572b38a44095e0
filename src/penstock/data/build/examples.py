"""Files that a recipe names besides its sources: examples for the classifier, and evaluations."""

from collections.abc import Iterable

import numpy as np

from penstock.data.build.dedup import evaluation_runs
from penstock.data.build.parts import result_columns
from penstock.data.format.columns import Columns
from penstock.data.label.classifier import train_classifier
from penstock.data.recipe.recipe import Recipe
from penstock.data.sources.documents import Document, FileSummary, Rejected, source_identity
from penstock.data.sources.files import RawFile
from penstock.data.sources.find import find_files
from penstock.data.sources.options import ReadOptions
from penstock.data.sources.read import read_file
from penstock.errors import PenstockError


def learn_labels(recipe: Recipe) -> Columns:
    """Train the classifier on the examples of `[label]`; store the identities of both kinds."""
    good, of_good = _texts(recipe.label.good, "label.good")
    bad, of_bad = _texts(recipe.label.bad, "label.bad")
    learned = train_classifier(good, bad)
    held = learned.held_out
    return {
        "classifier": np.frombuffer(learned.to_bytes(), np.uint8),
        **result_columns(
            {
                "good": of_good,
                "bad": of_bad,
                "classifier": learned.identity(),
                "held_out": {
                    "good": [held.good_right, held.good],
                    "bad": [held.bad_right, held.bad],
                },
            }
        ),
    }


def read_evaluations(recipe: Recipe) -> Columns:
    """Read the evaluation texts of `[decontaminate]`; return their word runs and identity."""
    section, config = recipe.decontaminate, recipe.decontaminate.config()
    assert config
    texts: dict[str, list[str]] = {}
    seen: list[FileSummary] = []
    for path in section.against:
        for file in _files(path, "decontaminate.against"):
            mine: list[str] = []
            fields = section.text if file.kind != "text" else section.text[:1]
            for place, field in enumerate(fields):
                for piece in read_file(file, ReadOptions(text=field, columns=())):
                    if isinstance(piece, Document):
                        mine.append(piece.text)
                    elif isinstance(piece, FileSummary) and not place:
                        seen.append(piece)
            if not mine:
                raise PenstockError(
                    f"{path}: {file.name} has no text in any of the fields {list(section.text)}, "
                    "so nothing would be removed for it. Name its fields in decontaminate.text."
                )
            texts.setdefault(file.name, []).extend(mine)
    columns = evaluation_runs(texts, config)
    columns["identity"] = np.frombuffer(source_identity(seen).encode(), np.uint8)
    return columns


def _texts(paths: Iterable[str], field: str) -> tuple[list[str], str]:
    texts: list[str] = []
    seen: list[FileSummary] = []
    for path in paths:
        for file in _files(path, field):
            for piece in read_file(file):
                if isinstance(piece, Document):
                    texts.append(piece.text)
                elif isinstance(piece, FileSummary):
                    seen.append(piece)
    if not texts:
        raise PenstockError(
            f"{field} = {list(paths)}: no document could be read from there. Examples are text "
            'files, or JSON lines with a field "text".'
        )
    return texts, source_identity(seen)


def _files(path: str, field: str) -> list[RawFile]:
    try:
        found = list(find_files([path]))
    except PenstockError as error:
        raise PenstockError(f"{field}: {error}") from None
    wrong = [one for one in found if isinstance(one, Rejected)]
    files = [one for one in found if isinstance(one, RawFile)]
    if not files:
        raise PenstockError(
            f"{field}: {path} has no file that can be read ({wrong[0].file}: {wrong[0].reason})."
        )
    return files
