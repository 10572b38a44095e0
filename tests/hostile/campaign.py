"""Random kills, power cuts and tampering on real runs: equal weights or an explicit refusal.

    python tests/hostile/campaign.py --seeds 100 [--first 0] [--json FILE] [--page FILE]

Each seed is a run of two ranks whose folder lies on a disk of its own (see cut_disk.py) and whose
copies in memory lie in a folder of their own. It is struck one to four times, at a step, at its
launch or inside the publication of a checkpoint. While it is down, its records may be tampered with
(see tampering.py). Then the same command is given again. It has to go on, or to refuse with exit
code 1 or 2 and one message; a run that refuses gets its records back as they were. In the end it
has the weights of the undisturbed run, and every sample was used once (see verdicts.py).

The ranks write what they trained on to a folder that no power cut touches: a link in the run folder
leads there. A seed draws the same faults every time; at which byte they strike is up to the
machine. Needs root. A seed that fails prints its history, and its folders are kept.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import made_sets
from hostile.cut_disk import MOUNTS, CutDisk
from hostile.own_processes import descends, parent, send
from hostile.tampering import Target, tamper
from hostile.verdicts import (
    ERROR,
    Ended,
    Finished,
    counted,
    numbered,
    still_there,
    traceback_in,
    wrong_end,
    wrong_refusal,
)
from penstock.drill import audit
from penstock.guard.format.published import published_checkpoints
from penstock.launch.supervisor import environment, fork_client, preload
from penstock.launch.supervisor.fork_client import process_state
from penstock.ledger.journal.read import JournalLine, read_curve, read_events
from penstock.ledger.journal.records import SUPERVISOR, journal_files
from penstock.run.folder import RunFolder
from penstock.watch.report.screen import summary

STEPS, BATCH, EVERY = 160, 8, 12
NAME = "own"
PATIENCE_S = 90.0  # without a new step or event
POLL_S = 0.02
SHARP_S = 0.002  # between two looks for a checkpoint that is being written
FROZEN_S = 0.2
OUTCOMES = ("went on", "refused", "refused later", "too late")
STREAMS = ("stdout", "stderr")
GONE_S = 20.0
TAMPERED = 0.7  # share of the times that a run is down
BEGIN, END = "<!-- hostile -->", "<!-- /hostile -->"
KEPT = Path(tempfile.gettempdir()) / "penstock-campaign"
# What runs import beside what ranks do.
MODULES = (*fork_client.MODULES, "penstock.launch.start", "typer", "rich.console")

# The faults, how often each is drawn, and whether the run is down afterwards.
FAULTS = {
    "rank killed": (3, False),
    "rank frozen, then killed": (1, False),
    "supervisor frozen, rank killed": (1, False),
    "fork server killed": (1, False),
    "supervisor killed": (2, True),
    "all killed": (4, True),
    "all killed, memory wiped": (3, True),
    "power cut": (6, True),
}
MOMENTS = {"step": 7, "publish": 2, "launch": 1}
OTHERS = {"rate": "train.learning_rate=1e-4", "seed": "train.seed=5", "identity": ""}

RUN_FILE = f"""name = "{NAME}"
dir = "DIR"
[model]
layers = 2
hidden = 32
heads = 4
kv_heads = 2
ffn = 64
tied = true
[data]
dataset = "DATASET"
sequence = 16
[train]
precision = "fp32"
steps = {STEPS}
batch_tokens = {16 * BATCH}
[evaluate]
every = "never"
[cluster]
accelerators = 2
[guard]
checkpoint = "{EVERY} steps"
fast = "3 steps"
keep = 4
restarts = 20
timeout = "30 s"
"""


class Failed(Exception):
    """The run did what it must not."""


@dataclass
class Round:
    """One fault and what came of it."""

    fault: str
    moment: str
    struck_step: int = 0
    tampering: str = ""  # the way
    did: str = ""  # what it did, in words
    # "went on", "refused", "refused later" (at a later start, for what was done here), or
    # "too late" where the run was done before the fault
    outcome: str = ""
    answer: str = ""  # of a refusal

    def __str__(self) -> str:
        words = f"{self.fault} at {self.moment} (step {self.struck_step})"
        words += f"; {self.did}" if self.did else ""
        words += f" → {self.outcome or '?'}"
        return words + (f" ({self.answer})" if self.answer else "")


@dataclass
class Told:
    """The history of a seed."""

    seed: int
    mount: str
    rounds: list[Round] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    starts: int = 0
    seconds: float = 0.0


class Scene:
    """The folders of a campaign, what never changes in them, and the run of one seed."""

    def __init__(self, root: Path, origin: int) -> None:
        self.root = root
        self.origin = origin  # the process that all others are forked from
        self.disk = CutDisk(root / "image", root / "disk")
        self.memory, self.audited = root / "memory", root / "audit"
        self.folder = RunFolder(root / "disk" / "runs" / NAME)
        self.run_file = root / "own.toml"
        self.process: preload.ForkedProcess | None = None
        self.began = 0.0
        self.starts = 0
        self.lines: list[audit.UsedSamples] = []
        self.struck: set[str] = set()  # log folders of attempts in which something was killed
        self.calm: Finished | None = None
        self.foreign: dict[str, RunFolder] = {}

    # What is made once

    def prepare(self) -> None:
        """Build the dataset, the undisturbed run and the runs of others."""
        home = self.root / "home"
        home.mkdir()
        os.environ["PENSTOCK_HOME"] = str(home)
        text = RUN_FILE.replace("DATASET", made_sets.tiny_dataset(home))
        self.run_file.write_text(text.replace("DIR", str(self.folder.path.parent)))
        kept = ("guard.keep=99",)
        for name, other in {"calm": "", **OTHERS}.items():
            overrides = (f"dir={self.root / name}", *kept, *([other] if other else []))
            folder = RunFolder(self.root / name / NAME)
            folder.audit.mkdir(parents=True)
            self.start(*overrides)
            ended = self.until_end()
            if ended.code:
                raise Failed(f"the run {name!r} does not work: {ended.stderr}")
            self.foreign[name] = folder
        calm = self.foreign.pop("calm")
        self.calm = finished(calm)
        samples = counted(audit.read(calm.audit), STEPS, BATCH)
        if problems := wrong_end(self.calm, self.calm, samples):
            raise Failed(f"the undisturbed run: {problems}")
        if self.calm.weights_hash == finished(self.foreign["rate"]).weights_hash:
            raise Failed("another learning rate makes the same weights: nothing could be judged")

    # The run of one seed

    def anew(self, mount: str) -> None:
        """An empty disk, empty memory, and nothing on record."""
        self.disk.remove()
        self.disk.options = MOUNTS[mount]
        self.disk.make()
        for copy in self.root.glob("before-*"):
            shutil.rmtree(copy)
        for folder in (self.memory, self.audited):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        self.starts, self.lines, self.struck = 0, [], set()
        self.folder.control.mkdir(parents=True)
        self.folder.audit.symlink_to(self.audited)
        self.disk.sync()

    def start(self, *overrides: str) -> None:
        self.starts += 1
        self.began = time.time()
        words = ["penstock", "train", str(self.run_file), *overrides]
        env = os.environ | {"PENSTOCK_MEMORY": str(self.memory)}
        with (
            (self.root / "stdout").open("wb") as out,
            (self.root / "stderr").open("wb") as err,
            open(os.devnull) as nothing,
        ):
            fds = {0: nothing.fileno(), 1: out.fileno(), 2: err.fileno()}
            started = preload.python_m(words, env, fds)
        assert isinstance(started, preload.ForkedProcess)
        self.process = started

    def ended(self) -> Ended | None:
        assert self.process is not None
        if (code := self.process.poll()) is None:
            return None
        texts = [(self.root / name).read_text(errors="replace") for name in STREAMS]
        return Ended(code, *texts)

    def until_end(self) -> Ended:
        self.until(lambda: False, "the end")
        ended = self.ended()
        assert ended is not None
        return ended

    def until(self, true: Callable[[], bool], what: str, poll_s: float = POLL_S) -> bool:
        """Wait until something is true; False where the invocation ends before."""
        last, since = self.progress(), time.monotonic()
        while not true():
            if self.ended():
                return False
            if time.monotonic() - since > 1.0 and (now := self.progress()) != last:
                last, since = now, time.monotonic()
            if time.monotonic() - since > PATIENCE_S:
                raise Failed(f"no progress in {PATIENCE_S:g} s while waiting for {what}")
            time.sleep(poll_s)
        return True

    def gather(self) -> None:
        """Take what this invocation trained on, once it has ended."""
        self.lines += numbered(audit.read(self.audited), self.starts)
        for path in self.audited.iterdir():
            path.unlink()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.disk.remove()

    # What this invocation has on record

    def events(self, kind: str) -> list[JournalLine]:
        files = [file.path for file in journal_files(self.folder.journal, "events")]
        found = [
            e for path in [*files, self.folder.journal / SUPERVISOR] for e in read_events(path)
        ]
        return [e for e in found if e.kind == kind and e.t >= self.began]

    def step(self) -> int:
        """The furthest step that it has made; 0 before its first one."""
        found = 0
        for file in journal_files(self.folder.journal, "curve"):
            with contextlib.suppress(FileNotFoundError):
                curve = read_curve(file.path)
                found = max(found, *curve["step"][curve["t"] >= self.began].tolist(), 0)
        return found

    def progress(self) -> tuple[int, int]:
        return self.step(), len(self.events("start"))

    def writes(self) -> bool:
        """Whether a checkpoint is being written."""
        return any(self.folder.checkpoints.glob(".writing-*"))

    def ranks(self) -> list[int]:
        """Processes of the ranks that live, of the newest attempt."""
        found = {int(str(e.payload["pid"])) for e in self.events("start") if "pid" in e.payload}
        return [p for p in sorted(found) if self.owns(p) and _comm(p).startswith("penstock-r")]

    def owns(self, pid: int) -> bool:
        """Whether a process is of this campaign: all of them come from its fork server."""
        return descends(pid, self.origin)

    def signal(self, pid: int, number: int) -> None:
        send(pid, number, self.origin)

    def logs(self) -> dict[str, str]:
        """What ranks printed, of all attempts."""
        found = sorted(self.folder.logs.rglob("rank-*")) if self.folder.logs.is_dir() else []
        return {
            str(path.relative_to(self.folder.path)): path.read_text(errors="replace")
            for path in found
        }

    # Copies

    def keep(self, where: Path) -> None:
        """An exact copy of the run folder and of the memory."""
        shutil.rmtree(where, ignore_errors=True)
        shutil.copytree(self.folder.path, where / "run", symlinks=True)
        shutil.copytree(self.memory, where / "memory", symlinks=True)

    def restore(self, where: Path) -> None:
        shutil.rmtree(self.folder.path)
        shutil.copytree(where / "run", self.folder.path, symlinks=True)
        shutil.rmtree(self.memory)
        shutil.copytree(where / "memory", self.memory, symlinks=True)
        self.disk.sync()


def finished(folder: RunFolder) -> Finished:
    """What a run has to show that says it is done."""
    told, saved = summary(folder), published_checkpoints(folder.checkpoints)
    state: dict[str, str] = {}
    damage: tuple[str, ...] = ("there is none",)
    if saved:
        damage = tuple(saved[0].find_damage())
        files = {} if damage else saved[0].files()
        state = {n: str(e["blake3"]) for n, e in files.items() if n.endswith(".distcp")}
    return Finished(
        str(told["status"]),
        told["weights_hash"],
        saved[0].step if saved else 0,
        damage,
        state,
    )


# Faults


def strike(scene: Scene, fault: str) -> bool:
    """Do it; False where the run had ended before."""
    assert scene.process is not None
    supervisor = scene.process
    scene.struck |= {f"logs/attempt-{one.attempt}" for one in scene.events("launch")[-1:]}
    if fault in ("supervisor killed", "all killed", "all killed, memory wiped", "power cut"):
        return _end(scene, fault)
    if not scene.until(lambda: bool(scene.ranks()), "ranks"):
        return False
    ranks = scene.ranks()
    rank = ranks[0 if scene.starts % 2 else -1]
    if fault == "rank killed":
        scene.signal(rank, signal.SIGKILL)
    elif fault == "rank frozen, then killed":
        scene.signal(rank, signal.SIGSTOP)
        time.sleep(FROZEN_S)
        scene.signal(rank, signal.SIGKILL)
    elif fault == "supervisor frozen, rank killed":
        supervisor.send_signal(signal.SIGSTOP)
        scene.signal(rank, signal.SIGKILL)
        time.sleep(FROZEN_S)
        supervisor.send_signal(signal.SIGCONT)
    else:
        assert fault == "fork server killed"
        scene.signal(parent(rank), signal.SIGKILL)
    return True


def _end(scene: Scene, fault: str) -> bool:
    """Faults after which nothing of the run lives."""
    supervisor = scene.process
    assert supervisor is not None
    ranks = scene.ranks()
    fork_servers = [pid for pid in {parent(rank) for rank in ranks} if scene.owns(pid)]
    if supervisor.poll() is not None:
        return False
    if fault != "supervisor killed":  # all at once: none may react to the death of another
        supervisor.send_signal(signal.SIGSTOP)
        for pid in [*fork_servers, *ranks]:
            scene.signal(pid, signal.SIGSTOP)
        if fault == "power cut":
            scene.disk.cut()
        for pid in [*ranks, *fork_servers]:
            scene.signal(pid, signal.SIGKILL)
    supervisor.kill()
    supervisor.wait()
    until = time.monotonic() + GONE_S
    while left := [
        pid for pid in [*ranks, *fork_servers] if process_state(pid) not in ("", "Z", "X")
    ]:
        if time.monotonic() > until:
            raise Failed(f"processes {left} outlive their supervisor by {GONE_S:g} s")
        time.sleep(POLL_S)
    if fault in ("power cut", "all killed, memory wiped"):
        shutil.rmtree(scene.memory)
        scene.memory.mkdir()
    if fault == "power cut":
        scene.disk.mend()
    return True


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


# One seed


class Play:
    """One seed, from an empty disk to a finished run."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene, self.dice = scene, random.Random(seed)
        self.told = Told(seed, self.dice.choice(sorted(MOUNTS)))
        self.pending: list[Round] = []  # whose tampering has no outcome yet
        self.copies: list[tuple[list[Round], Path]] = []  # from before a tampering
        self.done = False

    def run(self) -> None:
        scene, dice = self.scene, self.dice
        scene.anew(self.told.mount)
        scene.start()
        for number, step in enumerate(sorted(dice.sample(range(3, STEPS - 4), dice.randint(1, 4)))):
            # Each round has a generator of its own: what it finds there does not shift the next.
            self.dice = random.Random(f"{self.told.seed} {number}")
            if not self.round(step):
                break
        self.finish()

    def round(self, step: int) -> bool:
        """Strike once; False where the run was done before."""
        scene, dice = self.scene, self.dice
        fault = dice.choices(list(FAULTS), [weight for weight, _ in FAULTS.values()])[0]
        ends = FAULTS[fault][1]
        moments = MOMENTS if ends else {"step": 1}
        moment = dice.choices(list(moments), list(moments.values()))[0]
        tampers = dice.random() < TAMPERED
        one = Round(fault, moment)
        self.told.rounds.append(one)
        self.wait(moment, step)
        one.struck_step = scene.step()
        if self.done or not strike(scene, fault):
            one.outcome = "too late"
            return False
        one.outcome = "went on"  # unless it ends: then it fails, or `ended` says otherwise
        if ends:
            self.down()
            if tampers:
                self.tamper(one)
            scene.start()
        return True

    def wait(self, moment: str, step: int) -> None:
        """Until the moment of the next fault; a refusal on the way is judged and undone."""
        scene = self.scene

        def came() -> bool:
            if moment == "launch":
                return bool(scene.events("launch"))
            return scene.step() >= step

        while not scene.until(came, f"{moment} {step}"):
            if self.ended():
                return
        if moment != "launch":
            self.settle()
        if moment == "publish" and not scene.until(scene.writes, "a checkpoint", SHARP_S):
            self.ended()

    def settle(self) -> None:
        """It makes steps: what was done to its records has been mended or passed over."""
        for one in self.pending:
            one.outcome = "went on"
        self.pending = []

    def ended(self) -> bool:
        """The invocation has ended on its own: whether it is done. Else it starts once more."""
        scene = self.scene
        ended = scene.ended()
        assert ended is not None
        self.down()
        if ended.code == 0:
            self.settle()
            self.done = True
            return True
        while not self.pending and self.copies:  # an earlier tampering may be still there
            if any(still_there(one.did, ended.stderr) for one in self.copies[-1][0]):
                break
            self.copies.pop()
        if problems := wrong_refusal(ended, bool(self.copies)):
            raise Failed("; ".join(problems) + f"\n{ended.stdout}\n{ended.stderr}")
        rounds, copy = self.copies.pop()
        for one in rounds:
            one.outcome = "refused" if one in self.pending else "refused later"
            said = ended.stderr.partition(ERROR)[2].replace(str(scene.root), "…")
            one.answer = said.splitlines()[0][:160]
        self.pending = []
        scene.restore(copy)
        scene.start()
        return False

    def down(self) -> None:
        """The invocation is over, by a fault or on its own: nobody may have left a traceback."""
        scene = self.scene
        scene.gather()
        texts = {name: (scene.root / name).read_text(errors="replace") for name in STREAMS}
        if problems := traceback_in(texts | scene.logs(), scene.struck):
            raise Failed("; ".join(problems))

    def tamper(self, one: Round) -> None:
        scene = self.scene
        if not self.pending:  # else the copy is from before the first of them
            self.copies.append(([], scene.root / f"before-{len(self.copies)}"))
            scene.keep(self.copies[-1][1])
        self.copies[-1][0].append(one)
        target = Target(scene.folder, scene.memory, scene.foreign, EVERY, STEPS)
        one.tampering, one.did = tamper(target, self.dice)
        one.outcome = ""
        scene.disk.sync()
        self.pending.append(one)

    def finish(self) -> None:
        """Wait for the end, and judge it."""
        scene = self.scene
        while not self.done:
            scene.until_end()
            self.ended()
        assert scene.calm is not None
        samples = counted(scene.lines, STEPS, BATCH)
        if problems := wrong_end(finished(scene.folder), scene.calm, samples):
            raise Failed("; ".join(problems))


def play(scene: Scene, seed: int, kept: Path) -> Told:
    """Play one seed; a failure is in what it tells, and its folders are kept."""
    one, began = Play(scene, seed), time.monotonic()
    try:
        one.run()
    except Failed as failure:
        one.told.failures.append(str(failure))
    except Exception:  # such as a report that cannot be read: no seed stops the others
        one.told.failures.append(traceback.format_exc())
    if one.told.failures:
        _keep(scene, kept / f"seed-{seed}")
    if scene.process is not None and scene.process.poll() is None:
        scene.process.kill()
        scene.process.wait()
    one.told.starts, one.told.seconds = scene.starts, round(time.monotonic() - began, 2)
    return one.told


def _keep(scene: Scene, where: Path) -> None:
    shutil.rmtree(where, ignore_errors=True)
    with contextlib.suppress(OSError, shutil.Error):
        scene.keep(where)
    for path in (
        *(scene.root / name for name in (*STREAMS, "audit")),
        *scene.root.glob("before-*"),
    ):
        name = path.name
        with contextlib.suppress(OSError, shutil.Error):
            if path.is_dir():
                shutil.copytree(path, where / name, symlinks=True)
            else:
                shutil.copyfile(path, where / name)


# The whole


@contextmanager
def prepared() -> Iterator[Scene]:
    """A scene with everything that is made once, in memory."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with (
        tempfile.TemporaryDirectory(prefix="penstock-campaign-", dir="/dev/shm") as root,
        preload.serving(environment.for_fork_server(1), MODULES) as origin,
        contextlib.closing(Scene(Path(root), origin.pid)) as scene,
    ):
        scene.prepare()
        yield scene


def table(told: list[Told]) -> list[str]:
    """Faults, and ways of tampering, by how often and with what outcome, in Markdown."""
    rounds = [one for seed in told for one in seed.rounds]
    lines = []
    for what, head in (("fault", "fault"), ("tampering", "done to the records while it was down")):
        lines += [f"| {head} | n | went on | refused | refused later | too late |"]
        lines += ["|---|---:|---:|---:|---:|---:|"]
        found = Counter((getattr(one, what), one.outcome) for one in rounds if getattr(one, what))
        for name in sorted({name for name, _ in found}):
            each = [found[name, outcome] for outcome in OUTCOMES]
            lines.append(f"| {name} | {sum(each)} | {' | '.join(map(str, each))} |")
        lines.append("")
    return lines


def total(told: list[Told]) -> str:
    """The result in one sentence: only what took place, and what was put back, is counted."""
    failed = [one.seed for one in told if one.failures]
    rounds = [one for seed in told for one in seed.rounds]
    tampered = [one for one in rounds if one.did]
    in_memory = sum("slot-" in one.did for one in tampered)
    refused = sum(one.outcome.startswith("refused") for one in tampered)
    words = f"seeds {failed} failed" if failed else "none failed"
    return (
        f"{len(told)} runs, {sum(one.outcome != 'too late' for one in rounds)} faults, "
        f"{len(tampered)} times tampered with ({in_memory} times with copies in memory; {refused} "
        "were refused, and the records put back), "
        f"{sum(one.starts for one in told)} starts: {len(told) - len(failed)} ended with equal "
        f"weights and every sample used once; {words}."
    )


def put(page: Path, lines: list[str]) -> None:
    """Put lines between the marks of a page."""
    head, _, rest = page.read_text().partition(BEGIN)
    if END not in rest:
        raise ValueError(f"{page} has no lines {BEGIN} and {END}")
    page.write_text(f"{head}{BEGIN}\n{chr(10).join(lines)}\n{END}{rest.partition(END)[2]}")


def main() -> int:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--seeds", type=int, default=100)
    asked.add_argument("--first", type=int, default=0)
    asked.add_argument("--json", type=Path, help="a file for the history of every seed")
    asked.add_argument("--page", type=Path, help="a page for the table, such as docs/faults.md")
    asked.add_argument("--keep", type=Path, default=KEPT, help="where failed ones are kept")
    given = asked.parse_args()
    if os.geteuid():
        print("error: needs root, for a loop device and mounts", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # unmounted all the same
    told: list[Told] = []
    began = time.monotonic()
    with prepared() as scene:
        for seed in range(given.first, given.first + given.seeds):
            told.append(play(scene, seed, given.keep))
            one = told[-1]
            history = "; ".join(map(str, one.rounds))
            verdict = "FAILED" if one.failures else "equal, 0 lost, 0 doubled"
            print(f"seed {seed} ({one.mount}): {history} ⇒ {verdict}, {one.seconds} s", flush=True)
            for failure in one.failures:
                print(f"  {failure}\n  kept in {given.keep / f'seed-{seed}'}", flush=True)
    lines = [total(told), "", *table(told)[:-1]]
    print("\n" + "\n".join(lines) + f"\n\n{time.monotonic() - began:.0f} s")
    if given.json:
        rows = ",\n".join(json.dumps(asdict(one)) for one in told)
        given.json.write_text(f"[\n{rows}\n]\n")
    if given.page:
        put(given.page, lines)
    return 1 if any(one.failures for one in told) else 0


if __name__ == "__main__":
    sys.exit(main())
