"""What cannot be trained is one message before any process starts, and leaves nothing behind."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.launch.prepare.resume import refuse_other_weights
from penstock.launch.start import start
from penstock.ledger.journal.records import journal_files
from penstock.plan.job.layout import IllegalLayout
from penstock.run.folder import RunFolder
from penstock.run.load import load

MakeFile = Callable[..., Path]
GONE = dict.fromkeys(
    [f"model.{name}" for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "tied")]
)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["layout.tensor=4"], "layout.tensor = 4: does not divide the model's kv_heads of 2"),
        (["layout.pipeline=4"], "layout.pipeline = 4: more than the model's 2 layers"),
        (["layout.pipeline=2", "layout.interleave=2", "layout.replicate=2"], "layout.interleave"),
        (["layout.context=4", "data.sequence=20", "train.batch_tokens=80"], "layout.context = 4"),
        (["layout.expert=4", "layout.shard=4"], "layout.expert = 4: the model is dense"),
        (["layout.shard=3"], r"replicate 1 × shard 3 = 3, but the run has 4 ranks"),
        (["layout.tensor=3"], r"tensor × pipeline × context = 3 does not divide the run's 4"),
        (["train.precision=fp8"], 'train.precision = "fp8": a CPU has no 8-bit'),
    ],
)
def test_a_layout_that_cannot_be(asked: list[str], said: str, run_file: MakeFile) -> None:
    run = load(run_file(), asked)
    # Given in the file, the product would be refused when it is loaded; "all" may turn out to be 4.
    four = run.cluster.model_copy(update={"accelerators": 4})
    run = run.model_copy(update={"cluster": four})
    with pytest.raises(IllegalLayout, match=said):
        start(run)
    assert not run.folder.exists()


def test_an_own_module_that_is_asked_to_split(run_file: MakeFile, tmp_path: Path) -> None:
    fields = {"model.module": f"{tmp_path}/net.py:build", "train.learning_rate": 0.01}
    run = load(run_file(**GONE | fields), ["layout.tensor=2", "cluster.accelerators=2"])
    with pytest.raises(IllegalLayout, match=r"layout\.tensor = 2: model\.module is your own code"):
        start(run)
    assert not run.folder.exists()


def test_a_checkpoint_of_another_model(run_file: MakeFile) -> None:
    fields = {"train.steps": 2, "evaluate.every": "never", "cluster.accelerators": 1}
    folder = start(load(run_file(**fields)))
    before = len(journal_files(folder.journal, "events"))
    # As if the folder had been filled by hand: its own file says nothing of a change.
    file = folder.run_file
    file.write_text(file.read_text().replace("ffn = 64", "ffn = 96"))
    longer = run_file(**fields | {"model.ffn": 96, "train.steps": 4})
    with pytest.raises(PenstockError) as caught:
        start(load(longer))
    said = str(caught.value)
    assert "step-00000002: made with other settings: model.ffn is 64 there, 96 here" in said
    assert "--fresh" in said
    assert len(journal_files(folder.journal, "events")) == before
    assert RunFolder(folder.path).read_plan()["steps"] == 2


def test_a_model_that_has_changed_under_the_same_settings(run_file: MakeFile) -> None:
    """As an open model does whose folder was replaced: the run file says nothing of it."""
    fields = {"train.steps": 2, "evaluate.every": "never", "cluster.accelerators": 1}
    run = load(run_file(**fields))
    folder = start(run)
    refuse_other_weights(folder, run, folder.read_plan()["vocab"])
    with pytest.raises(PenstockError) as caught:
        refuse_other_weights(folder, run, 400)
    said = str(caught.value)
    assert "a checkpoint of another model than [model] describes" in said
    assert "embed.weight is 300 × 32 there and 400 × 32 in the model" in said
    assert "--fresh" in said
