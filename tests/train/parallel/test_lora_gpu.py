"""Adapters on a GPU: whole runs from a file of conversations, wide, narrow and over 4 bits."""

from pathlib import Path

import pytest
import torch

from lora_peer import make_model, our_losses, run_file, write_chats
from penstock.launch.start import start
from penstock.run.load import load

pytestmark = pytest.mark.gpu
STEPS = 40
KINDS = {
    "fp32": {"train.precision": "fp32"},
    "bf16": {"train.precision": "bf16"},
    "qlora": {"train.precision": "bf16", "model.adapter.kind": "qlora"},
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    folder = tmp_path_factory.mktemp("lora-gpu")
    make_model(folder / "base")
    write_chats(folder / "chat.jsonl", 400)
    return folder


@pytest.fixture(scope="module")
def on_cpu(here: Path) -> list[float]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cuda.is_available", lambda: False)
        return losses(here, "cpu", "fp32")


def losses(here: Path, name: str, kind: str) -> list[float]:
    path = run_file(here / f"{name}.toml", here / "base", here / "chat.jsonl", STEPS, **KINDS[kind])
    return our_losses(start(load(path)))


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_learns_as_on_a_cpu(kind: str, here: Path, on_cpu: list[float]) -> None:
    """Second matrices begin as zeros, so the first loss is the base model's on both; first ones
    are drawn on the device, so that later losses are only alike."""
    assert torch.cuda.is_available()
    found = losses(here, kind, kind)
    near = {"fp32": 1e-4, "bf16": 1e-2, "qlora": 3e-2}[kind]
    print(kind, found[0], "->", found[-1], "on a CPU", on_cpu[0], "->", on_cpu[-1])
    assert found[0] == pytest.approx(on_cpu[0], rel=near)
    assert found[-1] < 0.8 * found[0]
    assert found[-1] == pytest.approx(on_cpu[-1], rel=0.1)
