"""A session of drills: the undisturbed run first, then one run for each fault."""

import json
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.data.read.open import open_planned
from penstock.drill import scratch_run, sites
from penstock.drill.actions import ACTIONS
from penstock.drill.clock import SLACK_S
from penstock.drill.drill_run import LIMIT_S, DrillRun, DrillStuck
from penstock.drill.facts import DrillFacts, read_facts
from penstock.drill.faults import DrillFault, ScratchScale
from penstock.drill.hosts import HOST_ACTIONS, MultiHostDrillRun
from penstock.drill.judge import DrillVerdict, judge
from penstock.drill.needs import bucket_of, missing
from penstock.errors import RunFailed
from penstock.meter import devices
from penstock.run.folder import RunFolder
from penstock.run.schema.run import Run

BASELINE = "calm"  # the name of its folder
RECORD = "drills.jsonl"
BASELINE_LIMIT_S = 6 * 3600.0
PATIENCE = 10  # times the undisturbed run


@dataclass
class DrillSession:
    """Drills of one run. In the folder `root` only the record stays, unless `keep`."""

    run: Run
    root: Path
    scale: ScratchScale = field(default_factory=ScratchScale)
    keep: bool = False
    slack_s: float = SLACK_S  # between the clocks of a rank; more on a busy machine
    report: Callable[[str], None] = lambda text: None  # told what is going on
    ranks: int = 0
    batch: int = 0  # samples of a step
    baseline: DrillFacts | None = None
    dataset: Path = Path()
    undisturbed_sites: str = ""  # hash of their weights, once a drill has needed it

    def open(self) -> DrillFacts:
        """Make the undisturbed run, with which all others are compared."""
        self.root.mkdir(parents=True, exist_ok=True)
        asked = devices.find().ranks(self.run.cluster.accelerators)
        self.report("the undisturbed run")
        drill_run = self._make_run(BASELINE, asked, ())
        drill_run.prepare([])
        try:
            drill_run.start()
            if drill_run.end():
                raise RunFailed(f"the undisturbed run failed: {drill_run.last_error()}")
        finally:
            drill_run.clear()
        launch = drill_run.folder.read_launch_record()
        self.ranks, self.batch = launch.ranks, launch.batch_tokens // launch.sample_tokens
        self.dataset = open_planned(self.run, launch.dataset)[0].folder
        self.baseline = read_facts(drill_run.folder, [], [], self.batch)
        self._clear(drill_run)
        return self.baseline

    def drill(self, fault: DrillFault) -> DrillVerdict:
        """Inject one fault into a run of its own and judge it."""
        assert self.baseline is not None, "open first"
        if why := missing(fault, self.run, self.ranks, self.scale):
            return self._record(DrillVerdict(fault.name, fault.what, True, skipped=why))
        if self.run.guard.mode == "live":
            fault = fault.in_live_mode()
        if "sites" in fault.needs:
            return self._record(self._drill_sites(fault))
        self.report(fault.what)
        kind = MultiHostDrillRun if "hosts" in fault.needs else DrillRun
        fields = fault.fields
        if "store" in fault.needs:  # beside what the real run keeps there
            place = f"{self.run.guard.durable}/drills/{uuid.uuid4().hex[:8]}"
            fields = (*fields, f"guard.durable={place}")
        drill_run = self._make_run(fault.name, self.ranks, fields, kind)
        try:
            verdict = self._judged(drill_run, fault, self.baseline)
        finally:
            drill_run.clear()
        if verdict.passed:
            self._clear(drill_run)
        return self._record(verdict)

    def _drill_sites(self, fault: DrillFault) -> DrillVerdict:
        """Run two sites with a fault between them, and once without."""
        if not self.undisturbed_sites:
            own = DrillFault("calm_sites", "two undisturbed sites", (), fields=sites.STEADY)
            verdict, self.undisturbed_sites = self._judged_sites(own)
            if not verdict.passed:
                why = [f"two undisturbed sites: {one}" for one in verdict.why]
                self.undisturbed_sites = ""
                return replace(verdict, fault=fault.name, what=fault.what, why=why)
        return self._judged_sites(fault)[0]

    def _judged_sites(self, fault: DrillFault) -> tuple[DrillVerdict, str]:
        """Return the verdict and the hash of the weights of the first site."""
        self.report(fault.what)
        place, root = bucket_of(self.run), self.root.absolute() / fault.name
        shutil.rmtree(root, ignore_errors=True)
        drill = sites.make_drill(
            {site: self._site_file(root / site) for site in sites.SITES},
            lambda file, fields: self._of_file(file, fields),
            f"{place}/drills/{uuid.uuid4().hex[:8]}",
            self.scale,
            self.batch,
            fault.fields,
        )
        try:
            for site, one in drill.runs.items():
                armed = fault.failpoints(self.scale, 1) if site == sites.SITES[-1] else []
                one.prepare(armed)
            sites.SITE_ACTIONS[fault.outside_action](drill)
            drill.finish()
            verdict = sites.judge_sites(drill, fault, self.undisturbed_sites)
            found = drill.weights_hash(sites.SITES[0])
        except DrillStuck as stuck:
            return DrillVerdict(fault.name, fault.what, False, [str(stuck)]), ""
        finally:
            drill.clear()
        if verdict.passed and not self.keep:
            shutil.rmtree(root)
        return verdict, found

    def _site_file(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        return scratch_run.write_run_file(self.run, folder, sites.NAME, self.scale, self.ranks)

    def _of_file(self, file: Path, fields: list[str]) -> DrillRun:
        folder = RunFolder(file.parent / file.stem)
        return DrillRun(folder, ["train", str(file), *fields, "--json"], limit_s=self._limit_s)

    @property
    def _limit_s(self) -> float:
        """A large model takes its time to start; the undisturbed run says how long."""
        if self.baseline is None:
            return BASELINE_LIMIT_S
        return max(LIMIT_S, PATIENCE * self.baseline.wall_s)

    def _judged(self, drill_run: DrillRun, fault: DrillFault, baseline: DrillFacts) -> DrillVerdict:
        drill_run.prepare(fault.failpoints(self.scale, self.ranks))
        if "dataset" in fault.needs:
            drill_run.copy = self._copied(drill_run)
        try:
            if isinstance(drill_run, MultiHostDrillRun):
                HOST_ACTIONS[fault.outside_action](drill_run)
            else:
                ACTIONS.get(fault.outside_action, DrillRun.start)(drill_run)
            drill_run.end()
        except DrillStuck as stuck:
            return DrillVerdict(fault.name, fault.what, False, [str(stuck)])
        if not drill_run.folder.exists():
            return DrillVerdict(fault.name, fault.what, False, [drill_run.last_error()])
        facts = read_facts(drill_run.folder, drill_run.injected(), drill_run.missed(), self.batch)
        return judge(fault, baseline, facts, self.batch, self.slack_s)

    def _copied(self, drill_run: DrillRun) -> Path:
        """Copy the dataset, so that the drill can damage it, and point the run to the copy."""
        copy = self.root / f"{drill_run.folder.name}.data" / self.dataset.name
        shutil.rmtree(copy.parent, ignore_errors=True)
        shutil.copytree(self.dataset, copy)
        drill_run.train.insert(2, f"data.dataset={copy.absolute()}")
        return copy

    def _make_run(
        self, name: str, ranks: int, fields: tuple[str, ...], kind: type[DrillRun] = DrillRun
    ) -> DrillRun:
        folder = RunFolder(self.root.absolute() / name)
        shutil.rmtree(folder.path, ignore_errors=True)
        file = scratch_run.write_run_file(self.run, self.root, name, self.scale, ranks)
        return kind(folder, ["train", str(file), *fields, "--json"], limit_s=self._limit_s)

    def _clear(self, drill_run: DrillRun) -> None:
        drill_run.clear()
        if not self.keep:
            for path in [drill_run.folder.path, *self.root.glob(f"{drill_run.folder.name}.*")]:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _record(self, verdict: DrillVerdict) -> DrillVerdict:
        with (self.root / RECORD).open("a") as file:
            file.write(json.dumps(verdict.to_json()) + "\n")
        return verdict
