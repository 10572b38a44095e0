"""A command given again for a finished run: one that was made longer, or lost its checkpoints."""

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.main import app
from penstock.errors import PenstockError, RunFailed
from penstock.launch.start import start
from penstock.launch.verify import verify
from penstock.ledger.journal.records import journal_files
from penstock.ledger.journal.writer import SupervisorJournal
from penstock.run.folder import RunFolder
from penstock.run.load import load

MakeFile = Callable[..., Path]
SHORT = {"train.steps": 2, "evaluate.every": "never", "cluster.accelerators": 1}


def train(*words: object) -> str:
    """What `penstock train` prints, in one line; it must be well."""
    done = CliRunner().invoke(app, ["train", *map(str, words)])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


@pytest.fixture
def longer(run_file: MakeFile) -> tuple[Path, RunFolder]:
    """A run of two steps that a command line has made longer, and its file."""
    file = run_file(**SHORT)
    start(load(file))
    return file, start(load(file, ["train.steps=4"]))


def test_the_plain_command_after_a_longer_run_has_nothing_to_do(
    longer: tuple[Path, RunFolder],
) -> None:
    file, folder = longer
    before = len(journal_files(folder.journal, "events"))
    said = train(file)
    assert "has finished at step 4; nothing to do" in said
    assert "made longer than train.steps=2 before: its length is train.steps=4" in said
    found = verify(load(file))
    assert (found.refused, found.run.steps()) == (None, 4)
    assert penstock.train(file).step == 4
    assert len(journal_files(folder.journal, "events")) == before  # no rank was started
    assert load(folder.run_file).train.steps == 4
    with pytest.raises(PenstockError, match=r"train\.steps: 4 → 2 .*\ntrain\.clip: 1\.0 → 0\.5"):
        start(load(file, ["train.clip=0.5"]))  # another run is another run

    # It was cut off on its way: what would go on is not what the command says.
    journal = SupervisorJournal(folder.journal)
    journal.event("invocation", ranks=1, machine="")
    journal.close()
    with pytest.raises(PenstockError, match=r"on its way to train\.steps=4, and this asks for"):
        start(load(file))
    assert start(load(file, ["train.steps=4"])).path == folder.path


def test_a_finished_run_whose_checkpoints_are_gone_says_so_everywhere(
    run_file: MakeFile, tmp_path: Path
) -> None:
    file = run_file(**SHORT)
    folder = start(load(file))
    shutil.move(folder.checkpoints, tmp_path / "aside")
    words = f"finished at step 2, and its checkpoints are gone from {folder.checkpoints}"
    said = train(file)
    assert words in said
    assert "Put them back there" in said
    assert "nothing to do" not in said
    for use in (penstock.generate, penstock.export):
        with pytest.raises(PenstockError, match=words):
            use(folder.path)
    with pytest.raises(PenstockError, match=f"--fork other: .*{words}"):
        start(load(file, ["train.steps=4"]), fork="other")
    with pytest.raises(RunFailed, match="no checkpoint in any tier can be loaded"):
        start(load(file, ["train.steps=4"]))
    with pytest.warns(UserWarning, match=words):
        penstock.train(file)
    shutil.move(tmp_path / "aside", folder.checkpoints)
    assert "has finished at step 2; nothing to do" in train(file)


def test_a_run_writes_and_exports_without_its_dataset(
    run_file: MakeFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = start(load(run_file(**SHORT)))
    before = penstock.generate(folder.path, "def f", tokens=4)
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "cleaned"))
    assert penstock.generate(folder.path, "def f", tokens=4) == before
    with pytest.raises(PenstockError, match=r"^seed=-1: write a number from 0 to 92233"):
        penstock.generate(folder.path, seed=-1)
    penstock.export(folder.path)
    exported = tmp_path / "runs" / "test" / "export" / "tokenizer.json"
    assert exported.read_bytes() == folder.tokenizer.read_bytes()

    folder.tokenizer.write_bytes(b"{}")
    gone = f"{folder.tokenizer} is damaged: it does not match its hash. The run reads tiny@"
    with pytest.raises(PenstockError, match=gone):
        penstock.generate(folder.path)
    with pytest.raises(PenstockError, match=gone):
        penstock.export(folder.path, force=True)
    monkeypatch.undo()
    assert penstock.generate(folder.path, "def f", tokens=4) == before  # from the dataset
    start(load(folder.run_file, ["train.steps=4"]))  # the next launch writes the copy again
    assert folder.tokenizer.read_bytes() == exported.read_bytes()


def test_an_older_checkpoint_is_not_used_without_a_word(run_file: MakeFile, tmp_path: Path) -> None:
    file = run_file(**SHORT | {"train.steps": 4, "guard.checkpoint": "2 steps", "guard.keep": 2})
    folder = start(load(file))
    words = "the checkpoint of step 4 is gone, which the journal has on record; step 2 is used"
    shutil.move(folder.checkpoints / "step-00000004", tmp_path / "aside")
    with pytest.warns(UserWarning, match=words):
        penstock.generate(folder.path, tokens=2)
    said = CliRunner().invoke(app, ["generate", str(folder.path), "--tokens", "2", "--json"])
    assert words in said.stderr
    assert '"step": 2' in said.stdout
    assert penstock.export(folder.path).passed_over == (words,)
    assert not penstock.export(folder.path, tmp_path / "two", step=2).passed_over  # as asked
    assert f"warning: {words}" in train(file)  # finished
    assert f"warning: {words}" in train(file, "train.steps=6")
    assert words not in train(file, "train.steps=6")  # the steps were trained again
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        penstock.generate(folder.path, tokens=2)


def test_a_run_that_is_refused_does_not_say_that_it_goes_on(
    run_file: MakeFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = run_file(**SHORT)
    start(load(file))
    words = ["train", str(file), "train.steps=4"]
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "cleaned"))
    refused = CliRunner().invoke(app, words)
    assert isinstance(refused.exception, PenstockError)
    assert "The run reads tiny@" in str(refused.exception)
    assert "goes on" not in refused.output
    monkeypatch.undo()
    assert "goes on from step 2 (disk)" in train(file, "train.steps=4")


def test_a_run_that_exists_is_given_by_its_name_or_folder(
    run_file: MakeFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = run_file(**SHORT)
    file.write_text(file.read_text().replace(f"{tmp_path}/runs", "runs"))
    monkeypatch.chdir(tmp_path)
    folder = start(load(file)).path.absolute()
    file.unlink()
    assert "run 'test' has finished at step 2; nothing to do" in train("test")
    assert "run 'test' exists and goes on from step 2" in train("test", "train.steps=4")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert "run 'test' has finished at step 4; nothing to do" in train(folder)
    assert penstock.load(folder).folder == folder
    assert not any((tmp_path / "elsewhere").iterdir())
    with pytest.raises(PenstockError, match="test: no such file"):
        load("test")  # there is no runs/test here


def test_a_fork_does_not_take_the_name_of_another_run(run_file: MakeFile) -> None:
    file, other = run_file(**SHORT), run_file("other", **SHORT)
    start(load(file))
    start(load(other))
    said = r"--fork other: there is another run of that name \(.*runs/other\), which is no fork of"
    with pytest.raises(PenstockError, match=f"{said} 'test'; give the fork another name"):
        start(load(file, ["train.steps=4"]), fork="other")


TAKES_TARGETS = """
from torch import nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(300, 8), nn.Linear(8, 300)

    def forward(self, tokens, targets=None):
        logits = self.head(self.embed(tokens))
        if targets is None:
            return logits[:, -1:], None  # of the last token alone
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return (logits, loss) if GIVES_LOGITS else loss

build = Net
"""


@pytest.mark.parametrize("gives_logits", [True, False])
def test_a_module_that_takes_targets_writes_where_it_gives_logits(
    gives_logits: bool, run_file: MakeFile, tmp_path: Path
) -> None:
    code = tmp_path / "net.py"
    code.write_text(TAKES_TARGETS.replace("GIVES_LOGITS", str(gives_logits)))
    shape = ("layers", "hidden", "heads", "kv_heads", "ffn", "tied")
    own = {"model.module": f"{code}:build", "train.learning_rate": 0.01}
    folder = start(load(run_file(**SHORT | dict.fromkeys(f"model.{n}" for n in shape) | own)))
    told = b"".join(file.path.read_bytes() for file in journal_files(folder.journal, "events"))
    sampled = b'"sample":' in told
    assert b"sample_failed" not in told
    assert sampled == gives_logits
    if gives_logits:
        assert penstock.generate(folder.path, "def f", tokens=4)
        return
    with pytest.raises(PenstockError, match=r"gives a loss and no logits.*forward gave \(\) for"):
        penstock.generate(folder.path)
