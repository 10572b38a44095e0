"""The folder of an export: marked as ours, and replaced as a whole or not at all."""

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock import __version__
from penstock.catalog.open.folder import CONFIG
from penstock.catalog.open.headers import INDEX
from penstock.errors import PenstockError
from penstock.model.adapter.export import CONFIG as ADAPTER_CONFIG

MARK = "penstock.json"  # says which run the weights are of, and that the folder may be replaced
_NAMED = {CONFIG, ADAPTER_CONFIG, INDEX, MARK}


def export_mark(run: str, step: int, dtype: str, beside: Iterable[str]) -> bytes:
    """Return the content of the mark: where the weights come from, and the files beside them."""
    about = {"run": run, "step": step, "dtype": dtype, "penstock": __version__}
    return (json.dumps({**about, "files": sorted(beside)}, indent=2) + "\n").encode()


def refuse_foreign(folder: Path) -> None:
    """Refuse to replace anything but an export: whatever else is in the folder would be lost."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise PenstockError(f"{folder} is a file; name another place with --out")
    names = {path.name for path in folder.iterdir()}
    if not names:
        return
    try:
        files = json.loads((folder / MARK).read_text())["files"]
    except (OSError, ValueError, KeyError, TypeError):
        raise PenstockError(
            f"{folder} has files and is no export of Penstock ({MARK} is missing or damaged); name "
            "another place with --out, or remove it"
        ) from None
    others = {name for name in names - _NAMED - set(files) if not name.endswith(".safetensors")}
    if others:
        listed = ", ".join(sorted(others)[:5])
        raise PenstockError(
            f"{folder} also has files that the export did not write: {listed}. Move them away, or "
            "name another place with --out"
        )


@contextmanager
def replace_when_done(folder: Path) -> Iterator[Path]:
    """Yield a path to write to. It replaces `folder` if everything succeeds."""
    if not folder.exists():
        yield folder
        return
    fresh, old = (folder.with_name(f".{folder.name}.{what}") for what in ("fresh", "old"))
    for left in (fresh, old):  # by an export that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        yield fresh
        folder.rename(old)
        fresh.rename(folder)
    except OSError as error:
        raise PenstockError(f"{folder} cannot be replaced: {error}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
