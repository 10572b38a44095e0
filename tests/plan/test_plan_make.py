"""From a run and a machine to a plan, with the real models."""

import json
import subprocess
import sys
import time

import pytest

import made_plans as made
from penstock.data.build.open import open_dataset
from penstock.data.read.stream import Stream
from penstock.errors import PenstockError
from penstock.plan.dataset import DatasetSizes, look
from penstock.plan.hardware.machine import of_catalog
from penstock.plan.make import make, outside_measured_runs
from penstock.plan.plan import Plan
from penstock.plan.search.choose import layout_of_file


def small(count: int = 8, **sections: object) -> Plan:
    run = made.run(**{"model": {"preset": "llama-1b"}, "data": {"sequence": 2048}, **sections})
    return make(run, made.machine(count))


def test_a_run_becomes_a_whole_plan() -> None:
    plan = small()
    table = json.loads(json.dumps(plan.to_json(), allow_nan=False))
    assert table["steps"] == made.run().steps()
    assert sum(table["step"].values()) == pytest.approx(table["step_s"])
    assert 0.1 < table["mfu"] < 0.7
    assert plan.explain("step_s")


def test_it_takes_milliseconds() -> None:
    small()
    began = time.process_time()  # a busy machine takes longer by the clock on the wall
    small()
    assert time.process_time() - began < 1.0


def test_the_file_s_layout_is_obeyed_and_completed() -> None:
    run = made.run(layout={"tensor": 2, "recompute": "full", "microbatch": 1})
    layout = layout_of_file(run, made.machine(16), made.job().shape)
    assert (layout.tensor, layout.recompute, layout.microbatch) == (2, "full", 1)
    assert layout.ranks == 16
    assert layout.replicate * layout.shard == 8


def test_the_layout_is_searched_among_all_that_is_trained_here_as_anywhere() -> None:
    plan = small()
    assert plan.job.layout == plan.options[0].layout
    assert len(plan.options) == 5
    assert all(option.memory.fits for option in plan.options)
    assert plan.tokens_per_s == pytest.approx(max(o.tokens_per_s for o in plan.options))
    large: dict[str, object] = {"model": {"preset": "llama-70b"}, "data": {"sequence": 8192}}
    there = small(16, **large)
    assert there.job.layout.tensor > 1
    assert small(16, **large, cluster={"use": "here"}).job.layout == there.job.layout


def test_a_model_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(PenstockError, match="in no layout"):
        small(1, model={"preset": "llama-70b"})


def test_ways_that_do_not_divide_the_accelerators_are_refused() -> None:
    run = made.run(layout={"tensor": 3})
    with pytest.raises(PenstockError, match=r"tensor × pipeline × context = 3 does not divide"):
        layout_of_file(run, made.machine(16), made.job().shape)


def test_more_ranks_than_samples_are_left_out_unless_asked_for() -> None:
    run = made.run(train={"steps": 10, "batch_tokens": 4 * 8192})
    shape = made.job().shape
    assert layout_of_file(run, made.machine(16), shape).ranks == 4


def test_a_built_dataset_gives_vocabulary_length_and_held_out_samples(tiny: str) -> None:
    """As the trainer itself counts them."""
    shape = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 128}
    data = {"dataset": tiny, "sequence": 16}
    run = made.run(model=shape, data=data, train={"epochs": 2, "batch_tokens": 16 * 16})
    plan = make(run, made.machine(1))
    stream = Stream(open_dataset(tiny), 16, 0, run.evaluate.holdout)
    assert plan.life.steps == run.steps(stream.samples)
    assert plan.job.shape.vocab == stream.dataset.vocab
    assert look(run).sizes == DatasetSizes(
        stream.dataset.vocab, stream.samples, 16 * stream.held_out
    )


def test_epochs_of_a_dataset_that_is_not_built_are_refused() -> None:
    run = made.run(data={"dataset": "nowhere"}, train={"epochs": 2})
    with pytest.raises(PenstockError, match=r"train\.epochs = 2.*Dataset 'nowhere' is not in"):
        make(run, made.machine())


def test_a_model_whose_shape_is_not_known_is_refused() -> None:
    run = made.run(model={"from": "./gone/model"}, train={"steps": 10, "learning_rate": 1e-4})
    with pytest.raises(PenstockError, match=r"model\.from = .*no such folder"):
        make(run, made.machine())


def test_what_was_never_measured_is_said() -> None:
    assert outside_measured_runs(made.job(64)) == []
    assert "accelerators 1 (seen" in outside_measured_runs(made.job(1))[0]
    probed = made.job(
        64, on=made.machine(64, accelerator="Other", curves={"norm_s": ((1.0, 1.0),)})
    )
    assert outside_measured_runs(probed) == []
    assert (
        "Other bf16"
        in outside_measured_runs(made.job(64, on=made.machine(64, accelerator="Other")))[0]
    )
    assert any("outside of the measured runs" in line for line in small(1).warnings)


def test_neither_torch_nor_numpy_is_loaded() -> None:
    code = (
        "import sys, penstock.plan.make, penstock.plan.screen\n"
        "print([name for name in ('torch', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ({"tensor": 64}, "does not divide the model's heads"),
        ({"pipeline": 64}, "more than the model's 32 layers"),
        ({"expert": 4}, "the model is dense"),
        ({"context": 32}, "does not divide the sequence"),
    ],
)
def test_a_layout_that_the_model_cannot_have_is_one_clear_message(
    layout: dict[str, int], why: str
) -> None:
    sequence = 8224 if "context" in layout else 8192  # 257 × 32
    run = made.run(
        layout=layout,
        data={"sequence": sequence},
        train={"tokens": "1B", "batch_tokens": 128 * sequence},
    )
    with pytest.raises(PenstockError, match=why):
        make(run, made.machine(64))


def test_what_the_plan_does_not_count_is_said() -> None:
    run = made.run(train={"tokens": "1B", "optimizer": "muon"})
    (note,) = [w for w in make(run, made.machine(8)).warnings if w.startswith("not counted")]
    assert "muon" in note


def test_muon_keeps_one_moment_of_the_matrices_and_bf16_halves_them() -> None:
    layout = {"shard": 8, "microbatch": 1}
    shape = small(layout=layout).job.shape
    tables = 2 * shape.vocab * shape.hidden / (1 + shape.tied)

    def of(**train: str) -> float:
        """Bytes of optimizer state on all ranks."""
        return small(layout=layout, train={"tokens": "1B", **train}).memory.parts["optimizer"] * 8

    adamw = of()
    matrices = adamw / 8 - tables
    assert of(optimizer="muon") == pytest.approx(adamw - 4 * matrices, rel=1e-6)
    assert of(states="bf16") == pytest.approx(adamw / 2, rel=1e-6)
    assert of(optimizer="muon", states="bf16") == pytest.approx(of(optimizer="muon") / 2, rel=1e-6)


def test_a_machine_outside_of_the_measured_ones_has_a_wider_band() -> None:
    known, other = (
        make(made.run(), of_catalog(name, 8)).bands["step_s"] for name in ("H100", "MI300X")
    )
    assert other.low < known.low < 1 < known.high < other.high


def test_a_site_that_cannot_feed_the_machines_is_said() -> None:
    fed, starved = (
        make(made.run(), made.machine(64, power_limit_w=watts)).limits for watts in (1e6, 2e4)
    )
    assert fed.refused == ()
    assert fed.binds.word != "power"
    assert "the feed gives 20.0 kW" in starved.refused[0]
    assert starved.binds.word == "power"
    assert starved.binds.number > 2


def test_racks_fail_by_their_accelerators() -> None:
    rack, tray = (of_catalog("GB200", 576, per_node) for per_node in (72, 4))
    found = [make(made.run(), machine).life.recovery.mtbf_s for machine in (rack, tray)]
    assert found[0] == pytest.approx(found[1])
