"""What squeue, scontrol and sacct print, as Slurm 22.05 printed it here, and what it means."""

import pytest

from penstock.launch.engines.engine import JobPhase
from penstock.launch.engines.slurm_state import (
    as_state,
    expand,
    parse_ended,
    parse_squeue,
    parse_steps,
)

ARRAY = """\
9_[4-5]|PENDING|Resources|1||2027-11-18T16:12:46
9_3|RUNNING|None|1|n4|2026-11-18T16:12:46
9_2|RUNNING|None|1|n3|2026-11-18T16:12:46
9_0|COMPLETING|None|1|n1|2026-11-18T16:12:46
"""
SHOWN = (
    "JobId=9 ArrayJobId=9 ArrayTaskId=4-5 JobName=t2.sh UserId=root(0) JobState={} "
    "Reason=Resources Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={} RunTime=00:00:00\n"
)


def test_an_array_is_running_while_one_task_is() -> None:
    jobs = parse_squeue(ARRAY)
    assert [job.count for job in jobs] == [2, 1, 1, 1]
    state = as_state(jobs)
    assert state.phase is JobPhase.RUNNING
    assert state.nodes == ("n4", "n3", "n1")
    assert state.words == "running on n4, n3, n1; 2 more wait for nodes to become free"


@pytest.mark.parametrize(
    ("line", "phase", "words"),
    [
        ("12|PENDING|Priority|4||N/A", JobPhase.QUEUED, "job 12 waits for jobs with a higher"),
        ("12|PENDING|BeginTime|2||2026-11-18T17:00:00", JobPhase.QUEUED, "at 2026-11-18 17:00:00"),
        ("12|PENDING|(Odd, new)|2||N/A", JobPhase.QUEUED, "((Odd, new))"),
        ("12|RUNNING|None|2|n[1-2]|2026-11-18T17:00:00", JobPhase.RUNNING, "running on n1, n2"),
        ("12|COMPLETING|None|1|n1|N/A", JobPhase.RUNNING, "ending on n1"),
    ],
)
def test_a_job_in_the_queue(line: str, phase: JobPhase, words: str) -> None:
    state = as_state(parse_squeue(line))
    assert state.phase is phase
    assert words in state.words


def test_lists_of_nodes() -> None:
    assert expand("n[1-2,4],head") == ("n1", "n2", "n4", "head")
    assert expand("gpu[008-010]") == ("gpu008", "gpu009", "gpu010")
    assert expand("r1n[1-2]-ib") == ("r1n1-ib", "r1n2-ib")
    assert expand("") == ()


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        (SHOWN.format("COMPLETED", "0:0"), "ended: completed"),
        (SHOWN.format("FAILED", "2:0"), "ended: failed with exit code 2"),
        (SHOWN.format("TIMEOUT", "0:0"), "ended: timeout"),
        (SHOWN.format("CANCELLED", "0:15"), "ended: cancelled"),
        # Tasks that still waited when the run ended.
        (SHOWN.format("CANCELLED", "0:0") + SHOWN.format("COMPLETED", "0:0"), "ended: completed"),
        (SHOWN.format("COMPLETED", "0:0") + SHOWN.format("NODE_FAIL", "0:0"), "ended: node fail"),
        ("OUT_OF_MEMORY|0:125\n", "ended: out of memory"),
        ("CANCELLED by 0|0:0\n", "ended: cancelled"),
        ("", ""),
    ],
)
def test_how_a_job_ended(printed: str, words: str) -> None:
    assert parse_ended(printed) == words


def test_steps_of_an_allocation_by_name() -> None:
    assert parse_steps("7.0|bash\n7.1|small\n7.2|small-2\n", "small") == ["7.1"]
