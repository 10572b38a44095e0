"""What do local steps and codecs cost in loss? K replicas in one process, at equal tokens.

    PYTHONPATH=src:.carry python3 benchmarks/sync_loss.py --promised --out sync-25m.jsonl  # a GPU
    PYTHONPATH=src:.carry python3 benchmarks/sync_loss.py --model 3m --out sync-3m.jsonl
    python benchmarks/sync_loss.py --table sync-3m.jsonl sync-25m.jsonl

Every row trains on the same samples in the same order as data parallel does, from the same first
weights: `--worker-tokens` for each of K replicas a step. Codecs, error feedback, outer optimizer,
rounds, streaming and the exchange of gradients are the trainer's own code, and so are the inner
optimizers and the schedule; only what stands between the replicas is this process. The text is the
Python source of all installed packages (`sync_text.py`), the last 2 % held out; it is read once
if it is large enough, and the first line says how often.

First the peak rate of each optimizer is chosen: the best of a few by a third of the steps of data
parallel, with a seed that no row has. Both sides of every comparison then use it.

A line of JSON for each run as it ends; runs that the file has already are left out, so that a
second call goes on where the first one's time was up. × is the bytes of the gradients of plain
data parallel in fp32 over the bytes that a replica publishes here.
"""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stacked import Weights, first_weights, losses, of_replica
from sync_text import digest, read_text
from torch import Tensor, nn

from penstock.catalog.shapes import ModelShape
from penstock.policy.rounds import Rounds
from penstock.run.schema.train import TrainSection, choose_learning_rate
from penstock.train.codecs.codec import build_codec, encoded_bytes
from penstock.train.optim.nesterov import Nesterov
from penstock.train.optim.optimizer import Optimizer, build_optimizer
from penstock.train.replicas.outer import OuterStep
from penstock.train.replicas.reduce import ReplicaReducer
from penstock.train.replicas.rounds import RoundExchange
from penstock.train.step import LearningRate

MODELS = {
    "3m": ModelShape(2, 256, 4, 2, 512, 4096, context=256),
    "25m": ModelShape(7, 512, 8, 4, 1408, 4096, context=256),
}
HELD_OUT = 0.02
EVALUATED = 64  # samples at once
FP32 = 4  # bytes


@dataclass(frozen=True)
class Row:
    """What is compared: an optimizer, replicas, and how they agree."""

    optimizer: str = "muon"
    replicas: int = 4
    local_steps: int = 1  # 1 is data parallel
    codec: str = "none"
    parts: int = 1  # more are streamed
    peak: float = 1.0  # × the trainer's choice: what suits the optimizer best
    rate: float = 1.0  # × that, for this row alone
    beta2: float = 0.95
    outer_rate: float = 1.0
    outer_momentum: float = 0.3

    @property
    def name(self) -> str:
        usual = Row()
        text = f"{self.optimizer} K{self.replicas}"
        text += f" H{self.local_steps}" if self.local_steps > 1 else " every step"
        text += f" {self.codec}" if self.codec != "none" else ""
        text += f" streamed in {self.parts}" if self.parts > 1 else ""
        more = {
            "rate": "rate ×",
            "beta2": "β2",
            "outer_rate": "outer rate",
            "outer_momentum": "outer momentum",
        }
        for field, words in more.items():
            if getattr(self, field) != getattr(usual, field):
                text += f" {words} {getattr(self, field):g}"
        return text

    @property
    def baseline(self) -> "Row":
        return Row(self.optimizer, self.replicas, peak=self.peak)


RATES = (0.5, 1.0, 2.0, 4.0)  # that the peak is chosen from
SWEEP_SEED = 1000
SWEEP_SHARE = 1 / 4  # of the steps
# The rows that `docs/sync.md` promises something about; the first three are their baselines.
PROMISED = [
    Row(),
    Row("adamw"),
    Row(local_steps=10, codec="int4"),
    Row(local_steps=30, codec="int4"),
    Row(local_steps=100, codec="int4"),
    Row(codec="int8"),
    Row(local_steps=30, codec="int4", parts=3),
]
ROWS = [
    *PROMISED,
    Row(replicas=2),
    Row("adamw", 2),
    Row(replicas=2, local_steps=30, codec="int2"),
    Row(local_steps=30, codec="int2"),
    Row("adamw", local_steps=30, codec="int4", rate=0.5, beta2=0.99),
    Row(local_steps=30),
    Row(local_steps=30, codec="int8"),
    Row(local_steps=30, codec="bf16"),
    Row(local_steps=30, codec="topk:3%"),
    Row(codec="bf16"),
    Row("adamw", codec="int8"),
    Row(replicas=2, local_steps=30, codec="int2", parts=3),
    Row(local_steps=30, codec="int4", parts=6),
    Row(local_steps=30, codec="int4", parts=2),
    Row("adamw", local_steps=30, codec="int4"),
    Row(local_steps=30, codec="int4", outer_momentum=0.0),
    Row(local_steps=30, codec="int4", outer_momentum=0.5),
    Row(local_steps=30, codec="int4", outer_rate=0.7, outer_momentum=0.9),
]


@dataclass(frozen=True)
class Setting:
    model: str
    steps: int
    worker_tokens: int
    held_out: int  # samples
    compile: bool
    text: str  # its digest


@dataclass(frozen=True)
class Text:
    """Tokens on the device, and where their held-out samples begin."""

    tokens: Tensor
    training: int  # of them

    def samples(self, starts: Tensor, sequence: int) -> Tensor:
        """Return the tokens from each start on, and one more as the last target."""
        places = starts[..., None] + torch.arange(sequence + 1, device=starts.device)
        return self.tokens[places].long()


class MemoryTransport:
    """Replicas of one process: what one sends in its n-th exchange the others find."""

    def __init__(self, replica: int, replicas: int, posted: dict[int, list[Tensor]]) -> None:
        self.replica, self.replicas, self.posted = replica, replicas, posted
        self.exchanges = 0

    def begin(self, content: Tensor) -> "MemoryExchange":
        every = self.posted.setdefault(self.exchanges, [])
        assert len(every) == self.replica, "replicas send in turn"
        every.append(content)
        if len(every) == self.replicas:
            del self.posted[self.exchanges]
        self.exchanges += 1
        return MemoryExchange(every)


@dataclass(frozen=True)
class MemoryExchange:
    every: list[Tensor]

    def wait(self) -> list[Tensor]:
        return self.every


class ThreadWorld:
    """As much of a world as the exchange of gradients needs: a thread for each replica."""

    apart = False

    def __init__(self, replica: int, replicas: int, shared: dict[Any, Any]) -> None:
        self.replica, self.replicas, self.shared = replica, replicas, shared

    def size(self, dimension: str) -> int:
        return self.replicas

    def sum_replicas_(self, values: Tensor) -> Tensor:
        raise NotImplementedError("data parallel without a codec is one replica here")

    def all_to_all_replicas(self, values: Tensor) -> Tensor:
        every = self.gather_replicas(values)
        return torch.cat([sent.chunk(self.replicas)[self.replica] for sent in every])

    def gather_replicas(self, values: Tensor) -> Tensor:
        self.shared[self.replica] = values
        self.shared["barrier"].wait()
        every = torch.stack([self.shared[replica] for replica in range(self.replicas)])
        self.shared["barrier"].wait()
        return every


class GradientExchange:
    """Data parallel by the trainer's reducer: after it every replica has the same gradients."""

    def __init__(self, replicas: int, codec: str) -> None:
        shared: dict[Any, Any] = {"barrier": threading.Barrier(replicas)}
        self.reducers = [
            ReplicaReducer(ThreadWorld(k, replicas, shared), codec)  # type: ignore[arg-type]
            for k in range(replicas)
        ]
        self.threads = ThreadPoolExecutor(replicas)

    def reduce(self, grads: Weights) -> None:
        """Replace stacked gradients of [k, ...] by their mean."""

        def one(k: int) -> dict[str, Tensor]:
            found = self.reducers[k].reduce({name: grad[k] for name, grad in grads.items()})
            self.reducers[k].commit()
            return found

        every = list(self.threads.map(one, range(len(self.reducers))))
        for name, grad in grads.items():
            for k, own in enumerate(every):
                grad[k] = own[name] / len(every)


class Simulation:
    """One row with one seed."""

    def __init__(
        self, row: Row, setting: Setting, seed: int, text: Text, compute: Callable
    ) -> None:
        self.row, self.setting, self.text, self.compute = row, setting, text, compute
        self.shape, device = MODELS[setting.model], text.tokens.device
        plain = row.local_steps == 1 and row.codec == "none"
        self.stack = 1 if plain else row.replicas
        self.weights = first_weights(self.shape, self.stack, seed, device)
        self.views = [of_replica(self.weights, k) for k in range(self.stack)]
        self.config = TrainSection.model_validate(
            {"steps": setting.steps, "optimizer": row.optimizer, "betas": [0.9, row.beta2]}
        )
        self.optimizer = self._optimizer()
        peak = row.peak * row.rate * choose_learning_rate(self.shape.hidden, row.optimizer)
        self.schedule = LearningRate.of(self.config, peak, setting.steps)
        self.order = self._order(seed)
        self.gradients = GradientExchange(row.replicas, row.codec) if self._compresses else None
        self.exchanges = self._exchanges() if row.local_steps > 1 else []

    @property
    def _compresses(self) -> bool:
        return self.row.local_steps == 1 and self.row.codec != "none"

    def _optimizer(self) -> Optimizer:
        """Build one for all replicas: their updates do not depend on each other. Matrices of the
        layers are stacks, as experts are, so that there are few launches."""
        params = {f"r{k}.{n}": p for k, own in enumerate(self.views) for n, p in own.items()}
        params = {name: p for name, p in params.items() if not _is_stacked(name, p)}
        stacked = {
            _stack_name(name): nn.Parameter(weight.detach())
            for name, weight in self.weights.items()
            if _is_stacked(name, weight[0])
        }
        return build_optimizer(params | stacked, {}, self.config)

    def _order(self, seed: int) -> Tensor:
        """Return where each sample of the run begins: the whole text, shuffled, again and again."""
        sequence, setting = self.shape.context, self.setting
        batch = self.row.replicas * setting.worker_tokens // sequence
        places = (self.text.training - 1) // sequence
        draw = np.random.default_rng(seed)
        epochs = -(-setting.steps * batch // places)
        order = np.concatenate([draw.permutation(places) for _ in range(epochs)])
        starts = order[: setting.steps * batch].reshape(setting.steps, self.stack, -1) * sequence
        return torch.from_numpy(starts).to(self.text.tokens.device)

    def _exchanges(self) -> list[RoundExchange]:
        row = self.row
        posted: dict[int, list[Tensor]] = {}
        rounds = Rounds(self.setting.steps, row.local_steps, row.parts)
        outer = Nesterov(row.outer_rate, row.outer_momentum)
        codec = build_codec(row.codec)
        made = []
        for k, own in enumerate(self.views):
            weights = {name: param.detach() for name, param in own.items()}
            transport = MemoryTransport(k, row.replicas, posted)
            made.append(
                RoundExchange(rounds, OuterStep(weights, codec, outer, transport, row.parts))
            )
        return made

    def run(self) -> dict[str, Any]:
        began = time.perf_counter()
        for step in range(1, self.setting.steps + 1):
            self._step(step)
        loss = self._held_out_loss()
        seconds = time.perf_counter() - began
        params = sum(w.numel() for w in self.views[0].values())
        sent = self._published_bytes(params)
        return {
            "loss": loss,
            "times": FP32 * params * self.setting.steps / sent,
            "sent_bytes": sent,
            "params": params,
            "seconds": seconds,
        }

    def _published_bytes(self, params: int) -> int:
        if self.exchanges:
            return self.exchanges[0].outer.sent_bytes
        codec = build_codec(self.row.codec)
        whole = -(-params // codec.block) * codec.block
        return encoded_bytes(codec, whole) * self.setting.steps

    def _step(self, step: int) -> None:
        samples = self.text.samples(self.order[step - 1], self.shape.context)
        found = self.compute(self.weights, samples, self.shape)
        found.sum().backward()
        grads: Weights = {}
        for name, weight in self.weights.items():
            assert weight.grad is not None
            grads[name], weight.grad = weight.grad, None
        if self.gradients:
            self.gradients.reduce(grads)
        self._clip(grads)
        named: Weights = {}
        for name, grad in grads.items():
            if _is_stacked(name, grad[0]):
                named[_stack_name(name)] = grad
            else:
                named |= {f"r{k}.{name}": grad[k] for k in range(self.stack)}
        self.optimizer.step(named, self.schedule.at(step - 1), 1.0)
        for exchange in self.exchanges:
            exchange.count(self.setting.worker_tokens)
            exchange.arrive(step)
        for exchange in self.exchanges:
            exchange.leave(step)
        for exchange in self.exchanges:
            exchange.settle(step)

    @torch.no_grad()
    def _clip(self, grads: Weights) -> None:
        """Clip each replica's gradients by their own norm; the host does not wait for it."""
        squares = [grad.flatten(1).square().sum(1) for grad in grads.values()]
        norm_k = torch.stack(squares).sum(0).sqrt()
        scale_k = (self.config.clip / norm_k).clamp(max=1.0)
        for grad in grads.values():
            grad.mul_(scale_k.view(-1, *[1] * (grad.dim() - 1)))

    @torch.no_grad()
    def _held_out_loss(self) -> float:
        """Return the loss of the weights that all replicas have agreed on, nats a token."""
        one = {name: weight.detach()[:1] for name, weight in self.weights.items()}
        sequence, tokens = self.shape.context, self.text.tokens
        starts = torch.arange(self.text.training, len(tokens) - sequence - 1, sequence)
        starts = starts[:: max(1, len(starts) // self.setting.held_out)][: self.setting.held_out]
        starts = starts[: len(starts) // EVALUATED * EVALUATED or None].to(tokens.device)
        total, count = 0.0, 0
        for some in starts.split(EVALUATED):
            samples = self.text.samples(some[None], sequence)
            total += float(losses(one, samples, self.shape)) * len(some)
            count += len(some)
        return total / count


def _is_stacked(name: str, weight: Tensor) -> bool:
    return ".layers." in f".{name}" and weight.dim() == 2


def _stack_name(name: str) -> str:
    """Name a matrix of all replicas as the trainer names those of all experts."""
    return name.replace(".weight", ".experts.weight")


class Study:
    """The rows of one model on one text, each with every seed."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.began = time.perf_counter()
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        shape = MODELS[options.model]
        most = max(row.replicas for row in options.chosen)
        read = options.steps * most * options.worker_tokens + shape.context
        tokens = read_text(options.tokens, round(read / (1 - HELD_OUT)))
        training = int(len(tokens) * (1 - HELD_OUT))
        self.text = Text(torch.from_numpy(tokens.astype(np.int32)).to(device), training)
        self.setting = Setting(
            options.model,
            options.steps,
            options.worker_tokens,
            options.held_out,
            device.type == "cuda" and not options.eager,
            digest(tokens),
        )
        torch.set_float32_matmul_precision("high")
        self.compute = torch.compile(losses, dynamic=False) if self.setting.compile else losses
        torch._dynamo.config.cache_size_limit = 64
        self.device = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
        print(
            f"{len(tokens):,} tokens, {self.setting.text}, of which {most} replicas read "
            f"{read / training:.2f} times the training part; {self._left():.0f} s left",
            flush=True,
        )

    def run(self) -> None:
        """Choose the rates, then train seed by seed, so that all rows have one."""
        peaks = {name: self._peak(name) for name in self._optimizers()}
        rows = [replace(row, peak=peaks[row.optimizer]) for row in self.options.chosen]
        for seed in range(self.options.seeds):
            for row in rows:
                self._loss(row, self.setting, seed)

    def _optimizers(self) -> list[str]:
        return list(dict.fromkeys(row.optimizer for row in self.options.chosen))

    def _peak(self, optimizer: str) -> float:
        """Return the factor of the trainer's own peak rate that data parallel does best with."""
        most = max(r.replicas for r in self.options.chosen if r.optimizer == optimizer)
        few = replace(self.setting, steps=max(1, round(self.setting.steps * SWEEP_SHARE)))
        losses_by = {
            peak: self._loss(Row(optimizer, most, peak=peak), few, SWEEP_SEED) for peak in RATES
        }
        best = min(losses_by, key=lambda peak: losses_by[peak])
        told = ", ".join(f"× {peak:g} {loss:.4f}" for peak, loss in losses_by.items())
        print(f"{optimizer}: rate × {best:g} ({told})", flush=True)
        return best

    def _loss(self, row: Row, setting: Setting, seed: int) -> float:
        """Return the loss of a run, from the file where it is there."""
        key = {"row": asdict(row), "seed": seed} | asdict(setting)
        for line in read_lines([self.options.out]):
            if all(line.get(name) == value for name, value in key.items()):
                return float(line["loss"])
        if self._left() < 0:
            raise TimeIsUp(f"time is up before {row.name}, seed {seed}")
        warm_up(row, setting, self.text, self.compute)
        found = Simulation(row, setting, seed, self.text, self.compute).run()
        line = {"name": row.name, **key, **found, "device": self.device}
        with self.options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(
            f"{setting.model} {row.name}, rate × {row.peak:g}, seed {seed}: loss "
            f"{found['loss']:.4f}, × {found['times']:.1f}, {found['seconds']:.1f} s",
            flush=True,
        )
        return float(found["loss"])

    def _left(self) -> float:
        return float(self.options.budget_s - (time.perf_counter() - self.began))


class TimeIsUp(Exception):
    """The end of a study's time; the same command goes on from there."""


def warm_up(row: Row, setting: Setting, text: Text, compute: Callable) -> None:
    """Compile what the row needs, outside of its time."""
    few = replace(setting, steps=2, held_out=EVALUATED)
    Simulation(
        replace(row, local_steps=min(2, row.local_steps), parts=1), few, 0, text, compute
    ).run()


def read_lines(files: Sequence[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files if file.is_file() for line in file.open()]


def print_table(files: Sequence[Path]) -> None:
    """Compare every row with data parallel by the same optimizer, and by AdamW, seed by seed."""
    lines = [one for one in read_lines(files) if one["seed"] != SWEEP_SEED]
    studies = dict.fromkeys(_study(one) for one in lines)
    print("| model | row | × | against data parallel | against AdamW | loss | seeds | s |")
    print("|---|---|---|---|---|---|---|---|")
    for study in studies:
        _print_study(study[0], [one for one in lines if _study(one) == study])


def _study(line: dict[str, Any]) -> tuple[Any, ...]:
    """Return what lines must have in common to be compared."""
    return tuple(line.get(name) for name in ("model", "steps", "worker_tokens", "text"))


def _print_study(model: str, lines: Sequence[dict[str, Any]]) -> None:
    loss = {(one["name"], one["seed"]): one["loss"] for one in lines}
    for name in dict.fromkeys(one["name"] for one in lines):
        own = [one for one in lines if one["name"] == name]
        row = Row(**own[0]["row"])
        against = []
        for other in (row.baseline, Row("adamw", row.replicas)):
            seeds = [one["seed"] for one in own if (other.name, one["seed"]) in loss]
            parts = [loss[name, s] / loss[other.name, s] - 1 for s in seeds]
            spread = statistics.stdev(parts) if len(parts) > 1 else 0.0
            mean = f"{100 * statistics.mean(parts):+.2f} ± {100 * spread:.2f} %" if parts else "–"
            against.append(mean)
        mean_loss = statistics.mean(one["loss"] for one in own)
        seconds = statistics.mean(one["seconds"] for one in own)
        print(
            f"| {model} | {name} | {own[0]['times']:.4g} | {against[0]} | {against[1]} "
            f"| {mean_loss:.4f} | {len(own)} | {seconds:.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="25m")
    parser.add_argument("--promised", action="store_true", help="only what the docs promise")
    parser.add_argument("--rows", nargs="*", help="only rows whose name has one of these")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--worker-tokens", type=int, default=8192)
    parser.add_argument("--held-out", type=int, default=640, help="samples")
    parser.add_argument("--budget-s", type=float, default=450.0)
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    parser.add_argument("--tokens", type=Path, metavar="FILE.npy", help="read; built if not there")
    parser.add_argument("--out", type=Path, default=Path("sync_loss.jsonl"))
    parser.add_argument("--table", type=Path, nargs="+", help="print what these files hold")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    rows = PROMISED if options.promised else ROWS
    options.chosen = [
        r for r in rows if not options.rows or any(part in r.name for part in options.rows)
    ]
    if options.table:
        print_table(options.table)
    elif options.list:
        print("\n".join(row.name for row in options.chosen))
    else:
        try:
            Study(options).run()
        except TimeIsUp as end:
            print(end, flush=True)
        print_table([options.out])


if __name__ == "__main__":
    main()
