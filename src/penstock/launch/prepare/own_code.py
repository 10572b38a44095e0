"""The user's own code in a run: a loss function becomes a file, and no file may change.

Ranks are other processes, so they import the loss from a file. A function from a notebook or from
the running script is written to a file first.
"""

import ast
import builtins
import importlib
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from blake3 import blake3

from penstock.errors import PenstockError
from penstock.files import write_atomic
from penstock.home import home
from penstock.run.diff import with_fields
from penstock.run.launch_record import LaunchRecord
from penstock.run.schema.code import changed_code, code_hashes, user_codes
from penstock.run.schema.run import Run

_CONSTANTS = (bool, int, float, str, bytes, type(None))
_MOVE = "put it into a .py file of its own, import it from there, and pass that"


def with_loss(run: Run, loss: Callable[..., Any]) -> Run:
    """Return the run with `train.loss` set to a function of this process."""
    train = run.train.model_copy(update={"loss": spec_of(loss)})
    return run.model_copy(update={"train": train})


def spec_of(loss: Callable[..., Any]) -> str:
    """Return where other processes find the function: "file.py:name"."""
    if not isinstance(loss, FunctionType):
        what = f"a {type(loss).__name__}, not a function"
        raise PenstockError(f"loss = {loss!r}: {what}; write `def my_loss(logits, targets): …`")
    if loss.__name__ == "<lambda>" or loss.__closure__ or "." in loss.__qualname__:
        what = "a lambda" if loss.__name__ == "<lambda>" else "defined inside of something"
        raise PenstockError(
            f"loss = {loss.__qualname__}: {what}, so that other processes cannot import it; write "
            "`def my_loss(logits, targets): …` at the top of a file or of a notebook cell"
        )
    module = inspect.getmodule(loss)
    file = getattr(module, "__file__", None)
    if loss.__module__ != "__main__" and file and file.endswith(".py"):
        path = Path(file).resolve()
        here = Path.cwd()
        return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{loss.__name__}"
    return _written(loss)


def _written(loss: FunctionType) -> str:
    """Write a function of the running script or notebook to a file that stands alone."""
    try:
        source = textwrap.dedent(inspect.getsource(loss))
    except (OSError, TypeError):
        raise PenstockError(
            f"loss = {loss.__name__}: its source is not known here; {_MOVE}"
        ) from None
    head = [_bound(loss, name) for name in _globals_of(loss, source)]
    text = "\n".join([*sorted(line for line in head if line), "", "", source])
    digest = blake3(text.encode()).hexdigest()[:16]
    path = home() / "code" / digest / f"{loss.__name__}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text)
    return f"{path}:{loss.__name__}"


def _globals_of(loss: FunctionType, source: str) -> list[str]:
    """Return the global names that the function uses, also in defaults and annotations."""
    used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    return sorted(used & loss.__globals__.keys() - {loss.__name__} - set(dir(builtins)))


def _bound(loss: FunctionType, name: str) -> str:
    """Return a line that gives `name` the value that it has in this process."""
    value = loss.__globals__[name]
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    if isinstance(value, _CONSTANTS):
        return f"{name} = {value!r}"
    room, known = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if room and room != "__main__" and known.isidentifier():
        try:
            found = getattr(importlib.import_module(room), known, None)
        except ImportError:
            found = None
        if found is value:
            return f"from {room} import {known} as {name}"
    raise PenstockError(
        f"loss = {loss.__name__}: it uses `{name}`, which only this process has; {_MOVE}"
    )


def with_renamed(old: Run, run: Run, launch: LaunchRecord) -> Run:
    """Return `old` with the files of `run` where they have the same code under another name.

    `launch` is that of `old`, which keeps the hashes of its files."""
    before = {code.field: code for code in user_codes(old)}
    names: dict[str, int | float | str] = {}
    for code in user_codes(run):
        was = before.get(code.field)
        if was is None or was.spec == code.spec or was.function != code.function:
            continue
        if code.path.is_file() and code.hash() == launch.sources.get(code.key):
            names[code.field] = code.spec
    return with_fields(old, names) if names else old


def check_code_unchanged(run: Run, before: LaunchRecord) -> dict[str, str]:
    """Return the hashes of the user's code for plan.json; refuse code that has changed since."""
    for own in user_codes(run):
        if own.key in before.sources and not own.path.is_file():
            raise PenstockError(
                f"{own.words}: {own.path} is gone, with which run '{run.name}' began. Put the "
                f"file back; or write its new name in {own.field}, if it was renamed: a run goes "
                "on with a file of the same content"
            )
    if code := changed_code(run, before.sources):
        raise PenstockError(
            f"{code.words}: {code.path} has changed since run '{run.name}' began, so the rest of "
            "it would be trained by other code. Put the file back to go on; or start a new run "
            "from its last checkpoint with `--fork NAME`; or start anew with `--fresh`"
        )
    return code_hashes(run)
