"""Places of the relative paths of a run file.

They start at the current folder, or else at the folder of the run file. A run that has started
stores the place of each path in its plan; everything that opens the run later, from any folder,
looks there first.
"""

import glob
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.found import FoundPath, located
from penstock.home import home
from penstock.run.schema.run import Run
from penstock.untrusted import read_json

PLAN = "plan.json"  # beside the run file of a run that has started
KEY = "paths"  # key in plan.json: path as written → its place
_DATA = ("data", "dataset")
_FIELDS = (("model", "from"), ("model", "module"), _DATA, ("data", "chat_template"),
           ("train", "loss"), ("cluster", "use"), ("evaluate", "tasks_dir"),
           ("budget", "hours_csv"))  # fmt: skip
_BUILT_IN = ("stdlib", "default", "here")  # words that are not paths


def locate_paths(table: dict[str, Any], file: Path) -> None:
    """Replace the relative paths in the table of a run file by `FoundPath`s with their places."""
    wanted = [one for one in _given(table) if _is_relative(one[2])]
    if not wanted:
        return
    before = _recorded(file.parent)
    for holder, name, written in wanted:
        if found := _find(written, name, before.get(written), file, table.get("dir", "runs")):
            holder[name] = FoundPath(written, found)


def located_paths(run: Run) -> dict[str, str]:
    """Return the place of each relative path of a run, for its plan."""
    found = {}
    for _, _, written in _given(run.model_dump(by_alias=True)):
        where = located(written)
        if _is_relative(written) and _exists(where):
            found[str(written)] = str(Path.cwd() / where)
    return found


def _given(table: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield (table, field, value) of every field that may be a path."""
    for section, name in _FIELDS:
        holder = table.get(section)
        if isinstance(holder, dict) and isinstance(holder.get(name), str):
            yield holder, name, holder[name]
    data = table.get("data")
    mix = data.get("mix") if isinstance(data, dict) else None
    for part in mix if isinstance(mix, list | tuple) else ():
        if isinstance(part, dict) and isinstance(part.get("dataset"), str):
            yield part, "dataset", part["dataset"]


def _find(written: str, name: str, before: str | None, file: Path, runs: object) -> str | None:
    """Return the place of a path that does not start at the current folder; None if it does."""
    if before and _exists(before):
        return before
    if _exists(written) or (name == "dataset" and _is_built(written)):
        return None
    folder = file.resolve().parent
    # A run folder lies in `dir` of the folder that the run was started in.
    started_in = folder.parent
    for _ in Path(runs).parts if isinstance(runs, str) else ():
        started_in = started_in.parent
    places = [folder, *([started_in] if (folder / PLAN).is_file() else [])]
    return next((str(one / written) for one in places if _exists(str(one / written))), None)


def _is_relative(written: str) -> bool:
    remote = written.startswith("hf:") or "://" in written
    return not (
        remote or written in _BUILT_IN or written.startswith("~") or Path(written).is_absolute()
    )


def _exists(written: str) -> bool:
    path, colon, function = written.rpartition(":")  # my_model.py:build
    try:
        if Path(written).exists() or (glob.has_magic(written) and any(glob.iglob(written))):
            return True
        return bool(colon) and function.isidentifier() and Path(path).exists()
    except (OSError, ValueError):  # no name that a file could have
        return False


def _is_built(written: str) -> bool:
    """Return whether a built dataset has that name; it wins over a file in another folder."""
    name = glob.escape(written.partition("@")[0])
    return "/" not in written and any((home() / "datasets").glob(f"{name}@*"))


def _recorded(folder: Path) -> dict[str, str]:
    try:
        found = read_json(folder / PLAN)[KEY]
        return {str(written): str(where) for written, where in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # not the folder of a run, or of a version that did not store paths
