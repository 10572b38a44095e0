"""What Slurm adds to a start, and what a killed node costs; `sbatch` with torchrun is the peer.

    python benchmarks/launch.py                3 rounds, medians; --rounds N, --json
    python benchmarks/launch.py --starts       starts alone

A real Slurm of 4 nodes in network namespaces of this machine (root, iproute2, Slurm, munge). All
take turns in each round, with a model of two layers. While nodes are killed its steps wait 50 ms,
so that two cores are enough for all nodes. That is done by an own loss, and a command that submits
own code tries it first, which loads torch (2.3 s of a core); so starts are without it.

    start    `penstock train` that submits to 2 nodes, until the first step, without the time in
             the queue; the same command typed on 2 nodes; sbatch + torchrun on 2 nodes
    kill     3 nodes, of which one loses its power, so that nobody hears its connections end: one
             that follows, then the one that leads; the same with the whole job queued again at
             once; sbatch + torchrun, whose job Slurm queues again when it finds the node down
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import made_sets
import slurm_lab
from penstock.run import toml
from penstock.run.folder import RunFolder
from slurm_lab import LOSS, SlurmLab, SlurmRun, pace_file

STEP_S = 0.05
NODES, KILL_NODES = 2, 3
RATIO, KILLED_S = 1.15, 20.0  # what was promised
PEER = Path(__file__).with_name("launch_peer.py")


def write_run(folder: Path, name: str, dataset: str, paced: bool = True, **fields: Any) -> Path:
    """Write a run file and return it; `paced` gives it a loss that waits."""
    file = folder / f"{name}.toml"
    table: dict[str, Any] = {"name": name, "dir": str(folder / "runs")}
    values = {
        "model.layers": 2,
        "model.hidden": 32,
        "model.heads": 4,
        "model.kv_heads": 2,
        "model.ffn": 64,
        "data.dataset": dataset,
        "data.sequence": 16,
        "train.steps": 100_000,
        "train.batch_tokens": 192,
        "train.precision": "fp32",
        "evaluate.every": "never",
        "guard.checkpoint": "100 steps",
        "guard.fast": "10 steps",
        "guard.grace": "10 s",
        "guard.restarts": 20,
        "cluster.accelerators": 1,
        "cluster.wait": "60 s",
    } | fields
    if paced:
        loss = folder / f"{name}_loss.py"
        pace_file(file).write_text(str(STEP_S))
        loss.write_text(LOSS.format(pace=str(pace_file(file))))
        values["train.loss"] = f"{loss}:paced"
    for field, value in values.items():
        *path, key = field.split(".")
        at = table
        for part in path:
            at = at.setdefault(part, {})
        at[key] = value
    file.write_text("\n".join(toml.format_document(table)) + "\n")
    return file


class Bench:
    """The rounds, and the seconds of everything that was measured."""

    def __init__(self, lab: SlurmLab, folder: Path, dataset: str) -> None:
        self.lab, self.folder, self.dataset = lab, folder, dataset
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.count = 0

    def run(self, kind: str, paced: bool = True, **fields: Any) -> SlurmRun:
        self.count += 1
        name = f"{kind}-{self.count}"
        file = write_run(self.folder, name, self.dataset, paced, **fields)
        return SlurmRun(self.lab, file, RunFolder(self.folder / "runs" / name))

    def keep(self, what: str, seconds: float) -> None:
        self.seconds[what].append(seconds)
        print(f"{what:58} {seconds:6.2f} s", flush=True)

    # Starts

    def typed_start(self) -> None:
        """Give the command on each node, as without an engine."""
        run = self.run("typed", paced=False, **{"cluster.nodes": NODES})
        words = [sys.executable, "-m", "penstock", "train", str(run.file)]
        began = time.time()
        commands = [
            subprocess.Popen(
                self.lab.on(f"n{number}", *words),
                env=self.lab.env(PENSTOCK_NODE=f"n{number}"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for number in range(1, NODES + 1)
        ]
        run.until_step(1)
        self.keep("start: typed on each node", run.curve()[0][1] - began)
        run.until_step(3)
        run.folder.request("stop")
        for command in commands:
            command.wait()

    def submitted_start(self) -> None:
        started = self.folder / f"started-{self.count}"
        lines = [f'[ -e "{started}" ] || date +%s.%N > "{started}"']
        run = self.run(
            "start",
            paced=False,
            **{
                "cluster.nodes": NODES,
                "cluster.launcher": "slurm",
                "cluster.slurm.setup": lines,
            },
        )
        began = time.time()
        run.train()
        run.until_step(1)
        submitted = json.loads((run.folder.path / "submission.json").read_text())["submitted"]
        queue_s = max(0.0, float(started.read_text()) - submitted)
        self.keep("start: in the queue", queue_s)
        self.keep("start: from `train` to sbatch", submitted - began)
        self.keep("start: submitted, less the queue", run.curve()[0][1] - began - queue_s)
        self.cancel(run)

    def peer_start(self) -> None:
        folder, began, job = self.peer(NODES)
        self.until(lambda: bool(steps_of(folder)), "the peer's first step")
        queue_s = float((folder / "started").read_text()) - began
        self.keep(
            "start: sbatch + torchrun, less the queue", steps_of(folder)[0][1] - began - queue_s
        )
        self.end_job(job)

    # Nodes that are killed

    def kill_nodes(self) -> None:
        """Kill a node that follows, then the one that leads."""
        run = self.killed_run("kill")
        leader = run.leader()
        other = next(node for node in ("n3", "n2") if node != leader)
        for what, node in (("that follows", other), ("that leads", leader)):
            attempt = max(number for number, _, _ in run.curve())
            done, began = run.reached(), time.time()
            self.lab.kill(node)
            self.next_step(run, f"kill: a node {what}", attempt, done, began)
            run.until_step(run.reached() + 20)
        self.cancel(run)
        self.lab.clear()

    def requeue_all(self) -> None:
        """Kill a node, and queue the whole job again in the same moment."""
        run = self.killed_run("requeue")
        attempt = max(number for number, _, _ in run.curve())
        done, began = run.reached(), time.time()
        self.lab.kill("n3")
        self.lab.do("scontrol", "requeue", run.job)
        self.next_step(run, "kill: the whole job queued again at once", attempt, done, began)
        self.cancel(run)
        self.lab.clear()

    def killed_run(self, kind: str) -> SlurmRun:
        run = self.run(kind, **{"cluster.nodes": KILL_NODES, "cluster.launcher": "slurm"})
        run.train()
        run.until_on(*(f"n{number}" for number in range(1, KILL_NODES + 1)))
        run.until_step(run.reached() + 40)
        return run

    def next_step(self, run: SlurmRun, what: str, attempt: int, done: int, began: float) -> None:
        def new() -> list[float]:
            return [t for number, t, step in run.curve() if number > attempt and step > done]

        run.until(lambda: bool(new()), what)
        self.keep(what, min(new()) - began)

    def peer_kill(self) -> None:
        folder, _, job = self.peer(KILL_NODES)
        self.until(lambda: len(steps_of(folder)) > 40, "steps of the peer")
        began = time.time()
        self.lab.kill("n3")
        done = steps_of(folder)[-1][0]
        self.until(lambda: steps_of(folder)[-1][0] > done + 1, "the peer's next new step")
        new = [t for step, t in steps_of(folder) if step > done + 1]  # one may be on its way
        self.keep("kill: sbatch + torchrun", new[0] - began)
        self.end_job(job)
        self.lab.clear()

    def peer(self, nodes: int) -> tuple[Path, float, str]:
        """Submit the peer; return its folder, when, and its job."""
        self.count += 1
        folder = self.folder / f"peer-{self.count}"
        folder.mkdir()
        script = f"""#!/bin/bash
#SBATCH --nodes={nodes} --ntasks-per-node=1 --requeue --open-mode=append
#SBATCH --output={folder}/log
[ -e {folder}/started ] || date +%s.%N > {folder}/started
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun bash -c 'exec {sys.executable} -m torch.distributed.run --nnodes={nodes} --nproc_per_node=1 \\
  --node_rank=$SLURM_PROCID --master_addr='$first' --master_port=29500 {PEER} {folder} {STEP_S}'
"""
        (folder / "job.sh").write_text(script)
        began = time.time()
        job = self.lab.do("sbatch", "--parsable", str(folder / "job.sh")).strip()
        return folder, began, job

    def until(self, true: Callable[[], bool], what: str) -> None:
        self.lab.until(true, what)

    def cancel(self, run: SlurmRun) -> None:
        run.penstock("stop", "--now")
        run.close()

    def end_job(self, job: str) -> None:
        self.lab.do("scancel", job)
        self.lab.until(lambda: job not in self.lab.queue(), f"job {job} is gone")


def steps_of(folder: Path) -> list[tuple[int, float]]:
    """Return number and time of the peer's steps."""
    if not (folder / "steps").exists():
        return []
    lines = (folder / "steps").read_text().splitlines()
    return [(int(step), float(t)) for step, _, t in (line.partition(" ") for line in lines) if t]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--starts", action="store_true", help="kill no nodes")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if why := slurm_lab.missing():
        print(f"not measured: no Slurm here: {why}", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["PENSTOCK_HOME"] = str(folder / "home")
        dataset = made_sets.tiny_dataset(folder / "home")
        with SlurmLab(folder / "slurm").up() as lab:
            bench = Bench(lab, folder, dataset)
            for _ in range(given.rounds):
                bench.typed_start()
                bench.submitted_start()
                bench.peer_start()
                if given.starts:
                    continue
                bench.kill_nodes()
                bench.requeue_all()
                bench.peer_kill()
    return tell(bench.seconds, given.json)


def tell(seconds: dict[str, list[float]], as_json: bool) -> int:
    """Print the medians; return 1 where a promise is not kept."""
    medians = {what: statistics.median(found) for what, found in seconds.items()}
    ratio = medians["start: submitted, less the queue"] / medians["start: typed on each node"]
    killed = max((s for what, s in medians.items() if "kill: a node" in what), default=0.0)
    if as_json:
        print(json.dumps({"medians": medians, "ratio": ratio, "seconds": seconds}))
    else:
        for what, median in medians.items():
            print(f"median {what:51} {median:6.2f} s")
        print(f"submitted over typed: {ratio:.2f} (at most {RATIO})")
        if killed:
            print(f"a killed node costs {killed:.1f} s (at most {KILLED_S:g})")
    return int(ratio > RATIO or killed > KILLED_S)


if __name__ == "__main__":
    sys.exit(main())
