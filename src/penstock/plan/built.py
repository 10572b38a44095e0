"""The lookup of the dataset that `data.dataset` names: is it built, and its manifest. Nothing is
built and no tokens are read.

In the order in which `data/build/open.py` opens it, so that a plan reads what the run would.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from penstock.data.format.locate import STDLIB, built_versions, datasets_home, locate_dataset
from penstock.data.format.manifest import MANIFEST, Manifest, fetch_manifest, read_manifest
from penstock.data.store.objects import PATIENCE_S
from penstock.run.schema.run import Run

if TYPE_CHECKING:
    from penstock.data.recipe.recipe import Recipe

_PATIENCE_S = 3.0  # a plan answers soon, also where the store cannot be reached


@dataclass(frozen=True)
class BuiltDataset:
    """A dataset that is built."""

    manifest: Manifest
    folder: Path | None  # None: it lies at a URL


def find_built(run: Run, spec: str, launch: bool = False) -> BuiltDataset | str:
    """Find the dataset, or say why it is not built yet: a sentence without its full stop.

    Raises an error for data that no run can read: `penstock train` refuses it with the same words.
    `launch` is for a run that is to start here. Then a URL is tried for as long as reading does it,
    and a file on the web is looked for.
    """
    found = locate_dataset(spec)
    if found.kind == "built":
        return BuiltDataset(read_manifest(found.path), found.path)
    if found.kind == "stdlib":
        return _stdlib()
    if found.kind == "url":
        return _at_url(found.where, launch)
    recipe = found.path if found.kind == "recipe" else None
    return _recipe_of(run, found.where, recipe, launch)


def _raw_recipe(run: Run, spec: str) -> "Recipe":
    from penstock.data.recipe.load import raw_recipe

    shape = run.model.base()
    vocab = (shape.vocab if shape else None) or None
    tokenizer, template = run.model.tokenizer(), run.data.chat_template
    return raw_recipe(spec, tokenizer, vocab, run.sequence, template, run.train.objective)


def _at_url(url: str, launch: bool) -> BuiltDataset | str:
    try:
        return BuiltDataset(_fetched(url, PATIENCE_S if launch else _PATIENCE_S), None)
    except FileNotFoundError:
        pass
    if launch and url.startswith("http"):  # one request; buckets are listed by the build
        from penstock.data.sources.find import find_files

        list(find_files([url]))
    return f"{url} holds no built dataset; `penstock train` builds one from the files there"


@lru_cache(maxsize=16)  # a plan asks more than once, and a version does not change
def _fetched(url: str, patience_s: float) -> Manifest:
    content = fetch_manifest(url, patience_s)
    if content is None:
        raise FileNotFoundError(url)  # not kept: it may be there the next time
    with TemporaryDirectory() as folder:
        (Path(folder) / MANIFEST).write_bytes(content)
        return read_manifest(Path(folder))


def _recipe_of(run: Run, spec: str, recipe: Path | None, launch: bool) -> BuiltDataset | str:
    """Find what a recipe or raw files gave, if they are as they were then; else say whether they
    can be built.
    """
    if spec.startswith("hf:"):
        return f"{spec} is built from the hub when the run starts; what it gives is not known yet"
    from penstock.data.build.checks import (
        first_rows_note,
        refuse_bad_tokenizer,
        refuse_no_documents,
        refuse_unbuildable,
    )
    from penstock.data.build.listing import build_key, list_sources
    from penstock.data.build.open import find_built_for_key
    from penstock.data.recipe.load import load_recipe
    from penstock.data.recipe.source import is_remote

    made, lost = load_recipe(recipe) if recipe else _raw_recipe(run, spec), ""
    if not any(is_remote(source.path) for source in made.source):
        sources = list_sources(made)
        found = find_built_for_key(datasets_home(), made.name, build_key(made, sources))
        if found:
            return BuiltDataset(found.manifest, found.folder)
        refuse_unbuildable(sources)
        refuse_no_documents(made, sources)
        if launch:  # a plan answers at once
            lost = first_rows_note(sources)
    if launch:  # a large tokenizer takes a second to load
        refuse_bad_tokenizer(made)
    what = f"penstock data build {spec}` builds it now" if recipe else "penstock train` builds it"
    return f"{spec} is not built here yet; `{what}{f'. {lost}' if lost else ''}"


def _stdlib() -> BuiltDataset | str:
    there = built_versions(datasets_home(), STDLIB)
    if len(there) != 1:  # several: one for each Python install
        return f"{STDLIB} is not built here yet for this Python; `penstock train` builds it"
    folder = datasets_home() / f"{STDLIB}@{there[0]}"
    return BuiltDataset(read_manifest(folder), folder)
