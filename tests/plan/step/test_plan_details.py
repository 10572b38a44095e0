"""Details of the step that a reviewer once found wrong; each has its number."""

from dataclasses import replace

import pytest

from penstock.errors import PenstockError
from penstock.plan.hardware import network
from penstock.plan.hardware.machine import of_catalog
from penstock.plan.job.constants import Constants
from penstock.plan.job.job import Adapter
from penstock.plan.job.layout import Layout
from penstock.plan.job.partition import rank_params
from penstock.plan.search.search import SearchSpace, require_fit, search
from penstock.plan.step import operators, step
from planned_jobs import DENSE, SPARSE, job, machine

C = Constants()


def test_replicas_of_experts_agree_on_all_that_a_rank_keeps() -> None:
    lay = Layout(replicate=2, shard=8, expert=8)
    of = job(lay, SPARSE, software=replace(job(lay, SPARSE).software, overlap_data=False))
    common, routed, _ = rank_params(of.shape, lay, 0)
    group = network.group(of.machine, 2, 8)
    # Eight ranks share what all tokens use; of its own experts a rank keeps everything.
    kept = common / 8 + routed
    sent = network.all_reduce_s(group, kept * of.software.reduce_bytes)
    assert step.predict(of, C).parts["reduce"] == pytest.approx(sent)


def test_frozen_weights_that_are_sharded_have_to_travel_too() -> None:
    whole = step.predict(job(Layout(16), adapter=Adapter()), C).parts
    sharded = step.predict(job(Layout(1, 16), adapter=Adapter()), C).parts
    narrow = step.predict(job(Layout(1, 16), adapter=Adapter(bits=4)), C).parts
    assert whole["gather"] == 0 < narrow["gather"] < sharded["gather"]


def test_gradients_inside_a_context_group_are_reduced_once() -> None:
    parts = step.predict(job(Layout(context=2), on=machine(2)), C).parts
    assert parts["gather"] > 0
    assert parts["reduce"] == 0


def test_routed_activations_are_shared_by_tensor_ranks() -> None:
    wide = replace(SPARSE, expert_ffn=64 * SPARSE.expert_ffn)

    def routed(tensor: int) -> float:
        """What 63 more widths of an expert add."""
        found = []
        for shape in (SPARSE, wide):
            of = job(Layout(tensor=tensor), shape, on=machine(8))
            one = operators.layer_seconds(of, C, operators.device_rates(of, C), True)
            found.append(one.elementwise.forward)
        return found[1] - found[0]

    assert routed(4) == pytest.approx(routed(1) / 4)


def test_attention_and_head_of_a_wide_run_are_wide() -> None:
    of = job(Layout(), on=machine(1))
    wide = replace(of, precision="fp32")
    rates = {"fp32": 50e12, "bf16": 800e12}
    times = [
        step.predict(replace(j, machine=replace(j.machine, matmul_flops=rates, tdp_w=None)), C)
        for j in (of, wide)
    ]
    assert times[1].parts["attention"] > 10 * times[0].parts["attention"]
    assert times[1].parts["loss"] > 3 * times[0].parts["loss"]


def test_a_node_ends_the_domain_unless_the_rack_is_one() -> None:
    assert of_catalog("H100", 8, per_node=4).tiers[0].size == 4
    assert of_catalog("H100", 8, per_node=1).tiers[0].name == "scale-out"
    assert of_catalog("GB200", 64, per_node=4).tiers[0].size == 64


def test_nothing_fits_is_said_of_the_space_that_was_searched() -> None:
    small = replace(machine(4), memory_bytes=2**28)
    of = job(Layout(4), DENSE, on=small)
    space = SearchSpace(shard=(1,), tensor=(1,), pipeline=(1,), context=(1,))
    with pytest.raises(PenstockError, match=r"out of memory by [1-9\d.,]+ GiB") as error:
        require_fit(search(of, 4, space), of, 4, space)
    assert "4 replicate × 1 shard" in str(error.value)
