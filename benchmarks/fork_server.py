"""Penstock's fork server beside the forkserver of `multiprocessing`, with the same modules loaded.

    python benchmarks/fork_server.py [--ranks 8]

Prints how long the imports take, how long N ranks take to start after that, and what is left of a
rank and its child process when the rank, or the process that asked for it, is killed.
docs/design/launch.md has the result.
"""

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANK = """
import os, subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
Path(sys.argv[1]).write_text(f"{time.monotonic()} {os.getpid()} {child.pid}")
time.sleep(600)
"""


def rank(path: str, argv: str) -> None:
    """Run a rank as a target of `multiprocessing`."""
    import runpy

    sys.argv = ["rank", argv]
    runpy.run_path(path, run_name="__main__")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def read(folder: Path, ranks: int) -> list[tuple[float, int, int]]:
    """Wait for all ranks; return when each began, its pid and the pid of its child."""
    files = [folder / f"rank-{n}" for n in range(ranks)]
    while not all(file.exists() and len(file.read_text().split()) == 3 for file in files):
        time.sleep(0.001)
    rows = [file.read_text().split() for file in files]
    return [(float(t), int(pid), int(child)) for t, pid, child in rows]


def ours(folder: Path, ranks: int) -> dict[str, object]:
    from penstock.launch.supervisor.environment import for_fork_server
    from penstock.launch.supervisor.fork_client import ForkClient

    path = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    began = time.monotonic()
    client = ForkClient(for_fork_server(1) | {"PYTHONPATH": path})
    while not client.ready:
        client.wait(0.01)
    ready = time.monotonic()
    for n in range(ranks):
        client.start(n, {}, ["rank_script", str(folder / f"rank-{n}")], folder)
    rows = read(folder, ranks)
    os.kill(rows[0][1], signal.SIGKILL)
    while client.exit_codes()[0] is None:
        client.wait(0.01)
    return result(began, ready, rows, client.exit_codes()[0])


def stdlib(folder: Path, ranks: int) -> dict[str, object]:
    from penstock.launch.supervisor.fork_client import MODULES

    os.environ["OMP_NUM_THREADS"] = "1"  # the server takes this process's environment
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(MODULES))
    began = time.monotonic()
    first = context.Process(target=time.time)  # there is no call that waits for the imports
    first.start()
    first.join()
    ready = time.monotonic()
    script = str(folder / "rank_script.py")
    processes = [
        context.Process(target=rank, args=(script, str(folder / f"rank-{n}"))) for n in range(ranks)
    ]
    for process in processes:
        process.start()
    rows = read(folder, ranks)
    os.kill(rows[0][1], signal.SIGKILL)
    processes[0].join()
    return result(began, ready, rows, processes[0].exitcode)


def result(
    began: float, ready: float, rows: list[tuple[float, int, int]], code: int | None
) -> dict[str, object]:
    time.sleep(0.2)
    return {
        "imports_s": round(ready - began, 3),
        "start_s": round(max(t for t, _, _ in rows) - ready, 3),
        "exit_code": code,
        "child_of_killed_rank_lives": alive(rows[0][2]),
        "ranks": [pid for _, pid, _ in rows[1:]],
        "children": [child for _, _, child in rows],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--one", choices=["ours", "stdlib"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rank_script.py").write_text(RANK)
        if args.one:
            found = {"ours": ours, "stdlib": stdlib}[args.one](folder, args.ranks)
            print(json.dumps(found), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)  # a supervisor that dies without a word
    for one in ("ours", "stdlib"):
        command = [sys.executable, __file__, "--one", one, "--ranks", str(args.ranks)]
        with tempfile.TemporaryFile("w+") as output:  # not a pipe: ranks that are left hold it open
            subprocess.run(command, stdout=output, stderr=output)
            output.seek(0)
            text = output.read()
        if not text.startswith("{"):
            sys.exit(text)
        found = json.loads(text.splitlines()[0])
        time.sleep(1.0)
        left = [pid for pid in found.pop("ranks") + found.pop("children") if alive(pid)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        print(one, found, f"processes left after the supervisor was killed: {len(left)}")


if __name__ == "__main__":
    main()
