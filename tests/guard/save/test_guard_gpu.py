"""Saves from a GPU: copies behind the training hold the state of their step, and nobody waits."""

import time
from pathlib import Path

import pytest
import torch
from test_guard_saver import Alone, Told

from penstock.guard import checkpoints
from penstock.guard.format.published import published_checkpoints
from penstock.guard.save.saver import Saver
from penstock.guard.tiers.slots import sealed_slots
from penstock.guard.tiers.stores import DiskStore

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def test_what_is_staged_is_of_its_step_though_updates_follow_at_once(tmp_path: Path) -> None:
    state = {f"model/{n}": torch.zeros(4096, 4096, device="cuda") for n in range(8)}
    local = {"residual.0": torch.zeros(1 << 20, device="cuda")}
    told, disk = Told(), DiskStore(tmp_path / "checkpoints")
    saver = Saver(tmp_path / "fast-0", [disk], Alone(), told, told, 3, "r")
    saver.prepare(state)
    saver.wait_prepared()
    for step in range(1, 9):
        for tensor in (*state.values(), *local.values()):
            tensor.fill_(float(step))
        start = time.perf_counter()
        saver.stage(step, state, local, {"step": step}, durable=step % 3 == 0)
        assert step < 3 or time.perf_counter() - start < 0.5  # the first ones map and pin
        saver.before_update()
        for tensor in (*state.values(), *local.values()):
            tensor.fill_(-1.0)  # queued at once: the device waits for the copies, the host not
        saver.wait()
        for found in sealed_slots(saver.fast)[:1] + published_checkpoints(disk.root)[:1]:
            assert found.find_damage() == []
            back = {name: torch.empty_like(tensor) for name, tensor in state.items()}
            checkpoints.load(found, back, None)
            parts = (*back.values(), *checkpoints.load_local(found, 0).values())
            assert all(bool((part == found.step).all()) for part in parts), found.step
    assert disk.steps() == [6, 3]
    assert told.of("save_failed") == []
    saver.close()
