"""Text from the newest checkpoint of a run that is at work and deletes old ones."""

from pathlib import Path

import pytest

from penstock.errors import PenstockError, RunFailed
from penstock.run.folder import RunFolder
from penstock.train.export import generate


class Deleted:
    """A checkpoint that the run deletes while it is looked at."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.step = int(path.name)

    def damage(self) -> tuple[str, ...]:
        raise FileNotFoundError(str(self.path / "manifest.json"))


class Whole(Deleted):
    def damage(self) -> tuple[str, ...]:
        return ()


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without a run file, whose checkpoints are only judged by themselves."""
    monkeypatch.setattr(generate, "load", lambda path: None)
    monkeypatch.setattr(generate, "newest_in_memory", lambda *args: None)
    monkeypatch.setattr(generate, "problems_of", lambda folder, run, found: found.damage())


def test_a_checkpoint_that_is_deleted_meanwhile_gives_way_to_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judged: None
) -> None:
    found = iter([[Deleted(tmp_path / "5")], [Deleted(tmp_path / "10")], [Whole(tmp_path / "15")]])
    monkeypatch.setattr(generate, "published_checkpoints", lambda folder: next(found))
    checkpoint, note = generate.newest_checkpoint(RunFolder(tmp_path))
    assert (checkpoint.step, note) == (15, "")


def test_one_that_is_always_deleted_first_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judged: None
) -> None:
    monkeypatch.setattr(generate, "published_checkpoints", lambda folder: [Deleted(tmp_path / "5")])
    with pytest.raises(RunFailed, match=r"guard\.keep"):
        generate.newest_checkpoint(RunFolder(tmp_path))
    monkeypatch.setattr(generate, "published_checkpoints", lambda folder: [])
    with pytest.raises(PenstockError, match="no checkpoint yet"):
        generate.newest_checkpoint(RunFolder(tmp_path))


@pytest.mark.parametrize(("text", "told"), [(5, "a int; give text"), ("caf\udce9", "not UTF-8")])
def test_what_is_no_text_is_told(tmp_path: Path, text: object, told: str) -> None:
    with pytest.raises(PenstockError, match=told):
        generate.generate_text(RunFolder(tmp_path), text, 1, 0.0, 0)  # type: ignore[arg-type]
