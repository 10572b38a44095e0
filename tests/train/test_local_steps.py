"""Replicas that take local steps: real ranks, against a plain loop of DiLoCo, and resumed."""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import real_ranks
from made_sets import made_set

VOCAB, SEQUENCE, BATCH, STEPS = 60, 16, 9, 11  # nine samples: two replicas get four and five
LENGTH = 4  # of a round: outer steps after 4, 8 and 11
RATE, WARMUP, CLIP = 1e-2, 2, 0.5
Ranks = Callable[..., list[Any]]
Life = dict[str, Any]


@pytest.fixture(scope="module")
def dataset(home: Path) -> str:
    tokens = np.random.default_rng(0).integers(0, VOCAB, 20_000)
    return made_set(home / "datasets", tokens, list(range(0, 20_000, 11)), name="local").id


def made_run(folder: Path, dataset: str, name: str = "run") -> str:
    """A run file, and the folder of its run with the plan that ranks look for."""
    path = folder / "run.toml"
    path.write_text(
        f'name = "{name}"\ndir = "{folder}"\n[model]\nlayers = 2\nhidden = 16\nheads = 4\n'
        "kv_heads = 2\nffn = 24\ntied = true\n[data]\nsequence = 16\n"
        f"[train]\nsteps = {STEPS}\nbatch_tokens = {BATCH * SEQUENCE}\nprecision = "
        f'"fp64"\nlearning_rate = {RATE}\nwarmup = "{WARMUP} steps"\nclip = {CLIP}\n'
        f'[train.sync]\nlocal_steps = {LENGTH}\n[layout]\nreplicate = 2\n[evaluate]\nevery = "5 '
        'steps"\n[guard]\ncheckpoint = "5 steps"\nfast = "never"\nkeep = 100\n'
    )
    (folder / name).mkdir()
    (folder / name / "plan.json").write_text(json.dumps({"dataset": dataset}))
    return str(path)


def lives(path: str, cases: Sequence[dict[str, Any]]) -> list[Life]:
    """On one rank: train a run, each case from where its folder says, and tell how it went."""
    from penstock.guard.detect.pulse import Pulse
    from penstock.ledger.journal.writer import Journal
    from penstock.plan.job.layout import Layout
    from penstock.run.folder import RunFolder
    from penstock.run.load import load
    from penstock.train.loop import Trainer, build
    from penstock.train.rank_context import RankContext
    from penstock.train.world.world import join

    found = []
    for attempt, case in enumerate(cases):
        layout = Layout(**{"replicate": 2, "microbatch": 2} | case.get("layout", {}))
        run = load(path, case.get("overrides", []))
        folder = RunFolder(Path(path).parent / case.get("folder", run.name))
        os.environ["PENSTOCK_ATTEMPT"] = f"{case.get('folder')} {attempt}"
        world = join(layout, "cpu", 60.0, apart=run.train.sync.apart)
        journal = Journal(folder.journal, attempt, range(world.rank, world.rank + 1))
        pulse = Pulse(folder.scratch, world.rank, attempt)
        trainer: Trainer = build(RankContext(folder, run, layout, world, journal, pulse))
        losses: dict[int, float] = {}
        record = trainer.record

        def seen(step: int, vote: Any, *rest: Any, own: Any = record, kept: Any = losses) -> None:
            kept[step] = vote.loss
            own(step, vote, *rest)

        trainer.record = seen  # type: ignore[method-assign]
        if poison := case.get("poison"):
            spoil(trainer, *poison)
        result = trainer.fit()
        outer = trainer.engine.outer
        found.append(
            {
                "result": result,
                "losses": losses,
                "weights": trainer.state.weights_hash(),
                "own": {n: p.detach().numpy() for n, p in whole(trainer).items()},
                "sent": outer.sent_bytes if outer else 0,
                "length": outer.layout.length if outer else 0,
                "resumed": trainer.batches.resumed_step,
                "updates": trainer.engine.optimizer.updates,
                "replica": world.index("replicate"),
            }
        )
        journal.close()
        real_ranks.leave()
    return found


def whole(trainer: Any) -> dict[str, Tensor]:
    from penstock.train.parallel.parts import full_tensor

    return {name: full_tensor(p.detach()) for name, p in trainer.engine.parts.trained().items()}


def spoil(trainer: Any, replica: int, step: int, factor: float) -> None:
    """Make the batch of one replica at a step one that nobody should train on."""
    if trainer.rank.world.index("replicate") != replica:
        return
    fetch = trainer.batches.fetch

    def fetched(at: int, *rest: Any) -> Any:
        trainer.batches.poison.factor = factor if at == step else 1.0
        return fetch(at, *rest)

    trainer.batches.fetch = fetched


class PlainDiLoCo:
    """DiLoCo as its paper has it, in a few lines of torch: replicas in turn, in one process."""

    def __init__(self, path: str, overrides: Sequence[str] = ()) -> None:
        from penstock.data.read.open import open_planned, open_stream
        from penstock.model.initialize import decoder_on_meta, initialize
        from penstock.run.folder import RunFolder
        from penstock.run.load import load

        run = load(path, list(overrides))
        plan = RunFolder(Path(path).parent / run.name).read_launch_record()
        self.stream = open_stream(run, open_planned(run, plan.dataset))
        self.sync, self.models = run.train.sync, []
        for _ in range(2):
            model = decoder_on_meta(run.model.shape(self.stream.vocab)).to(torch.float64)
            initialize(model, torch.device("cpu"), run.train.seed)
            self.models.append(model)
        self.inner = [self._adamw(model) for model in self.models]
        self.anchor = [nn.Parameter(p.detach().clone()) for p in self.models[0].parameters()]
        momentum = self.sync.outer_momentum
        self.outer = torch.optim.SGD(
            self.anchor, lr=self.sync.outer_rate, momentum=momentum, nesterov=momentum > 0
        )

    @staticmethod
    def _adamw(model: nn.Module) -> torch.optim.AdamW:
        groups = [
            {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)

    def train(self) -> list[dict[int, float]]:
        """Return the losses of each replica by step."""
        losses: list[dict[int, float]] = [{}, {}]
        for step in range(1, STEPS + 1):
            for replica in range(2):
                losses[replica][step] = self._inner_step(replica, step)
            if step % LENGTH == 0 or step == STEPS:
                self._outer_step()
        return losses

    def _inner_step(self, replica: int, step: int) -> float:
        first = (step - 1) * BATCH
        start, stop = ((0, 4), (4, 9))[replica]
        tokens = torch.from_numpy(self.stream.read(first + start, first + stop).tokens).long()
        model, optimizer = self.models[replica], self.inner[replica]
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        done = (step - 1 - WARMUP) / (STEPS - WARMUP)
        cosine = 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = RATE * (step / WARMUP if step <= WARMUP else cosine)
        optimizer.step()
        return loss.item()

    @torch.no_grad()
    def _outer_step(self) -> None:
        weights = (4 / 9, 5 / 9)  # by samples
        for at, anchor in enumerate(self.anchor):
            replicas = [list(model.parameters())[at] for model in self.models]
            anchor.grad = sum(w * (anchor - p) for w, p in zip(weights, replicas, strict=True))
        self.outer.step()
        for model in self.models:
            for param, anchor in zip(model.parameters(), self.anchor, strict=True):
                param.copy_(anchor)


def differences(losses: dict[int, float], other: dict[int, float]) -> float:
    assert losses.keys() == other.keys()
    return max(abs(losses[step] - other[step]) for step in losses)


def test_it_is_diloco(tmp_path: Path, dataset: str, ranks: Ranks) -> None:
    path = made_run(tmp_path, dataset)
    plain = PlainDiLoCo(path)
    reference = plain.train()
    first, second = ranks(2, lives, path, [{}])
    assert first[0]["result"] == "done"
    assert differences(first[0]["losses"], reference[0]) < 1e-9
    assert differences(second[0]["losses"], reference[1]) < 1e-9
    assert first[0]["losses"] != second[0]["losses"]
    assert first[0]["weights"] == second[0]["weights"]
    for name, param in plain.models[0].named_parameters():
        np.testing.assert_allclose(first[0]["own"][name], param.detach().numpy(), atol=1e-9)
