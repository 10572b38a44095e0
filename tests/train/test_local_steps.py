"""Replicas that take local steps: real ranks, against a plain loop of DiLoCo, and resumed."""

import itertools
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
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import journal_files
from penstock.plan.hardware.machine import of_catalog
from penstock.plan.job.layout import Layout
from penstock.plan.search.choose import job_of
from penstock.plan.step.step import predict
from penstock.plan.sync import account
from penstock.run.load import load
from penstock.train.codecs.codec import build_codec, encoded_bytes
from penstock.train.replicas.outer import HEADER

VOCAB, SEQUENCE, BATCH, STEPS = 60, 16, 9, 11  # nine samples: two replicas get four and five
IN_DATASET = 300  # words that the dataset is made for
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
    from penstock.guard.checkpoints import StoredCheckpoint
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
        if regret := case.get("regret"):
            want_back(trainer, *regret)
        result = "loaded" if (load_ := case.get("load")) else trainer.fit()
        if load_:
            trainer.state.load(StoredCheckpoint(Path(load_)))
        outer = trainer.engine.outer
        assert outer is not None
        found.append(
            {
                "result": result,
                "losses": losses,
                "weights": trainer.state.weights_hash(),
                "own": {n: p.double().numpy() for n, p in whole(trainer).items()},
                "anchor": {n: t.numpy() for n, t in outer.views(outer.anchor).items()},
                "sent": outer.sent_bytes,
                "length": outer.layout.length,
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
    # It would save the batch as text, and the dataset of these tests has no tokenizer.
    trainer.anomalies._save_batch = lambda *about: None

    def fetched(at: int, *rest: Any) -> Any:
        trainer.batches.poison.factor = factor if at == step else 1.0
        return fetch(at, *rest)

    trainer.batches.fetch = fetched


def want_back(trainer: Any, replica: int, step: int) -> None:
    """Let the guard of one replica refuse a step once, and want to go back before it."""
    from penstock.train.anomaly import BadStep

    if trainer.rank.world.index("replicate") != replica:
        return
    guard, accepts = trainer.anomalies, trainer.anomalies.accepts
    refused = []

    def judged(at: int, *rest: Any) -> bool:
        if at == step and not refused:
            refused.append(at)
            guard._rewind_for = BadStep(at, at, "for a test", finite=True)
            return False
        return accepts(at, *rest)

    guard.accepts = judged


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


EVERY = "guard.checkpoint=1 steps"
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"overrides": [EVERY]},
    "muon": {
        "overrides": [
            *(EVERY, "train.optimizer=muon", "train.precision=fp32", "train.sync.compress=int2")
        ]
    },
    "bf16": {"overrides": [EVERY, "train.precision=bf16", "train.sync.compress=topk:3%"]},
    "streamed": {
        "overrides": [
            *(EVERY, "train.precision=fp32", "train.sync.compress=int4", "train.sync.stream=2")
        ]
    },
    "skipped": {"overrides": [EVERY, "guard.on_spike=skip"], "poison": (1, 6, float("nan"))},
    "back": {"overrides": [EVERY], "regret": (1, 6)},
}
_folders = itertools.count()
SHARDED = {"replicate": 2, "shard": 2, "microbatch": 1}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, dataset: str) -> str:
    folder = tmp_path_factory.mktemp("local")
    made = made_run(folder, dataset)
    for name in (*VARIANTS, "sharded"):
        (folder / name).mkdir()
        shutil.copy(folder / "run" / "plan.json", folder / name)
    return made


@pytest.fixture(scope="module")
def undisturbed(path: str, ranks: Ranks) -> dict[str, list[Life]]:
    """The life of every variant on both ranks."""
    cases = [case | {"folder": name} for name, case in VARIANTS.items()]
    every = ranks(2, lives, path, cases, timeout_s=600.0)
    return {name: [own[at] for own in every] for at, name in enumerate(VARIANTS)}


def back_at(path: str, name: str, step: int) -> str:
    """Make a folder that looks as if the run had been killed right after a save."""
    folder, new = Path(path).parent, f"{name}-{step}-{next(_folders)}"
    (folder / new / "checkpoints").mkdir(parents=True)
    for file in ("identity", "plan.json", "checkpoints/identity"):
        shutil.copy(folder / name / file, folder / new / file)
    saved = f"checkpoints/step-{step:08d}"
    shutil.copytree(folder / name / saved, folder / new / saved)
    return new


def test_it_is_diloco(tmp_path: Path, path: str, undisturbed: dict[str, list[Life]]) -> None:
    plain = PlainDiLoCo(path)
    reference = plain.train()
    for own, losses in zip(undisturbed["plain"], reference, strict=True):
        assert own["result"] == "done"
        # The trainer's factor of clipping is in fp32: that is what the two differ by.
        assert differences(own["losses"], losses) < 1e-7
        for name, param in plain.models[0].named_parameters():
            np.testing.assert_allclose(own["own"][name], param.detach().numpy(), atol=1e-7)
    assert undisturbed["plain"][0]["losses"] != undisturbed["plain"][1]["losses"]


@pytest.mark.parametrize("name", VARIANTS)
def test_replicas_differ_in_a_round_and_are_equal_at_the_end(
    undisturbed: dict[str, list[Life]], name: str
) -> None:
    first, second = undisturbed[name]
    assert first["losses"] != second["losses"]
    for weight, value in first["own"].items():
        assert np.array_equal(value, second["own"][weight]), weight
    assert first["weights"] == second["weights"]


FEW = [("plain", 5), ("muon", 3), ("bf16", 6), ("streamed", 5), ("streamed", 6), ("skipped", 7)]
ALL = [(name, step) for name in VARIANTS if name != "back" for step in range(1, STEPS)]


@pytest.mark.parametrize("tried", [FEW, pytest.param(ALL, marks=pytest.mark.slow)])
def test_a_run_that_was_killed_after_a_step_goes_on_bit_for_bit(
    path: str, undisturbed: dict[str, list[Life]], ranks: Ranks, tried: list[tuple[str, int]]
) -> None:
    cases = [VARIANTS[name] | {"folder": back_at(path, name, step)} for name, step in tried]
    every = ranks(2, lives, path, cases, timeout_s=600.0)
    for replica, own in enumerate(every):
        for (name, step), life in zip(tried, own, strict=True):
            whole_life = undisturbed[name][replica]
            assert life["resumed"] == step
            rest = {at: loss for at, loss in whole_life["losses"].items() if at > step}
            assert repr(life["losses"]) == repr(rest), (name, step, replica)
            assert life["weights"] == whole_life["weights"], (name, step)
            assert life["updates"] == whole_life["updates"]


def test_a_bad_batch_is_skipped_by_its_replica_alone(undisturbed: dict[str, list[Life]]) -> None:
    first, second = undisturbed["skipped"]
    assert (first["updates"], second["updates"]) == (STEPS, STEPS - 1)
    assert first["losses"][6] == undisturbed["plain"][0]["losses"][6]
    assert first["weights"] != undisturbed["plain"][0]["weights"]


def test_a_replica_that_wants_to_go_back_takes_all_with_it(
    undisturbed: dict[str, list[Life]],
) -> None:
    """It was a false alarm, so the steps come out as if nothing had happened."""
    for own, other in zip(undisturbed["back"], undisturbed["plain"], strict=True):
        assert own["resumed"] == 5
        assert own["weights"] == other["weights"]
        assert own["losses"] == other["losses"]


def test_what_is_evaluated_is_what_replicas_agree_on(
    path: str, undisturbed: dict[str, list[Life]]
) -> None:
    """Every 5 steps: at the end of the round in which a fifth step falls."""
    journal = Path(path).parent / "plain" / "journal"
    files = journal_files(journal, "events")
    spans = [line for file in files for line in read_events(file.path) if line.kind == "evaluate"]
    seen = {
        line.payload["step"]: line.payload["val_loss"]
        for line in spans
        if "val_loss" in line.payload
    }
    assert sorted(seen) == [0, 8, 11]
    rounds = [line for f in files for line in read_events(f.path) if line.kind == "round"]
    assert sorted({line.payload["step"] for line in rounds}) == [4, 8, 11]


def test_bytes_are_those_of_the_codec(undisturbed: dict[str, list[Life]]) -> None:
    codec = build_codec("int2")
    (own, _), rounds = undisturbed["muon"], 3
    assert own["sent"] == rounds * (HEADER.size + encoded_bytes(codec, own["length"]))


@pytest.mark.parametrize("name", ["plain", "muon", "bf16", "streamed"])
def test_a_plan_says_to_the_byte_what_a_run_sends(
    name: str, path: str, undisturbed: dict[str, list[Life]]
) -> None:
    run = load(path, VARIANTS[name]["overrides"])
    job = job_of(run, of_catalog("H100", 2), run.model.shape(IN_DATASET), Layout(replicate=2))
    found = account(run, job, predict(job), STEPS)
    assert found is not None
    assert [life["sent"] for life in undisturbed[name]] == [found.run_published_bytes] * 2
    assert found.rounds == 3


def test_replicas_may_be_sharded_and_a_checkpoint_fits_both(
    path: str, undisturbed: dict[str, list[Life]], ranks: Ranks
) -> None:
    """Two replicas of two ranks: as two of one, also from the middle of a round."""
    cases = [
        {"overrides": [EVERY], "layout": SHARDED, "folder": "sharded"},
        {"overrides": [EVERY], "layout": SHARDED, "folder": back_at(path, "plain", 6)},
    ]
    every = ranks(4, lives, path, cases)
    for rank, (began, resumed) in enumerate(every):
        alone = undisturbed["plain"][rank // 2]
        assert differences(began["losses"], alone["losses"]) < 1e-7
        assert began["weights"] == every[0][0]["weights"]
        rest = {at: loss for at, loss in alone["losses"].items() if at > 6}
        assert differences(resumed["losses"], rest) < 1e-7
        for name, value in alone["own"].items():
            np.testing.assert_allclose(resumed["own"][name], value, atol=1e-6)


def test_another_codec_begins_at_the_anchor(
    path: str, undisturbed: dict[str, list[Life]], ranks: Ranks
) -> None:
    """As a fork may: the error feedback of one codec means nothing to another."""
    saved = str(Path(path).parent / "plain" / "checkpoints" / "step-00000006")
    (Path(path).parent / "fork").mkdir()
    shutil.copy(Path(path).parent / "plain" / "plan.json", Path(path).parent / "fork")
    changed = {"overrides": ["train.sync.compress=int8"], "load": saved, "folder": "fork"}
    same = {"load": saved, "folder": "fork"}
    for changed_, same_ in ranks(2, lives, path, [changed, same]):
        for name, value in changed_["anchor"].items():
            assert np.array_equal(value, same_["anchor"][name])
            assert np.array_equal(changed_["own"][name], value)
            assert not np.array_equal(same_["own"][name], value)
