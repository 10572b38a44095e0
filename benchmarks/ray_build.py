"""A build on a Ray cluster beside a plain one: equal versions, documents per core, what kills cost.

    python benchmarks/ray_build.py [--documents 40000]

Three Ray nodes of one CPU each stand in network namespaces of this machine, with a real S3 server
(Ceph RGW) beside them; the documents are in its bucket. The recipe is examples/web.toml. Plain is
`penstock data build --workers 3`, which reads from the same bucket and works on a local disk. On
Ray the work and the dataset are in the bucket, then in a folder that the nodes share. At the end a
worker is killed while it cleans, and a driver while documents are signed; it is started again.

A core is a second of CPU time, counted by the kernel over all processes of the build (cgroup): the
driver, the workers and Ray's daemons; not the S3 server. Needs root, iproute2, Ceph, the extra
`ray` and cgroup v1 (cpuacct).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from build_memory import sentences, write

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from ray_lab import BUCKET, NODES, RayLab, kill_group, missing  # noqa: E402

PLAIN = f"plain, {NODES} workers"
FILES = 12
HOST = 4  # where no node runs
COUNTED = Path("/sys/fs/cgroup/cpuacct")
PATIENCE_S = 1800.0


@dataclass
class Built:
    """One build: what it made and what it took."""

    name: str
    dataset: str
    documents: int
    cpu_s: float
    wall_s: float
    memory_bytes: int
    note: str = ""


class CpuGroup:
    """A control group that counts the CPU time of this process's children from `enter` on."""

    def __init__(self, name: str) -> None:
        self.path = COUNTED / f"{name}-{os.getpid()}"
        self.path.mkdir()

    def __enter__(self) -> "CpuGroup":
        (self.path / "tasks").write_text(str(os.getpid()))
        return self

    def __exit__(self, *error: object) -> None:
        (COUNTED / "tasks").write_text(str(os.getpid()))

    def seconds(self) -> float:
        return int((self.path / "cpuacct.usage").read_text()) / 1e9

    def remove(self) -> None:
        for process in (self.path / "tasks").read_text().split():
            (COUNTED / "tasks").write_text(process)
        self.path.rmdir()


class Bench:
    """The cluster, the corpus in its bucket, and the builds."""

    def __init__(self, lab: RayLab, group: CpuGroup, folder: Path, documents: int) -> None:
        self.lab, self.group, self.folder, self.documents = lab, group, folder, documents
        self.recipe = folder / "web.toml"
        self._put_corpus()

    def _put_corpus(self) -> None:
        from penstock.data.store.objects import Store

        raw = self.folder / "pages"
        size = write(raw, self.documents, -(-self.documents // FILES))
        os.environ.update(self.lab.storage)
        store = Store(f"{BUCKET}/pages")
        for path in sorted(raw.iterdir()):
            store.put(path.name, path)
        (self.folder / "eval").mkdir()
        asked = [{"question": text} for text in sentences()[:20]]
        (self.folder / "eval" / "asked.jsonl").write_text("\n".join(map(json.dumps, asked)))
        text = (ROOT / "examples" / "web.toml").read_text()
        self.recipe.write_text(text.replace('"pages/*.jsonl"', f'"{BUCKET}/pages/*.jsonl"'))
        print(f"{self.documents:,} documents, {size / 1e6:,.0f} MB in {FILES} files", flush=True)

    def plain(self, turn: int) -> Built:
        words = ["--workers", str(NODES)]
        return self._build(PLAIN, f"plain{turn}", words, [])

    def on_ray(self, name: str, to: str) -> Built:
        return self._build(name, f"{name}-driver", ["--on", "ray", "--to", to], [])

    def killed_worker(self, to: str) -> Built:
        def kill() -> str:
            self._until(lambda: self._count(to, "/clean/0") >= 3)
            worker = next(
                one for node in range(1, NODES + 1) for one in self.lab.processes(node, "ray::run")
            )
            os.kill(worker, signal.SIGKILL)
            return f"worker {worker} killed in the clean stage"

        words = ["--on", "ray", "--to", to]
        return self._build("Ray, a worker killed", "killed-worker", words, [kill])

    def killed_driver(self, to: str) -> Built:
        words = ["--on", "ray", "--to", to]
        process = self._start("killed-driver", words)
        self._until(lambda: self._count(to, "/near/bands/0") >= 3)
        kill_group(process)
        return self._build("Ray, the driver killed", "killed-driver", words, [])

    def _start(self, home: str, words: list[str]) -> "subprocess.Popen[str]":
        env = {"PENSTOCK_HOME": str(self.folder / home)}
        words = ["data", "build", str(self.recipe), *words, "--json"]
        node = 1 if "--on" in words else HOST
        return self.lab.start(*words, env=env, node=node)

    def _build(
        self, name: str, home: str, words: list[str], deeds: list[Callable[[], str]]
    ) -> Built:
        before, began = self.group.seconds(), time.monotonic()
        process = self._start(home, words)
        notes = [deed() for deed in deeds]
        told, _ = process.communicate(timeout=PATIENCE_S)
        wall_s, cpu_s = time.monotonic() - began, self.group.seconds() - before
        if process.returncode:
            sys.exit(f"{name} failed:\n{told}")
        notes += [line.strip() for line in told.splitlines() if "were done before" in line]
        made = json.loads(told[told.index("\n{") :])
        machine = made["build"]["machine"]
        built = Built(name, made["dataset"], self.documents, cpu_s, wall_s, machine["memory_bytes"])
        built.note = "; ".join(notes)
        print(
            f"{built.name:<28} {built.dataset}  {self.documents / cpu_s:7.0f} documents/core-s  "
            f"{cpu_s:7.1f} core-s  {wall_s:6.1f} s  {built.memory_bytes / 2**20:5.0f} MiB  "
            f"{built.note}",
            flush=True,
        )
        return built

    def _count(self, to: str, part: str) -> int:
        from penstock.data.store.objects import Store

        return sum(part in one.name for one in Store(to).list())

    def _until(self, what: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_S
        while not what():
            if time.monotonic() > until:
                sys.exit("waited too long")
            time.sleep(0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=1, help="plain and Ray in turns")
    options = parser.parse_args()
    if lacking := missing():
        sys.exit(f"not here: {lacking}")
    group = CpuGroup("penstock-ray")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with RayLab(folder, hosts=HOST) as lab:
            for node in range(1, NODES + 1):  # what was started before the group
                for process in lab.processes(node):
                    (group.path / "tasks").write_text(str(process))
            lab.enter(HOST)
            bench = Bench(lab, group, folder, options.documents)
            with group:
                builds: list[Built] = []
                for turn in range(options.rounds):
                    builds.append(bench.plain(turn))
                    builds.append(bench.on_ray("Ray, bucket", f"{BUCKET}/sets{turn}"))
                    builds.append(bench.on_ray("Ray, shared folder", str(folder / f"all{turn}")))
                builds.append(bench.killed_worker(f"{BUCKET}/killed-worker"))
                builds.append(bench.killed_driver(f"{BUCKET}/killed-driver"))
        group.remove()
    report(builds)


def report(builds: list[Built]) -> None:
    versions = {one.dataset for one in builds}
    print(f"versions: {', '.join(sorted(versions))}")
    rates: dict[str, list[float]] = {}
    for one in builds:
        rates.setdefault(one.name, []).append(one.documents / one.cpu_s)
    mean = {name: sum(some) / len(some) for name, some in rates.items()}
    plain = mean[PLAIN]
    for name in ("Ray, bucket", "Ray, shared folder"):
        print(f"{name}: {mean[name] / plain:.2f} of the plain build's documents per core")
    if len(versions) > 1:
        sys.exit("the versions differ")


if __name__ == "__main__":
    main()
