"""Stage 1, list: the files of all sources in a fixed order, without reading them.

Sizes and change times (ETags of objects) stand for the content, as they do in make: the key of a
build finds its work folder and its finished dataset again. They are not part of the version, which
depends on content alone.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass

from blake3 import blake3

from penstock.data.build.parts import lenient_json
from penstock.data.format.locate import built_versions, datasets_home
from penstock.data.format.manifest import FORMAT
from penstock.data.recipe.recipe import Recipe
from penstock.data.recipe.source import SourceSection, is_remote
from penstock.data.sources import hub
from penstock.data.sources.documents import Rejected
from penstock.data.sources.files import HubSelection, RawFile
from penstock.data.sources.find import find_files
from penstock.data.sources.options import ReadOptions
from penstock.errors import PenstockError

# A change in what a build does to the same documents, or in how it stores them, needs a new number.
REVISION = 1
_GROUP_FILES = 4096


@dataclass(frozen=True)
class SourceFile:
    """One file of a source, with its size and a stamp of its content."""

    file: RawFile
    bytes: int  # as stored
    stamp: str  # changes with the content


@dataclass(frozen=True)
class BuildSource:
    """One `[[source]]` of a recipe with the files that were found."""

    key: str  # prefix of the ids of its documents; empty if there is only one source
    label: str  # for people
    where: str
    options: ReadOptions
    files: tuple[SourceFile, ...]
    aside: tuple[Rejected, ...]  # entries that are not readable files

    @property
    def commit(self) -> str:
        """Commit that the files of a hub dataset were pinned to; empty for other sources."""
        first = self.files[0].file.path if self.files else ""
        return hub.commit_of(first) if first.startswith(hub.SCHEME) else ""

    def groups(self, most_bytes: int) -> list[tuple[SourceFile, ...]]:
        """Return the files of each read task; small files share one."""
        groups: list[list[SourceFile]] = []
        size = 0
        for one in self.files:
            size += one.bytes
            if not groups or size > most_bytes or len(groups[-1]) == _GROUP_FILES:
                groups.append([])
                size = one.bytes
            groups[-1].append(one)
        return [tuple(group) for group in groups]


def list_sources(recipe: Recipe) -> tuple[BuildSource, ...]:
    keys = [
        section.name or (str(place) if len(recipe.source) > 1 else "")
        for place, section in enumerate(recipe.source, start=1)
    ]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise PenstockError(
            f"Recipe {recipe.name!r}: two sources have the name {twice[0]!r}, so their documents "
            "could not be told apart. Give each [[source]] a name of its own."
        )
    return tuple(_source(key, section) for key, section in zip(keys, recipe.source, strict=True))


def build_key(recipe: Recipe, sources: tuple[BuildSource, ...]) -> str:
    """Return a key that changes with anything that could change the dataset."""
    digest = blake3(lenient_json([FORMAT, REVISION, recipe.name, recipe.identity()]))
    for source in sources:
        for one in source.files:
            digest.update(lenient_json([source.key, one.file.name, one.bytes, one.stamp]) + b"\n")
        for aside in source.aside:
            digest.update(lenient_json([source.key, aside.file, aside.reason]) + b"\n")
    for path in _other_files(recipe):
        digest.update(lenient_json(file_stamps(path)) + b"\n")
    return digest.hexdigest()[:16]


def file_stamps(path: str) -> list[list[str | int]]:
    """Return the files at a path, folder or glob with sizes and change times.

    A URL stands for itself; the name of a dataset comes with its built versions.
    """
    if is_remote(path):
        return [[path]]
    try:
        entry = [one for one in find_files([path], "text") if isinstance(one, RawFile)]
    except PenstockError:
        named = "" if "/" in path else path.partition("@")[0]
        return [[path, *(built_versions(datasets_home(), named) if named else ())]]
    return [[one.name, *_stat(one)] for one in entry]


def _other_files(recipe: Recipe) -> Iterable[str]:
    """Yield the paths that a recipe names besides its sources."""
    yield from (*recipe.label.good, *recipe.label.bad, *recipe.decontaminate.against)
    if recipe.tokens.tokenizer != "train":
        yield recipe.tokens.tokenizer
    if recipe.tokens.chat_template:
        yield recipe.tokens.chat_template


def _source(key: str, section: SourceSection) -> BuildSource:
    options = section.options()
    files: list[SourceFile] = []
    aside: list[Rejected] = []
    choice = HubSelection(section.revision or "", section.subset or "", section.split or "")
    for entry in find_files([section.path], options.kind, choice):
        if isinstance(entry, Rejected):
            aside.append(entry)
        else:
            files.append(SourceFile(entry, *_stat(entry)))
    return BuildSource(key, section.label, section.path, options, tuple(files), tuple(aside))


def _stat(file: RawFile) -> tuple[int, str]:
    if is_remote(file.path):
        return max(file.bytes, 0), f"{file.path} {file.stamp}"
    try:
        entry = os.stat(file.path)
    except OSError:
        return 0, "gone"
    # No inode numbers: one image on a hundred nodes must have one key.
    return entry.st_size, f"{os.path.abspath(file.path)} {entry.st_mtime_ns}"
