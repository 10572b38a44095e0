"""`train.sync.local_steps = "auto"`: what the planner chooses for a link, and how it is kept."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.plan.agreement import settled
from penstock.plan.hardware.machine import NetworkTier, SiteLink, of_catalog
from penstock.plan.job.codecs import deflated_share
from penstock.plan.make import make
from penstock.plan.step import outer
from penstock.policy.agreement import ENOUGH, AgreementOption, choose
from penstock.run.diff import diff, with_old_choices
from penstock.run.fingerprint import fingerprint
from penstock.run.schema.run import Run


def run_of(**sections):
    base = {
        "name": "x",
        "model": {"preset": "llama-1b"},
        "data": {"sequence": 2048},
        "train": {"steps": 3000, "batch_tokens": 524288, "sync": {"local_steps": "auto"}},
        "cluster": {"use": "H100"},
    }
    return Run.model_validate(base | sections)


def auto(train=None, sync=None, **sections):
    given = {"steps": 3000, "batch_tokens": 524288, "sync": {"local_steps": "auto"} | (sync or {})}
    return run_of(train=given | (train or {}), **sections)


def nodes(bytes_per_s, count=2):
    inside = of_catalog("H100", 8, 8)
    tiers = (
        NetworkTier("scale-up", 8, 360e9, 3e-6),
        NetworkTier("wan", 8 * count, bytes_per_s, 0.03),
    )
    return replace(inside, nodes=count, tiers=tiers)


def test_a_fast_network_keeps_data_parallel_and_a_slow_one_takes_local_steps():
    fast, _ = settled(auto(), nodes(400e9))
    assert (fast.train.sync.local_steps, fast.train.sync.compress) == (1, "none")
    assert fast.layout is None
    slow, choice = settled(auto(), nodes(125e6))
    assert slow.train.sync.apart
    assert slow.train.optimizer == "muon"
    assert slow.layout.replicate == 2
    assert choice.chosen.utilization >= ENOUGH
    assert choice.chosen.loss_high is not None
    assert "cluster" in choice.link or "catalog" in choice.link


def test_a_slower_link_never_gets_shorter_rounds():
    lengths = [
        settled(auto(), nodes(rate))[0].train.sync.inner_steps for rate in (1e11, 1e9, 1e8, 1e7)
    ]
    assert lengths == sorted(lengths)


def test_what_the_file_says_stays():
    run = auto({"optimizer": "adamw"}, {"compress": "int8"}, layout={"replicate": 4, "shard": 4})
    found, choice = settled(run, nodes(125e6))
    assert found.train.optimizer == "adamw"
    assert found.train.sync.compress == "int8"
    assert found.layout.replicate == 4
    assert {o.codec for o in choice.options} == {"int8"}
    assert {o.optimizer for o in choice.options} == {"adamw"}


def test_replicas_stand_on_both_sides_of_the_slowest_network_and_shards_inside():
    tiers = (
        NetworkTier("scale-up", 8, 360e9, 3e-6),
        NetworkTier("scale-out", 16, 40e9, 1e-5),
        NetworkTier("wan", 32, 125e6, 0.03),
    )
    four = replace(of_catalog("H100", 32, 8), tiers=tiers)
    plan = make(auto(), four)
    assert (plan.job.layout.replicate, plan.job.layout.shard) == (2, 16)
    assert plan.sync.link.tier == "wan"
    # Sixteen ranks are one side of the slow link: more replicas are as good, one is not.
    for replicate, cut in ((2, False), (4, False), (1, False)):
        layout = {"replicate": replicate, "shard": 32 // replicate}
        steps = 30 if replicate > 1 else 1
        told = make(auto(sync={"local_steps": steps}, layout=layout), four).warnings
        assert any("uses wan in every step" in note for note in told) is cut
    eight = replace(four, tiers=(*tiers[:1], replace(tiers[1], size=8), tiers[2]))
    told = make(auto(sync={"local_steps": 30}, layout={"replicate": 2, "shard": 16}), eight)
    assert any("write 4" in note for note in told.warnings)


def test_one_node_has_nothing_to_choose():
    found, choice = settled(auto(), of_catalog("H100", 8, 8))
    assert found.train.sync.local_steps == 1
    assert choice.chosen is None
    assert "is 1" in choice.words()


def test_rounds_are_no_longer_than_a_tenth_of_the_run():
    found, choice = settled(auto({"steps": 200}), nodes(1e7))
    assert max(o.local_steps for o in choice.options) == 10
    assert found.train.sync.inner_steps <= 10


def test_the_plan_says_what_was_chosen_and_every_way_that_was_looked_at():
    plan = make(auto(), nodes(125e6))
    table = plan.to_json()["agreement"]
    assert table["chosen"]["local_steps"] == plan.sync.local_steps
    assert plan.sync.utilization == pytest.approx(table["chosen"]["utilization"], rel=0.02)
    assert len(table["options"]) == 15
    assert any('local_steps = "auto" is' in note for note in plan.warnings)
    assert plan.explain("agreement")


def test_the_fingerprint_is_of_what_was_chosen_and_a_resume_keeps_it():
    asked = auto()
    begun, _ = settled(asked, nodes(125e6))
    written = auto(
        {"optimizer": begun.train.optimizer},
        {
            "local_steps": begun.train.sync.local_steps,
            "compress": begun.train.sync.compress,
            "stream": begun.train.sync.stream,
        },
        layout={"replicate": 2},
    )
    assert fingerprint(begun) == fingerprint(
        written.model_copy(update={"train": written.train.model_copy(update={"precision": "bf16"})})
    )
    assert diff(begun, asked) == []
    resumed = with_old_choices(begun, asked)
    assert resumed.train.sync.local_steps == begun.train.sync.local_steps
    assert resumed.layout.replicate == 2


def test_own_code_is_refused_in_one_message():
    run = run_of(
        model={"module": "my.py:build"},
        train={
            "steps": 300,
            "batch_tokens": 65536,
            "learning_rate": 1e-3,
            "sync": {"local_steps": "auto"},
        },
    )
    with pytest.raises(PenstockError, match="write a number of steps"):
        settled(run, nodes(1e8))


def test_sites_get_their_share_of_the_batch_and_the_slowest_of_their_links():
    links = (SiteLink("a", 2.5e6, 5e6, 0.06), SiteLink("b", 1.25e6, 5e6, 0.06))
    machine = replace(of_catalog("H100", 8, 8), site_links=links)
    run = auto(sites={"bucket": "s3://b/x", "name": "a"})
    plan = make(run, machine)
    assert plan.step.tokens == 524288 // 2
    assert plan.sync.replicas == 2
    assert plan.sync.link.bytes_per_s == 1.25e6
    size = plan.sync.published_bytes
    expected = size / 1.25e6 + size / 5e6 + size / 170e6 + size / 300e6 + 5 * 0.06
    assert size == pytest.approx(outer.message_bytes(plan.job) * deflated_share(plan.sync.codec))
    assert plan.sync.outer.transfer_s == pytest.approx(expected, rel=1e-6)
    assert plan.sync.by_tier == {"bucket": pytest.approx(size / plan.sync.local_steps)}
    assert any("1/2 of each batch" in note for note in plan.warnings)


def option(steps, utilization, high, parts=1):
    low = None if high is None else high - 0.01
    return AgreementOption(steps, "int4", parts, "muon", utilization, low, high, 100.0, 1.0)


def test_the_least_loss_among_those_that_compute_enough():
    ways = [option(1, 0.1, 0.0), option(10, 0.9, 0.02), option(30, 0.99, 0.03)]
    assert choose(ways)[0].local_steps == 10
    assert choose(ways[:1])[0].local_steps == 1
    found, why = choose([ways[0], option(100, 0.95, None), option(300, 0.99, None)])
    assert found.local_steps == 100
    assert "nobody has measured" in why


@given(
    st.lists(
        st.builds(
            option,
            st.integers(1, 100),
            st.floats(0.01, 1),
            st.one_of(st.none(), st.floats(-0.05, 0.2)),
        ),
        min_size=1,
    )
)
def test_no_way_with_a_known_smaller_loss_that_computes_enough_is_passed_over(ways):
    found, why = choose(ways)
    assert found in ways
    assert why
    enough = [o for o in ways if o.loss_high is not None and o.utilization >= ENOUGH]
    if enough:
        assert found.loss_high == min(o.loss_high for o in enough)
