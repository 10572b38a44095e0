"""Preference tuning is TRL's: the same tokens, losses, rewards and gradients; the same curve."""

from collections.abc import Callable
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import pair_peer
from lora_peer import first_adapter, our_losses, theirs
from penstock.launch.start import start
from penstock.launch.supervisor.preload import PreloadClient
from penstock.ledger.journal.read import read_events
from penstock.model.adapter.names import peft_name
from penstock.model.open.names import tensor_locations
from penstock.model.open.weights import OpenWeights, load_open_weights
from penstock.run.folder import RunFolder
from penstock.run.load import load_table
from penstock.run.schema.run import Run
from penstock.train.batches import Counted
from penstock.train.parallel import pairs
from penstock.train.parallel.materialize import materialize_unsharded
from penstock.train.parallel.microbatch import send_to_device
from penstock.train.parallel.pairs import PairRunner
from penstock.train.parallel.parts import ModelParts

SEQUENCE, PAIRS, STEPS = 64, 4, 10
ROWS = 48
CASES = [
    ("llama-3.1", "dpo", False),
    ("qwen3", "ipo", False),
    ("llama-3.1", "dpo", True),
    ("qwen3", "simpo", False),
    ("llama-3.1", "simpo", True),
    ("llama-3.1", "orpo", False),
    ("qwen3", "orpo", True),
]
CURVES = [  # objective, adapter, ranks
    ("dpo", False, 1),
    ("dpo", True, 1),
    ("simpo", True, 2),
    ("orpo", False, 2),
    pytest.param("simpo", False, 1, marks=pytest.mark.slow),
    pytest.param("orpo", True, 1, marks=pytest.mark.slow),
]
PREFERENCE: dict[str, dict[str, float]] = {
    "dpo": {"beta": 0.3},
    "ipo": {"beta": 0.3},
    "simpo": {"beta": 2.5, "gamma": 0.7, "label_smoothing": 0.1},
    "orpo": {"beta": 0.3},
}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("models")
    return lambda name: (
        at if (at := folder / name).is_dir() else pair_peer.make_model(name, folder / name)
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pair_peer.write_rows(
        tmp_path_factory.mktemp("data") / "pairs.jsonl", pair_peer.pair_rows(ROWS)
    )


def run_of(
    base: Path, data: Path, objective: str, adapter: bool, ranks: int = 1, **train: Any
) -> Run:
    model: dict[str, Any] = {"from": str(base)}
    if adapter:
        model["adapter"] = {"rank": 4, "alpha": 8.0}
    settings = {
        "objective": objective,
        "steps": STEPS,
        "batch_tokens": PAIRS * 2 * SEQUENCE,
        "learning_rate": 1e-3,
        "warmup": 0,
        "final": 1,
        "weight_decay": 0.0,
        "preference": PREFERENCE[objective],
    }
    return load_table(
        {
            "name": f"{objective}-{'lora' if adapter else 'full'}",
            "dir": str(data.parent / "runs"),
            "model": model,
            "data": {"dataset": str(data), "sequence": SEQUENCE},
            "train": settings | train,
            "evaluate": {"every": "never"},
            "cluster": {"accelerators": ranks},
        }
    )


def our_model(run: Run, base: Path) -> nn.Module:
    model = materialize_unsharded(run, 0, CPU)
    if not run.model.adapter:
        load_open_weights(model, OpenWeights(base), CPU)
    return model


def their_name(name: str, run: Run, base: Path) -> str:
    weights = OpenWeights(base)
    if run.model.adapter:
        named = peft_name(name, weights.shape, weights.family)
        return named.replace(".weight", ".default.weight")
    return tensor_locations(name, weights.shape, weights.family)[0].names[0]


def score_in_double(model: Any) -> None:
    """Put a log-softmax in the place of TRL's fused head, which sums in float32 always."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    plain = type(inner).forward

    def forward(
        self: Any, *args: Any, labels: Any = None, fused_lm_head: bool = False, **more: Any
    ):
        logits = plain(self, *args, **more).logits
        if not fused_lm_head:
            return SimpleNamespace(logits=logits)
        logits, targets = logits[:, :-1], labels[:, 1:]
        each = logits.log_softmax(-1).gather(2, targets.clamp(min=0).unsqueeze(2)).squeeze(2)
        blank = torch.zeros_like(each)
        return SimpleNamespace(
            log_probs=each * (targets != -100),
            entropy=blank,
            mean_logits=blank,
            is_top1=blank.bool(),
        )

    inner.forward = MethodType(forward, inner)


@pytest.mark.parametrize(("name", "objective", "adapter"), CASES)
def test_a_batch_has_the_loss_rewards_and_gradients_of_trl(
    name: str,
    objective: str,
    adapter: bool,
    base: Callable[[str], Path],
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = run_of(base(name), data, objective, adapter, precision="fp64")
    peer = pair_peer.in_float64(run)
    other: dict[str, Any] = {}
    if adapter:
        first_adapter(run, base(name), tmp_path / "first")
        peer = theirs_in_double(run, tmp_path / "first")
    elif run.train.has_reference:
        other["ref_model"] = pair_peer.in_float64(run)
    trainer = pair_peer.trl_trainer(
        run, pair_peer.pair_rows(ROWS), tmp_path, peer, PAIRS, other=other
    )
    for model in filter(None, (trainer.model, getattr(trainer, "ref_model", None))):
        if run.train.has_reference:
            score_in_double(model)
    if not run.train.has_reference:
        monkeypatch.setattr(pairs, "adapters_off", refuse_to_switch)
    stream = pair_peer.stream_of(run)
    order = pair_peer.rows_in_order(stream, pair_peer.their_tokens(trainer), PAIRS)

    model = our_model(run, base(name)).double()
    runner = PairRunner(ModelParts([model]), train=run.train, adapted=adapter)
    batch = stream.read(0, PAIRS)
    known = None
    if run.train.has_reference and not adapter:
        (all_of_it,) = send_to_device(batch, CPU, None, True).micros(1, PAIRS)
        known = runner.log_probs([all_of_it]).numpy()
    apart(model, trainer.model, run, base(name))
    samples = send_to_device(batch, CPU, None, True, known)
    counted = Counted(samples.counted, chosen_tokens=samples.chosen_tokens)
    micros = counted.weigh(samples.micros(3, 2))  # the last is filler
    loss = runner.backward(micros, PAIRS)

    trainer.model.train()
    expected, measured = pair_peer.their_loss(trainer, pair_peer.batch_of(trainer, order))
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
    chosen, rejected, accuracy = (runner.figures()).tolist()
    assert chosen == pytest.approx(measured["rewards/chosen"], rel=1e-8)
    assert rejected == pytest.approx(measured["rewards/rejected"], rel=1e-8)
    assert chosen - rejected == pytest.approx(measured["rewards/margins"], rel=1e-8)
    assert accuracy == pytest.approx(measured["rewards/accuracies"])
    if run.train.has_reference:
        found = runner.log_probs(micros[:2]).mean(0).tolist()
    else:  # TRL's are means over tokens, as the rewards
        found = [reward / run.train.preference.beta for reward in (chosen, rejected)]
    assert found == pytest.approx([measured["logps/chosen"], measured["logps/rejected"]], rel=1e-9)
    evaluated = runner.evaluate(micros)
    assert evaluated is not None
    assert (evaluated / PAIRS).item() == pytest.approx(loss.item(), rel=1e-12)
    full = runner.evaluate([micro.padded(6) for micro in micros])  # as compiled layers have it
    assert full is not None
    assert full.item() == pytest.approx(evaluated.item(), rel=1e-12)
    theirs_by_name = dict(trainer.model.named_parameters())
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert trained
    for key, param in trained.items():
        right = theirs_by_name[their_name(key, run, base(name))].grad
        assert right.any(), key
        torch.testing.assert_close(param.grad, right, rtol=1e-7, atol=1e-10, msg=key)


def refuse_to_switch(model: nn.Module) -> None:
    raise AssertionError("an objective without a reference switched its adapter off")


def theirs_in_double(run: Run, adapter: Path) -> Any:
    from peft import PeftModel

    return PeftModel.from_pretrained(pair_peer.in_float64(run), adapter, is_trainable=True).double()


@torch.no_grad()
def apart(model: nn.Module, peer: nn.Module, run: Run, base: Path) -> None:
    """Change what is trained, in both alike: a model that is its reference has rewards of 0."""
    draw, named = torch.Generator().manual_seed(3), dict(peer.named_parameters())
    for name, param in model.named_parameters():
        if param.requires_grad:
            param += 0.05 * torch.randn(param.shape, generator=draw, dtype=param.dtype)
            named[their_name(name, run, base)].copy_(param)


@pytest.mark.parametrize(("objective", "adapter", "ranks"), CURVES)
def test_ten_steps_give_the_curve_of_trl(
    objective: str,
    adapter: bool,
    ranks: int,
    base: Callable[[str], Path],
    data: Path,
    tmp_path: Path,
    warm: PreloadClient,
) -> None:
    where = base("llama-3.1")
    run = run_of(where, data, objective, adapter, ranks, precision="fp32")
    folder = start(run)
    # An adapter that is off is the reference; simpo and orpo have none.
    assert folder.reference.exists() == (run.train.has_reference and not adapter)
    assert bool(events_of(folder, "reference")) == folder.reference.exists()
    if adapter:
        first_adapter(run, where, tmp_path / "first")
        peer = theirs(where, tmp_path / "first", trained=True)
    else:
        from transformers import AutoModelForCausalLM

        peer = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32)
    rows = pair_peer.pair_rows(ROWS)
    stream = pair_peer.stream_of(run)
    trainer = pair_peer.trl_trainer(run, rows, tmp_path, peer, PAIRS, max_steps=STEPS)
    order = pair_peer.rows_in_order(stream, pair_peer.their_tokens(trainer), STEPS * PAIRS)
    trainer.train_dataset = trainer.train_dataset.select(order)
    trainer.train()
    logged = [one for one in trainer.state.log_history if "loss" in one]
    assert our_losses(folder) == pytest.approx([float(one["loss"]) for one in logged], abs=2e-6)
    rewards = events_of(folder, "rewards")
    assert len(rewards) == STEPS
    for key, theirs_key in (("chosen",) * 2, ("rejected",) * 2, ("accuracy", "accuracies")):
        right = [float(one[f"rewards/{theirs_key}"]) for one in logged]
        assert [one[key] for one in rewards] == pytest.approx(right, abs=5e-5), key
    losses = our_losses(folder)
    assert losses[-1] < losses[0] - 0.05  # it did learn


def events_of(folder: RunFolder, kind: str) -> list[dict[str, Any]]:
    events = [e for f in sorted(folder.journal.glob("*.events")) for e in read_events(f)]
    return [dict(e.payload) for e in events if e.kind == kind]


def test_text_without_a_template_has_trls_tokens(
    tmp_path: Path, base: Callable[[str], Path]
) -> None:
    rows = pair_peer.pair_rows(ROWS, plain=True)
    model = pair_peer.make_model("llama-3.1", tmp_path / "model", template="")
    data = pair_peer.write_rows(tmp_path / "plain.jsonl", rows)
    run = run_of(model, data, "dpo", False)
    trainer = pair_peer.trl_trainer(run, rows, tmp_path, pair_peer.in_float64(run), PAIRS)
    stream = pair_peer.stream_of(run)
    tokens = pair_peer.their_tokens(trainer)
    order = pair_peer.rows_in_order(stream, tokens, stream.samples)
    assert len(set(order)) == len(order) == stream.samples
