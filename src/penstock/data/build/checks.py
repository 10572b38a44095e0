"""Checks that refuse a build that cannot succeed, before it starts: files, packages, rows and the
tokenizer.
"""

from collections.abc import Sequence
from pathlib import Path

from penstock.data.build.listing import BuildSource
from penstock.data.recipe.recipe import Recipe
from penstock.errors import PenstockError
from penstock.extras import extra

# Packages of the `data` extra that read a kind of file; _WRITERS write the shards of every dataset.
_READERS = {"parquet": ("pyarrow", "Reading Parquet"), "arrow": ("pyarrow", "Reading Arrow")}
_WRITERS = ("zstandard", "orjson")
_ROWS = 1000  # read to find a document, and rows that are none
_CHARACTERS = 16_000_000  # of documents, read for the same


def refuse_unbuildable(sources: Sequence[BuildSource]) -> None:
    """Raise an error if no source has a readable file, or if a package is missing."""
    for package in _WRITERS:
        extra(package, "Building a dataset")
    files = [one.file for source in sources for one in source.files]
    for kind in sorted({file.kind for file in files} & _READERS.keys()):
        extra(*_READERS[kind])
    if files:
        return
    aside = [(source.where, one) for source in sources for one in source.aside]
    told = ", ".join(
        f"{one.file or where}: {one.reason}{f' ({one.detail})' if one.detail else ''}"
        for where, one in aside[:3]
    )
    where = ", ".join(source.where for source in sources)
    more = f" (and {len(aside) - 3} more)" if aside[3:] else ""
    raise PenstockError(f"{where}: there is no file that can be read. {told}{more}")


def refuse_bad_tokenizer(recipe: Recipe) -> None:
    """Raise the build's error if the tokenizer that the recipe names lies here and cannot be used.

    One that is not here is left to the build: it may be fetched together with its model.
    """
    from penstock.data.build.tokenizer import TRAIN, load_named

    named = recipe.tokens.tokenizer
    if named != TRAIN and Path(named).expanduser().exists():
        load_named(recipe)


def refuse_no_documents(recipe: Recipe, sources: tuple[BuildSource, ...]) -> None:
    """Raise the build's error if no row of the files can be read as a document.

    Only the first rows are read; if they do not decide it, the build does.
    """
    # Imported here: the check above is also for plans, which answer at once.
    from penstock.data.build.read import find_no_document

    if (found := find_no_document(sources, _ROWS)) is None:
        return
    from penstock.data.build.summary import no_documents_message
    from penstock.data.build.tally import DocumentTally

    totals, aside = found
    raise PenstockError(no_documents_message(recipe, totals, DocumentTally(), {}, aside))


def first_rows_note(sources: tuple[BuildSource, ...]) -> str:
    """Return a note on what a build would keep aside of its first rows; empty if nothing."""
    from penstock.data.build.read import count_first_rows
    from penstock.data.build.rejected import first_rows_warning

    documents, reasons, first = count_first_rows(sources, _ROWS, _CHARACTERS)
    return first_rows_warning(documents, reasons, first, sources[0].where) if first else ""
