"""What a site publishes, merges and keeps does not depend on how its ranks share the model."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import real_ranks
from penstock.plan.hardware.machine import of_catalog
from penstock.plan.job.layout import Layout
from penstock.plan.search.choose import job_of
from penstock.plan.step import outer
from penstock.plan.step.step import predict
from penstock.plan.sync import account
from penstock.run.load import load

Ranks = Callable[..., list[Any]]
VARIANTS: dict[str, tuple[str, ...]] = {
    "int2": ("train.sync.compress=int2",),
    "raw, tied": ("train.sync.compress=none", "model.tied=true"),
    "topk, fp64": ("train.sync.compress=topk:3%", "train.precision=fp64"),
    "experts": (
        *("train.sync.compress=int4", "model.experts=4", "model.experts_active=2"),
        *("model.expert_ffn=24", "model.shared_experts=1", "train.balance_rate=0"),
    ),
}
DENSE = ("int2", "raw, tied", "topk, fp64")
# Ranks: layouts, and the variants that are tried in them; the first of each are tried always.
LAYOUTS: dict[int, list[tuple[dict[str, int], tuple[str, ...]]]] = {
    2: [
        ({"shard": 2}, tuple(VARIANTS)),
        ({"tensor": 2}, ("experts",)),
        ({"pipeline": 2}, ("raw, tied",)),
        ({"replicate": 2}, ("int2",)),
        ({"tensor": 2}, DENSE),
        ({"pipeline": 2}, DENSE),
        ({"context": 2}, ("int2",)),
        ({"shard": 2, "expert": 2}, ("experts",)),
    ],
    3: [  # unequal shards; some ranks hold nothing of a norm
        ({"shard": 3}, ("experts",)),
        ({"shard": 3}, DENSE),
    ],
    4: [
        ({"replicate": 2, "shard": 2}, tuple(VARIANTS)),
        ({"shard": 2, "tensor": 2}, DENSE),
        ({"pipeline": 2, "shard": 2}, ("raw, tied",)),
        ({"pipeline": 2, "interleave": 2, "tensor": 2}, ("raw, tied",)),
        ({"shard": 2, "tensor": 2, "expert": 2}, ("experts",)),
    ],
}
ALWAYS = {2: 3, 3: 1, 4: 0}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("layouts") / "run.toml"
    file.write_text(
        'name = "layouts"\n[model]\nlayers = 4\nhidden = 16\nheads = 4\nkv_heads = 2\nffn = 24\n'
        "vocab = 307\n[data]\nsequence = 16\n[train]\nsteps = 12\nbatch_tokens = 128\nprecision = "
        '"fp32"\n[train.sync]\nlocal_steps = 4\n[sites]\nbucket = "unused"\nname = "a"\n'
    )
    return str(file)


def exchanges(path: str, cases: Sequence[tuple[dict[str, int], str]], room: str) -> list[Any]:
    """On one rank: for each layout and variant, all that the exchange of a site does."""
    import torch

    from penstock.guard.detect.fingerprints import weights_hash
    from penstock.model.initialize import copy_to_shard, named_generator
    from penstock.train.engine import build_engine
    from penstock.train.sites.lead import SiteLead
    from penstock.train.sites.weights import SiteWeights
    from penstock.train.sites.whole import WholeModel
    from penstock.train.state import weight_tensors
    from penstock.train.world.world import join

    answers = []
    for number, (layout_of, variant) in enumerate(cases):
        os.environ["PENSTOCK_ATTEMPT"] = f"{number}"
        layout, run = Layout(**layout_of), load(path, list(VARIANTS[variant]))
        world = join(layout, "cpu", 60.0)
        engine = build_engine(run, layout, 307, world)
        outer, trained = engine.outer, engine.parts.trained()
        assert outer is not None
        # Smaller than most tensors, so that they are cut.
        block, names = outer.codec.block, engine.parts.trained_names()
        whole = WholeModel(trained, names, world, block, bucket_values=1000)
        weights = SiteWeights(outer, whole, part_bytes=30_000)
        lead = SiteLead(weights, world, lambda: None)

        def train(seed: int, trained: Any = trained) -> None:
            for name, param in trained.items():
                moved = torch.empty(param.shape, dtype=param.dtype)
                moved.normal_(0.0, 0.02, generator=named_generator(name, seed, moved.device))
                before = param.detach().clone()
                with torch.no_grad():
                    copy_to_shard(param, moved)
                    param.add_(before)

        def led(ask: Callable[[Any], None], lead: SiteLead = lead) -> None:
            def asked() -> str:
                ask(lead.member_weights())
                return "done"

            assert lead.run(asked, lambda: {"at": 7})[0] == "done"

        found: dict[str, Any] = {}
        snapshot = Path(room) / variant

        def first(own: Any, found: dict[str, Any] = found) -> None:
            found["first weights"] = own.anchor_hash()
            found["message"] = own.message(10)
            own.keep_owed(found["message"])

        def second(own: Any, found: dict[str, Any] = found, kept: Path = snapshot) -> None:
            found["again"] = own.message(30)
            found["nothing"] = own.message(0)
            found["checks"] = own.check(found["message"]), own.check(found["again"][:-1])
            found["bad"] = own.check(found["message"][:8] + b"\xff" * (own.message_bytes - 8))
            own.merge([found["message"], found["again"]], 0.8)
            own.adopt()
            found["merged"] = own.anchor_hash()
            found["snapshot"] = [own.snapshot(part) for part in range(len(own.snapshot_sizes))]
            assert [len(part) for part in found["snapshot"]] == own.snapshot_sizes

        def third(own: Any, found: dict[str, Any] = found, kept: Path = snapshot) -> None:
            found["third"] = own.message(5)
            own.keep_owed(found["third"])
            own.merge([found["third"]], 1.0)
            found["moved"] = own.anchor_hash()
            for part, content in enumerate(found["snapshot"]):
                file = kept / str(part)
                if not file.exists():  # of the layout that is tried first
                    kept.mkdir(exist_ok=True)
                    file.write_bytes(content)
                own.load_snapshot(part, file.read_bytes())
            own.adopt()
            found["loaded"] = own.anchor_hash()

        for seed, ask in ((1, first), (2, second), (3, third)):
            train(seed)
            led(ask)
        held = weight_tensors(engine.parts, engine.optimizer)
        found["weights"] = weights_hash(held, world, hashing=world.first_copy)
        found["buckets"] = len(whole.buckets), max(one.count for one in whole.buckets)
        own_values = sum(t.numel() for t in outer.weights.values())
        answers.append((found if world.lead else {}, own_values))
        real_ranks.leave()
    return answers


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("snapshots"))


@pytest.fixture(scope="module")
def alone(path: str, room: str, ranks: Ranks) -> dict[str, Any]:
    found = ranks(1, exchanges, path, [({}, variant) for variant in VARIANTS], room)[0]
    return {variant: answer for variant, (answer, _) in zip(VARIANTS, found, strict=True)}


def test_the_plan_knows_the_bytes_of_what_a_site_publishes(
    path: str, alone: dict[str, Any]
) -> None:
    """In every layout, and twice as many ranks that step together publish no more."""
    for variant, one in alone.items():
        run = load(path, [*VARIANTS[variant]])
        shape, machine = run.model.shape(307), of_catalog("H100", 8)
        layouts = [Layout(), Layout(replicate=2), Layout(shard=2, tensor=2), Layout(pipeline=2)]
        for layout in layouts:
            job = job_of(run, machine, shape, layout)
            found = account(run, job, predict(job), 12)
            assert found is not None
            expected = len(one["message"]) * outer.published_share(job)
            assert found.published_bytes == pytest.approx(expected, rel=1e-9), (variant, layout)


def test_one_rank_gives_what_its_codec_says(alone: dict[str, Any]) -> None:
    for variant, one in alone.items():
        assert one["checks"][0] == ""
        assert "were expected" in one["checks"][1]
        assert one["loaded"] == one["merged"]
        assert len(one["snapshot"]) > 2
        assert len({one[name] for name in ("first weights", "merged", "moved")}) == 3
        assert one["buckets"][0] > 10
        # A single row of experts may be longer.
        assert one["buckets"][1] <= (4096 if "topk" in variant else 1100)
    assert "NaN or infinite" in alone["int2"]["bad"]


@pytest.mark.parametrize(
    ("count", "tried"),
    [
        (2, slice(0, ALWAYS[2])),
        (3, slice(0, ALWAYS[3])),
        *(pytest.param(n, slice(ALWAYS[n], None), marks=pytest.mark.slow) for n in LAYOUTS),
    ],
    ids=["2", "3", "2, all others", "3, all others", "4"],
)
def test_every_layout_publishes_and_merges_the_same_bytes(
    count: int, tried: slice, path: str, room: str, alone: dict[str, Any], ranks: Ranks
) -> None:
    some = LAYOUTS[count][tried]
    cases = [(layout, variant) for layout, variants in some for variant in variants]
    found = ranks(count, exchanges, path, cases, room)
    for number, (layout, variant) in enumerate(cases):
        answer, expected = found[0][number][0], alone[variant]
        wrong = [name for name, value in expected.items() if answer[name] != value]
        assert not wrong, f"{layout}, {variant}: other {wrong}"
        held = [one[number][1] for one in found]
        if "shard" in layout:  # no rank keeps the whole model
            assert max(held) < 0.75 * sum(held) / layout.get("replicate", 1)


def test_weights_that_are_not_finite_on_one_rank_are_one_message_on_all(
    path: str, ranks: Ranks
) -> None:
    found = ranks(2, refuses, path)
    assert all("weights embed.weight after local steps" in one for one in found)


def refuses(path: str) -> str:
    import torch

    from penstock.errors import RunFailed
    from penstock.train.engine import build_engine
    from penstock.train.parallel.parts import local_tensor
    from penstock.train.sites.lead import SiteLead
    from penstock.train.sites.weights import SiteWeights
    from penstock.train.sites.whole import WholeModel
    from penstock.train.world.world import join

    os.environ["PENSTOCK_ATTEMPT"] = "refuses"
    layout = Layout(shard=2)
    world = join(layout, "cpu", 60.0)
    engine = build_engine(load(path), layout, 307, world)
    outer, trained = engine.outer, engine.parts.trained()
    assert outer is not None
    if world.rank == 1:  # not the one that talks to the bucket
        with torch.no_grad():
            local_tensor(trained["embed.weight"]).view(-1)[3] = torch.nan
    whole = WholeModel(trained, engine.parts.trained_names(), world, outer.codec.block)
    lead = SiteLead(SiteWeights(outer, whole), world, lambda: None)
    said = ""
    try:
        lead.run(lambda: str(lead.member_weights().message(10)), dict)
    except RunFailed as error:
        said = str(error)
    real_ranks.leave()
    return said
