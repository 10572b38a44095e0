"""Campaigns are the same for the same seed and reach every place; the catalogue is whole."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.drill.campaign import EVERY_STEP, SOME_STEPS, STARTING, campaign
from penstock.drill.catalog import FAULTS, chosen
from penstock.drill.deeds import DEEDS
from penstock.drill.faults import Blow, Fault, Scale
from penstock.drill.hosts import HOSTS_DEEDS
from penstock.drill.needs import CHECKS
from penstock.drill.table import BY, COLUMNS, cells, line, markdown
from penstock.errors import PenstockError
from penstock.guard.detect.pulse import PHASES

BESIDE = ("write", "publish", "send")


@given(st.integers(0, 2**32), st.integers(12, 60), st.integers(1, 8))
@settings(max_examples=80, deadline=None)
def test_a_campaign_is_a_function_of_its_seed_and_fits_the_run(
    seed: int, steps: int, ranks: int
) -> None:
    scale = Scale(steps)
    made = campaign(seed, scale, ranks)
    assert made == campaign(seed, scale, ranks)
    assert 1 <= len(made.blows) <= 3
    for (trap, then), blow in zip(made.traps(scale, ranks), made.blows, strict=True):
        assert trap.rank is not None
        assert 0 <= trap.rank < ranks
        assert trap.step is None or 1 <= trap.step < steps
        assert trap.phase in (*PHASES, *BESIDE)
        assert then == blow.then
    assert not made.blows[0].then
    assert all(blow.then for blow in made.blows[1:])


def test_a_hundred_campaigns_reach_every_phase_and_every_action() -> None:
    blows = [blow for seed in range(100) for blow in campaign(seed, Scale(), 2).blows]
    assert {blow.phase for blow in blows} == {*EVERY_STEP, *SOME_STEPS, *STARTING}
    assert {blow.action for blow in blows} == {"kill", "kill_soon", "stop", "raise"}
    assert {blow.rank for blow in blows} == {0, 1}


def test_every_fault_of_the_catalogue_can_be_armed() -> None:
    scale = Scale()
    for fault in FAULTS.values():
        assert set(fault.told) <= set(BY), fault.name
        deeds = HOSTS_DEEDS if "hosts" in fault.needs else DEEDS
        assert fault.deed in ("", *deeds), fault.name
        assert set(fault.needs) <= {*CHECKS, "two_checkpoints"}, fault.name
        assert fault.blows or fault.deed, fault.name
        for trap, _ in fault.traps(scale, 2):
            assert trap.phase in (*PHASES, *BESIDE)
            assert trap.step is None or 1 <= trap.step <= scale.steps
            if trap.phase in ("stage",):
                assert trap.step is None or trap.step % scale.fast == 0
            if trap.phase in BESIDE:
                assert trap.step is None or trap.step % scale.durable == 0
            if trap.phase == "evaluate":
                assert trap.step is None or trap.step % scale.evaluate == 0


@given(st.integers(12, 500))
def test_a_fault_in_the_middle_loses_something(steps: int) -> None:
    scale = Scale(steps)
    middle = scale.step("middle")
    assert middle is not None
    assert 1 < middle < steps
    assert middle % scale.fast != 0


def test_blows_one_after_the_other_and_on_several_steps() -> None:
    fault = Fault(
        "x", "", ("fault",), (Blow("sleep", "forward", 5, times=3), Blow("kill", "vote", then=True))
    )
    traps = fault.traps(Scale(), 4)
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
