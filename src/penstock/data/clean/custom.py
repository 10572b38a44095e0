"""Steps of the user's own: a function in a Python file that keeps, drops or rewrites a document.

The file is read once, when its recipe is; every process runs those bytes, and the version of the
dataset is made of their hash. Other files beside it cannot be imported, since no hash would tell
that they changed.
"""

import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from types import CodeType, ModuleType
from typing import Any, Literal

import numpy as np
from blake3 import blake3

from penstock.data.format.manifest import Json
from penstock.errors import PenstockError

Judge = Callable[[str, dict[str, Any]], object]
_TRIAL = "A short text to try the function with.\n"
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class Step:
    """A function of the user's. Picklable: it is loaded where it is called."""

    path: str
    function: str
    code: bytes  # the whole file
    on_error: Literal["stop", "drop"] = "stop"

    @property
    def name(self) -> str:
        """What its counts and its drops are told by."""
        return f"step.{self.function}"

    @property
    def where(self) -> str:
        return f'clean.step: module = "{self.path}:{self.function}"'

    def identity(self) -> dict[str, Json]:
        """Where the file lies does not count."""
        return {
            "code": blake3(self.code).hexdigest(),
            "function": self.function,
            "on_error": self.on_error,
        }


@dataclass(frozen=True)
class Verdict:
    """What a step said of a document: a reason when it goes, a text when it is another."""

    reason: str | None = None
    detail: str = ""
    text: str | None = None


def check(step: Step) -> None:
    """Loads the function and tries it, before anything is built; raises an error of one message."""
    judge = load(step)
    try:
        said = judge(_TRIAL, {})
    except (Exception, SystemExit):
        return  # it may need columns that documents have and this text has not
    _read(step, said, "a text to try it with", is_chat=False)


def apply(step: Step, id: str, text: str, row: dict[str, Any], is_chat: bool) -> Verdict:
    """Asks the function about one document."""
    judge = load(step)
    try:
        said = judge(text, row)
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        if step.on_error == "drop":
            return Verdict(f"{step.name}.error", f"{what}{_line(step, error)}")
        shown = text[:_SHOWN_CHARACTERS]
        raise PenstockError(
            f"{step.where} raised {what}{_line(step, error)} of {step.path}, for the document "
            f'{id} (it begins {shown!r}). Mend it, or write on_error = "drop" to drop such '
            "documents."
        ) from None
    return _read(step, said, f"the document {id}", is_chat)


def _read(step: Step, said: object, what: str, is_chat: bool) -> Verdict:
    if said is None or (isinstance(said, bool | np.bool_) and said):
        return Verdict()
    if isinstance(said, bool | np.bool_):
        return Verdict(step.name)
    if isinstance(said, str) and is_chat:
        raise PenstockError(
            f"{step.where} gave a text for {what}, which is a conversation: these are kept or "
            "dropped as they are. Return True or False."
        )
    if not isinstance(said, str):
        raise PenstockError(
            f"{step.where} gave {type(said).__name__} for {what}. Return True or None to keep a "
            "document, False to drop it, or a str to replace its text."
        )
    try:
        said.encode()
    except UnicodeEncodeError as error:
        raise PenstockError(
            f"{step.where} gave text for {what} that is not valid Unicode: {error.reason} at "
            f"character {error.start}."
        ) from None
    return Verdict(text=said)


def _line(step: Step, error: BaseException) -> str:
    """`, line 7`: the last line of the user's file that the error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == step.path]
    return f" at line {lines[-1]}" if lines else ""


@lru_cache(maxsize=64)
def load(step: Step) -> Judge:
    """The function, from a fresh run of its file."""
    name = f"penstock_step_{blake3(step.code).hexdigest()[:16]}"  # no name of a library
    module = ModuleType(name)
    module.__file__ = step.path
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    # Standard output is the build's own: with --json a program reads it.
    module.__dict__["print"] = partial(print, file=sys.stderr)
    code = _compiled(step)
    try:
        exec(code, module.__dict__)
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        hint = ""
        if isinstance(error, ImportError):
            hint = " A step may import installed packages only: put its helpers into its file."
        raise PenstockError(
            f"{step.where} cannot be loaded: {what}{_line(step, error)}.{hint}"
        ) from None
    found = getattr(module, step.function, None)
    if found is None:
        own = [one for one, value in vars(module).items() if inspect.isfunction(value)]
        raise PenstockError(
            f"{step.where}: the file has no function {step.function!r}; it has: "
            f"{', '.join(own) or 'none'}."
        )
    if not callable(found):
        raise PenstockError(
            f"{step.where}: {step.function} is {type(found).__name__}, not a function."
        )
    _refuse_arguments(step, found)
    judge: Judge = found
    return judge


def _compiled(step: Step) -> CodeType:
    try:
        return compile(step.code, step.path, "exec")
    except (SyntaxError, ValueError) as error:
        line = f" at line {error.lineno}" if isinstance(error, SyntaxError) else ""
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        raise PenstockError(f"{step.where} is not Python: {what}{line}.") from None


def _refuse_arguments(step: Step, found: Callable[..., object]) -> None:
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return  # it does not say
    try:
        signature.bind("", {})
    except TypeError as error:
        raise PenstockError(
            f"{step.where}: it is called as {step.function}(text, row), which it does not take: "
            f"{error}."
        ) from None
