"""A trace on a GPU: its kernels say what was inside `compute`, in the step that ran them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.launch.start import start
from penstock.ledger.causes import Cause
from penstock.ledger.journal.read import read_events, read_steps
from penstock.ledger.merge import merge
from penstock.run.load import load

pytestmark = pytest.mark.gpu
MakeFile = Callable[..., Path]
FIELDS = {
    "model.layers": 8,
    "model.hidden": 512,
    "model.ffn": 1408,
    "data.sequence": 128,
    "train.batch_tokens": 8192,
    "train.steps": 30,
    "layout.microbatch": 64,
    "cluster.accelerators": 1,
    "evaluate.every": "never",
    "guard.checkpoint": "100 steps",
    "guard.timeout": "120 s",
}


def test_kernels_lie_in_the_parts_that_launched_them(run_file: MakeFile) -> None:
    folder = start(load(run_file("gpu", **FIELDS | {"log.trace": "10 steps"})))
    events = read_events(folder.journal / "a0000-r00000.events")
    traces = {e.payload["step"]: e for e in events if e.kind == "trace"}
    assert set(traces) == {10, 20, 30}
    records = read_steps(folder.journal / "a0000-r00000.steps")
    for number, trace in traces.items():
        split = trace.payload["split"]
        assert isinstance(split, dict)
        assert split["compute"] > 0.2 * sum(v for k, v in split.items() if k != "collectives")
        assert split["collectives"] == []
        # The host's windows and the device's events measure the same work.
        window = sum(v for k, v in split.items() if k != "collectives")
        measured = float(records["compute"][records["step"] == number][0])
        assert window == pytest.approx(measured, rel=0.25, abs=0.01)
        assert float(str(trace.payload["cost_s"])) < 1.0  # the first one was made in the warm-up
    ledger = merge(folder.journal).ledger
    assert ledger.seconds[Cause.BUBBLE] == ledger.seconds[Cause.PEER_WAIT] == 0
