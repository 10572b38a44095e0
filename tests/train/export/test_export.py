"""Checkpoints of runs from nothing become folders that transformers loads, or are refused."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from one_rank import Alone
from penstock.cli.main import app
from penstock.data.build.open import open_dataset
from penstock.data.tokenize.tokenizer import Tokenizer
from penstock.errors import PenstockError, RunFailed
from penstock.guard import checkpoints
from penstock.guard.format.published import StoredCheckpoint
from penstock.model.decoder import Decoder
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.save import save
from penstock.train.export.generate import generate_text
from penstock.train.export.model import export

pytestmark = pytest.mark.filterwarnings("ignore")
VOCAB = 300


@dataclass(frozen=True)
class Kept:
    """A run as training leaves it behind."""

    folder: RunFolder
    decoder: Decoder

    def save(self, step: int, **more: Any) -> StoredCheckpoint:
        own = self.decoder.state_dict()
        shapes = {name: list(t.shape) for name, t in own.items()}
        scalars = {"step": step, "weights": shapes, **more}
        named = {f"model/{name}": t for name, t in own.items()}
        return checkpoints.save(self.folder.checkpoints, step, named, {}, scalars, Alone())


@pytest.fixture
def kept(run_file: Callable[..., Path], tiny: str) -> Callable[..., Kept]:
    def make(name: str = "kept", **fields: Any) -> Kept:
        run = load(run_file(name, **fields))
        folder = RunFolder(run.folder)
        folder.make()
        save(run, folder.run_file)
        folder.plan_file.write_text(json.dumps({"vocab": VOCAB, "dataset": tiny}))
        torch.manual_seed(1)
        decoder = Decoder(run.model.shape(VOCAB))
        for tensor in decoder.parameters():
            torch.nn.init.normal_(tensor, std=0.2)
        return Kept(folder, decoder)

    return make


def tokens() -> Tensor:
    return torch.randint(0, VOCAB, (2, 30), generator=torch.Generator().manual_seed(0))


def theirs(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, experts_implementation="eager"
    ).eval()


EXPERTS = {"model.experts": 4, "model.experts_active": 2, "model.expert_ffn": 24, "model.ffn": None}

LATENT = {  # a preset, smaller
    "model.vocab": VOCAB,
    "model.layers": 2,
    "model.hidden": 32,
    "model.heads": 4,
    "model.kv_heads": 4,
    "model.ffn": 48,
    "model.experts": 16,
    "model.experts_active": 4,
    "model.expert_ffn": 16,
    "model.dense_layers": 1,
}
GPT_OSS = {**LATENT, "model.kv_heads": 2, "model.head_dim": 16, "model.dense_layers": None}
DEEPSEEK = {
    "model.router": "sigmoid",
    "model.qk_norm": True,
    "model.shared_experts": 1,
    "model.dense_layers": 1,
    "model.ffn": 48,
}


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("llama", {}),
        ("llama", {"model.tied": False, "model.head_dim": 16, "model.rope_theta": 5e5}),
        ("qwen3", {"model.qk_norm": True, "model.kv_heads": None}),
        ("qwen2", {"model.preset": "qwen2.5-0.5b", "model.vocab": VOCAB}),
        ("mixtral", {**EXPERTS, "model.tied": False}),
        ("qwen3_moe", {**EXPERTS, "model.qk_norm": True}),
        ("dots1", {**EXPERTS, **DEEPSEEK}),
        ("deepseek_v3", {**LATENT, "model.preset": "deepseek-v3"}),
        ("gpt_oss", {**GPT_OSS, "model.preset": "gpt-oss-20b", "train.balance_rate": 0}),
        ("deepseek_v2", {**LATENT, "model.preset": "deepseek-v2", "train.balance_rate": 0}),
    ],
)
def test_transformers_computes_what_we_do(
    kept: Callable[..., Kept], tmp_path: Path, family: str, fields: dict[str, Any]
) -> None:
    made = kept(**fields)
    if family == "dots1":  # the one that has a place for it
        made.decoder.layers["1"].ffn.balance.copy_(torch.tensor([0.3, -0.2, 0.1, 0.0]))
    made.save(4)
    done = export(made.folder, dtype="fp32")
    assert (done.family, done.step, done.folder) == (family, 4, str(made.folder.path / "export"))
    loaded = theirs(made.folder.path / "export")
    with torch.no_grad():
        found, expected = loaded(tokens()).logits, made.decoder.eval()(tokens())
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5)
    assert done.bytes >= 4 * made.decoder.shape.params()


def test_the_tokenizer_goes_along(kept: Callable[..., Kept], tiny: str) -> None:
    from transformers import AutoTokenizer

    made = kept()
    made.save(1)
    export(made.folder)
    out = made.folder.path / "export"
    ours = Tokenizer.from_json(open_dataset(tiny).tokenizer_json())
    other = AutoTokenizer.from_pretrained(out)
    for text in ("def f9(x):\n    return x + 3\n", "né 1234567\t  <|end|> x", ""):
        assert other(text.replace("<|end|>", ""))["input_ids"] == list(
            ours.encode(text.replace("<|end|>", ""))
        )
        assert other.decode(ours.encode(text), skip_special_tokens=False) == text
    assert other.eos_token_id == ours.end
    model = theirs(out, torch.bfloat16)
    assert model.generation_config.eos_token_id == ours.end
    assert model.lm_head.weight.dtype == torch.bfloat16


def test_the_newest_whole_checkpoint_is_taken(kept: Callable[..., Kept], tmp_path: Path) -> None:
    made = kept()
    made.save(1)
    with torch.no_grad():
        made.decoder.norm.weight.fill_(3.0)
    torn = made.save(2).path
    assert export(made.folder, tmp_path / "two").step == 2
    data = next((torn / "state").glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-1])
    done = export(made.folder, tmp_path / "one")
    assert done.step == 1
    assert "step-00000002" in done.passed_over[0]
    assert theirs(tmp_path / "two").model.norm.weight[0] == 3.0
    assert theirs(tmp_path / "one").model.norm.weight[0] != 3.0
    with pytest.raises(RunFailed, match="no checkpoint of run 'kept' is whole"):
        export(made.folder, tmp_path / "again", step=2)
    with pytest.raises(PenstockError, match="there are: 1, 2"):
        export(made.folder, tmp_path / "again", step=3)
    assert export(made.folder, tmp_path / "again", step=1).step == 1


def test_what_cannot_be_exported_is_refused(kept: Callable[..., Kept], tmp_path: Path) -> None:
    made = kept()
    with pytest.raises(PenstockError, match="no checkpoint yet"):
        export(made.folder)
    made.save(1)
    with pytest.raises(PenstockError, match="--dtype fp8"):
        export(made.folder, dtype="fp8")
    with pytest.raises(PenstockError, match="--merged: run 'kept' has no adapter"):
        export(made.folder, merged=True)
    mine = made.folder.path / "export" / "notes.md"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(PenstockError, match="is there already"):
        export(made.folder)
    assert mine.read_text() == "mine"
    mine.unlink()
    assert export(made.folder).step == 1  # an empty folder has nothing to lose


def test_a_module_of_ones_own_has_no_family(kept: Callable[..., Kept]) -> None:
    made = kept(**{"train.learning_rate": 1e-3})
    table = made.folder.run_file.read_text().split("[data]")
    module = '[model]\nmodule = "my.py:build"\n\n[data]'
    made.folder.run_file.write_text(table[0].split("[model]")[0] + module + table[1])
    with pytest.raises(PenstockError, match=r"your own module \(my\.py:build\)"):
        export(made.folder)


def test_a_balance_that_the_family_has_no_place_for_is_not_lost(
    kept: Callable[..., Kept], tmp_path: Path
) -> None:
    made = kept(**EXPERTS)
    made.save(1)
    assert export(made.folder, tmp_path / "zero").family == "mixtral"
    made.decoder.layers["1"].ffn.balance[2] = 0.01
    made.save(2)
    with pytest.raises(PenstockError, match=r"layers\.1\.ffn\.balance.*balance_rate = 0"):
        export(made.folder, tmp_path / "moved")
    assert not (tmp_path / "moved").exists()


def test_the_verb(kept: Callable[..., Kept], tmp_path: Path) -> None:
    made = kept()
    made.save(7)
    where = ["--dir", str(made.folder.path.parent), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["export", "kept", *where, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["step"] == 7
    assert told["folder"] == str(tmp_path / "out")
    assert told["bytes"] == 2 * made.decoder.shape.params()
    where[-1] = str(tmp_path / "more")
    shown = CliRunner().invoke(app, ["export", "kept", *where, "--step", "7", "--dtype", "fp16"])
    assert "llama model of step 7" in shown.stdout
    assert "fp16" in shown.stdout
    assert "KiB in fp16" in shown.stdout  # not 0.00 GiB


def test_force_replaces_an_export_of_ours_and_nothing_else(
    kept: Callable[..., Kept], tmp_path: Path
) -> None:
    made, out = kept(), tmp_path / "out"
    made.save(1)
    made.save(2)
    export(made.folder, out, step=1)
    with pytest.raises(PenstockError, match=r"is there already; replace it with --force"):
        export(made.folder, out)
    assert export(made.folder, out, dtype="fp32", force=True).step == 2
    assert json.loads((out / "penstock.json").read_text())["step"] == 2
    assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == ["out"]
    (out / "notes.md").write_text("mine")
    with pytest.raises(PenstockError, match=r"files that the export did not write: notes\.md"):
        export(made.folder, out, force=True)
    assert (out / "notes.md").read_text() == "mine"
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    export(made.folder, foreign, force=True)  # an empty folder has nothing to lose
    (foreign / "penstock.json").unlink()
    with pytest.raises(PenstockError, match="is no export of Penstock"):
        export(made.folder, foreign, force=True)


def test_the_best_checkpoint_can_be_asked_for(kept: Callable[..., Kept], tmp_path: Path) -> None:
    made = kept()
    made.save(1)
    with pytest.raises(PenstockError, match=r"--best: no checkpoint .* was evaluated"):
        export(made.folder, tmp_path / "none", best=True)
    for step, loss in ((2, 3.0), (3, 2.5), (4, 2.7)):
        made.save(step, best={"last_step": step, "last_loss": loss})
    made.save(5, best={"last_step": 4, "last_loss": 2.7})  # not evaluated itself
    assert export(made.folder, tmp_path / "best", best=True).step == 3
    with pytest.raises(PenstockError, match="--best and --step 3"):
        export(made.folder, tmp_path / "both", step=3, best=True)
    state = made.folder.checkpoints / "step-00000003" / "state"
    largest = max(state.iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    again = export(made.folder, tmp_path / "next", best=True)  # the next best
    assert again.step == 4
    assert "step-00000003" in again.passed_over[0]


def test_chat_needs_a_template(kept: Callable[..., Kept]) -> None:
    made = kept()
    made.save(1)
    with pytest.raises(PenstockError, match="--chat: run 'kept' was not trained on conversations"):
        generate_text(made.folder, "hello", 4, 0.0, 0, chat=True)
