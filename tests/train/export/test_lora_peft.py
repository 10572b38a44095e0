"""An adapter run from a file of conversations, beside transformers and PEFT; and its safety."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from lora_peer import (
    first_adapter,
    make_model,
    our_logits,
    our_losses,
    reference_losses,
    run_file,
    theirs,
    write_chats,
)
from penstock.guard.format.published import published_checkpoints
from penstock.launch.prepare.listener import Listener
from penstock.launch.start import start
from penstock.launch.supervisor.preload import PreloadClient
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import journal_files
from penstock.model.open.write import dtype_of_config
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.train.export.generate import generate_text
from penstock.train.export.model import export
from penstock.watch.report.screen import summary

STEPS = 30


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, warm: PreloadClient) -> Path:
    """A folder with a model, conversations and a run that has ended."""
    folder = tmp_path_factory.mktemp("peft")
    make_model(folder / "base")
    write_chats(folder / "chat.jsonl", 400)
    start(load(lora(folder, "calm")))
    return folder


def lora(here: Path, name: str, **fields: Any) -> Path:
    common = {"guard.checkpoint": "10 steps", "train.batch_tokens": 256}
    return run_file(
        here / f"{name}.toml", here / "base", here / "chat.jsonl", STEPS, **common | fields
    )


def folder_of(here: Path, name: str = "calm") -> RunFolder:
    return RunFolder(here / "runs" / name)


def test_the_losses_are_those_of_transformers_and_peft(here: Path) -> None:
    folder = folder_of(here)
    first_adapter(load(folder.run_file), here / "base", here / "first")
    ours = our_losses(folder)
    assert len(ours) == STEPS
    assert ours[-1] < ours[0] - 1.0
    reference = reference_losses(folder, here / "base", here / "first", STEPS)
    np.testing.assert_allclose(ours, reference, rtol=0, atol=2e-5)


def test_peft_loads_the_adapter_and_gives_our_logits(here: Path) -> None:
    ours, tokens = our_logits(folder_of(here))
    done = export(folder_of(here), here / "adapter")
    assert done.kind == "adapter"
    loaded = theirs(here / "base", here / "adapter")
    with torch.no_grad():
        torch.testing.assert_close(loaded(tokens).logits, ours, rtol=0, atol=1e-5)
        with loaded.disable_adapter():
            assert (loaded(tokens).logits - ours).abs().max() > 0.5  # it does make a difference
    config = json.loads((here / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(here / "base")
    assert "assistant" in AutoTokenizer.from_pretrained(here / "adapter").chat_template
    weights = load_file(here / "adapter" / "adapter_model.safetensors")
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in weights


def test_the_merged_model_needs_no_peft(here: Path) -> None:
    ours, tokens = our_logits(folder_of(here))
    done = export(folder_of(here), merged=True)
    assert done.dtype == "fp32"  # as the model it started from is stored
    assert Path(done.folder) == folder_of(here).path / "merged"  # beside `export`, the adapter's
    model = AutoModelForCausalLM.from_pretrained(done.folder, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, ours, rtol=0, atol=1e-4)
    other = export(folder_of(here), here / "narrow", dtype="bf16", merged=True)
    (file,) = Path(other.folder).glob("*.safetensors")
    assert {tensor.dtype for tensor in load_file(file).values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("config", "ours"),
    [
        ({"dtype": "float32"}, "fp32"),
        ({"torch_dtype": "float16"}, "fp16"),
        ({"torch_dtype": "torch.bfloat16"}, "bf16"),
        ({"dtype": "float64"}, "fp32"),
        ({"dtype": "float8_e4m3fn"}, "bf16"),
        ({"dtype": None}, "bf16"),
        ({}, "bf16"),
    ],
)
def test_the_type_of_a_base_model(config: dict[str, str], ours: str) -> None:
    assert dtype_of_config(config) == ours


def test_a_checkpoint_holds_the_adapter_alone(here: Path) -> None:
    folder = folder_of(here)
    saved = published_checkpoints(folder.checkpoints)[0]
    names = saved.scalars["weights"]
    assert names
    assert all(name.endswith(("adapter_a", "adapter_b")) for name in names)
    assert generate_text(folder, "What is 2 plus 3?", 5, 0.0, 0).text


class KillAt(Listener):
    """Kills the only rank once it has recorded a step."""

    def __init__(self, step: int) -> None:
        self.step, self.done = step, False

    def launching(self, folder: RunFolder, plan: dict[str, Any]) -> None:
        threading.Thread(target=self._kill, args=(folder,), daemon=True).start()

    def _kill(self, folder: RunFolder) -> None:
        while len(our_losses(folder)) < self.step:
            time.sleep(0.001)
        (file,) = journal_files(folder.journal, "events")
        (pid,) = [e.payload["pid"] for e in read_events(file.path) if e.kind == "start"]
        os.kill(int(str(pid)), signal.SIGKILL)
        self.done = True


def test_a_killed_adapter_run_ends_with_the_same_weights(here: Path) -> None:
    listener = KillAt(17)
    start(load(lora(here, "killed")), listener=listener)
    killed, calm = summary(folder_of(here, "killed")), summary(folder_of(here))
    assert listener.done
    assert killed["faults"] == 1
    assert killed["weights_hash"] == calm["weights_hash"]
    # Given again, and longer: what it saved is what the model's adapter has.
    start(load(lora(here, "killed"), [f"train.steps={STEPS + 1}"]))
    assert published_checkpoints(folder_of(here, "killed").checkpoints)[0].step == STEPS + 1


def test_four_bit_runs_from_prompts_in_bf16(here: Path) -> None:
    """The merged export has the 4-bit values that the adapter was trained beside."""
    rows = [{"prompt": f"What is {n} plus 1?", "completion": f"It is {n + 1}."} for n in range(300)]
    (here / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = {
        "data.dataset": str(here / "prompts.jsonl"),
        "model.adapter.kind": "qlora",
        "train.precision": "bf16",
    }
    folder = start(load(lora(here, "narrow", **fields)))
    losses = our_losses(folder)
    assert losses[-1] < losses[0] - 1.0
    ours, tokens = our_logits(folder)  # computed in float32
    export(folder, here / "wide", dtype="fp32", merged=True)
    model = AutoModelForCausalLM.from_pretrained(here / "wide", dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, ours, rtol=0, atol=1e-3)
