"""Refuse a build that cannot succeed, before anything is read: files and packages it needs."""

from collections.abc import Sequence

from penstock.data.build.list import Source
from penstock.errors import PenstockError
from penstock.extras import extra

# Packages of the `data` extra by kind of file; the others write the shards of every dataset.
_READERS = {"parquet": ("pyarrow", "Reading Parquet"), "arrow": ("pyarrow", "Reading Arrow")}
_WRITERS = ("zstandard", "orjson")


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
