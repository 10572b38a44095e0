"""What is to be converted: the newest whole checkpoint of a run, a folder, or another program's.

Hashes are verified before a byte is believed, as when a run goes on.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError, RunFailed
from penstock.guard.convert.convert import Own, to_safetensors, to_torch
from penstock.guard.convert.foreign import Foreign, is_foreign
from penstock.guard.convert.relayout import rewrite
from penstock.guard.format.published import MANIFEST, Checkpoint, is_name
from penstock.guard.tiers.listing import Kept, choose, look, verify
from penstock.guard.tiers.shelves import Here, There
from penstock.run.folder import find

WRITERS = {"safetensors": to_safetensors, "pt": to_torch}


@dataclass(frozen=True)
class Opened:
    name: str
    source: Own | Foreign
    passed_over: tuple[str, ...] = ()  # newer ones that are damaged, or what is no tensor

    def bytes(self, everything: bool) -> int:
        found = self.source.tensors()
        return sum(
            one.bytes for n, one in found.items() if everything or not n.startswith("optimizer/")
        )

    def write(
        self,
        kind: str,
        out: Path,
        moments: bool,
        ranks: int,
        progress: Callable[[int], None],
        force: bool = False,
    ) -> int:
        if kind != "ranks":
            return WRITERS[kind](self.source, out, moments, progress, force)
        if not isinstance(self.source, Own):
            raise PenstockError("--ranks: only for a checkpoint of a run; name a file")
        return rewrite(self.source, out, ranks, progress, force)


@contextmanager
def opened(where: str, step: int | None, root: str, trust: bool) -> Iterator[Opened]:
    path = Path(where)
    if is_foreign(path):
        found = Foreign(path, trust)
        left = tuple(f"{name}: no tensor" for name in found.left_out)
        yield Opened(str(path), found, left)
    elif (path / MANIFEST).is_file():
        yield Opened(str(path), Own(_whole(path)))
    else:
        with _of_run(where, step, root) as (one, local, rejected):
            yield Opened(one.name, Own(local), tuple(rejected))


def _whole(path: Path) -> Checkpoint:
    if not is_name(path.name):
        raise PenstockError(f"{path}: a checkpoint's folder is called step-N; rename it back")
    found = Checkpoint(path)
    found.refuse_other_format()
    if damage := found.damage():
        raise RunFailed(f"{path} is damaged: {'; '.join(damage)}")
    return found


@contextmanager
def _of_run(
    where: str, step: int | None, root: str
) -> Iterator[tuple[Kept, Checkpoint, list[str]]]:
    folder = find(where, root)
    found, unreachable = look(folder)
    if folder.running():  # it writes over what is in memory
        found = [one for one in found if one.tier != "memory"]
    rejected = [f"not reached: {problem}" for problem in unreachable]
    for one in choose(found, step, unreachable=unreachable):
        problems = verify(one)
        if problems is None:
            continue
        if problems:
            rejected.append(f"{one.name}: {'; '.join(problems)}")
            continue
        if isinstance(one.shelf, Here):
            yield one, one.shelf.found, rejected
            return
        assert isinstance(one.shelf, There)
        with tempfile.TemporaryDirectory(dir=folder.path, prefix=".convert-") as landing:
            yield one, Checkpoint(one.shelf.place.fetch(one.step, Path(landing))), rejected
            return
    raise RunFailed(f"no checkpoint of '{where}' is whole: {'; '.join(rejected)}")
