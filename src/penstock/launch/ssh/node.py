"""The host's side of the ssh engine: `python -m penstock.launch.ssh.node VERB`.

    ready    what stands against a start here: the run runs already, a store cannot be reached
    sees     whether a file is there, which tells whether machines share a folder
    start    start `penstock train`, detached from the connection
    state    whether it runs, or how it ended
    end      end everything that `start` started, and return when it is gone

Each verb reads one JSON object on standard input and prints one. A job has a folder in the home of
Penstock on the host, with the run file, the log and `process.json`: the pid and the start time of
the process. Everything that is started carries the job's word in its environment. Only processes
with that word are ever ended: a pid that was given to somebody else is left alone.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.files import PRIVATE, write_atomic
from penstock.home import home
from penstock.private import private_folder

JOB = "PENSTOCK_JOB"
MODULE = "penstock.launch.ssh.node"
KILL_S = 20.0  # from SIGKILL until a process is gone
_POLL_S = 0.1
_PROCESS, _ENDED, _RUN_FOLDER = "process.json", "ended.json", "run-folder"
LOG, RUN_FILE = "log", "run.toml"


def job_folder(job: str, node: str) -> Path:
    """Return the folder of a job on this host; hosts may share a home, so each has its own."""
    return home() / "ssh" / job / node


def start(given: Mapping[str, Any]) -> dict[str, Any]:
    """Start the job's process, unless it runs already; it outlives the connection."""
    folder = private_folder(job_folder(given["job"], given["node"]))
    if (before := _process(folder)) and _alive(before):
        return {"started": False, **before, "folder": str(folder)}
    work = Path(given["folder"]).expanduser()
    work.mkdir(parents=True, exist_ok=True)
    run_file = folder / RUN_FILE
    write_atomic(run_file, given["run"], PRIVATE)
    write_atomic(folder / _RUN_FOLDER, given["run_folder"], PRIVATE)
    # Read beside the run file: where its relative paths were found.
    paths = dict(given["paths"])
    for number, (written, content) in enumerate(given["files"].items()):
        write_atomic(folder / f"file-{number}.toml", content, PRIVATE)
        paths[written] = str(folder / f"file-{number}.toml")
    write_atomic(folder / "plan.json", json.dumps({"paths": paths}), PRIVATE)
    env = os.environ | given["env"] | {JOB: given["job"], "PENSTOCK_NODE": given["node"]}
    (folder / _ENDED).unlink(missing_ok=True)
    words = [sys.executable, "-m", "penstock", "train", str(run_file)]
    keep = [sys.executable, "-m", MODULE, "keep", str(folder), *words]
    log_file = Path(given["log"]).expanduser()
    log_file.parent.mkdir(parents=True, exist_ok=True)
    (folder / LOG).unlink(missing_ok=True)
    (folder / LOG).symlink_to(log_file)
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
    try:
        keeper = subprocess.Popen(
            keep, cwd=work, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(log)
    until = time.monotonic() + KILL_S
    while (found := _process(folder)) is None or found["keeper"] != keeper.pid:
        if keeper.poll() is not None or time.monotonic() > until:
            return {"started": False, "error": _last_line(folder) or "it did not start"}
        time.sleep(_POLL_S / 5)
    return {"started": True, **found, "folder": str(folder)}


def _keep(folder: Path, words: list[str]) -> int:
    """Run the command and record how it ends. It has the same session, and the job's word."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # for the command alone, which then ends by itself
    child = subprocess.Popen(words, preexec_fn=_default_signals)
    about = {"pid": child.pid, "started": _started(child.pid), "boot": _boot()}
    about |= {"keeper": os.getpid(), "job": folder.parent.name, "since": time.time()}
    write_atomic(folder / _PROCESS, json.dumps(about), PRIVATE)
    code = child.wait()
    write_atomic(folder / _ENDED, json.dumps({"code": code, "t": time.time()}), PRIVATE)
    return 0


def _default_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def state(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether the job's process runs here, or how it ended."""
    folder = job_folder(given["job"], given["node"])
    found = _process(folder)
    if found is None:
        return {"phase": "absent"}
    if _alive(found):
        return {"phase": "running", "pid": found["pid"]}
    with contextlib.suppress(OSError, ValueError):
        code = json.loads((folder / _ENDED).read_text())["code"]
        return {"phase": "ended", "code": code, "said": _last_line(folder)}
    return {"phase": "ended", "code": None, "said": _last_line(folder)}  # killed with its keeper


def end(given: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the job's process to leave, wait for `grace_s`, then kill whatever is left of the job."""
    job = given["job"]
    found = _process(job_folder(job, given["node"]))
    if found and _alive(found):
        _signal(found["pid"], signal.SIGTERM, job)
    until = time.monotonic() + float(given["grace_s"])
    while (left := list(of_job(job))) and time.monotonic() < until:
        time.sleep(_POLL_S)
    killed = len(left)
    until = time.monotonic() + KILL_S
    while (left := list(of_job(job))) and time.monotonic() < until:
        for pid in left:
            _signal(pid, signal.SIGKILL, job)
        time.sleep(_POLL_S)
    return {"killed": killed, "left": left}


def ready(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what stands against a start here: jobs of the same run, a store out of reach."""
    running = []
    for path in sorted((home() / "ssh").glob(f"*/{given['node']}/{_PROCESS}")):
        found, folder = _process(path.parent), path.parent
        with contextlib.suppress(OSError):
            same = (folder / _RUN_FOLDER).read_text() == given["run_folder"]
            if same and found and _alive(found):
                running.append(folder.parent.name)
    store = ""
    if url := given.get("store"):
        from penstock.launch.prepare.store_check import store_problem

        os.environ.update(given.get("env", {}))
        store = store_problem(url)
    return {"running": running, "store": store}


def sees(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether this host sees a file that another machine has written in a shared folder."""
    path = Path(given["path"]).expanduser()
    with contextlib.suppress(OSError):
        os.listdir(path.parent)  # a network file system looks again
    return {"there": path.exists()}


def of_job(job: str) -> Iterator[int]:
    """Yield the processes of this user that carry the job's word in their environment."""
    word = f"{JOB}={job}".encode()
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and word in _environ(path) and not _is_zombie(path):
            yield int(path.name)


def _environ(path: Path) -> list[bytes]:
    try:
        return (path / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or belongs to somebody else
        return []


def _is_zombie(path: Path) -> bool:
    return _stat(path)[:1] == ["Z"]


def _stat(path: Path) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, which may hold blanks."""
    try:
        return (path / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _signal(pid: int, number: int, job: str) -> None:
    """Signal a process that carries the job's word, and no other that got its pid."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)  # stands for this process from here on
        try:
            if f"{JOB}={job}".encode() in _environ(Path(f"/proc/{pid}")):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def _started(pid: int) -> str:
    """Return when a process started, in the kernel's ticks since boot; "" where there is none."""
    fields = _stat(Path(f"/proc/{pid}"))
    return fields[19] if len(fields) > 19 else ""


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _process(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / _PROCESS).read_text())
        return {**found, "pid": int(found["pid"]), "keeper": int(found["keeper"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _alive(found: Mapping[str, Any]) -> bool:
    """Return whether the recorded process lives: the same pid, start time and boot."""
    path = Path(f"/proc/{found['pid']}")
    same = _started(found["pid"]) == found["started"] != "" and _boot() == found["boot"]
    return same and not _is_zombie(path)


def _last_line(folder: Path) -> str:
    with contextlib.suppress(OSError):
        lines = (folder / LOG).read_bytes()[-10_000:].decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""


def main() -> None:
    verb = sys.argv[1]
    if verb == "keep":
        sys.exit(_keep(Path(sys.argv[2]), sys.argv[3:]))
    verbs = {"start": start, "state": state, "end": end, "ready": ready, "sees": sees}
    print(json.dumps(verbs[verb](json.load(sys.stdin))))


if __name__ == "__main__":
    main()
