"""The search against brute force, and the facts that its pruning rests on."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.catalog.models import preset
from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError
from penstock.plan.hardware.machine import of_catalog
from penstock.plan.job import own
from penstock.plan.job.constants import Constants, fitted
from penstock.plan.job.job import Adapter, Job, Software
from penstock.plan.job.layout import Layout
from penstock.plan.memory import memory
from penstock.plan.search import search
from penstock.plan.search.choose import job_of
from penstock.plan.search.search import RECOMPUTE, SearchSpace
from penstock.plan.step import step
from penstock.run.schema.run import Run
from planned_jobs import DENSE, GIB, SPARSE, job, jobs, machine, shapes

SMALL = replace(DENSE, hidden=512, heads=8, ffn=1536)
SPARSE_8 = replace(SPARSE, expert_ffn=512)
PRIOR = Constants()


def dividing(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def legal(of: Job, ranks: int, space: SearchSpace) -> list[Layout]:
    """Every layout of the space but for recompute, by trying all numbers."""
    shape, found = of.shape, []
    ways = dividing(ranks)
    for replicate, shard, tensor, pipeline, context in product(ways, repeat=5):
        data = replicate * shard
        if data * tensor * pipeline * context != ranks or data > of.batch:
            continue
        if shape.heads % tensor or shape.hidden % tensor or pipeline > shape.layers:
            continue
        if context > 1 and of.sequence % (2 * context):
            continue
        if shape.kv_heads % tensor or of.sequence // context % tensor:
            continue
        share = -(-of.batch // data)
        for expert, microbatch, pieces in product(
            dividing(shape.experts) if shape.moe else [1],
            dividing(share),
            range(1, max(1, shape.layers // pipeline) + 1),
        ):
            if (shard * context * tensor) % expert:
                continue
            if pieces > 1 and (pipeline == 1 or share // microbatch % pipeline):
                continue
            once = pipeline > 1 or shard * context == 1  # gathered once a step, or never
            found += [
                Layout(replicate, shard, microbatch, tensor, pipeline, context, expert,
                       interleave=pieces, zero=zero)
                for zero in (space.zero[:1] if once else space.zero)
            ]  # fmt: skip
    return [lay for lay in found if allowed(lay, space)]


def allowed(lay: Layout, space: SearchSpace) -> bool:
    chosen = {k: v for k, v in vars(space).items() if v is not None and k != "recompute"}
    return all(getattr(lay, name) in values for name, values in chosen.items())


def brute(of: Job, ranks: int, space: SearchSpace, c: Constants) -> list[float]:
    """Seconds of every layout, with the least recompute that fits."""
    times = []
    for lay in legal(of, ranks, space):
        for kind in space.recompute:
            tried = of.with_layout(replace(lay, recompute=kind))
            if memory.predict(tried).fits:
                times.append(step.predict(tried, c).step_s)
                break
    return sorted(times)


@st.composite
def asked(draw: st.DrawFn) -> tuple[Job, int, SearchSpace]:
    """A small job on at most 16 accelerators, on which some layouts fit, or none, or all."""
    shape = draw(st.sampled_from([SMALL, SPARSE_8]))
    shape = replace(shape, layers=draw(st.sampled_from([3, 4, 6])))
    ranks = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]))
    gib = draw(st.sampled_from([1.3, 1.6, 2.0, 3.0, 6.0, 80.0]))
    on = machine(ranks, per_node=4, memory_bytes=int(gib * GIB))
    batch, sequence = draw(st.sampled_from([1, 5, 8, 12, 16])), draw(st.sampled_from([36, 1024]))
    programs = [
        Software(),
        Software(fused=True, torch_checkpoints=False),
        own.ON_CPU,  # our trainer, whose pipeline gathers once a step
        replace(own.COMPILED, measured=()),
    ]
    of = job(
        None,
        shape,
        batch,
        sequence,
        on,
        software=draw(st.sampled_from(programs)),
        precision=draw(st.sampled_from(["bf16", "fp32", "fp8"])),
    )
    some = {
        "shard": st.sampled_from([(1,), (2, 4), (1, 2, 3, 4)]),
        "replicate": st.sampled_from([(1,), (1, 2)]),
        "tensor": st.sampled_from([(1,), (2,), (1, 2)]),
        "pipeline": st.sampled_from([(1,), (2, 4)]),
        "context": st.sampled_from([(1,), (1, 2)]),
        "expert": st.sampled_from([(1,), (1, 4)]),
        "microbatch": st.sampled_from([(1,), (1, 2, 4)]),
        "interleave": st.sampled_from([(1,), (1, 2)]),
    }
    fixed = draw(st.sets(st.sampled_from(sorted(some)), max_size=2))
    kinds = draw(st.sampled_from([RECOMPUTE, ("none",), ("full",), ("none", "full")]))
    zeros = draw(st.sampled_from([(3,), (3, 2, 1), (1,)])) if of.software.fsdp else (3,)
    chosen = {name: draw(some[name]) for name in sorted(fixed)}
    return of, ranks, SearchSpace(recompute=kinds, zero=zeros, **chosen)


@given(asked(), st.sampled_from([fitted(), PRIOR]))
@settings(max_examples=60, deadline=None)
def test_the_best_five_are_those_of_brute_force(
    what: tuple[Job, int, SearchSpace], c: Constants
) -> None:
    of, ranks, space = what
    found = search.search(of, ranks, space, constants=c)
    seconds = [of.tokens / option.tokens_per_s for option in found.best]
    assert seconds == pytest.approx(brute(of, ranks, space, c)[:5])
    assert len({option.layout for option in found.best}) == len(found.best)
    for option in found.best:
        assert option.layout.ranks == ranks
        assert option.memory == memory.predict(of.with_layout(option.layout))
        assert option.memory.fits
        assert allowed(option.layout, space)
        assert option.layout.recompute in space.recompute


@pytest.mark.parametrize("shape", [SMALL, SPARSE_8])
@pytest.mark.parametrize(("ranks", "batch", "sequence"), [(16, 24, 1024), (12, 40, 36), (8, 5, 36)])
def test_the_space_is_every_legal_layout_once(
    shape: ModelShape, ranks: int, batch: int, sequence: int
) -> None:
    of, space = job(None, replace(shape, layers=6), batch, sequence), SearchSpace()
    found = [
        lay
        for split in search.splits(of, ranks, space)
        for family in search.families(of, split, space)
        for lay in search.shardings(family, space)
    ]
    assert len(found) == len(set(found))
    assert set(found) == set(legal(of, ranks, space))


@given(asked(), st.integers(1, 12))
@settings(max_examples=15, deadline=None)
def test_as_many_as_are_asked_for(what: tuple[Job, int, SearchSpace], keep: int) -> None:
    of, ranks, space = what
    best = search.search(of, ranks, space, keep=keep).best
    every = brute(of, ranks, space, fitted())
    assert [of.tokens / o.tokens_per_s for o in best] == pytest.approx(every[:keep])


@given(asked())
@settings(max_examples=25, deadline=None)
def test_the_rejected_would_be_faster_and_do_not_fit(what: tuple[Job, int, SearchSpace]) -> None:
    of, ranks, space = what
    found = search.search(of, ranks, space)
    times = [of.tokens / option.tokens_per_s for option in found.rejected]
    assert times == sorted(times)
    for option in found.rejected:
        assert not option.memory.fits
        short = option.memory.short_bytes / GIB
        assert short > 0
        assert option.reason == f"out of memory by {short:,.1f} GiB"
        real = step.predict(of.with_layout(option.layout)).step_s
        assert of.tokens / option.tokens_per_s <= real * (1 + 1e-9)
        if len(found.best) == 5:
            slowest = found.best[-1].tokens_per_s
            assert option.tokens_per_s >= slowest * (1 - 1e-9)


@given(asked())
@settings(max_examples=40, deadline=None)
def test_floors_are_below_every_layout(what: tuple[Job, int, SearchSpace]) -> None:
    of, ranks, space = what
    c = fitted()
    for split in search.splits(of, ranks, space):
        low = search.split_floor_s(of, split, c)
        for family in search.families(of, split, space):
            floor = search.floor_s(of, family, c)
            assert low <= floor * (1 + 1e-9)
            for lay in search.shardings(family, space):
                for kind in RECOMPUTE:
                    took = step.predict(of.with_layout(replace(lay, recompute=kind)), c).step_s
                    assert floor <= took * (1 + 1e-9)


def test_floors_are_worth_something() -> None:
    """A floor of nothing would be below everything too."""
    of = job(None, DENSE, 64)
    for lay in (Layout(16), Layout(4, tensor=2, pipeline=2), Layout(2, context=2, tensor=4)):
        family = replace(lay, microbatch=1)
        took = step.predict(of.with_layout(family)).step_s
        assert search.floor_s(of, family, fitted()) > 0.5 * took
        assert search.split_floor_s(of, lay, fitted()) > 0.2 * took


# The two facts of the memory model.


def one_kind_of_stage(of: Job) -> bool:
    """What recomputation brings back is counted for the larger kind of layer on every stage.

    So a stage that has only the smaller kind can seem to need a little more with it than without.
    """
    return not (of.shape.dense_layers and of.shape.moe and of.layout.pipeline > 1)


@given(jobs().filter(one_kind_of_stage))
@settings(max_examples=300, deadline=None)
def test_recompute_never_needs_more_memory(of: Job) -> None:
    peaks = [
        memory.predict(of.with_layout(replace(of.layout, recompute=kind))).peak_bytes
        for kind in RECOMPUTE
    ]
    assert peaks[1] <= peaks[0] * (1 + 1e-9)
    assert peaks[2] <= peaks[1] * (1 + 1e-9)


@given(jobs(), st.sampled_from([8, 12, 16, 36]), st.data())
@settings(max_examples=300, deadline=None)
def test_if_a_sharding_fits_the_first_or_the_widest_does(
    of: Job, data: int, more: st.DataObject
) -> None:
    lay = replace(of.layout, replicate=data, shard=1, zero=3)
    found = list(search.shardings(lay, SearchSpace()))
    assume(found)
    peaks = [memory.predict(of.with_layout(one)).peak_bytes for one in found]
    assert min(peaks) >= min(peaks[0], peaks[-1]) * (1 - 1e-9)


def test_the_first_sharding_may_be_the_only_one_that_fits() -> None:
    """A frozen model of few layers: gathering them takes more than sharding them saves."""
    soft = Software(weight_bytes=2.0, grad_bytes=2.0)
    of = job(
        None, replace(DENSE, layers=2), 4, 128, software=soft, adapter=Adapter(), on=machine(4)
    )
    fixed = SearchSpace(tensor=(1,), pipeline=(1,), context=(1,), microbatch=(1,))
    layouts = list(search.shardings(Layout(replicate=4), fixed))
    peaks = [memory.predict(of.with_layout(lay)).peak_bytes for lay in layouts]
    assert peaks[0] < min(peaks[1:])
    capacity = (peaks[0] + min(peaks[1:])) / 2
    high = memory.predict(of).high
    tight = machine(4, memory_bytes=int(capacity * high / memory.USABLE_SHARE))
    (only,) = search.search(replace(of, machine=tight), 4, replace(fixed, recompute=("none",))).best
    assert only.layout.shard == 1


def test_shardings_of_a_family() -> None:
    lay = Layout(replicate=4, tensor=2, expert=4)
    shards = [one.shard for one in search.shardings(lay, SearchSpace())]
    assert shards == [2, 4]  # with one shard, two tensor ranks cannot hold four experts' parts
    assert [one.shard for one in search.shardings(replace(lay, expert=1), SearchSpace())] == [
        1,
        2,
        4,
    ]
    assert [o.shard for o in search.shardings(lay, SearchSpace(replicate=(2, 4)))] == [2]
    assert all(one.ranks == 8 for one in search.shardings(lay, SearchSpace()))


# Size.


@pytest.mark.parametrize(
    ("name", "batch", "most"), [("llama-70b", 4096, 800), ("deepseek-v3", 15360, 2000)]
)
def test_sixteen_thousand_accelerators(name: str, batch: int, most: int) -> None:
    of = job(None, preset(name), batch, 4096, of_catalog("H100", 16384))
    seen: list[int] = []
    found = search.search(of, 16384, progress=seen.append)
    assert len(found.best) == 5
    assert all(option.layout.ranks == 16384 for option in found.best)
    assert found.opened < most
    assert seen == list(range(1, found.opened + 1))
    rates = [option.tokens_per_s for option in found.best]
    assert rates == sorted(rates, reverse=True)
    assert found.best[0].reason == "fastest that fits"
    slower = (rates[0] / rates[1] - 1) * 100
    assert found.best[1].reason == f"{slower:.1f} % slower"
    assert found.looked_at >= 5


# What cannot be.


def must(of: Job, ranks: int, space: SearchSpace | None = None) -> search.LayoutSearch:
    return search.require_fit(search.search(of, ranks, space), of, ranks)


def test_a_layout_that_is_asked_for_and_legal_is_found() -> None:
    of = job(None, SMALL, 16)
    (only,) = must(of, 8, SearchSpace(
        replicate=(1,), shard=(2,), tensor=(2,), pipeline=(2,), context=(1,), microbatch=(1,),
        interleave=(1,), recompute=("full",),
    )).best  # fmt: skip
    assert only.layout == Layout(1, 2, tensor=2, pipeline=2, recompute="full")


@pytest.mark.parametrize(
    "space",
    [
        SearchSpace(tensor=(3,)),  # does not divide the ranks
        SearchSpace(tensor=(16,)),  # more than there are heads
        SearchSpace(pipeline=(16,)),  # more than there are layers
        SearchSpace(context=(4,)),  # 1028 tokens do not split in eight
        SearchSpace(microbatch=(5,)),
        SearchSpace(shard=(3,)),
    ],
    ids=str,
)
def test_a_request_that_no_layout_meets(space: SearchSpace) -> None:
    of = job(None, SMALL, 16, sequence=1028)
    with pytest.raises(PenstockError) as caught:
        must(of, 16, space)
    told = str(caught.value)
    assert told.startswith("layout: no way to spread 0.1B parameters and 16 sequences a step")
    assert "over 16 accelerators; change train.batch_tokens" in told


def test_more_accelerators_than_can_be_kept_busy() -> None:
    """17 is prime: it is all replicas, which need 17 sequences, or nothing."""
    with pytest.raises(PenstockError, match=r"no way to spread .* 16 sequences a step over 17"):
        must(job(None, SMALL, 16), 17)
    assert must(job(None, SMALL, 17), 17).best


def test_a_model_that_fits_in_no_layout() -> None:
    of = job(None, preset("llama-70b"), 8, on=of_catalog("H100", 8))
    with pytest.raises(PenstockError) as caught:
        must(of, 8)
    told = str(caught.value)
    assert told.startswith("model: 70.6B parameters fit on 8 × H100 SXM5 in no layout; the nearest")
    assert "full recompute, is out of memory by" in told
    assert told.endswith("Choose a smaller model, a shorter sequence or more accelerators")


@given(shapes(), st.integers(1, 64), st.integers(1, 64))
@settings(max_examples=50, deadline=None)
def test_every_split_is_legal(shape: ModelShape, ranks: int, batch: int) -> None:
    of = job(None, shape, batch)
    for split in search.splits(of, ranks, SearchSpace()):
        assert split.ranks == ranks
        assert split.replicate <= batch
        for family in search.families(of, split, SearchSpace()):
            assert (
                of.with_layout(family).microbatches * family.microbatch * split.replicate >= batch
            )


def test_divisors() -> None:
    assert search.divisors(1) == (1,)
    assert search.divisors(12) == (1, 2, 3, 4, 6, 12)
    assert search.divisors(49) == (1, 7, 49)


# Our own trainer, as it is planned: nothing faster is pruned.


@pytest.mark.parametrize(
    ("name", "gpu", "ranks", "batch", "sequence"),
    [
        ("llama-8b", "A100 SXM4 40GB", 8, 16, 4096),  # needs recompute
        ("llama-1b", "RTX 4090", 8, 16, 2048),
        pytest.param("llama-8b", "H100 SXM", 64, 64, 8192, marks=pytest.mark.slow),
        pytest.param("llama-70b", "H100 SXM", 64, 64, 4096, marks=pytest.mark.slow),
        pytest.param("deepseek-v2-lite", "H100 SXM", 32, 32, 4096, marks=pytest.mark.slow),
        pytest.param("qwen3-30b-a3b", "H100 SXM", 64, 64, 4096, marks=pytest.mark.slow),
    ],
)
def test_no_regret_on_small_clusters(
    name: str, gpu: str, ranks: int, batch: int, sequence: int
) -> None:
    shape, on = preset(name), of_catalog(gpu, ranks)
    asked = Run.model_validate(
        {
            "name": "small",
            "model": {"preset": name},
            "data": {"sequence": sequence},
            "train": {"batch_tokens": batch * sequence, "precision": "bf16"},
        }
    )
    of = job_of(asked, on, shape, Layout(replicate=ranks))
    space = search.trainable_space(asked)
    found = search.search(of, ranks, space, keep=1).best
    every = brute(of, ranks, space, fitted())
    assert bool(found) == bool(every)
    assert not every or of.tokens / found[0].tokens_per_s == pytest.approx(every[0])
