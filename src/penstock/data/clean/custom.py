"""Custom steps: a function in the user's Python file that keeps, drops or rewrites a document.

The file is read once, together with the recipe. Every process runs those bytes, and their hash is
part of the dataset's version. The file cannot import other files beside it, since no hash would
show that they changed.
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

StepFunction = Callable[[str, dict[str, Any]], object]
_TRIAL = "A short text to try the function with.\n"
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class CustomStep:
    """A function of the user. It can be pickled: each process loads it from `code`."""

    path: str
    function: str
    code: bytes  # the whole file
    on_error: Literal["stop", "drop"] = "stop"

    @property
    def name(self) -> str:
        """Return the name of the step in counts and drop reasons."""
        return f"step.{self.function}"

    @property
    def where(self) -> str:
        return f'clean.step: module = "{self.path}:{self.function}"'

    def identity(self) -> dict[str, Json]:
        """Return all that decides the result; the path of the file does not."""
        return {
            "code": blake3(self.code).hexdigest(),
            "function": self.function,
            "on_error": self.on_error,
        }


@dataclass(frozen=True)
class StepResult:
    """The result of a step for a document: a reason if dropped, a text if rewritten."""

    reason: str | None = None
    detail: str = ""
    text: str | None = None


def check_step(step: CustomStep) -> None:
    """Load the function and call it once before the build; raise PenstockError if that fails."""
    function = load_step(step)
    try:
        answer = function(_TRIAL, {})
    except (Exception, SystemExit):
        return  # it may need columns that only real documents have
    _to_result(step, answer, "a text to try it with", is_chat=False)


def apply_step(
    step: CustomStep, id: str, text: str, row: dict[str, Any], is_chat: bool
) -> StepResult:
    """Call the function with one document."""
    function = load_step(step)
    try:
        answer = function(text, row)
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        if step.on_error == "drop":
            return StepResult(f"{step.name}.error", f"{what}{_line(step, error)}")
        shown = text[:_SHOWN_CHARACTERS]
        raise PenstockError(
            f"{step.where} raised {what}{_line(step, error)} of {step.path}, for the document "
            f'{id} (it begins {shown!r}). Fix it, or write on_error = "drop" to drop such '
            "documents."
        ) from None
    return _to_result(step, answer, f"the document {id}", is_chat)


def _to_result(step: CustomStep, answer: object, what: str, is_chat: bool) -> StepResult:
    if answer is None or (isinstance(answer, bool | np.bool_) and answer):
        return StepResult()
    if isinstance(answer, bool | np.bool_):
        return StepResult(step.name)
    if isinstance(answer, str) and is_chat:
        raise PenstockError(
            f"{step.where} gave a text for {what}, which is a conversation: these are kept or "
            "dropped as they are. Return True or False."
        )
    if not isinstance(answer, str):
        raise PenstockError(
            f"{step.where} gave {type(answer).__name__} for {what}. Return True or None to keep a "
            "document, False to drop it, or a str to replace its text."
        )
    try:
        answer.encode()
    except UnicodeEncodeError as error:
        raise PenstockError(
            f"{step.where} gave text for {what} that is not valid Unicode: {error.reason} at "
            f"character {error.start}."
        ) from None
    return StepResult(text=answer)


def _line(step: CustomStep, error: BaseException) -> str:
    """Return ` at line N`: the last line of the user's file in the traceback, or nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == step.path]
    return f" at line {lines[-1]}" if lines else ""


@lru_cache(maxsize=64)
def load_step(step: CustomStep) -> StepFunction:
    """Run the file in a fresh module and return the function."""
    name = f"penstock_step_{blake3(step.code).hexdigest()[:16]}"  # cannot clash with a library
    module = ModuleType(name)
    module.__file__ = step.path
    sys.modules[name] = module  # dataclasses and pickle look up a class's module there
    # Standard output belongs to the build: with --json a program reads it.
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
    function: StepFunction = found
    return function


def _compiled(step: CustomStep) -> CodeType:
    try:
        return compile(step.code, step.path, "exec")
    except (SyntaxError, ValueError) as error:
        line = f" at line {error.lineno}" if isinstance(error, SyntaxError) else ""
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        raise PenstockError(f"{step.where} is not Python: {what}{line}.") from None


def _refuse_arguments(step: CustomStep, found: Callable[..., object]) -> None:
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
