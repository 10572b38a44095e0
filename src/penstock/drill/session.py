"""A session of drills: the undisturbed run first, then one run for each fault."""

import json
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.data.read.open import open_planned
from penstock.drill import scratch
from penstock.drill.clock import SLACK_S
from penstock.drill.deeds import DEEDS
from penstock.drill.facts import Facts, read
from penstock.drill.faults import Fault, Scale
from penstock.drill.hosts import HOSTS_DEEDS, HostsScene
from penstock.drill.judge import Verdict, judge
from penstock.drill.needs import missing
from penstock.drill.scene import LIMIT_S, Scene, Stuck
from penstock.errors import RunFailed
from penstock.meter import devices
from penstock.run.folder import RunFolder
from penstock.run.schema.run import Run

CALM = "calm"
RECORD = "drills.jsonl"
CALM_LIMIT_S = 6 * 3600.0
PATIENCE = 10  # times the undisturbed run


@dataclass
class Session:
    """`root` is a folder of its own; only the record in it stays, unless `keep`."""

    run: Run
    root: Path
    scale: Scale = field(default_factory=Scale)
    keep: bool = False
    slack_s: float = SLACK_S  # between the clocks of a rank; more on a busy machine
    heard: Callable[[str], None] = lambda text: None  # told what is going on
    ranks: int = 0
    batch: int = 0  # samples of a step
    calm: Facts | None = None
    dataset: Path = Path()

    def open(self) -> Facts:
        """Makes the undisturbed run, which all others are held against."""
        self.root.mkdir(parents=True, exist_ok=True)
        asked = devices.find().ranks(self.run.cluster.accelerators)
        self.heard("the undisturbed run")
        scene = self._scene(CALM, asked, ())
        scene.prepare([])
        try:
            scene.start()
            if scene.end():
                raise RunFailed(f"the undisturbed run failed: {scene.said()}")
        finally:
            scene.clear()
        plan = scene.folder.read_plan()
        self.ranks, self.batch = plan["ranks"], plan["batch_tokens"] // plan["sequence"]
        self.dataset = open_planned(self.run, plan)[0].folder
        self.calm = read(scene.folder, [], [], self.batch)
        self._clear(scene)
        return self.calm

    def drill(self, fault: Fault) -> Verdict:
        """One fault in a run of its own."""
        assert self.calm is not None, "open first"
        if why := missing(fault, self.run, self.ranks, self.scale):
            return self._record(Verdict(fault.name, fault.what, True, skipped=why))
        if self.run.guard.mode == "live":
            fault = fault.live()
        self.heard(fault.what)
        kind = HostsScene if "hosts" in fault.needs else Scene
        fields = fault.fields
        if "store" in fault.needs:  # beside what the real run keeps there
            place = f"{self.run.guard.durable}/drills/{uuid.uuid4().hex[:8]}"
            fields = (*fields, f"guard.durable={place}")
        scene = self._scene(fault.name, self.ranks, fields, kind)
        try:
            verdict = self._judged(scene, fault, self.calm)
        finally:
            scene.clear()
        if verdict.passed:
            self._clear(scene)
        return self._record(verdict)

    def _judged(self, scene: Scene, fault: Fault, calm: Facts) -> Verdict:
        scene.prepare(fault.traps(self.scale, self.ranks))
        if "dataset" in fault.needs:
            scene.copy = self._copied(scene)
        try:
            if isinstance(scene, HostsScene):
                HOSTS_DEEDS[fault.deed](scene)
            else:
                DEEDS.get(fault.deed, Scene.start)(scene)
            scene.end()
        except Stuck as stuck:
            return Verdict(fault.name, fault.what, False, [str(stuck)])
        if not scene.folder.exists():
            return Verdict(fault.name, fault.what, False, [scene.said()])
        facts = read(scene.folder, scene.struck(), scene.missed(), self.batch)
        return judge(fault, calm, facts, self.batch, self.slack_s)

    def _copied(self, scene: Scene) -> Path:
        """A dataset of the drill's own, which this run reads."""
        copy = self.root / f"{scene.folder.name}.data" / self.dataset.name
        shutil.rmtree(copy.parent, ignore_errors=True)
        shutil.copytree(self.dataset, copy)
        scene.train.insert(2, f"data.dataset={copy.absolute()}")
        return copy

    def _scene(
        self, name: str, ranks: int, fields: tuple[str, ...], kind: type[Scene] = Scene
    ) -> Scene:
        folder = RunFolder(self.root.absolute() / name)
        shutil.rmtree(folder.path, ignore_errors=True)
        file = scratch.write(self.run, self.root, name, self.scale, ranks)
        # A large model takes its time to start; the undisturbed run says how long.
        limit_s = max(LIMIT_S, PATIENCE * self.calm.wall_s) if self.calm else CALM_LIMIT_S
        return kind(folder, ["train", str(file), *fields, "--json"], limit_s=limit_s)

    def _clear(self, scene: Scene) -> None:
        scene.clear()
        if not self.keep:
            for path in [scene.folder.path, *self.root.glob(f"{scene.folder.name}.*")]:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _record(self, verdict: Verdict) -> Verdict:
        with (self.root / RECORD).open("a") as file:
            file.write(json.dumps(verdict.to_json()) + "\n")
        return verdict
