"""The folder of a run. Everything that shows a run reads this folder only."""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError, RunFailed, nearest
from penstock.files import naming, write_atomic, write_private
from penstock.home import home
from penstock.private import folder_among_strangers, private_folder
from penstock.run.launch_record import LaunchRecord
from penstock.untrusted import NotPlain, hash_json, open_plain, parse_table, read_record

SHARED_MEMORY = Path("/dev/shm")

_HASH = "blake3"  # key in plan.json: hash of all other keys
_PLAN_KEPT = (
    "dataset",
    "forked_from",
    "loss_source",
    "module_source",
    "paths",
    "precision_why",
    "replanned",
)
_PLAN_KINDS: dict[str, type | tuple[type, ...]] = {
    "dataset": (str, dict, list), "forked_from": dict, "layout": dict, "replanned": dict,
    "paths": dict, "loss_source": str, "module_source": str, "precision_why": str, "hosts": list,
}  # fmt: skip


@dataclass(frozen=True)
class RunFolder:
    """Paths in the folder of a run, its lock, its control files and its plan."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def run_file(self) -> Path:
        """The resolved run file."""
        return self.path / "run.toml"

    @property
    def plan_file(self) -> Path:
        return self.path / "plan.json"

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def control(self) -> Path:
        """Requests (save now, stop) and drills are files in this folder."""
        return self.path / "control"

    @property
    def traces(self) -> Path:
        return self.path / "traces"

    @property
    def open_model(self) -> Path:
        """Config and tokenizer of the open model that the run started from, if any."""
        return self.path / "open-model"

    @property
    def reference(self) -> Path:
        """Log-probabilities of pairs by the model that the run began with, if it needs them."""
        return self.path / "reference.bin"

    @property
    def tokenizer(self) -> Path:
        """A copy of the tokenizer of the run's datasets, which may be deleted."""
        return self.path / "tokenizer.json"

    @property
    def logs(self) -> Path:
        """Output of the ranks, one folder per attempt."""
        return self.path / "logs"

    @property
    def outlets_file(self) -> Path:
        """Record of what each outlet has sent."""
        return self.path / "outlets.json"

    @property
    def evaluations(self) -> Path:
        """Scores of `penstock evaluate`, one file for each evaluation."""
        return self.path / "evaluations"

    @property
    def bad(self) -> Path:
        """Batches that were skipped as bad, for inspection."""
        return self.path / "bad"

    @property
    def traps(self) -> Path:
        """Faults that a drill armed."""
        return self.control / "traps"

    @property
    def audit(self) -> Path:
        """Ranks write the samples that they trained on here, if the folder exists."""
        return self.control / "audit"

    @property
    def scratch(self) -> Path:
        """Folder in this host's memory: it outlives a process, but not the machine."""
        digest = hashlib.sha256(str(self.path.resolve()).encode()).hexdigest()[:16]
        root = memory_root()
        return self.path / ".memory" if root is None else root / digest

    def make_scratch(self) -> Path:
        """Create the scratch folder with a note of its run; remove those of deleted runs.

        Only this user can enter it. A folder of another user is never written to.
        """
        try:
            made = self._private_scratch()
        except PermissionError:
            made = self._private_scratch()  # another user took the name meanwhile: take another
        write_private(made / "mounts", _mounts())  # before "where", by which others find it
        write_private(made / "where", os.fsencode(self.path.resolve()))
        for where in made.parent.glob("*/where"):
            with suppress(OSError, ValueError):  # another process sweeps too
                gone = not Path(os.fsdecode(where.read_bytes())).exists()
                if gone and _same_mounts(where.parent):
                    shutil.rmtree(where.parent, ignore_errors=True)
        return made

    def _private_scratch(self) -> Path:
        if (root := memory_root()) is not None:
            private_folder(root)
        return private_folder(self.scratch)

    def drop_scratch(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)

    def exists(self) -> bool:
        return self.run_file.is_file()

    def make(self) -> None:
        for folder in (self.journal, self.checkpoints, self.control, self.traces, self.logs):
            folder.mkdir(parents=True, exist_ok=True)

    def request(self, what: str) -> None:
        """Ask the running ranks for something: `save` or `stop`."""
        (self.control / what).touch()

    def control_requests(self) -> dict[str, bool]:
        """Return whether `save` and `stop` are requested.

        A `regroup` request counts as `stop`: ranks save and stop, to start again later or on
        other hosts.
        """
        asked = {what: (self.control / what).exists() for what in ("save", "stop", "regroup")}
        return {"save": asked["save"], "stop": asked["stop"] or asked["regroup"]}

    def acknowledge(self, what: str) -> None:
        """Remove a request that was carried out."""
        (self.control / what).unlink(missing_ok=True)

    def refuse_unwritable(self) -> None:
        """Raise an error if `lock` could not make the folder or write in it. Makes nothing."""
        at = next(one for one in (self.path, *self.path.parents) if os.path.lexists(one))
        try:
            number = 0 if stat.S_ISDIR(at.stat().st_mode) else errno.ENOTDIR
        except OSError as error:  # a link to itself, or to nothing
            number = error.errno or errno.ENOENT
        if not number and not os.access(at, os.W_OK | os.X_OK):
            read_only = os.statvfs(at).f_flag & os.ST_RDONLY
            number = errno.EROFS if read_only else errno.EACCES
        if number:
            raise self._unwritable(os.strerror(number))

    def _unwritable(self, why: str) -> PenstockError:
        return PenstockError(
            f"{self.path}: the run folder cannot be written: {why}; set `dir` to a folder that can"
        )

    @contextmanager
    def lock(self, name: str = "lock") -> Iterator[None]:
        """Hold the lock of the run, which the kernel frees if the process dies.

        The supervisor holds it while the run runs. Hosts that share the folder hold one each.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.fdopen(os.open(self.path / name, flags, 0o666), "a+")
        except OSError as error:
            self.refuse_unwritable()  # the words of `penstock check`, where it can know
            raise self._unwritable(error.strerror or str(error)) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise PenstockError(
                    f"run '{self.name}' is already running (process {file.read().strip() or '?'}); "
                    f"`penstock status {self.name}` shows it, `penstock stop {self.name}` ends it"
                ) from None
            with naming(self.path):
                file.truncate(0)
                os.write(file.fileno(), str(os.getpid()).encode())  # no buffer that fails later
            yield

    def running(self) -> bool:
        """Return whether a supervisor on this machine holds the lock."""
        for path in [self.path / "lock", *self.path.glob("lock-*")]:
            try:
                with open_plain(path) as file:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except (FileNotFoundError, NotPlain):
                continue
            except OSError as error:
                if error.errno != errno.ELOOP:  # a link, which no supervisor makes
                    raise
        return False

    def first_link(self) -> Path | None:
        """Return a link or pipe in place of a file that the web page shows; None if there is none.

        The sender of the folder may have put it there to publish a file of this machine.
        """
        shown = (self.run_file, self.plan_file, self.journal, self.checkpoints)
        if link := next((path for path in shown if path.is_symlink()), None):
            return link
        for step in self.checkpoints.glob("step-*"):
            with suppress(OSError), os.scandir(step) as entries:
                for entry in entries:
                    if not entry.is_file(follow_symlinks=False) and not entry.is_dir(
                        follow_symlinks=False
                    ):
                        return Path(entry.path)
        return None

    def read_plan(self) -> dict[str, Any]:
        """Return the plan of the last launch; empty if there was none.

        Raises RunFailed if the file is damaged; the next launch writes it again.
        """
        if not self.plan_file.is_file():
            return {}
        try:
            return plan_from_bytes(read_record(self.plan_file))
        except ValueError as error:
            raise RunFailed(
                f"{self.plan_file} is damaged: {error}; `penstock train` puts it aside and makes "
                "it again"
            ) from None

    def read_launch_record(self) -> LaunchRecord:
        """Return the decisions of the last launch; the defaults where there was none.

        Raises RunFailed where the file is damaged.
        """
        return LaunchRecord.from_json(self.read_plan())

    def write_plan(self, plan: dict[str, Any]) -> None:
        """Write the plan with its hash, atomically."""
        body = {name: value for name, value in plan.items() if name != _HASH}
        write_atomic(self.plan_file, json.dumps(body | {_HASH: _plan_hash(body)}, indent=1))


def plan_from_bytes(content: bytes) -> dict[str, Any]:
    """Parse plan.json. Raises ValueError if it is damaged.

    A plan without a hash was written by an earlier version.
    """
    plan = parse_table(content)
    if _HASH in plan and plan.pop(_HASH) != _plan_hash(plan):
        raise ValueError("content does not match its hash")
    for name, kinds in _PLAN_KINDS.items():
        if name in plan and not isinstance(plan[name], kinds):
            raise ValueError(f"{name} is a {type(plan[name]).__name__}")
    return plan


def plan_for_checkpoint(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the part of the plan that checkpoints keep; the rest is planned at every launch."""
    return {name: plan[name] for name in _PLAN_KEPT if name in plan}


def _plan_hash(plan: dict[str, Any]) -> str:
    return hash_json(json.loads(json.dumps(plan)))


def _mounts() -> bytes:
    """Return a name of the mounts that this process sees; empty where the system has none."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/mnt").encode()
    return b""


def _same_mounts(scratch: Path) -> bool:
    """Return whether the run of a scratch folder sees this process's disks.

    Containers may share the memory of their host (`docker run --ipc=host`) and not their disks: a
    run folder of another one is not there, and its run may be alive.
    """
    try:
        return (scratch / "mounts").read_bytes() == _mounts()
    except FileNotFoundError:  # of an earlier version
        return True


def memory_root() -> Path | None:
    """Return the folder of this user's files in memory; None if the system has no such place."""
    if own := os.environ.get("PENSTOCK_MEMORY"):
        return Path(own)
    return folder_among_strangers(
        SHARED_MEMORY, f"penstock-{os.getuid()}", lock=home() / "memory.lock"
    )


def find_run(where: str, root: str = "runs") -> RunFolder:
    """Find a run by its folder, its name under `root`, or its run file."""
    if not where.strip():
        raise PenstockError(f"no run '{where}': the name is empty; `penstock ls` lists the runs")
    path = Path(where)
    if path.is_file() and path.suffix == ".toml":
        from penstock.run.load import load

        run = load(path)
        folder = RunFolder(run.folder)
        beside = RunFolder(path.parent / run.folder)
        if not folder.exists() and beside.exists():  # started in the folder of the run file
            folder = beside
    else:
        named = path if path.name.strip(".") else Path(os.path.abspath(path))  # `.` has no name
        folder = RunFolder(named if (path / "run.toml").is_file() else Path(root) / where)
    if not folder.exists():
        names = [f.name for f in list_runs(root)]
        hint = nearest(re.sub(r".*/", "", where), names)
        known = f" {hint or 'Known runs: ' + ', '.join(names)}" if names else ""
        raise PenstockError(f"no run '{where}': {folder.path} has no run.toml.{known}")
    return folder


def list_runs(root: str = "runs", unreadable: list[OSError] | None = None) -> list[RunFolder]:
    """Return all runs below a folder, newest first.

    The error of a folder that cannot be read is added to `unreadable`; `root` itself raises.
    """
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        return []
    runs: list[tuple[float, RunFolder]] = []
    for name in sorted(names):
        folder = RunFolder(Path(root) / name)
        try:
            runs.append((-folder.run_file.stat().st_mtime, folder))
        except (FileNotFoundError, NotADirectoryError):
            continue  # no run
        except OSError as error:
            if unreadable is not None:
                unreadable.append(error)
    return [folder for _, folder in sorted(runs, key=lambda entry: entry[0])]
