"""Whether what `data.dataset` names is built, and its manifest: looked up, never built, no tokens.

In the order in which `data/home.py` opens it, so that a plan reads what the run would.
"""

from functools import lru_cache
from glob import has_magic
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from penstock.data.manifest import MANIFEST, Manifest, read_manifest
from penstock.data.named import STDLIB, datasets_home, matching, versions
from penstock.data.remote_store import Store, is_url
from penstock.errors import PenstockError
from penstock.found import located
from penstock.run.file import Run

if TYPE_CHECKING:
    from penstock.data.recipe import Recipe

_PATIENCE_S = 3.0  # a plan answers soon, also where the store cannot be reached


def built(run: Run, spec: str) -> Manifest | str:
    """The manifest, or why there is none: a sentence without its full stop."""
    try:
        spec = located(spec)
        if is_url(spec):
            return _at_url(spec)
        path = Path(spec).expanduser()
        if (path / MANIFEST).is_file():
            return read_manifest(path)
        raw = spec.startswith("hf:") or has_magic(spec) or path.exists()
        if spec != STDLIB and raw:
            return _recipe_of(run, spec, path)
        return _named(spec)
    except PenstockError as error:
        return f"{spec} cannot be used here: {str(error).rstrip('.')}"


def refuse_unusable(run: Run) -> None:
    """An error for data that no run can read: a file that is not there, rows without a template."""
    from penstock.data.source_files import KINDS

    for given, _ in run.data.parts:
        spec = located(given)
        path = Path(spec).expanduser()
        if is_url(spec) or spec.startswith("hf:") or has_magic(spec) or path.exists():
            if path.exists() and path.suffix != ".toml" and not (path / MANIFEST).is_file():
                _raw_recipe(run, spec)
        elif "/" in spec or path.suffix in KINDS:
            raise PenstockError(
                f'data.dataset = "{spec}": no such file; write the path of your data, the name of '
                "a built dataset, a URL or hf:org/name"
            )


def _raw_recipe(run: Run, spec: str) -> "Recipe":
    from penstock.data.recipe_raw import raw_recipe

    shape = run.model.base()
    vocab = (shape.vocab if shape else None) or None
    return raw_recipe(spec, run.model.tokenizer(), vocab, run.sequence, run.data.chat_template)


def _at_url(url: str) -> Manifest | str:
    try:
        return _fetched(url)
    except FileNotFoundError:
        return f"{url} holds no built dataset; `penstock train` builds one from the files there"
    except OSError as error:
        return f"{url} cannot be looked at from here: {error.strerror or error}"


@lru_cache(maxsize=16)  # a plan asks more than once, and a version does not change
def _fetched(url: str) -> Manifest:
    content = Store(url.rstrip("/"), _PATIENCE_S).get(MANIFEST)
    if content.lstrip()[:1] != b"{":  # a web page for everything that is missing
        raise FileNotFoundError(url)
    with TemporaryDirectory() as folder:
        (Path(folder) / MANIFEST).write_bytes(content)
        return read_manifest(Path(folder))


def _recipe_of(run: Run, spec: str, path: Path) -> Manifest | str:
    """Of a recipe or raw files: what they gave, if they are as they were then."""
    if spec.startswith("hf:"):
        return f"{spec} is built from the hub when the run starts; what it gives is not known yet"
    from penstock.data.build_list import build_key, list_sources
    from penstock.data.home import follow
    from penstock.data.recipe_load import load_recipe
    from penstock.data.recipe_source import is_remote

    recipe = path.suffix == ".toml" and path.is_file()
    made = load_recipe(path) if recipe else _raw_recipe(run, spec)
    if not any(is_remote(source.path) for source in made.source):
        found = follow(datasets_home(), made.name, build_key(made, list_sources(made)))
        if found:
            return found.manifest
    what = f"penstock data build {spec}` builds it now" if recipe else "penstock train` builds it"
    return f"{spec} is not built here yet; `{what}"


def _named(spec: str) -> Manifest | str:
    where, name = datasets_home(), spec.partition("@")[0]
    found = [f"{name}@{version}" for version in matching(where, spec)]
    if len(found) == 1:
        return read_manifest(where / found[0])
    if spec == STDLIB:  # several: one for each Python install
        return f"{spec} is not built here yet for this Python; `penstock train` builds it"
    if found:
        return f"{spec} has several versions here, and a run needs one of them: {', '.join(found)}"
    there = [f"{name}@{version}" for version in versions(where, name)]
    also = f"; there are {', '.join(there)}" if there else ""
    return f"{spec} is not built here{also}: no run can start from it before it is in {where}"
