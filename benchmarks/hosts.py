"""What authentication and encryption between two hosts cost a run: rendezvous and steps.

    python benchmarks/hosts.py --before ../other/src     the same with another tree of Penstock

Two hosts in network namespaces of this machine, one rank each, the default model; needs root and
iproute2. `--rate` shapes the link of each host (tbf). Runs take turns; medians are told.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BATCH_TOKENS = 2048
LAB = f"psb{os.getpid() % 1000}"


def netns(*words: object) -> None:
    subprocess.run([ROOT / "scripts/netns.sh", *map(str, words)], check=True)


def inside(host: str) -> list[str]:
    return ["nsenter", f"--net=/run/netns/{LAB}-{host}", "--"]


def run(source: Path, steps: int, number: int) -> dict[str, float]:
    """Train on both hosts; seconds of a step in the middle, and from launch to the first step."""
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for host in "12":
            command = [
                sys.executable,
                "-m",
                "penstock",
                "train",
                str(ROOT / "examples/stdlib.toml"),
            ]
            command += [f"dir={folder}/runs-{host}", f"name=cost-{number}", "cluster.nodes=2"]
            command += ["cluster.accelerators=1", f"train.tokens={steps * BATCH_TOKENS}"]
            command += [f"train.batch_tokens={BATCH_TOKENS}"]
            command += ["evaluate.every=never", f"guard.durable={folder}/durable", "--json"]
            memory = Path(folder) / f"memory-{host}"
            memory.mkdir()
            env = os.environ | {"PYTHONPATH": str(source), "PENSTOCK_NODE": host}
            env["PENSTOCK_MEMORY"] = str(memory)
            processes.append(
                subprocess.Popen([*inside(host), *command], env=env, stdout=subprocess.PIPE)
            )
        reports = [json.loads(process.communicate()[0]) for process in processes]
        journal = Path(folder) / "runs-1" / f"cost-{number}" / "journal"
        code = (
            "import json, sys; from pathlib import Path\n"
            "from penstock.ledger.journal.read import read_curve, read_events\n"
            "from penstock.ledger.journal.records import journal_files\n"
            "folder = Path(sys.argv[1])\n"
            "curve = [p for f in journal_files(folder, 'curve') for p in read_curve(f.path)]\n"
            "steps = sorted((int(p['step']), float(p['t'])) for p in curve)\n"
            "told = read_events(folder / 'supervisor.events')\n"
            "print(json.dumps([steps, [e.t for e in told if e.kind == 'launch'][-1]]))"
        )
        told = subprocess.run(
            [sys.executable, "-c", code, str(journal)],
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},  # the journal's format is the same
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        steps_t, launch = json.loads(told)
        gaps = [b[1] - a[1] for a, b in itertools.pairwise(steps_t)]
        return {
            "step_s": statistics.median(gaps[len(gaps) // 4 :]),
            "first_s": steps_t[0][1] - launch,
            "hash": reports[0].get("weights_hash", ""),
        }


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--before", type=Path, help="the src folder of another tree")
    asked.add_argument("--rate", default="", help="such as 1gbit")
    asked.add_argument("--steps", type=int, default=120)
    asked.add_argument("--times", type=int, default=3)
    given = asked.parse_args()
    sources = {"before": given.before, "now": ROOT / "src"} if given.before else {}
    sources = sources or {"now": ROOT / "src"}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
    netns("up", LAB, 2)
    try:
        for host in "12" if given.rate else "":
            shape = f"tc qdisc replace dev eth0 root tbf rate {given.rate} burst 128kb latency 50ms"
            subprocess.run([*inside(host), *shape.split()], check=True)
        for turn in range(given.times):
            for number, (name, source) in enumerate(sources.items()):
                one = run(source, given.steps, 10 * turn + number)
                found[name].append(one)
                print(
                    f"{name}: step {1000 * one['step_s']:.1f} ms, "
                    f"launch to first step {one['first_s']:.2f} s, weights {str(one['hash'])[:16]}",
                    flush=True,
                )
    finally:
        netns("down", LAB)
    medians = {
        name: {key: statistics.median(one[key] for one in ones) for key in ("step_s", "first_s")}
        for name, ones in found.items()
    }
    for name, one in medians.items():
        print(f"{name}: median step {1000 * one['step_s']:.1f} ms, first {one['first_s']:.2f} s")
    if given.before:
        more = medians["now"]["step_s"] / medians["before"]["step_s"] - 1
        print(f"a step takes {100 * more:+.1f} %")


if __name__ == "__main__":
    main()
