"""How many tokens does Muon save against AdamW, and what do bf16 states cost? Both tuned.

    python benchmarks/optimizers.py                                # small: minutes on one core
    python benchmarks/optimizers.py --scale full --processes 6     # a GPU

On the default dataset, the standard library, with its last documents held out. Each optimizer's
peak learning rate is tuned on one seed: a grid by factors of two around the trainer's own choice,
made wider until the best rate has a worse one on either side. Then every seed trains with it. The
target is AdamW's median loss at the end. Shorter and shorter runs of Muon, each with a whole
schedule of its own, say at what length it would have ended there.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from order_loss import training_documents
from trial import FULL, Scale, in_processes, mean_loss, train

from penstock.data.build import stdlib
from penstock.data.build.open import open_dataset
from penstock.data.read.order import ShuffleOrder
from penstock.model.decoder import Decoder
from penstock.run.schema.train import TrainSection, choose_learning_rate

OPTIMIZERS = ("adamw", "muon")
SHORTER = 0.7  # each run of Muon as a share of the one before, until the target is out of reach


@dataclass(frozen=True)
class Setting:
    scale: Scale
    steps: int
    held_out: int  # samples


SETTINGS = {
    "small": Setting(Scale(layers=2, hidden=128, sequence=128, batch=16), 128, 256),
    "full": Setting(FULL, 512, 1024),
}


@dataclass(frozen=True)
class Case:
    """What all seeds are trained with, at the best rate."""

    optimizer: str
    states: str = "fp32"
    length: float = 1.0


@dataclass(frozen=True)
class Trial:
    optimizer: str
    rate: float
    seed: int = 0
    states: str = "fp32"
    length: float = 1.0


@dataclass(frozen=True)
class Found:
    trial: Trial
    loss: float  # held out at the end, nats a token
    seconds: float  # of training: of this process on a CPU, which may be shared; of the clock else


def run(trial: Trial, setting: Setting) -> Found:
    dataset, scale = open_dataset(stdlib.NAME), setting.scale
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    last = int(training_documents(dataset)[-1])
    tail = np.arange(last, dataset.tokens - scale.sequence - 1, scale.sequence)
    tail = tail[:: -(-len(tail) // setting.held_out)]
    count = round(setting.steps * trial.length) * scale.batch
    order = ShuffleOrder((last - 1) // scale.sequence, trial.seed).index(np.arange(count))
    looking = 0.0

    def look(model: Decoder, device: torch.device) -> float:
        nonlocal looking
        begin = clock()
        loss = mean_loss(model, dataset, tail, scale.sequence, device)
        looking += clock() - begin
        return loss

    config = TrainSection.model_validate({"optimizer": trial.optimizer, "states": trial.states})
    rated = replace(scale, rate=trial.rate)
    begin = clock()
    (loss,) = train(dataset, rated, trial.seed, order * scale.sequence, 1, look, config)
    return Found(trial, loss, clock() - begin - looking)


@dataclass
class Study:
    setting: Setting
    processes: int
    kept: Path | None
    found: dict[Trial, Found] = field(default_factory=dict)

    def load(self) -> None:
        if self.kept and self.kept.is_file():
            for one in json.loads(self.kept.read_text()):
                trial = Trial(**one.pop("trial"))
                self.found[trial] = Found(trial, **one)

    def all_of(self, trials: Sequence[Trial]) -> list[Found]:
        """Their results; only what is new is trained."""
        new = [trial for trial in dict.fromkeys(trials) if trial not in self.found]
        for one in in_processes(partial(run, setting=self.setting), new, self.processes):
            self.found[one.trial] = one
            print(f"{one.trial}: {one.loss:.4f}, {one.seconds:.0f} s", flush=True)
            if self.kept:
                self.kept.write_text(json.dumps([asdict(f) for f in self.found.values()], indent=1))
        return [self.found[trial] for trial in trials]

    def tuned(self, optimizer: str) -> float:
        """The best rate of a grid with worse ones on both sides."""
        middle = choose_learning_rate(self.setting.scale.hidden)  # AdamW's: one grid for both
        rates = [middle / 2, middle, middle * 2]
        while True:
            losses = [f.loss for f in self.all_of([Trial(optimizer, rate) for rate in rates])]
            best = losses.index(min(losses))
            if best == 0:
                rates.insert(0, rates[0] / 2)
            elif best == len(rates) - 1:
                rates.append(rates[-1] * 2)
            else:
                return rates[best]

    def at_best(self, case: Case, seeds: int) -> list[Found]:
        rate = self.tuned(case.optimizer)
        trials = [Trial(case.optimizer, rate, s, case.states, case.length) for s in range(seeds)]
        return self.all_of(trials)

    def cases(self, seeds: int) -> list[Case]:
        """What the table has a line for; trains all of it."""
        cases = [Case(optimizer) for optimizer in OPTIMIZERS]
        target = median(self.at_best(cases[0], seeds))
        while median(self.at_best(cases[-1], seeds)) < target:
            cases.append(Case("muon", length=cases[-1].length * SHORTER))
        cases += [Case(optimizer, states="bf16") for optimizer in OPTIMIZERS]
        for case in cases:
            self.at_best(case, seeds)
        return cases


def median(found: list[Found]) -> float:
    return statistics.median(one.loss for one in found)


def length_to(target: float, curve: list[tuple[float, float]]) -> float | None:
    """Where the losses of runs by length pass the target; linear in the logarithm of the length."""
    for (shorter, above), (longer, below) in pairwise(sorted(curve)):
        if above >= target >= below:
            part = (above - target) / (above - below)
            return shorter * (longer / shorter) ** part
    return None


def tell(study: Study, seeds: int) -> Iterator[str]:
    cases, scale = study.cases(seeds), study.setting.scale
    tokens = study.setting.steps * scale.batch * scale.sequence
    yield f"{scale.layers} × {scale.hidden}, {tokens} tokens, {seeds} seeds"
    yield ""
    rates = sorted({trial.rate for trial in study.found})
    yield "| optimizer | " + " | ".join(f"{rate:.2g}" for rate in rates) + " |"
    yield "|---|" + "---|" * len(rates)
    for optimizer in OPTIMIZERS:
        cells = [study.found.get(Trial(optimizer, rate)) for rate in rates]
        yield f"| {optimizer} | " + " | ".join(f"{c.loss:.4f}" if c else "" for c in cells) + " |"
    yield ""
    yield "| optimizer | states | length | rate | final loss, each seed | median | seconds |"
    yield "|---|---|---|---|---|---|---|"
    for case in cases:
        runs = study.at_best(case, seeds)
        each = ", ".join(f"{one.loss:.4f}" for one in runs)
        seconds = statistics.median(one.seconds for one in runs)
        yield (
            f"| {case.optimizer} | {case.states} | {case.length:.0%} | {runs[0].trial.rate:.2g} "
            f"| {each} | {median(runs):.4f} | {seconds:.1f} |"
        )
    yield ""
    target = median(study.at_best(Case("adamw"), seeds))
    muon = [case for case in cases if (case.optimizer, case.states) == ("muon", "fp32")]
    share = length_to(target, [(case.length, median(study.at_best(case, seeds))) for case in muon])
    if share is None:
        yield f"target {target:.4f}: Muon does not reach it"
    else:
        yield f"target {target:.4f}: Muon needs {share:.0%} of AdamW's tokens"
    for optimizer in OPTIMIZERS:
        narrow, wide = (study.at_best(Case(optimizer, s), seeds) for s in ("bf16", "fp32"))
        gaps = [a.loss - b.loss for a, b in zip(narrow, wide, strict=True)]
        each = ", ".join(f"{gap:+.4f}" for gap in gaps)
        yield f"{optimizer}, bf16 states minus fp32: {each}; median {statistics.median(gaps):+.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scale", choices=SETTINGS, default="small")
    parser.add_argument("--hidden", type=int, help="width")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where results are kept; they are not made again")
    asked = parser.parse_args()
    setting = SETTINGS[asked.scale]
    scale = replace(setting.scale, hidden=asked.hidden or setting.scale.hidden)
    samples = (int(training_documents(open_dataset(stdlib.NAME))[-1]) - 1) // scale.sequence
    steps = min(asked.steps or setting.steps, samples // scale.batch)  # one pass at the most
    setting = replace(setting, scale=scale, steps=steps)
    study = Study(setting, asked.processes, asked.json)
    study.load()
    print(*tell(study, asked.seeds), sep="\n")


if __name__ == "__main__":
    main()
