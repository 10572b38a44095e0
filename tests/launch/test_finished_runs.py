"""A command given again for a finished run: one that was made longer, or lost its checkpoints."""

import shutil
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
