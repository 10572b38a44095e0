"""What replicas exchange, in a plan: bytes, seconds, memory, utilisation and loss."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from penstock.catalog import rounds
from penstock.catalog.models import find as model
from penstock.cli.main import app
from penstock.plan.hardware.machine import NetworkTier, of_catalog
from penstock.plan.job.job import Job, ReplicaSync
from penstock.plan.job.layout import Layout
from penstock.plan.job.own import COMPILED
from penstock.plan.loss_cost import loss_cost
from penstock.plan.make import make
from penstock.plan.memory import memory, state
from penstock.plan.step import outer, step
from penstock.policy.rounds import Rounds
from penstock.run.schema.run import Run

SHAPE = model("llama-1b").shape
TWO_BIT, FOUR_BIT = ReplicaSync(30, "int2"), ReplicaSync(30, "int4")


def slow(nodes=2, per_node=8, bytes_per_s=125e6, hop_s=0.03):
    """Return nodes with fast links inside and slow ones between them."""
    inside = of_catalog("H100", per_node, per_node)
    total = nodes * per_node
    tiers = (
        NetworkTier("scale-up", per_node, 360e9, 3e-6),
        NetworkTier("wan", total, bytes_per_s, hop_s),
    )
    return replace(inside, nodes=nodes, tiers=tiers)


def job(sync=TWO_BIT, nodes=2, batch=256, **link):
    layout = Layout(replicate=nodes, shard=8, microbatch=4)
    return Job(SHAPE, 2048, batch, layout, slow(nodes, **link), software=COMPILED, sync=sync)


def planned(**train):
    run = Run.model_validate(
        {
            "name": "x",
            "model": {"preset": "llama-1b"},
            "data": {"sequence": 2048},
            "train": {"steps": 1000, "batch_tokens": 524288, "precision": "bf16", **train},
            "layout": {"replicate": 2, "shard": 8},
            "cluster": {"use": "H100"},
        }
    )
    return make(run, slow())


def test_inner_steps_do_not_use_the_slow_link():
    apart = step.predict(job())
    together = step.predict(job(ReplicaSync()))
    assert "reduce" not in apart.parts or apart.parts["reduce"] == 0.0
    assert together.parts["reduce"] > 1.0
    assert apart.step_s < together.step_s / 2
    # Another speed of the slow link changes the exchange and nothing else.
    other = step.predict(job(bytes_per_s=12.5e6))
    changed = {n for n in other.parts if other.parts[n] != apart.parts[n]}
    assert changed == {"exchange"}


def test_the_exchange_takes_its_bytes_over_the_link_and_the_hops():
    one = job()
    found = outer.outer_time(one, 1.0)
    assert found.sent_bytes == found.message_bytes  # one other replica
    assert found.transfer_s == pytest.approx(found.message_bytes / 125e6 + 0.03)
    assert found.agree_s == pytest.approx(2 * 0.03, rel=0.01)
    parts = outer.parts(one, 1.0)
    assert parts["exchange"] == pytest.approx((found.transfer_s + found.agree_s) / 30)
    assert parts["outer"] == pytest.approx(found.work_s / 30)


def test_more_replicas_send_more_often_and_decode_more():
    two, four = outer.outer_time(job(), 1.0), outer.outer_time(job(nodes=4), 1.0)
    assert four.message_bytes == two.message_bytes
    assert four.sent_bytes == 3 * two.sent_bytes
    assert four.decode_s == pytest.approx(2 * two.decode_s)
    assert four.encode_s == two.encode_s


@given(st.floats(0.0, 2.0), st.integers(1, 5))
def test_streaming_hides_what_fits_behind_the_steps_in_between(inner_s, parts):
    sync = ReplicaSync(30, "int4", parts)
    found = outer.outer_time(job(sync), inner_s)
    late = Rounds(30, 30, parts).late_steps
    each = found.transfer_s / parts
    assert found.exposed_s == pytest.approx(parts * max(0.0, each - late * inner_s))
    assert found.hidden_s >= 0
    if parts == 1:
        assert found.hidden_s == 0


def test_utilisation_rises_with_the_length_of_a_round():
    plans = [planned(sync={"local_steps": n, "compress": "int4"}) for n in (5, 30, 200)]
    shares = [plan.sync.utilization for plan in plans]
    assert shares == sorted(shares)
    assert shares[-1] > 0.99 > shares[0]
    for plan in plans:
        assert plan.step.inner_s / plan.step.step_s == pytest.approx(plan.sync.utilization)
        waits = plan.step.parts["exchange"] * plan.life.steps * 16
        assert plan.life.ledger.seconds["communicate"] >= waits


def test_data_parallel_has_an_account_too():
    plain, narrow = planned(), planned(sync={"compress": "int8"})
    assert plain.sync.fewer == pytest.approx(1.0)
    assert narrow.sync.fewer == pytest.approx(4 / (1 + 2 / 128))
    assert plain.sync.utilization < narrow.sync.utilization < 0.6
    assert plain.sync.loss.basis == "exact"
    assert plain.to_json()["sync"]["exchange"] is None


def test_anchor_momentum_and_what_is_owed_are_in_memory():
    apart, exact, together = (
        memory.predict(job(sync))
        for sync in (ReplicaSync(30, "int2"), ReplicaSync(30, "none"), ReplicaSync())
    )
    held = SHAPE.params() / 8
    assert apart.parts["outer"] == pytest.approx(12 * held, rel=1e-3)
    assert exact.parts["outer"] == pytest.approx(8 * held, rel=1e-3)
    assert together.parts["outer"] == 0


@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 7))
def test_a_part_is_sent_as_often_as_the_calendar_says(steps, length, parts):
    calendar = Rounds(steps, length, min(parts, length))
    for part in range(calendar.parts):
        sent = sum(part in calendar.leaving(step) for step in range(1, steps + 1))
        assert calendar.times_leaving(part) == sent
    assert calendar.count == sum(calendar.ends(step) for step in range(1, steps + 1))


def test_bytes_by_tier_are_what_leaves_the_nodes():
    # Two replicas of four ranks in each of two nodes: one of two in a ring sends to the other node.
    layout = Layout(replicate=4, shard=4, microbatch=4)
    run = Run.model_validate(
        {
            "name": "x",
            "model": {"preset": "llama-1b"},
            "data": {"sequence": 2048},
            "train": {
                "steps": 90,
                "batch_tokens": 524288,
                "sync": {"local_steps": 30, "compress": "int4"},
            },
            "layout": {"replicate": 4, "shard": 4},
            "cluster": {"use": "H100"},
        }
    )
    found = make(run, slow(), layout=layout).sync
    assert sum(found.by_tier.values()) == pytest.approx(found.sent_bytes / 30)
    assert found.by_tier["wan"] == pytest.approx(found.by_tier["scale-up"])


def cost(optimizer="muon", replicas=4, sync=FOUR_BIT, small=False):
    shape = replace(model("llama-3m").shape) if small else SHAPE
    tokens = 8192 * replicas
    one = Job(shape, 256, tokens // 256, Layout(replicate=replicas), slow(replicas, 1), sync=sync)
    return loss_cost(optimizer, replicas, sync, one)


def test_a_measured_loss_is_claimed_only_for_its_setting():
    own = cost(small=True)
    assert own.basis == "measured"
    row = rounds.find("Muon K4 H30 int4")
    assert (own.low, own.high) == (row.low, row.high)
    other = cost()
    assert other.basis == "estimated"
    assert other.low <= own.low < own.high <= other.high
    between = cost(sync=ReplicaSync(20, "int4"))
    assert between.basis == "estimated"
    assert between.low < rounds.find("Muon K4 H10 int4").high
    assert between.high > rounds.find("Muon K4 H30 int4").low


@pytest.mark.parametrize(
    ("optimizer", "replicas", "sync"),
    [
        ("muon", 4, ReplicaSync(5000, "int4")),
        ("muon", 16, ReplicaSync(30, "int4")),
        ("adamw", 4, ReplicaSync(30, "int2")),
    ],
)
def test_nothing_is_claimed_where_nothing_near_was_measured(optimizer, replicas, sync):
    found = cost(optimizer, replicas, sync)
    assert (found.low, found.high, found.basis) == (None, None, "unknown")
    assert found.words() == "not known"


CLUSTER = """
nodes = 2
[accelerator]
name = "H100"
[[tier]]
name = "node"
size = 8
bandwidth = "360 GB/s"
[[tier]]
name = "wan"
size = 16
bandwidth = "{rate}"
latency = "30 ms"
"""
RUN = """
name = "two-buildings"
[model]
preset = "llama-1b"
[train]
steps = 1000
batch_tokens = 524288
[train.sync]
local_steps = 30
compress = "int2"
[layout]
replicate = 2
"""


def test_one_command_answers_what_a_link_and_a_cadence_do(tmp_path):
    (tmp_path / "run.toml").write_text(RUN)

    def asked(rate, *fields):
        (tmp_path / "two.toml").write_text(CLUSTER.format(rate=rate))
        use = f"cluster.use={tmp_path / 'two.toml'}"
        words = ["plan", str(tmp_path / "run.toml"), use, "--json", *fields]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["sync"]

    shares = [asked(rate)["utilization"] for rate in ("20 Mbit/s", "200 Mbit/s", "1 Gbit/s")]
    assert shares == sorted(shares)
    assert shares[0] < 0.6 < 0.95 < shares[-1]
    longer = asked("20 Mbit/s", "train.sync.local_steps=300")
    assert longer["utilization"] > 0.85
    assert longer["link"] == {
        "tier": "wan",
        "bytes_per_s": 2.5e6,
        "hop_s": 0.03,
        "source": "cluster file two",
    }


def site(layout):
    machine, sync = of_catalog("H100", 8, 8), ReplicaSync(30, "int2", sites=2)
    return Job(SHAPE, 2048, 128, layout, machine, software=COMPILED, sync=sync)


def test_a_site_publishes_the_same_bytes_in_every_layout():
    sizes = {
        outer.message_bytes(site(layout))
        for layout in (
            Layout(),
            Layout(replicate=8),
            Layout(shard=8),
            Layout(shard=2, tensor=2, pipeline=2),
        )
    }
    assert len(sizes) == 1
    one = replace(site(Layout()), sync=ReplicaSync(30, "int2"), layout=Layout(replicate=2))
    assert sizes == {outer.message_bytes(one)}  # of a replica that holds the whole model


def test_a_site_that_shards_keeps_a_share_and_works_on_a_bucket_at_a_time():
    def parts(layout):
        return state.outer_bytes(site(layout), 0)

    whole, shared = parts(Layout(replicate=8)), parts(Layout(shard=8))
    assert shared.kept == pytest.approx(whole.kept / 8, rel=0.01)
    bucket = 4 * (1 << 24)
    assert whole.passing == shared.passing == 7 * bucket


def test_ranks_of_a_site_that_hold_parts_gather_them_on_one():
    alone, copies, shards = (
        outer.outer_time(site(layout), 1.0)
        for layout in (Layout(), Layout(replicate=8), Layout(shard=8))
    )
    assert alone.agree_s == 0.0 < copies.agree_s < shards.agree_s
    assert shards.encode_s == copies.encode_s
    assert shards.apply_s < copies.apply_s / 7
