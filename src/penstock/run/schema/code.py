"""User code that a run file names: "my_loss.py:smooth" is a file and a function in it. No torch.

The file is only parsed here. Ranks import it (`model/user_module.py`).
"""

import ast
import os
import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from penstock.errors import PenstockError, nearest
from penstock.found import located

if TYPE_CHECKING:
    from penstock.run.schema.run import Run

SPEC = re.compile(r"[^:]+\.py:[A-Za-z_]\w*")


@dataclass(frozen=True)
class UserCode:
    """A Python file and a function in it, as a field of the run file names them."""

    field: str  # train.loss or model.module
    spec: str

    @property
    def path(self) -> Path:
        # Not Path.resolve, which raises a RuntimeError for a link to itself.
        return Path(os.path.realpath(Path(located(self.spec).rpartition(":")[0]).expanduser()))

    @property
    def function(self) -> str:
        return self.spec.rpartition(":")[2]

    @property
    def words(self) -> str:
        return f'{self.field} = "{self.spec}"'

    def describe_error(self, error: BaseException) -> str:
        """Return an error as text, with the last line of this file in its traceback."""
        what = f"{type(error).__name__}: {error}"
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).resolve() == self.path]
        if not own:
            return what
        return f"{what} ({self.path.name}:{own[-1].lineno}, in {own[-1].name})"

    @property
    def key(self) -> str:
        """The name in plan.json under which a run keeps the hash of the file."""
        return f"{self.field.rpartition('.')[2]}_source"

    def source(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise PenstockError(
                f'{self.words}: {self.path} cannot be read: {error.strerror}; write "FILE.py:NAME"'
            ) from None

    def hash(self) -> str:
        """Return the hash of the file, without the modules that it imports."""
        return blake3(self.source()).hexdigest()

    @property
    def identity(self) -> str:
        """Function and hash of the file, independent of its path; the spec if it is unreadable."""
        try:
            return f"{self.function} {self.hash()}"
        except PenstockError:  # the run can be shown, and not trained
            return self.spec

    def refuse_missing(self) -> None:
        """Refuse a file that is missing, is not Python, or does not define the function."""
        try:
            tree = ast.parse(self.source(), str(self.path))
        except (SyntaxError, ValueError) as error:
            line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
            raise PenstockError(f"{self.words}: {self.path}{line} is not Python: {error}") from None
        names = {name for node in tree.body for name in _bound(node)}
        if self.function not in names and not _binds_any(tree):
            guess = nearest(self.function, names) or f"It has: {', '.join(sorted(names)) or 'none'}"
            raise PenstockError(
                f"{self.words}: {self.path.name} has no function {self.function!r}. {guess}"
            )


def loss_code(spec: str | None) -> UserCode | None:
    """Return the code of `train.loss`; None if the run file names none."""
    return UserCode("train.loss", spec) if spec else None


def module_code(spec: str | None) -> UserCode | None:
    """Return the code of `model.module`; None if the run file names none."""
    return UserCode("model.module", spec) if spec else None


def user_codes(run: "Run") -> list[UserCode]:
    """Return all user code that a run trains with."""
    found = (module_code(run.model.module), loss_code(run.train.loss))
    return [code for code in found if code]


def code_hashes(run: "Run") -> dict[str, str]:
    """Return the hash of each file of `own_codes`, by its name in plan.json.

    A file that cannot be read is left out: it is refused when it is loaded.
    """
    return {code.key: code.hash() for code in user_codes(run) if code.path.is_file()}


def changed_code(run: "Run", plan: Mapping[str, Any]) -> UserCode | None:
    """Return user code whose file has changed since `plan` was made; None if none has."""
    now = code_hashes(run)
    for code in user_codes(run):
        if code.key in now and plan.get(code.key, now[code.key]) != now[code.key]:
            return code
    return None


def _bound(node: ast.stmt) -> list[str]:
    """Return the names that a statement at the top of a file defines."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Import() | ast.ImportFrom():
            return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
        case ast.Assign():
            return [target.id for target in node.targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _binds_any(tree: ast.Module) -> bool:
    """Return whether the file may define names in a way that only running it shows."""
    hidden = (ast.If, ast.Try, ast.With, ast.For, ast.While)
    star = any(isinstance(n, ast.ImportFrom) and n.names[0].name == "*" for n in tree.body)
    return star or any(isinstance(node, hidden) for node in tree.body)
