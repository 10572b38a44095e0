"""Muon: orthogonal updates of the layers' matrices, the same however they lie on the ranks."""

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import real_ranks
from equality_cases import Answer, assert_equal, case, prepared, train_a_little
from penstock.errors import PenstockError
from penstock.run.schema.train import TrainSection
from penstock.train.optim import muon
from penstock.train.optim.adamw import AdamW, round_stochastically
from penstock.train.optim.muon import Muon, is_layer_matrix, orthogonalize

STEPS = 3
SHAPES = {
    "embed.weight": (12, 8),
    "layers.0.attention_norm.weight": (8,),
    "layers.0.attention.q.weight": (8, 8),
    "layers.0.attention.k.weight": (5, 8),
    "layers.0.ffn.up.weight": (14, 8),
    "layers.0.ffn.down.weight": (8, 14),
    "layers.1.attention.q.weight": (8, 8),
    "layers.1.attention.k.weight": (5, 8),
    "layers.1.ffn.router.weight": (6, 8),
    "layers.1.ffn.experts.gate": (6, 4, 8),
    "layers.1.ffn.experts.down": (6, 8, 4),
    "layers.2.attention.q.weight": (8, 8),
    "norm.weight": (8,),
    "head.weight": (12, 8),
}
HIDDEN = [name for name in SHAPES if ".q." in name or ".k." in name]
HIDDEN += [name for name in SHAPES if name.endswith(("up.weight", "down.weight", "gate", "down"))]


def section(**fields: Any) -> TrainSection:
    values = {"steps": STEPS, "optimizer": "muon", "precision": "fp64", "muon_momentum": 0.8}
    return TrainSection.model_validate(values | {"weight_decay": 0.2} | fields)


def drawn(what: str, shape: tuple[int, ...]) -> Tensor:
    draw = torch.Generator().manual_seed(sum(map(ord, what)))
    return torch.randn(shape, dtype=torch.float64, generator=draw)


def parameters(dtype: torch.dtype = torch.float64) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(drawn(name, s).to(dtype)) for name, s in SHAPES.items()}


def gradients(step: int) -> dict[str, Tensor]:
    """The middle expert gets no token."""
    found = {name: drawn(f"{name} {step}", shape) for name, shape in SHAPES.items()}
    for grad in found.values():
        if grad.dim() == 3:
            grad[3] = 0
    return found


def stepped(optimizer: Muon | AdamW, dtype: torch.dtype = torch.float64) -> None:
    for step in range(STEPS):
        grads = {n: g.to(dtype) for n, g in gradients(step).items() if n in optimizer.params}
        if isinstance(optimizer, Muon):
            grads |= {n: gradients(step)[n].to(dtype) for n in optimizer.rest.params}
        optimizer.step(grads, rate=0.02 * (step + 1), scale=0.5)


def by_singular_values(matrix: Tensor) -> Tensor:
    """What five rounds of the polynomial do, one singular value at a time."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / values.square().sum().sqrt()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left @ values.diag() @ right


def by_hand(start: Tensor, grads: list[Tensor], rates: list[float]) -> Tensor:
    """Muon on one matrix, written down plainly: the sum of gradients instead of their mean."""
    weight, momentum = start.clone(), torch.zeros_like(start)
    rows, columns = weight.shape
    for grad, rate in zip(grads, rates, strict=True):
        momentum = 0.8 * momentum + 0.5 * grad
        aim = 0.5 * grad + 0.8 * momentum
        if aim.abs().max() > 0:
            aim = by_singular_values(aim)
        weight = (1 - rate * 0.2) * weight - rate * 0.2 * max(rows, columns) ** 0.5 * aim
    return weight


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 8, 32), (2, 32, 8), (0, 4, 4)])
def test_an_update_keeps_its_directions_and_evens_out_their_lengths(shape: tuple[int, ...]) -> None:
    matrices = drawn("matrices", shape)
    found = orthogonalize(matrices)
    assert found.shape == shape
    for matrix, update in zip(matrices, found, strict=True):
        before, values = torch.linalg.svdvals(matrix), torch.linalg.svdvals(update)
        assert before.max() / before.min() > 2
        assert 0.6 < values.min() < values.max() < 1.25
        torch.testing.assert_close(update, by_singular_values(matrix))


def test_what_has_no_gradient_gets_no_update() -> None:
    assert not orthogonalize(torch.zeros(2, 3, 4)).any()


def test_which_parameters_are_its_own() -> None:
    params = parameters()
    optimizer = Muon(params, {}, section())
    assert sorted(optimizer.params) == sorted(HIDDEN)
    assert optimizer.params.keys() | optimizer.rest.params.keys() == params.keys()
    assert all(optimizer.moments[name].keys() == {"momentum"} for name in HIDDEN)
    adapter = nn.Parameter(torch.zeros(4, 8))
    assert not is_layer_matrix("layers.0.attention.q.adapter_a", adapter)
    assert not Muon({"layers.0.attention.q.adapter_a": adapter}, {}, section()).params


def test_a_model_without_layers_is_told() -> None:
    with pytest.raises(
        PenstockError, match=r'no matrix for it.*found w; write optimizer = "adamw"'
    ):
        Muon({"w": nn.Parameter(torch.zeros(4, 4))}, {}, section())


def test_a_few_steps_are_those_done_by_hand() -> None:
    params, others = parameters(), parameters()
    optimizer = Muon(params, {}, section())
    rest = AdamW({n: others[n] for n in SHAPES if n not in HIDDEN}, {}, section())
    stepped(optimizer)
    stepped(rest)
    assert optimizer.updates == rest.updates == STEPS
    rates = [0.02 * (step + 1) for step in range(STEPS)]
    for name, param in params.items():
        expected = others[name].detach()
        if name in HIDDEN:
            grads = [gradients(step)[name] for step in range(STEPS)]
            start = drawn(name, SHAPES[name])
            if start.dim() == 3:
                stack = zip(start, zip(*grads, strict=True), strict=True)
                expected = torch.stack([by_hand(s, list(g), rates) for s, g in stack])
            else:
                expected = by_hand(start, grads, rates)
        torch.testing.assert_close(param.detach(), expected, msg=name, rtol=1e-9, atol=1e-11)


def test_small_stacks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    together, apart = parameters(), parameters()
    stepped(Muon(together, {}, section()))
    monkeypatch.setattr(muon, "STACK_BYTES", 1)
    optimizer = Muon(apart, {}, section())
    assert [len(stack.names) for stack in optimizer.stacks] == [1] * len(HIDDEN)
    assert [b.first - a.first for a, b in pairwise(optimizer.stacks)][:2] == [6, 6]  # the experts
    stepped(optimizer)
    for name, param in together.items():
        torch.testing.assert_close(apart[name], param, msg=name, rtol=1e-12, atol=1e-13)


def test_moments_carry_a_run_on() -> None:
    through, cut = parameters(), parameters()
    whole, first = Muon(through, {}, section()), Muon(cut, {}, section())
    stepped(whole)
    stepped(whole)
    stepped(first)
    second = Muon(cut, {}, section())
    for name, own in first.moments.items():
        for key, value in own.items():
            second.moments[name][key].copy_(value)
    second.updates = first.updates
    stepped(second)
    assert all(torch.equal(cut[name], through[name]) for name in SHAPES)
    assert second.updates == whole.updates == 2 * STEPS


def test_masters_move_and_narrow_weights_follow() -> None:
    narrow, wide = parameters(torch.bfloat16), parameters(torch.float32)
    masters = {name: drawn(name, shape).float() for name, shape in SHAPES.items()}
    lowered = Muon(narrow, masters, section(precision="bf16"))
    plain = Muon(wide, {}, section(precision="fp32"))
    stepped(lowered, torch.float32)
    stepped(plain, torch.float32)
    for name in SHAPES:
        torch.testing.assert_close(lowered.moments[name]["master"], wide[name].detach())
        assert torch.equal(narrow[name], lowered.moments[name]["master"].bfloat16())
    for master in masters.values():
        master.zero_()
    lowered.copy_masters()
    assert not any(param.any() for param in narrow.values())


def test_narrow_states_are_close_and_half_as_large() -> None:
    params, exact = parameters(torch.float32), parameters(torch.float32)
    optimizer = Muon(params, {}, section(precision="fp32", states="bf16"))
    stepped(optimizer, torch.float32)
    stepped(Muon(exact, {}, section(precision="fp32")), torch.float32)
    for name in HIDDEN:
        assert optimizer.moments[name]["momentum"].dtype == torch.bfloat16
        moved = exact[name] - drawn(name, SHAPES[name])
        off = (params[name] - exact[name]).norm() / moved.norm()
        assert 0 < off < 0.05, name


def test_narrow_weights_lose_no_small_updates() -> None:
    """400 updates of about a twelfth of a step of bf16: rounding to nearest would not move."""
    name = "layers.0.up.weight"
    params = {name: nn.Parameter(torch.ones(32, 32, dtype=torch.bfloat16))}
    settings = section(precision="bf16", weights="bf16", weight_decay=0.0)
    optimizer = Muon(params, {}, settings)
    grad = drawn("grad", (32, 32)).float()
    update = orthogonalize(grad[None])[0] * 0.2 * 32**0.5
    rate = 0.4 / 128
    for _ in range(400):
        optimizer.step({name: grad}, rate, 1.0)
    moved = params[name].detach().float() - 1
    expected = -400 * rate * update
    assert torch.corrcoef(torch.stack((moved.flatten(), expected.flatten())))[0, 1] > 0.95
    assert (rate * update).abs().max() < 1 / 256


@pytest.mark.gpu
def test_on_a_gpu_the_matrix_work_is_in_bf16_and_near() -> None:
    narrow = {n: nn.Parameter(p.cuda()) for n, p in parameters(torch.bfloat16).items()}
    masters = {name: drawn(name, shape).float().cuda() for name, shape in SHAPES.items()}
    optimizer = Muon(narrow, masters, section(precision="bf16"))
    exact = parameters(torch.float32)
    reference = Muon(exact, {}, section(precision="fp32"))
    for step in range(STEPS):
        grads = {name: grad.float() for name, grad in gradients(step).items()}
        reference.step(grads, 0.02, 1.0)
        optimizer.step({n: g.cuda().bfloat16() for n, g in grads.items()}, 0.02, 1.0)
    for name in HIDDEN:
        moved = exact[name].detach() - drawn(name, SHAPES[name])
        off = masters[name].cpu() - exact[name].detach()
        assert 0 < off.norm() / moved.norm() < 0.1, name
        assert torch.equal(narrow[name], masters[name].bfloat16())


def test_random_rounding_is_right_in_the_mean_and_the_same_again() -> None:
    values = torch.tensor([1.0 + 0.3 / 128, -3.0 - 0.1 / 64, 0.0, 2.0]).repeat(20000, 1)
    found = round_stochastically(values, "a:1")
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, round_stochastically(values, "a:1"))
    assert not torch.equal(found, round_stochastically(values, "a:2"))
    torch.testing.assert_close(found.float().mean(0), values[0], rtol=0, atol=1e-4)
    assert found[:, 0].unique().tolist() == [1.0, 1.0 + 1 / 128]
    assert found[:, 2:].unique().tolist() == [0.0, 2.0]


# How parameters are cut: a mesh, and by their number of dimensions the cuts in their order, each
# along (axis of the mesh, dimension of the parameter).
Cutting = Callable[[int], list[tuple[int, int]]]
CUT: dict[int, dict[str, tuple[tuple[int, ...], Cutting]]] = {
    2: {
        "rows, or whole experts": ((2,), lambda dims: [(0, 0)]),
        "columns": ((2,), lambda dims: [(0, dims - 1)]),
        "rows, of experts too": ((2,), lambda dims: [(0, max(0, dims - 2))]),
    },
    4: {
        "some ranks without a row": ((4,), lambda dims: [(0, 0)]),
        "tensor by columns, then shards": ((2, 2), lambda dims: [(1, dims - 1), (0, 0)]),
        "tensor by rows, then shards": ((2, 2), lambda dims: [(1, 0), (0, 0)]),
        "rows twice": ((2, 2), lambda dims: [(0, 0), (1, 0)]),
        "copies": ((2, 2), lambda dims: [(1, 0)]),
        "experts, then their rows": ((2, 2), lambda dims: [(1, 0), (0, max(0, dims - 2))]),
    },
}


def part(whole: Tensor, cuts: list[tuple[int, int]], mesh: Any) -> Tensor:
    for axis, dim in cuts:
        pieces, place = whole.chunk(mesh.size(axis), dim), mesh.get_local_rank(axis)
        whole = pieces[place] if place < len(pieces) else whole.narrow(dim, 0, 0)
    return whole.contiguous()


def sharded(param: Tensor, cuts: list[tuple[int, int]], mesh: Any) -> nn.Parameter:
    """As FSDP2 and tensor parallelism would have it."""
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    placements: list[Any] = [Replicate()] * mesh.ndim
    for place, (axis, dim) in enumerate(cuts):
        late = any(other > axis and to == dim for other, to in cuts[:place])
        placements[axis] = _StridedShard(dim, split_factor=2) if late else Shard(dim)
    shape, stride = param.shape, param.stride()
    own = part(param, cuts, mesh)
    return nn.Parameter(DTensor.from_local(own, mesh, placements, shape=shape, stride=stride))


def steps_on_a_rank(count: int) -> list[tuple[str, float, int]]:
    """For each case: how far this rank's parts are from one process, and how much work it did."""
    from torch.distributed.device_mesh import init_device_mesh

    from penstock.plan.job.layout import Layout
    from penstock.train.world.world import join

    join(Layout(shard=count, microbatch=1), "cpu", 60.0)
    alone = parameters()
    stepped(Muon(alone, {}, section()))
    found = []
    for named, (sizes, cutting) in CUT[count].items():
        mesh = init_device_mesh("cpu", sizes)
        cut = {name: cutting(len(shape)) for name, shape in SHAPES.items()}
        params = {n: sharded(p.detach(), cut[n], mesh) for n, p in parameters().items()}
        worked = []

        def counted(matrices: Tensor, worked: list[int] = worked) -> Tensor:
            worked.append(len(matrices))
            return orthogonalize(matrices)

        optimizer = Muon(params, {}, section())
        muon.orthogonalize = counted
        for step in range(STEPS):
            grads = {n: part(g, cut[n], mesh) for n, g in gradients(step).items()}
            optimizer.step(grads, rate=0.02 * (step + 1), scale=0.5)
        muon.orthogonalize = orthogonalize
        off = 0.0
        for name, param in params.items():
            moment = optimizer.moments[name].get("momentum", param)
            assert (moment.placements, moment.shape) == (param.placements, param.shape)
            gap = param.to_local() - part(alone[name].detach(), cut[name], mesh)
            off = max(off, gap.abs().max().item() if gap.numel() else 0.0)
        found.append((named, off, sum(worked) // STEPS))
    return found


@pytest.mark.parametrize("count", CUT)
def test_ranks_share_the_work_and_get_what_one_would(
    count: int, ranks: Callable[..., list[Any]]
) -> None:
    matrices = sum(SHAPES[name][0] if len(SHAPES[name]) == 3 else 1 for name in HIDDEN)
    for rows in zip(*ranks(count, steps_on_a_rank, count), strict=True):
        named = rows[0][0]
        assert all(off < 1e-12 for _, off, _ in rows), rows
        work = [done for _, _, done in rows]
        assert sum(work) == matrices * (2 if named == "copies" else 1), named
        assert max(work) - min(work) <= (6 if count == 4 else 2), (named, work)


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory, tiny: str) -> str:
    return prepared(tmp_path_factory.mktemp("muon"), {"plain": tiny})


MODELS = {
    "dense": ["train.optimizer=muon"],
    "mixture": [
        "train.optimizer=muon",
        "model.experts=4",
        "model.experts_active=2",
        "model.expert_ffn=8",
        "model.shared_experts=1",
    ],
}
REAL: dict[int, list[tuple[str, dict[str, int]]]] = {
    2: [
        ("dense", {"replicate": 2}),
        ("dense", {"shard": 2, "microbatch": 2}),
        ("dense", {"tensor": 2}),
        ("mixture", {"shard": 2, "expert": 2}),
    ],
    4: [
        ("dense", {"shard": 4}),
        ("dense", {"replicate": 2, "shard": 2}),
        ("dense", {"shard": 2, "tensor": 2}),
        ("mixture", {"shard": 4, "expert": 2}),
    ],
}


@pytest.fixture(scope="module")
def alone(where: str, ranks: Callable[..., list[Any]]) -> dict[str, Answer]:
    cases = [case({}, *overrides) for overrides in MODELS.values()]
    return dict(zip(MODELS, ranks(1, train_a_little, where, cases)[0], strict=True))


@pytest.mark.parametrize("count", REAL)
def test_real_steps_are_the_same_in_every_layout(
    count: int, where: str, alone: dict[str, Answer], ranks: Callable[..., list[Any]]
) -> None:
    cases = [case(layout, *MODELS[model]) for model, layout in REAL[count]]
    answers = ranks(count, train_a_little, where, cases)
    for (model, layout), *found in zip(REAL[count], *answers, strict=True):
        assert_equal(alone[model], found, f"muon, {model}, {layout}", least=1e-12)
    for answer in alone.values():
        assert answer["losses"][-1] < answer["losses"][0] - 0.2


def cut_short(path: str, attempts: list[int]) -> list[float]:
    """Two steps on two shards, saved; one more on two replicas. The losses."""

    from penstock.guard.detect.pulse import Pulse
    from penstock.ledger.journal.writer import Journal
    from penstock.meter.clock import StepClock
    from penstock.plan.job.layout import Layout
    from penstock.run.folder import RunFolder
    from penstock.run.load import load
    from penstock.train.loop import build
    from penstock.train.rank_context import RankContext
    from penstock.train.step import unguarded_step
    from penstock.train.world.world import join

    losses = []
    folder, run = RunFolder(Path(path).parent / "plain"), load(path, ["train.optimizer=muon"])
    for attempt, layout in zip(attempts, (Layout(shard=2), Layout(replicate=2)), strict=True):
        os.environ["PENSTOCK_ATTEMPT"] = f"cut {attempt}"
        world = join(layout, "cpu", 60.0)
        journal = Journal(folder.journal, attempt, range(world.rank, world.rank + 1))
        pulse = Pulse(folder.scratch, world.rank, 0)
        trainer = build(RankContext(folder, run, layout, world, journal, pulse))
        trainer.resume()
        done = trainer.progress.step
        feed = trainer.batches.feed(after_step=done)
        for _ in range(1 if done else 2):
            batch, clock = trainer.batches.micros(feed.next()), StepClock(False)
            vote = unguarded_step(trainer.engine.stepper, batch, run.batch_tokens, 1e-2, clock)
            losses.append(vote.loss)
        feed.close()
        trainer.saver.prepare()
        trainer.saver.save_if_due(done + (1 if done else 2), vote, last=True)
        trainer.saver.finish()
        real_ranks.leave()
    return losses


def test_a_run_goes_on_from_a_checkpoint_in_another_layout(
    where: str, alone: dict[str, Answer], ranks: Callable[..., list[Any]]
) -> None:
    for losses in ranks(2, cut_short, where, [901, 902]):
        assert losses == pytest.approx(alone["dense"]["losses"], rel=1e-10)
