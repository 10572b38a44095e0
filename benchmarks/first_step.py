"""How long a start of `penstock train` takes: from `exec` to the end of the first and second step.

    python benchmarks/first_step.py                 3 cold and 3 warm starts, then 3 killed ranks
    python benchmarks/first_step.py --times 1 train.compile=on    fields of the run file
    python benchmarks/first_step.py --peers .carry/peers          on CUDA, torchtitan's model too

A cold start finds no compiled layers, a warm one those of the start before. Datasets are built and
files are in the page cache: one start before the others is not counted. Every phase of a rank is
on record, so each second has a cause; the rank that finished its second step last counts. On a
machine with a GPU the run is a model of 160M parameters, else examples/stdlib.toml; `--run FILE`
takes another. The peer is torchtitan's model and settings in a loop without data, checkpoints or a
launcher (`train_peers.py`): the least that a start of it takes.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from recovery import beats, committed, training, wait

from penstock.guard.detect.pulse import PHASES, TRACE
from penstock.launch.supervisor.fork_client import modules
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import SUPERVISOR
from penstock.run.folder import RunFolder
from penstock.run.load import load

EXAMPLE = Path(__file__).parent.parent / "examples/stdlib.toml"
SHAPE = {"layers": 12, "hidden": 768, "heads": 12, "kv_heads": 12, "ffn": 2048, "vocab": 50_304}
SEQUENCE, SEQUENCES = 1024, 64
GPU_RUN = f"""
name = "first-step"
[model]
tied = false
context = {SEQUENCE}
{chr(10).join(f"{name} = {value}" for name, value in SHAPE.items())}
[data]
dataset = "stdlib"
sequence = {SEQUENCE}
[train]
steps = 100000
batch_tokens = {SEQUENCE * SEQUENCES}
learning_rate = 3e-4
precision = "bf16"
"""
LIMIT_S = 300.0
STEPS = 12  # before a rank is killed: a copy of the state is in memory then
# What a rank does in a phase, by the words of the table; the other phases are parts of a step.
CAUSES = {
    "start": "join",
    "join": "join",
    "build": "build",
    "load": "load",
    "warm_up": "compile, warm-up",
    "ready": "evaluate",
    "evaluate": "evaluate",
}
ORDER = ("before launch", "imports", *dict.fromkeys(CAUSES.values()), "first step", "second step")


@dataclass
class Start:
    """One start, in seconds from `exec`."""

    first_s: float  # the end of the first step
    second_s: float
    causes: dict[str, float] = field(default_factory=dict)
    warm_up: dict[str, float] = field(default_factory=dict)  # what the warm-up was made of


def measure_start(
    path: Path, where: Path, overrides: list[str], kills: int = 0
) -> tuple[Start, list[float]]:
    """Start the run in a new folder; return its start, and how long each lost rank held it up."""
    overrides = [f"dir={tempfile.mkdtemp(dir=where)}", *overrides]
    folder = RunFolder(load(path, overrides).folder)
    folder.audit.mkdir(parents=True)  # has every beat on record
    began, began_mono = time.time(), time.monotonic()
    with training(path, overrides) as process:
        ranks = _wait_for_plan(process, folder)
        wait(process, folder, ranks, 3)  # then all ranks have ended their second step
        lost = [_kill(process, folder, ranks, n) for n in range(kills)]
    folder.drop_scratch()
    for attempt in range(1, kills + 1):
        print(f"  attempt {attempt}: {_attempt(folder, attempt)}", file=sys.stderr)
    return _read(folder, ranks, began, began_mono), lost


def _attempt(folder: RunFolder, number: int) -> str:
    """Say what a later attempt of rank 0 did before its first step, from its own start on."""
    events = list(read_events(folder.journal / f"a{number:04d}-r00000.events"))
    began = next((event.t for event in events if event.kind == "start"), 0.0)
    shown = [f"{event.kind} {event.t - began:.2f}" for event in events[:12]]
    parts = next((e.payload.get("parts") for e in events if e.kind == "warmup"), None)
    return f"{', '.join(shown)}; warm-up: {parts}"


def _wait_for_plan(process: subprocess.Popen[str], folder: RunFolder) -> int:
    deadline = time.monotonic() + LIMIT_S
    while not folder.plan_file.exists():
        if process.poll() is not None:
            raise SystemExit(f"the run ended: {process.communicate()[1]}")
        assert time.monotonic() < deadline, "the run was not launched"
        time.sleep(0.01)
    return int(folder.read_plan()["ranks"])


def _kill(process: subprocess.Popen[str], folder: RunFolder, ranks: int, number: int) -> float:
    """Kill a rank; return the seconds to the next step that nobody had done before."""
    wait(process, folder, ranks, committed(beats(folder, ranks)) + STEPS)
    found = beats(folder, ranks)
    victim, reached, began = found[number % ranks], committed(found), time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    return wait(process, folder, ranks, reached + 1) - began


def _read(folder: RunFolder, ranks: int, began: float, began_mono: float) -> Start:
    """Read the start from the journal and from the record of every phase of the first attempt."""
    started: dict[int, Start] = {}
    launched = next(
        event.t for event in read_events(folder.journal / SUPERVISOR) if event.kind == "launch"
    )
    for rank in range(ranks):
        path = sorted(folder.audit.glob(f"pulse-*-r{rank:05d}"))[0]
        raw = path.read_bytes()
        trace = list(TRACE.iter_unpack(raw[: len(raw) // TRACE.size * TRACE.size]))
        events = read_events(folder.journal / f"a0000-r{rank:05d}.events")
        own = next((event.t for event in events if event.kind == "start"), None)
        causes: dict[str, float] = defaultdict(float)
        born = own - began if own else trace[0][2] - began_mono
        causes["before launch"] = min(launched - began, born)
        causes["imports"] = max(0.0, born - causes["before launch"])
        last_t, cause, ends = born, "join", []
        for step, number, t_mono in trace:
            t, phase = t_mono - began_mono, PHASES[number]
            causes[cause] += t - last_t
            last_t = t
            if phase == "updated":
                ends.append(t)
            if len(ends) == 2:
                break
            cause = CAUSES.get(phase) or ("second step" if step > 1 or ends else "first step")
        warm_up = next((e.payload.get("parts") for e in events if e.kind == "warmup"), None)
        started[rank] = Start(ends[0], ends[1], dict(causes), dict(warm_up or {}))
    return max(started.values(), key=lambda one: one.second_s)


def median_start(starts: list[Start]) -> Start:
    """Return the median of every figure."""

    def middle(rows: list[dict[str, float]]) -> dict[str, float]:
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: statistics.median(row.get(name, 0.0) for row in rows) for name in names}

    return Start(
        statistics.median(one.first_s for one in starts),
        statistics.median(one.second_s for one in starts),
        middle([one.causes for one in starts]),
        middle([one.warm_up for one in starts]),
    )


def peer_step(sources: Path) -> None:
    """Train two steps of torchtitan's model; print when each ended."""
    sys.path.insert(0, str(Path(__file__).parent))
    import torch
    from train_peers import PEERS

    from penstock.catalog.shapes import ModelShape

    step = PEERS["torchtitan"](ModelShape(**SHAPE), SEQUENCE, sources)
    for _ in range(2):
        tokens = torch.randint(0, SHAPE["vocab"], (SEQUENCES, SEQUENCE + 1), device="cuda")
        step(tokens)
        torch.cuda.synchronize()
        print(time.time(), flush=True)


def measure_peer(sources: Path, cache: Path, cold: bool) -> Start | None:
    if cold:
        shutil.rmtree(cache, ignore_errors=True)
    env = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "torch"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
    }
    began = time.time()
    command = [sys.executable, __file__, "--peer-step", "--peers", str(sources)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        print(f"torchtitan: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    first, second = (float(line) - began for line in done.stdout.split()[-2:])
    return Start(first, second)


def has_cuda() -> bool:
    """Return whether torch finds a GPU, asked in a process of its own."""
    asked = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", asked]).returncode == 0


IMPORTS = """
import gc, os, sys, time
gc.disable()
began = time.monotonic()
for name in sys.argv[1:]:
    __import__(name)
used = os.times()
specs = [getattr(module, "__spec__", None) for module in list(sys.modules.values())]
kept = [spec.cached for spec in specs if getattr(spec, "cached", None)]
lacking = sum(not os.path.exists(path) for path in kept)
print(time.monotonic() - began, used.user + used.system, len(kept), lacking)
"""


def imports_alone(cuda: bool) -> dict[str, float]:
    """Time the imports of a rank in a process that does nothing else."""
    command = [sys.executable, "-c", IMPORTS, *modules("cuda" if cuda else "cpu")]
    said = subprocess.check_output(command, text=True).split()[-4:]
    names = ("wall_s", "cpu_s", "files", "without_bytecode")
    found = dict(zip(names, map(float, said), strict=True))
    print(
        f"imports alone: {found['wall_s']:.1f} s, {found['cpu_s']:.1f} s of them on a core; "
        f"{found['without_bytecode']:.0f} of {found['files']:.0f} modules have no bytecode"
    )
    return found


def show(name: str, start: Start, times: int) -> None:
    print(f"{name}: first step {start.first_s:.1f} s, second {start.second_s:.1f} s", end="")
    print(f" (median of {times})" if times > 1 else "")
    for cause in ORDER:
        if cause in start.causes:
            print(f"  {cause:<18}{start.causes[cause]:7.2f} s")
    for part, seconds in start.warm_up.items():
        print(f"    of the warm-up, {part:<12}{seconds:7.2f} s")


def measure_all(given: argparse.Namespace, where: Path) -> dict[str, object]:
    """Measure what was asked for, until the time is over; return it for programs."""
    began, cuda = time.monotonic(), has_cuda()
    path = given.run or EXAMPLE
    if cuda and given.run is None:
        path = where / "run.toml"
        path.write_text(GPU_RUN)
    home = Path(os.environ.setdefault("PENSTOCK_HOME", str(where / "home")))
    measure_start(path, where, given.overrides)
    result: dict[str, object] = {"imports": imports_alone(cuda)}
    lost: list[float] = []
    for name in ("cold", "warm"):
        starts: list[Start] = []
        for number in range(given.times):
            if starts and time.monotonic() - began > given.limit:
                break
            if name == "cold":
                shutil.rmtree(home / "compiled", ignore_errors=True)
            last = name == "warm" and number == given.times - 1
            start, lost = measure_start(path, where, given.overrides, given.kills if last else 0)
            starts.append(start)
            print(f"  {name} {start.first_s:.2f} {start.second_s:.2f}", file=sys.stderr)
        middle = median_start(starts)
        show(name, middle, len(starts))
        result[name] = asdict(middle) | {"every": [asdict(one) for one in starts]}
    if lost:
        each = ", ".join(f"{seconds:.1f}" for seconds in lost)
        print(
            f"after SIGKILL of a rank, the next new step: {statistics.median(lost):.1f} s ({each})"
        )
        result["killed_s"] = lost
    if cuda and given.peers and given.peers.is_dir():
        for cold in (True, False):
            if time.monotonic() - began > given.limit:
                break
            if found := measure_peer(given.peers, where / "peer", cold):
                name = f"torchtitan's model alone, {'cold' if cold else 'warm'}"
                show(name, found, 1)
                result[name] = asdict(found)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--run", type=Path)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds; then nothing begins")
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--peer-step", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="a file for the figures of every start")
    parser.add_argument("overrides", nargs="*", help="fields of the run file, such as a.b=c")
    given = parser.parse_args()
    if given.peer_step:
        return peer_step(given.peers)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as where:  # ranks may still write
        result = measure_all(given, Path(where))
    if given.json:
        with suppress(OSError):
            given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
