"""Campaigns are the same for the same seed and reach every place; the catalogue is whole."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.drill.actions import ACTIONS
from penstock.drill.campaign import EVERY_STEP, SOME_STEPS, STARTING, random_fault
from penstock.drill.catalog import FAULTS, chosen
from penstock.drill.faults import DrillFault, Injection, ScratchScale
from penstock.drill.hosts import HOST_ACTIONS
from penstock.drill.needs import CHECKS
from penstock.drill.sites import LOCAL_STEPS, SITE_ACTIONS
from penstock.drill.table import BY, COLUMNS, cells, line, markdown
from penstock.errors import PenstockError
from penstock.guard.detect.pulse import PHASES

BESIDE = ("write", "publish", "send")
AT_THE_END_OF_A_LEASE = "site_published"


@given(st.integers(0, 2**32), st.integers(12, 60), st.integers(1, 8))
@settings(max_examples=80, deadline=None)
def test_a_campaign_is_a_function_of_its_seed_and_fits_the_run(
    seed: int, steps: int, ranks: int
) -> None:
    scale = ScratchScale(steps)
    made = random_fault(seed, scale, ranks)
    assert made == random_fault(seed, scale, ranks)
    assert 1 <= len(made.injections) <= 3
    for (trap, then), injection in zip(made.failpoints(scale, ranks), made.injections, strict=True):
        assert trap.rank is not None
        assert 0 <= trap.rank < ranks
        assert trap.step is None or 1 <= trap.step < steps
        assert trap.phase in (*PHASES, *BESIDE)
        assert then == injection.then
    assert not made.injections[0].then
    assert all(injection.then for injection in made.injections[1:])


def test_a_hundred_campaigns_reach_every_phase_and_every_action() -> None:
    injections = [
        injection
        for seed in range(100)
        for injection in random_fault(seed, ScratchScale(), 2).injections
    ]
    assert {injection.phase for injection in injections} == {*EVERY_STEP, *SOME_STEPS, *STARTING}
    assert {injection.action for injection in injections} == {"kill", "kill_soon", "stop", "raise"}
    assert {injection.rank for injection in injections} == {0, 1}


def test_every_fault_of_the_catalogue_can_be_armed() -> None:
    scale = ScratchScale()
    for fault in FAULTS.values():
        assert set(fault.reported_by) <= set(BY), fault.name
        deeds: Mapping[str, object] = HOST_ACTIONS if "hosts" in fault.needs else ACTIONS
        deeds = SITE_ACTIONS if "sites" in fault.needs else deeds
        assert fault.outside_action in ("", *deeds), fault.name
        assert set(fault.needs) <= {*CHECKS, "two_checkpoints"}, fault.name
        assert fault.injections or fault.outside_action, fault.name
        for trap, _ in fault.failpoints(scale, 2):
            assert trap.phase in (*PHASES, *BESIDE, AT_THE_END_OF_A_LEASE)
            if trap.phase == AT_THE_END_OF_A_LEASE:
                assert trap.step
                assert trap.step % LOCAL_STEPS == 0
            assert trap.step is None or 1 <= trap.step <= scale.steps
            if trap.phase in ("stage",):
                assert trap.step is None or trap.step % scale.fast == 0
            if trap.phase in BESIDE:
                assert trap.step is None or trap.step % scale.durable == 0
            if trap.phase == "evaluate":
                assert trap.step is None or trap.step % scale.evaluate == 0


@given(st.integers(12, 500))
def test_a_fault_in_the_middle_loses_something(steps: int) -> None:
    scale = ScratchScale(steps)
    middle = scale.step("middle")
    assert middle is not None
    assert 1 < middle < steps
    assert middle % scale.fast != 0


def test_blows_one_after_the_other_and_on_several_steps() -> None:
    fault = DrillFault(
        "x",
        "",
        ("fault",),
        (Injection("sleep", "forward", 5, times=3), Injection("kill", "vote", then=True)),
    )
    traps = fault.failpoints(ScratchScale(), 4)
    assert [(trap.step, then) for trap, then in traps] == [
        (5, False),
        (6, False),
        (7, False),
        (14, True),
    ]
    assert {trap.rank for trap, _ in traps} == {3}
    assert len({trap.name for trap, _ in traps}) == 4


def test_faults_by_name() -> None:
    assert [fault.name for fault in chosen("kill_all ,kill_fetch")] == [
        "kill_all",
        "kill_fetch",
    ]
    assert len(chosen(None)) == len(FAULTS)
    with pytest.raises(PenstockError, match=r"no fault 'kill_fech'.*kill_fetch"):
        chosen("kill_fech")


def test_lines_of_the_table_stand_below_each_other() -> None:
    row = {
        "fault": "kill_all", "skipped": "", "detected_by": "fault", "detection_s": 0.123,
        "recovery_s": None, "steps_redone": 2, "lost": 0, "doubled": 0, "weights": "equal",
    }  # fmt: skip
    head, body = line(COLUMNS), line(cells(row), "ok")
    assert body.index("equal") == head.index("weights")
    assert "0.12" in body
    assert body.index("exit of a rank") == head.index("detected by")
    assert "–" in body
    left_out = line(cells(row | {"skipped": "needs root"}))
    assert left_out.startswith("kill_all ")
    assert "needs root" in left_out
    table = markdown([row, row | {"skipped": "needs root"}]).splitlines()
    assert len(table) == 4
    assert len({text.count("|") for text in table}) == 1
