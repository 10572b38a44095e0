"""Files that a run takes to machines that share no disk with this one: its run file and own code.

Datasets and models are too large to travel this way: nodes read them from a bucket, the hub, or a
volume that all of them mount.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from penstock import secret
from penstock.data.format.locate import STDLIB
from penstock.errors import PenstockError
from penstock.found import expanded_path, located
from penstock.run.save import to_table, to_toml
from penstock.run.schema.run import Run

RUN_FILE = "run.toml"
MOST_BYTES = 900_000
"""Of all files together: a ConfigMap holds 1 MiB."""

_REMOTE = ("s3://", "gs://", "az://", "http://", "https://", "hf:")
_FILES = (("model", "module"), ("train", "loss"), ("data", "chat_template"), ("cluster", "use"))
_WORDS = ("default", "here")  # of these fields, words that name no file


@dataclass(frozen=True)
class CarriedRun:
    """The files of a run as its nodes find them, all in one folder."""

    files: dict[str, str]
    """Content by path, relative to that folder. `RUN_FILE` is the run, resolved."""


def carry(run: Run) -> CarriedRun:
    """Return the files that the nodes need; paths of the run file point to them.

    Raises PenstockError where a file is missing, is no text, or is too large.
    """
    table, files = to_table(run), dict[str, str]()
    if not is_relative(run.dir):
        table["dir"] = "runs"
    for section, name in _FILES:
        value = getattr(getattr(run, section), name)
        if value is not None and (found := _file_of(value)):
            path, function = found
            at = _path_on_nodes(value, path)
            files[at] = _read(f"{section}.{name}", value, path)
            table[section][name] = f"{at}:{function}" if function else at
    files[RUN_FILE] = to_toml(Run.model_validate(table))
    size = sum(len(text.encode()) for text in files.values())
    if size > MOST_BYTES:
        raise PenstockError(
            f"{', '.join(files)}: {size:,} bytes, and {MOST_BYTES:,} travel with a run; put large "
            "code into the image"
        )
    return CarriedRun(files)


def refused_places(run: Run, shared: str | None, how: str) -> list[str]:
    """Say which data and models the nodes would not find, a line each.

    `shared` is the folder on the nodes that a shared volume is mounted at, None without one; `how`
    says how to get one, or "".
    """
    problems = []
    for field, value in _large_places(run):
        if value.startswith(_REMOTE) or value == STDLIB:
            continue
        if field == "model.from" and not expanded_path(value).exists():
            continue  # a name on the hub
        if shared is None:
            more = f", or {how}" if how else ""
            fix = "write a name on the hub" if field == "model.from" else _upload(value)
            if field == "evaluate.tasks_dir":
                fix = "put the tasks into the image and name their folder there"
            problems.append(f'{field} = "{value}": the nodes do not see this machine; {fix}{more}')
        elif not is_relative(value) and not value.startswith(f"{shared}/"):
            problems.append(
                f'{field} = "{value}": not on the volume of the nodes, which is {shared} there; '
                f"write a path relative to {shared}, or a URL"
            )
    return problems


def refused_secrets(run: Run, field: str) -> list[str]:
    """Say which fields hold a secret that everyone could read in what is submitted.

    `field` is the setting that hands variables on to the nodes.
    """
    return [
        f"{name}: holds a secret, which would be readable in what is submitted; leave it out of "
        f'the run file: write "$NAME" where a variable may stand, and hand it on by {field}'
        for name, value in _leaves(to_table(run))
        if secret.visible(name, value) != value
    ]


def is_relative(path: str) -> bool:
    return not path.startswith(("/", "~"))


def _leaves(table: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _large_places(run: Run) -> Iterator[tuple[str, str]]:
    field = "data.mix" if run.data.mix else "data.dataset"
    yield from ((field, spec) for spec, _ in run.data.parts)
    if run.model.from_:
        yield "model.from", run.model.from_
    if run.evaluate.tasks_dir:
        yield "evaluate.tasks_dir", run.evaluate.tasks_dir


def _upload(dataset: str) -> str:
    name = PurePosixPath(dataset).name
    return (
        f"`penstock data copy {dataset} s3://BUCKET/datasets` puts it into a bucket; then write "
        f'"s3://BUCKET/datasets/{name if "@" in name else f"{name}@VERSION"}"'
    )


def _file_of(value: str) -> tuple[Path, str] | None:
    """Return the file here that a field names, and the function in it; None for other words."""
    if value in _WORDS:
        return None
    where, colon, function = located(value).rpartition(":")
    if not colon or not function.isidentifier():
        where, function = located(value), ""
    path = Path(where).expanduser()
    is_name = "/" not in value and "." not in value  # of a cluster in the catalog
    return None if is_name and not path.exists() else (path, function)


def _path_on_nodes(written: str, path: Path) -> str:
    """Return the path as written where it stays inside the folder, else the file's name."""
    given = PurePosixPath(written.rpartition(":")[0] or written)
    inside = is_relative(written) and ".." not in given.parts and given.name == path.name
    return str(given) if inside else path.name


def _read(field: str, value: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise PenstockError(
            f'{field} = "{value}": {path} cannot be sent to the nodes: {why}; name a text file'
        ) from None
