"""Stage 1, list: the files of all sources in a fixed order, without reading one.

Sizes and change times (entity tags of objects) stand for the content, as they do for make: the key
of a build finds its work folder and its finished dataset again. They are no part of the version,
which is content alone.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass

from blake3 import blake3

from penstock.data.build.parts import plain_json
from penstock.data.format.locate import built_versions, datasets_home
from penstock.data.format.manifest import FORMAT
from penstock.data.recipe.recipe import Recipe
from penstock.data.recipe.source import SourceSection, is_remote
from penstock.data.sources import hub
from penstock.data.sources.files import Choice, File
from penstock.data.sources.find import find
from penstock.data.sources.options import Options
from penstock.data.sources.pieces import Rejected
from penstock.errors import PenstockError

# A change in what a build does to the same documents, or in how it stores them, needs a new number.
REVISION = 1
_GROUP_FILES = 4096


@dataclass(frozen=True)
class Listed:
    file: File
    bytes: int  # as stored
    stamp: str  # changes with the content


@dataclass(frozen=True)
class Source:
    key: str  # begins the ids of its documents; empty when there is but one source
    label: str  # for people
    where: str
    options: Options
    files: tuple[Listed, ...]
    aside: tuple[Rejected, ...]  # what lies there and is no file to read

    @property
    def commit(self) -> str:
        """Of a dataset on the hub: what its files were pinned to; else empty."""
        first = self.files[0].file.path if self.files else ""
        return hub.commit(first) if first.startswith(hub.SCHEME) else ""

    def groups(self, most_bytes: int) -> list[tuple[Listed, ...]]:
        """The files that each reading task takes: small ones together."""
        groups: list[list[Listed]] = []
        size = 0
        for one in self.files:
            size += one.bytes
            if not groups or size > most_bytes or len(groups[-1]) == _GROUP_FILES:
                groups.append([])
                size = one.bytes
            groups[-1].append(one)
        return [tuple(group) for group in groups]


def list_sources(recipe: Recipe) -> tuple[Source, ...]:
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


def build_key(recipe: Recipe, sources: tuple[Source, ...]) -> str:
    """Changes with anything that could change the dataset."""
    digest = blake3(plain_json([FORMAT, REVISION, recipe.name, recipe.identity()]))
    for source in sources:
        for one in source.files:
            digest.update(plain_json([source.key, one.file.name, one.bytes, one.stamp]) + b"\n")
        for aside in source.aside:
            digest.update(plain_json([source.key, aside.file, aside.reason]) + b"\n")
    for path in _other_files(recipe):
        digest.update(plain_json(stamps(path)) + b"\n")
    return digest.hexdigest()[:16]


def stamps(path: str) -> list[list[str | int]]:
    """The files at a path, folder or glob with size and change time; a URL as it is; the name of a
    dataset with the versions that are there."""
    if is_remote(path):
        return [[path]]
    try:
        found = [one for one in find([path], "text") if isinstance(one, File)]
    except PenstockError:
        named = "" if "/" in path else path.partition("@")[0]
        return [[path, *(built_versions(datasets_home(), named) if named else ())]]
    return [[one.name, *_stat(one)] for one in found]


def _other_files(recipe: Recipe) -> Iterable[str]:
    """What a recipe names besides its sources."""
    yield from (*recipe.label.good, *recipe.label.bad, *recipe.decontaminate.against)
    if recipe.tokens.tokenizer != "train":
        yield recipe.tokens.tokenizer
    if recipe.tokens.chat_template:
        yield recipe.tokens.chat_template


def _source(key: str, section: SourceSection) -> Source:
    options = section.options()
    files: list[Listed] = []
    aside: list[Rejected] = []
    choice = Choice(section.revision or "", section.subset or "", section.split or "")
    for found in find([section.path], options.kind, choice):
        if isinstance(found, Rejected):
            aside.append(found)
        else:
            files.append(Listed(found, *_stat(found)))
    return Source(key, section.label, section.path, options, tuple(files), tuple(aside))


def _stat(file: File) -> tuple[int, str]:
    if is_remote(file.path):
        return max(file.bytes, 0), f"{file.path} {file.stamp}"
    try:
        found = os.stat(file.path)
    except OSError:
        return 0, "gone"
    # Inode numbers are left out: one image on a hundred nodes has one key.
    return found.st_size, f"{os.path.abspath(file.path)} {found.st_mtime_ns}"
