"""What the trainer cannot do is one message that says what to write, before anything starts."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_plans as made
from penstock.catalog.models import preset
from penstock.catalog.shapes import ModelShape
from penstock.plan.job import legal
from penstock.plan.job.layout import IllegalLayout, Layout
from penstock.plan.make import make
from penstock.plan.search.choose import complete_layout
from penstock.plan.search.search import SearchSpace, families, shardings, splits, trainable_space
from penstock.run.schema.run import Run
from penstock.run.unsupported import UNSUPPORTED_FIELDS
from planned_jobs import SPARSE, job, shapes

DENSE = ModelShape(layers=8, hidden=512, heads=8, kv_heads=4, ffn=1536, vocab=1000)


@pytest.mark.parametrize(
    ("shape", "layout", "said"),
    [
        (DENSE, Layout(tensor=3), "layout.tensor = 3: does not divide the model's heads of 8; "
         "write 1, 2 or 4"),
        (DENSE, Layout(tensor=8), "layout.tensor = 8: does not divide the model's kv_heads of 4; "
         "write 1, 2 or 4"),
        (DENSE, Layout(tensor=4, context=16), "does not divide the 6 tokens of a sequence"),
        (DENSE, Layout(pipeline=9), "layout.pipeline = 9: more than the model's 8 layers; "
         "write 8 or less"),
        (DENSE, Layout(pipeline=2, interleave=5), "layout.interleave = 5: 2 stages of so many "
         "pieces are more than the model's 8 layers; write 4 or less"),
        (DENSE, Layout(interleave=2), "there is no pipeline"),
        (DENSE, Layout(context=5), "layout.context = 5: twice that does not divide the sequence "
         "of 96"),
        (DENSE, Layout(expert=2, shard=2), "layout.expert = 2: the model is dense"),
        (SPARSE, Layout(expert=3, shard=3), "does not divide the model's 8 experts; write 1"),
        (SPARSE, Layout(expert=8, shard=4), "does not divide the 4 ranks of shard × context × "
         "tensor; write 1, 2 or 4"),
    ],
)  # fmt: skip
def test_a_split_that_does_not_come_out_even_says_what_does(
    shape: ModelShape, layout: Layout, said: str
) -> None:
    (line,) = legal.shape_problems(shape, layout, 96)
    assert said in line
    assert "write" in line


@pytest.mark.parametrize(
    "layout",
    [
        Layout(),
        Layout(tensor=4, context=2, shard=2),
        Layout(pipeline=3, interleave=2),
        Layout(shard=64, replicate=5),
    ],
)
def test_what_comes_out_even_passes(layout: Layout) -> None:
    assert legal.shape_problems(DENSE, layout, 96) == []


@given(shapes(), st.sampled_from([36, 64, 96, 100]), st.sampled_from([4, 6, 8, 12]))
@settings(max_examples=30, deadline=None)
def test_the_search_looks_at_all_that_is_legal_and_at_nothing_else(
    shape: ModelShape, sequence: int, ranks: int
) -> None:
    of, space = job(None, shape, 16, sequence), SearchSpace()
    found = {
        replace(lay, microbatch=1, interleave=1)
        for split in splits(of, ranks, space)
        for family in families(of, split, space)
        for lay in shardings(family, space)
    }
    assert all(legal.shape_problems(shape, lay, sequence) == [] for lay in found)
    every = [n for n in range(1, ranks + 1) if ranks % n == 0]
    experts = [n for n in range(1, 9) if shape.moe or n == 1]
    for r, s, t, p, c in product(every, repeat=5):
        for e in experts if r * s * t * p * c == ranks else []:
            lay = Layout(r, s, 1, t, p, c, e)
            assert (lay in found) == (legal.shape_problems(shape, lay, sequence) == []), lay


def own(**sections: object) -> Run:
    table = {"name": "own", "model": {"module": "net.py:build"}, "train": {"learning_rate": 1e-3}}
    return Run.model_validate(table | sections)


@pytest.mark.parametrize("way", ["tensor", "pipeline", "context", "expert"])
def test_an_own_module_can_only_be_replicated_and_sharded(way: str) -> None:
    run = own(layout={way: 2})
    (line,) = legal.problems(run, None, legal.asked_layout(run))
    assert line.startswith(f"layout.{way} = 2: model.module is your own code")
    assert "layout.shard" in line
    assert legal.problems(own(layout={"shard": 2}), None, Layout(shard=2)) == []


def test_an_own_module_computes_again_narrows_and_compiles_by_itself() -> None:
    train = {"precision": "fp8", "compile": "on", "learning_rate": 1e-3}
    run = own(layout={"recompute": "full"}, train=train)
    again, narrow, compiled = legal.problems(run, None, legal.asked_layout(run))
    assert "torch.utils.checkpoint" in again
    assert narrow.startswith('train.precision = "fp8": model.module')
    assert compiled.startswith('train.compile = "on": model.module')


@pytest.mark.parametrize(
    ("device", "refused"),
    [("cpu", True), ("NVIDIA A100-SXM4-80GB", True), ("NVIDIA H200", False), ("Unheard-of", False)],
)
def test_fp8_needs_a_device_that_has_it(device: str, refused: bool) -> None:
    run = made.run(train={"tokens": "1B", "precision": "fp8"})
    found = legal.problems(run, preset("llama-8b"), Layout(), device)
    assert bool(found) == refused
    if found:
        assert found[0].endswith('has no 8-bit matrix products; write "bf16"')


def test_an_adapter_that_the_model_cannot_have_is_refused(tmp_path) -> None:
    moe = preset("mixtral-8x7b")
    run = made.run(model={"preset": "llama-8b"})
    adapter = Run.model_validate(
        {
            "name": "a",
            "model": {"from": str(tmp_path / "gone"), "adapter": {"kind": "qlora"}},
            "train": {"learning_rate": 1e-4},
        }
    ).model.adapter
    asked = run.model_copy(update={"model": run.model.model_copy(update={"adapter": adapter})})
    (line,) = legal.problems(asked, moe, Layout())
    assert 'kind = "qlora"' in line


def test_all_that_is_wrong_is_told_at_once() -> None:
    run = made.run(layout={"tensor": 5, "context": 3})
    with pytest.raises(IllegalLayout) as caught:
        legal.refuse(run, preset("llama-8b"), legal.asked_layout(run))
    assert len(str(caught.value).splitlines()) == 2
    assert caught.value.exit_code == 2


def test_a_pipeline_without_enough_microbatches_is_worth_a_word() -> None:
    run = made.run(train={"tokens": "1B", "batch_tokens": 8 * 8192})
    assert legal.layout_warnings(run, Layout(pipeline=4, shard=2)) == []
    (line,) = legal.layout_warnings(run, Layout(pipeline=8, shard=2, microbatch=2))
    assert "a step has 2 microbatches" in line
    assert "layout.microbatch = 1" in line
    plan = make(
        made.run(
            train={"tokens": "1B", "batch_tokens": 8 * 8192},
            layout={"pipeline": 8, "microbatch": 8, "shard": 1},
        ),
        made.machine(8),
    )
    assert any("stages wait" in line for line in plan.warnings)


def test_the_planner_chooses_here_only_what_is_trained() -> None:
    works = {gap.field: gap.works for gap in UNSUPPORTED_FIELDS}
    space = trainable_space(made.run())
    for way in ("tensor", "pipeline", "context", "expert", "interleave"):
        gap = works.get(f"layout.{way}")
        assert getattr(space, way) == ((1,) if gap and not gap(2) else None)
    assert "none" in space.recompute


def test_matrices_in_8_bits_are_not_cut() -> None:
    run = made.run(train={"tokens": "1B", "precision": "fp8"}, layout={"tensor": 2})
    (line,) = legal.problems(run, preset("llama-8b"), legal.asked_layout(run), "NVIDIA H200")
    assert line.startswith("layout.tensor = 2: parts of matrices are not multiplied in 8 bits")
    assert trainable_space(run).tensor == (1,)
    assert trainable_space(made.run()).tensor is None


@given(
    st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from([1, 2]), st.integers(1, 4)
)
@settings(deadline=None)
def test_a_file_with_every_dimension_is_completed_on_a_cpu(
    tensor: int, pipeline: int, context: int, data: int
) -> None:
    layout = {"tensor": tensor, "pipeline": pipeline, "context": context, "recompute": "full"}
    run = Run.model_validate({"name": "all", "model": {"preset": "llama-3m"}, "layout": layout})
    ranks = tensor * pipeline * context * data
    found = complete_layout(run, preset("llama-3m"), ranks, "cpu", 2**34)
    assert found.ranks == ranks
    assert (found.tensor, found.pipeline, found.context) == (tensor, pipeline, context)
    assert (found.replicate, found.shard, found.recompute) == (data, 1, "full")
    with pytest.raises(IllegalLayout, match="does not divide the run's"):
        complete_layout(
            run.model_copy(update={"layout": run.layout.model_copy(update={"tensor": 7})}),
            None, ranks, "cpu", 2**34,
        )  # fmt: skip


@pytest.mark.parametrize("word", ["layer", "backward"])
def test_a_pipeline_gathers_once_a_step(word: str) -> None:
    asked = made.run(layout={"pipeline": 2, "reshard": word})
    lay = Layout(shard=4, pipeline=2)
    (said,) = legal.problems(asked, preset("llama-8b"), lay)
    assert said.startswith(f'layout.reshard = "{word}": a pipeline gathers weights')
    assert said.endswith('write "step", or leave it out')
    once = made.run(layout={"pipeline": 2, "reshard": "step"})
    assert legal.problems(once, preset("llama-8b"), lay) == []
