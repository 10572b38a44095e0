"""The doctor's parts: rounds of pairs, what readings mean, sockets, products, and the verb."""

import json
import queue
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import commands
from penstock import __version__
from penstock.guard.detect.failpoints import Failpoint, arm
from penstock.launch.doctor import accelerator, equality, judge, link_node
from penstock.launch.doctor.finding import Finding, bad
from penstock.launch.doctor.lines import ERROR, Answer, LineProcess, collect
from penstock.launch.doctor.links import MeasuredLink, judge_links, rounds
from penstock.launch.doctor.probe_nodes import BETWEEN, merged
from penstock.plan.job.layout import Layout
from penstock.run.clusters.file import ClusterFile

NODES = [f"n{number}" for number in range(1, 5)]


# Links


@given(st.integers(0, 40))
def test_each_two_nodes_meet_once_and_none_is_in_two_pairs(count: int) -> None:
    nodes = [f"n{number}" for number in range(count)]
    seen: Counter[frozenset[str]] = Counter()
    for pairs in rounds(nodes, most=count):
        inside = [node for pair in pairs for node in pair]
        assert len(inside) == len(set(inside))
        seen.update(frozenset(pair) for pair in pairs)
    assert len(seen) == count * (count - 1) // 2
    assert set(seen.values()) <= {1}


def test_a_large_cluster_has_a_bounded_number_of_rounds() -> None:
    nodes = [f"n{number}" for number in range(1000)]
    every = list(rounds(nodes))
    assert len(every) == 15
    met = Counter(node for pairs in every for pair in pairs for node in pair)
    assert set(met.values()) == {15}
    assert all(first != second for first, second in pairwise(every))


def links(**slow: float) -> list[MeasuredLink]:
    """Links of 100 MB/s between four nodes; those of a named node do so many."""
    return [
        MeasuredLink((a, b), "", min(slow.get(a, 1e8), slow.get(b, 1e8)), 1e-4)
        for at, a in enumerate(NODES)
        for b in NODES[at + 1 :]
    ]


def levels(found: list[Finding]) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.level, one.nodes) for one in found]


def test_a_slow_node_is_named_and_not_its_peers() -> None:
    assert levels(judge_links(links(), None, False, 4)) == [("ok", ())]
    [found] = judge_links(links(n3=5e6), None, False, 4)
    assert (found.level, found.nodes) == ("bad", ("n3",))
    assert "5 MB/s, and others do 100 MB/s" in found.words
    both = judge_links(links(n1=5e6, n3=5e6), None, False, 4)
    assert sorted(one.nodes for one in both) == [("n1",), ("n3",)]


def test_a_slow_node_of_three_is_named() -> None:
    every = [MeasuredLink(("a", "b"), "", 1e8, 1e-4)]
    every += [MeasuredLink((node, "c"), "", 1e7, 1e-4) for node in "ab"]
    assert levels(judge_links(every, None, False, 3)) == [("bad", ("c",))]


def test_one_slow_link_names_its_two_ends() -> None:
    every = links()
    every[1] = MeasuredLink(every[1].pair, "", 1e6, 1e-4)
    [found] = judge_links(every, None, False, 4)
    assert found.nodes == every[1].pair
    assert not found.spoils  # a run without both would lose more than the link


def test_of_nodes_that_cannot_meet_the_fewest_are_left_out() -> None:
    def cut(*pairs: tuple[str, str]) -> list[Finding]:
        every = [replace(one, problem="refused" * (one.pair in pairs)) for one in links()]
        return judge_links(every, None, False, 4)

    [one] = cut(("n1", "n3"))
    assert (one.nodes, one.spoils) == (("n3",), True)
    assert "no connection to n1: refused" in one.words
    assert "cluster.interface" in one.fix
    [all_of_one] = cut(("n1", "n2"), ("n2", "n3"), ("n2", "n4"))
    assert all_of_one.nodes == ("n2",)
    assert "to 3 of the others" in all_of_one.words
    halves = cut(("n1", "n2"), ("n1", "n4"), ("n2", "n3"), ("n3", "n4"))
    assert len(halves) == 2
    two = [MeasuredLink(("n1", "n2"), "refused", 0.0, 0.0)]
    assert levels(judge_links(two, None, False, 2)) == [("bad", ("n1", "n2"))]


def test_links_are_held_to_the_cluster_file_unless_nccl_does_the_talking() -> None:
    file = ClusterFile.model_validate(
        {
            "accelerator": {"name": "x"},
            "node": {"accelerators": 2},
            "tier": [
                {"name": "node", "size": 2, "bandwidth": "9 GB/s"},
                {"name": "switch", "size": 8, "bandwidth": "0.4 GB/s", "oversubscription": 2},
            ],
        }
    )
    found = judge_links(links(), file, False, 4)  # 100 MB/s, and 2 × 0.4 / 2 GB/s stated
    assert {one.level for one in found} == {"bad"}
    assert "the cluster file says 400 MB/s" in found[0].words
    assert levels(judge_links(links(), file, True, 4)) == [("ok", ())]


def test_only_a_peer_with_the_token_is_served() -> None:
    token = link_node.new_token()
    listener = link_node.LinkListener(token, "lo")
    try:
        found = link_node.measure(listener.addresses, listener.port, token, 0.05)
        assert found["problem"] == ""
        assert found["bytes_per_s"] > 1e6
        assert 0 <= found["waited"] <= 0.9
        assert 0 < found["latency_s"] < 1
        strange = link_node.measure(listener.addresses, listener.port, link_node.new_token(), 0.05)
        assert "the connection broke" in strange["problem"]
    finally:
        listener.close()
    gone = link_node.measure(listener.addresses, listener.port, token, 0.05)
    assert "no connection to 127.0.0.1" in gone["problem"]


# What readings mean


def test_clocks_allow_for_the_time_of_the_question() -> None:
    def off(**offsets: tuple[float, float]) -> list[tuple[str, ...]]:
        return [one.nodes for one in judge.judge_clocks(offsets) if one.level == "bad"]

    assert off(a=(0.1, 0.01), b=(-0.3, 0.01)) == []
    assert off(a=(0.0, 0.01), b=(180.0, 0.01), c=(0.0, 0.01)) == [("b",)]
    assert off(a=(-180.0, 0.01), b=(0.0, 0.01)) == [("a",)]
    assert off(a=(3.0, 2.5)) == [], "the question took five seconds"
    # The nodes agree, and this machine's clock is the odd one.
    assert off(a=(50.0, 0.01), b=(50.0, 0.01)) == []


def test_versions_are_compared_with_this_machine_and_with_most_nodes() -> None:
    usual = {
        "penstock": __version__, "torch": "2", "python": "3.11.7", "driver": "", "nccl": "",
        "cryptography": "50",
    }  # fmt: skip

    def named(**changed: dict[str, str]) -> list[tuple[str, ...]]:
        answers = {node: usual | changed.get(node, {}) for node in NODES}
        return [one.nodes for one in judge.judge_software(answers) if one.level == "bad"]

    assert named() == []
    assert named(n2={"python": "3.11.9"}) == []
    assert named(n2={"python": "3.12.1"}) == [("n2",)]
    assert named(n1={"torch": "1"}, n4={"driver": "560"}) == [("n1",), ("n4",)]
    assert named(**{key: {"penstock": "9"} for key in NODES}) == [(node,) for node in NODES]


def test_data_must_be_whole_and_the_same() -> None:
    def one(id_: str, *problems: str, missing: str = "") -> dict:
        facts = {"dataset": "d", "id": id_, "missing": missing, "problems": list(problems)}
        return {"datasets": [facts]}

    store = {key: {"problem": ""} for key in "abc"}
    same = {"a": one("d@1"), "b": one("d@1"), "c": one("d@1")}
    assert levels(judge.judge_data(same, store)) == [("ok", ())]
    assert levels(judge.judge_data(same | {"c": one("d@2")}, store)) == [("bad", ("c",))]
    assert levels(judge.judge_data(same | {"b": one("d@1", "broken")}, store)) == [("bad", ("b",))]
    found = judge.judge_data(same | {"a": one("", missing="built later")}, store)
    assert levels(found) == [("note", ("a",)), ("ok", ())]
    away = store | {"b": {"problem": "403"}}
    assert levels(judge.judge_data(same, away)) == [("bad", ("b",))]


def test_a_finding_says_who_what_and_what_to_do() -> None:
    assert str(bad("disk", ("a", "b"), "full", "make room")) == "a, b: full; make room"


# Accelerators and layouts


def test_products_and_memory_of_this_cpu_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    monkeypatch.setitem(accelerator.MATMUL_S, "cpu", 0.0)
    cpu = torch.device("cpu")
    assert accelerator.known_answer(cpu, 0)["wrong"] == {}
    assert accelerator.memory_pattern(cpu)["wrong"] == 0
    arm(tmp_path / "doctor" / "traps", Failpoint("wrong", "flip", "matmul", rank=1))
    assert accelerator.known_answer(cpu, 0)["wrong"] == {}, "it is armed for the other one"
    assert accelerator.known_answer(cpu, 1)["wrong"] == {"fp32": 1}
    facts = {"matmul": {"wrong": {"fp32": 1}, "side": 8, "flops": 1.0}, "memory": {"wrong": 2}}
    found = judge.judge_accelerators({"a": {"3": facts}})
    assert levels(found) == [("bad", ("a",))] * 2
    assert found[0].words.startswith("accelerator 3: 1 wrong of 64 sums")


@given(st.integers(1, 64))
def test_every_layout_that_is_tried_uses_all_ranks(ranks: int) -> None:
    tried = equality.layouts_to_try(ranks, None, "cpu")
    assert all(Layout(**layout).ranks == ranks for layout in tried)
    assert [equality.describe(layout) for layout in tried] == list(
        dict.fromkeys(equality.describe(layout) for layout in tried)
    )


def test_a_difference_beyond_rounding_is_one() -> None:
    one = {"losses": [2.0, 1.5], "norms": [1.0, 0.5]}
    assert equality.differences(one, one, "cpu") == ""
    near = {"losses": [2.0, 1.5 * (1 + 1e-12)], "norms": [1.0, 0.5]}
    assert equality.differences(one, near, "cpu") == ""
    other = {"losses": [2.0, 1.5], "norms": [1.0, 0.5 * (1 + 1e-7)]}
    assert equality.differences(one, other, "cpu").startswith("norm 0.50000005 at step 2")


# Processes


CHILD = """
from penstock.launch.doctor.lines import serve
print("noise")
serve("n1", {"add": lambda order: {"sum": order["a"] + 1}, "fail": lambda order: 1 / 0,
             "end": lambda order: __import__("os")._exit(3)})
"""


def test_orders_are_answered_in_turn_and_a_dead_process_is_no_wait() -> None:
    answers: queue.Queue[Answer] = queue.Queue()
    process = LineProcess([sys.executable, "-c", CHILD], answers, "n1")

    def ask(number: int, **order: object) -> Answer:
        process.send({"id": number, "to": ["n1"], **order})
        return collect(answers, number, ["n1"], 60.0, lambda node: process)["n1"]

    try:
        process.send({"id": 0, "to": ["somebody else"], "do": "end"})
        assert ask(1, do="add", a=1) == {"sum": 2}
        assert ask(2, do="fail") == {ERROR: "ZeroDivisionError: division by zero"}
        assert ask(3, do="add", a=2) == {"sum": 3}
        assert ERROR in ask(4, do="end")
        assert ERROR in ask(5, do="add", a=3), "it is gone, which is known at once"
    finally:
        process.close()


def test_the_short_form_of_this_machine(tmp_path: Path, run_file) -> None:  # type: ignore[no-untyped-def]
    said = json.loads(commands.run("doctor", str(run_file("checked")), "--short", "--json").stdout)
    assert said["ok"]
    assert {one["check"] for one in said["findings"]} >= {"versions", "clocks", "disk", "data"}


@pytest.mark.slow
def test_the_full_form_of_this_machine(run_file) -> None:  # type: ignore[no-untyped-def]
    said = json.loads(commands.run("doctor", str(run_file("whole")), "--json").stdout)
    good = {one["check"]: one["words"] for one in said["findings"] if one["level"] == "ok"}
    assert "tensor 2" in good["layouts"]


def test_a_cluster_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    said = commands.run("doctor", "--on", str(tmp_path / "none.toml"), code=2).stderr
    assert "no such file" in said
    (tmp_path / "sky.toml").write_text('launcher = "sky"\n')
    said = commands.run("doctor", "--on", str(tmp_path / "sky.toml"), code=2).stderr
    assert 'launcher = "sky"' in said
    (tmp_path / "local.toml").write_text('launcher = "local"\n')
    said = commands.run("probe", "--on", str(tmp_path / "local.toml"), code=2).stderr
    assert 'launcher = "local": --on probes the nodes behind a launcher' in said


def test_probes_of_nodes_become_one_cluster_file() -> None:
    def node(rate: str) -> ClusterFile:
        return ClusterFile.model_validate(
            {
                "accelerator": {"name": "x", "matmul": {"fp32": rate}},
                "node": {"accelerators": 2},
                "tier": [{"name": "node", "size": 2, "bandwidth": "9 GB/s"}],
            }
        )

    before = ClusterFile.model_validate(
        {
            "name": "mine",
            "launcher": "ssh",
            "accelerator": {"name": "unmeasured"},
            "ssh": {"hosts": ["a", "b"], "key": "k"},
            "price": {"usd_per_hour": 2.0},
        }
    )
    link = MeasuredLink(("a", "b"), "", 8e8, 2e-5)
    file, notes = merged(before, {"a": node("9 TFLOP/s"), "b": node("6 TFLOP/s")}, [link])
    assert (file.name, file.launcher, file.nodes) == ("mine", "ssh", 2)
    assert (file.ssh, file.price) == (before.ssh, before.price)
    assert file.accelerator.matmul.fp32 == 6e12
    [inside, between] = file.tier
    assert (inside.name, between.name, between.size) == ("node", BETWEEN, 4)
    assert between.bandwidth == pytest.approx(4e8)
    assert notes == [
        "b multiplies at 67% of the speed of a; the file describes the slowest, since the others "
        "wait for it"
    ]
