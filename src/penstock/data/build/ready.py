"""Refuse a build that cannot succeed, before it starts: files, packages and rows that it needs."""

from collections.abc import Sequence

from penstock.data.build.list import Source
from penstock.data.recipe.recipe import Recipe
from penstock.errors import PenstockError
from penstock.extras import extra

# Packages of the `data` extra by kind of file; the others write the shards of every dataset.
_READERS = {"parquet": ("pyarrow", "Reading Parquet"), "arrow": ("pyarrow", "Reading Arrow")}
_WRITERS = ("zstandard", "orjson")
_ROWS = 1000  # looked at for a document


def refuse_unready(sources: Sequence[Source]) -> None:
    """Raise an error for sources without any readable file, and for a package that is missing."""
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


def refuse_unreadable(recipe: Recipe, sources: tuple[Source, ...]) -> None:
    """Raise the build's error for files that have no row which can be read as a document.

    Only the first rows are read: where these decide nothing, the build does.
    """
    from penstock.data.build.read import read_in_vain

    if (found := read_in_vain(sources, _ROWS)) is None:
        return
    from penstock.data.build.summary import nothing_left
    from penstock.data.build.tally import Tally

    reading, aside = found
    raise PenstockError(nothing_left(recipe, reading, Tally(), {}, aside))
