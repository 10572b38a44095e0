"""Ranks that run out of memory: real processes under a real limit, and what the supervisor does."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.launch.prepare.replan import replanned_layout
from penstock.launch.start import start
from penstock.ledger.journal.read import read_events
from penstock.plan.job.layout import Layout
from penstock.run.folder import RunFolder
from penstock.run.launch_record import LaunchRecord
from penstock.run.load import load
from penstock.watch.report.screen import summary

MakeFile = Callable[..., Path]
# One thin and wide layer: all 17 sequences at once need more than a GiB for activations; by ones,
# the only other even share of a prime number, a seventeenth of that.
WIDE: dict[str, Any] = {
    "model.layers": 1,
    "model.hidden": 8,
    "model.heads": 2,
    "model.kv_heads": 1,
    "model.ffn": 12288,
    "data.sequence": 256,
    "train.batch_tokens": 17 * 256,
    "train.steps": 1,
    "train.precision": "fp32",
    "evaluate.every": "never",
    "layout.microbatch": 17,
    "cluster.accelerators": 1,
    "guard.restarts": 0,
    "guard.timeout": "120 s",
}
LIMIT_BYTES = 1100 << 20


def train(path: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """In a process whose memory, and that of its ranks, is limited.

    On one core, so that the stacks of many threads do not count.
    """

    def held() -> None:
        os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
        resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, LIMIT_BYTES))

    command = [sys.executable, "-m", "penstock", "train", str(path), *overrides, "--json"]
    return subprocess.run(command, capture_output=True, text=True, preexec_fn=held)


def events(path: Path, kind: str) -> list[dict[str, Any]]:
    journal = RunFolder(load(path).folder).journal / "supervisor.events"
    return [dict(event.payload) for event in read_events(journal) if event.kind == kind]


def test_a_smaller_layout_is_kept_while_all_is_as_it_was() -> None:
    asked, small = Layout(microbatch=8), Layout(microbatch=2)
    before = LaunchRecord(
        layout=Layout(microbatch=4).to_json(),  # somebody wrote another one in between
        replanned={"asked": asked.to_json(), "layout": small.to_json(), "machine": "1 × H200"},
    )
    assert replanned_layout(before, asked, "1 × H200") == small
    assert replanned_layout(before, asked, "1 × H100") == asked
    assert replanned_layout(before, Layout(microbatch=6), "1 × H200") == Layout(microbatch=6)
    assert replanned_layout(LaunchRecord(), asked, "1 × H200") == asked


@pytest.mark.slow
def test_out_of_memory_is_told_with_a_way_out_and_a_run_that_may_takes_it(
    run_file: MakeFile,
    cold: None,  # a rank that is forked from a warm process would not have the limit
) -> None:
    path = run_file("tight", **WIDE)
    stopped = train(path)
    assert stopped.returncode == 1
    assert "error: out of memory" in stopped.stderr
    assert "The planner would write layout.microbatch = 1 (" in stopped.stderr
    assert "GiB predicted" in stopped.stderr
    assert 'guard.on_oom = "replan"' in stopped.stderr
    assert [fault["action"] for fault in events(path, "fault")] == ["give_up"]

    done = train(path, "guard.on_oom=replan")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["status"] == "done"
    assert report["layout"] == {"replicate": 1, "shard": 1, "microbatch": 1}
    (made,) = events(path, "replanned")
    assert made["old"] | {"microbatch": 1} == made["layout"] == report["layout"]
    assert [fault["action"] for fault in events(path, "fault")] == ["give_up", "restart"]

    longer = json.loads(train(path, "train.steps=2", "guard.on_oom=replan").stdout)
    assert longer["steps"] == 2
    assert longer["layout"] == report["layout"]
    assert len(events(path, "fault")) == 2  # it was not tried and failed once more

    calm = summary(start(load(run_file("calm", **WIDE))))
    assert calm["layout"]["microbatch"] == 17  # for which there is room without the limit
    assert calm["tokens"] == report["tokens"]  # the batch was kept
    assert report["loss"] == pytest.approx(calm["loss"], rel=1e-5)
