"""How long a save holds up training: ours beside torch's own, on the state of a 1.5B model.

`python benchmarks/checkpoint.py [--params 1.5B] [--device cuda] [--folder DIR] [--json FILE]`

The state is weights in bf16, and in fp32 what an optimizer keeps of them: masters and two moments;
the latter three are saved. Steps multiply matrices of the model's size by a batch of tokens,
forward and backward, and then change the whole state, so that a copy that is torn would be seen:
every saved tensor must hold one value, that of the step it was saved at.

A save is begun after a step, and steps go on until it is durable (at least STEPS). What it cost is
the time of those steps and of the call itself, less as many steps without a save. A synchronous
save costs all of its time. All of them are hashed; ours by itself, torch's after they are written,
in the time of the synchronous one and beside the training for the others.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from penstock.guard.format.published import StoredCheckpoint, hash_file
from penstock.guard.format.reader import IndexReader
from penstock.guard.save.saver import Saver
from penstock.guard.tiers.stores import DiskStore
from penstock.ledger.journal.events import JournalEvent
from penstock.run.schema.quantity import count

STEPS = 4
HIDDEN = 2048
FFN = 4 * HIDDEN


class Alone:
    rank, ranks, host_group = 0, 1, None

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value


class Silent:
    """Neither journal nor pulse."""

    def write(self, event: JournalEvent) -> None:
        if event.kind in ("save_failed", "fast_tier"):
            print(event.kind, event.to_payload(), flush=True)

    def at(self, phase: str, step: int | None = None) -> None: ...
    def beat(self) -> None: ...
    def beside(self, phase: str, step: int) -> None: ...


class Training:
    def __init__(self, params: int, tokens: int, device: str) -> None:
        self.device = torch.device(device)
        layers = max(1, params // (3 * HIDDEN * FFN))
        shapes = [(FFN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN)] * layers
        kept = {"dtype": torch.float32, "device": device}
        self.weights = [torch.randn(s, device=device, dtype=torch.bfloat16) * 0.02 for s in shapes]
        self.state: dict[str, Tensor] = {}
        for number, shape in enumerate(shapes):
            for key in ("master", "first", "second"):
                self.state[f"layer{number}/{key}"] = torch.zeros(shape, **kept)
        self.params = sum(w.numel() for w in self.weights)
        self.x = torch.randn(tokens, HIDDEN, device=device, dtype=torch.bfloat16)
        self.done = 0

    def step(self, before_update: Callable[[], None] = lambda: None) -> None:
        for weight in self.weights:
            into = self.x if weight.shape[1] == HIDDEN else self.wide
            out = into @ weight.t()
            back = out @ weight
            torch.mm(out.t(), back)
            self.wide = out if weight.shape[0] == FFN else self.wide
        before_update()
        self.done += 1
        torch._foreach_add_(list(self.state.values()), 1.0)
        self.sync()

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def time_steps(self, steps: int, before_update: Callable[[], None] = lambda: None) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            self.step(before_update)
        return time.perf_counter() - start


class Case:
    """One way to save. `begin` returns as soon as training may go on."""

    name = ""

    def __init__(self, training: Training, folder: Path) -> None:
        self.training, self.folder = training, folder

    def begin(self, step: int) -> None: ...
    def before_update(self) -> None: ...
    def done(self) -> bool:
        return True

    def torn(self, step: int) -> list[str]:
        """Tensors that are not those of the step."""
        found = {name: torch.empty_like(t, device="cpu") for name, t in self.training.state.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.load(found, checkpoint_id=str(self.folder / "state"), no_dist=True)
        return [name for name, tensor in found.items() if not (tensor == step).all()]

    def close(self) -> None: ...


class Ours(Case):
    name = "penstock"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        start = time.perf_counter()
        self.saver = Saver(
            *(
                Path("/dev/shm/penstock-benchmark"),
                [DiskStore(folder)],
                Alone(),
                Silent(),
                Silent(),
            ),
            keep=1,
            identity="benchmark",
            spill=folder / "spill",
            threads=8 if training.device.type == "cuda" else 1,
        )
        self.saver.prepare(training.state)
        print(f"{self.name}: prepared in {time.perf_counter() - start:.1f} s", flush=True)

    def begin(self, step: int) -> None:
        self.saver.stage(step, self.training.state, {}, {"step": step}, durable=True)

    def before_update(self) -> None:
        self.saver.before_update()

    def done(self) -> bool:
        assert not self.saver.failed, self.saver.failed
        return not self.saver.busy and not self.saver.writing

    def torn(self, step: int) -> list[str]:
        found = StoredCheckpoint(self.folder / f"step-{step:08d}")
        index = found.index()
        reader = IndexReader(found.path, index)
        return [
            name
            for name, entry in index.tensors.items()
            for chunk in entry.chunks
            if not (reader.saved(entry, chunk) == step).all()
        ]

    def close(self) -> None:
        self.saver.close()
        shutil.rmtree(self.saver.fast, ignore_errors=True)


class Sync(Case):
    name = "torch dcp.save, hashed"

    def begin(self, step: int) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        dcp.save(self.training.state, checkpoint_id=str(self.folder / "state"), no_dist=True)
        hash_all(self.folder)


class Async(Case):
    name = "torch async_save"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self.options: dict[str, Any] = {}
        self.threads = ThreadPoolExecutor(1)
        self.staged: Any = None

    def begin(self, step: int) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        where = str(self.folder / "state")
        begun = dcp.async_save(self.training.state, checkpoint_id=where, **self.options)
        self.staged = getattr(begun, "staging_completion", None)
        saved = getattr(begun, "upload_completion", begun)
        self.hashed = self.threads.submit(lambda: (saved.result(), hash_all(self.folder)))

    def before_update(self) -> None:
        if self.staged is not None:
            self.staged.result()
            self.staged = None

    def done(self) -> bool:
        return self.hashed.done() and self.hashed.result() is not None

    def close(self) -> None:
        self.threads.shutdown()


class AsyncStaged(Async):
    name = "torch async_save, async staging"

    def __init__(self, training: Training, folder: Path) -> None:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        super().__init__(training, folder)
        cuda = training.device.type == "cuda"
        choices = StagingOptions(
            use_pinned_memory=cuda,
            use_shared_memory=True,
            use_async_staging=True,
            use_non_blocking_copy=cuda,
        )
        self.options = {"async_stager": DefaultStager(choices)}


def hash_all(folder: Path) -> dict[str, str]:
    return {str(path): hash_file(path) for path in folder.rglob("*") if path.is_file()}


def measured(case: Case, step_s: float, trials: int) -> dict[str, Any]:
    training, stalls, calls, longs = case.training, [], [], []
    for trial in range(trials + 1):
        start = time.perf_counter()
        step = training.done
        case.begin(step)
        call_s = time.perf_counter() - start
        steps = 0
        while steps < STEPS or not case.done():
            training.step(case.before_update)
            steps += 1
        long_s = time.perf_counter() - start
        if trial:  # the first one allocates
            stalls.append(max(0.0, long_s - steps * step_s))
            calls.append(call_s)
            longs.append(long_s)
    torn = case.torn(step)
    case.close()
    assert not torn, f"{case.name}: {torn[:3]} are not of step {step}"
    return {
        "case": case.name,
        "stall_s": statistics.median(stalls),
        "call_s": statistics.median(calls),
        "until_durable_s": statistics.median(longs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--params", default="1.5B")
    parser.add_argument("--tokens", type=int, default=32768, help="of a step")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--cases", default="ours,sync,async,staged")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)  # async_save wants one
    training = Training(int(count(given.params)), given.tokens, given.device)
    size = sum(tensor.nbytes for tensor in training.state.values())
    training.time_steps(2)
    step_s = training.time_steps(2 * STEPS) / (2 * STEPS)
    print(f"{training.params / 1e9:.2f}B parameters, {size / 1e9:.1f} GB saved, ", end="")
    print(f"a step takes {step_s * 1e3:.1f} ms on {given.device}", flush=True)
    cases = {"ours": Ours, "sync": Sync, "async": Async, "staged": AsyncStaged}
    results = []
    for name in given.cases.split(","):
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            try:
                made = cases[name](training, Path(folder) / "save")
                result = measured(made, step_s, given.trials)
            except Exception as error:  # torch's stager does not work in every release
                print(f"{cases[name].name:<34} fails: {type(error).__name__}: {error}", flush=True)
                continue
        results.append(result)
        print(
            f"{result['case']:<34} stall {result['stall_s']:8.3f} s   call {result['call_s']:8.3f}"
            f" s   durable after {result['until_durable_s']:7.2f} s",
            flush=True,
        )
    step2_s = training.time_steps(2 * STEPS) / (2 * STEPS)
    print(f"a step without a save, measured again: {step2_s * 1e3:.1f} ms")
    if given.json:
        about = {"params": training.params, "bytes": size, "step_s": [step_s, step2_s]}
        given.json.write_text(json.dumps(about | {"cases": results}, indent=1))


if __name__ == "__main__":
    main()
