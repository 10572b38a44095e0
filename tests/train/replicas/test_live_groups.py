"""Groups between replicas that are made again when one is killed: real processes, real sockets."""

import os
import signal
from pathlib import Path

import pytest

from live_ranks import run

STEPS = 6


def _sums(
    replicas: int, shard: int, victims: dict[int, tuple[int, str]], alone: bool = False
) -> list[tuple]:
    """For each step the members' sum of 1 per rank. Victims die once, at a step and a place in it;
    as in training, a step counts when its vote is through. Ends when all are back."""
    import torch

    from penstock.plan.job.layout import Layout
    from penstock.train.replicas.live_world import PeerLost, join_live

    world = join_live(Layout(replicate=replicas, shard=shard), "cpu", 20.0)
    rank, membership = int(os.environ["RANK"]), world.replica_group.membership
    if world.life:
        membership.announce_ready(world.replica_group.replica, world.life)

    def die(step: int, place: str) -> None:
        if victims.get(rank) == (step, place) and not world.life:
            os.kill(os.getpid(), signal.SIGKILL)

    def level(step: int) -> int:
        """All go on where the furthest is."""
        while True:
            try:
                world.enter(step)
                steps = world.replica_group.all_gather(torch.tensor([step]))
                world.agree()
                return int(steps.max())
            except PeerLost:
                continue

    step, found = level(0), []
    while step < STEPS or not (alone or (found and len(found[-1][1]) == replicas)):
        try:
            die(step + 1, "reduce")
            part = world.sum_replicas_(torch.ones(1 << 16))
            die(step + 1, "vote")
            asked = float(world.lead and world.replica_group.newer())
            votes, join = world.sum_(torch.tensor([1.0, asked])).tolist()
            die(step + 1, "voted")
            step += 1
            found.append((step, world.replica_group.members, part[0].item(), votes))
            if join:
                raise PeerLost
        except PeerLost:
            step = level(step)
    world.finish_together(step)
    return found


def check(found: dict[int, list[tuple]], shard: int) -> None:
    for steps in found.values():
        for _, members, part, votes in steps:
            assert part == len(members)
            assert votes == len(members) * shard


@pytest.mark.parametrize("place", ["reduce", "vote", "voted"])
def test_survivors_go_on_and_take_the_lost_one_back(tmp_path: Path, place: str) -> None:
    found, notes = run(tmp_path, 3, 1, _sums, 3, 1, {1: (2, place)})
    check(found, shard=1)
    assert [note["replica"] for note in notes.of("lost")] == [1]
    assert notes.of("generation")[0]["members"] == [0, 2]
    passed = [step for step, *_ in found[0]]
    assert passed == sorted(set(passed))
    assert found.keys() == {0, 1, 2}
    assert found[1][-1] == found[0][-1]
    assert found[0][-1][1] == (0, 1, 2)


def test_one_is_left_alone(tmp_path: Path) -> None:
    found, _ = run(tmp_path, 2, 1, _sums, 2, 1, {0: (3, "vote")}, True, allowed=-1)
    check(found, shard=1)
    assert [members for _, members, *_ in found[1]] == [(0, 1)] * 2 + [(1,)] * 4


def test_all_ranks_of_a_replica_leave_together(tmp_path: Path) -> None:
    """The other shard of the lost replica has its sum already, or not: nobody commits half."""
    found, notes = run(tmp_path, 2, 2, _sums, 2, 2, {3: (2, "vote")})
    check(found, shard=2)
    assert notes.of("lost")[0]["ranks"] == [2, 3]
    assert [step for step, *_ in found[0]] == [step for step, *_ in found[1]]


def test_two_at_once(tmp_path: Path) -> None:
    victims = {0: (2, "reduce"), 2: (2, "vote")}
    found, notes = run(tmp_path, 3, 1, _sums, 3, 1, victims)
    check(found, shard=1)
    assert {note["replica"] for note in notes.of("lost")} == {0, 2}
    assert found[1][-1][1] == (0, 1, 2)
