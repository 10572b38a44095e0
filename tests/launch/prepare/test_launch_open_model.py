"""What a run keeps of the open model it starts from."""

import json
from pathlib import Path

import pytest

from penstock.catalog.open.folder import read_small_files
from penstock.catalog.open.models import config_of
from penstock.catalog.shapes import ModelShape
from penstock.launch.prepare import open_model
from penstock.run.load import load


def test_the_small_files_are_all_there_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that is killed between two of them leaves nothing that the next one would trust."""
    base = tmp_path / "base"
    base.mkdir()
    shape = ModelShape(layers=1, hidden=16, heads=2, kv_heads=2, ffn=24, vocab=32)
    (base / "config.json").write_text(json.dumps(config_of(shape, "llama")))
    (base / "tokenizer.json").write_text("{}")
    file = tmp_path / "run.toml"
    file.write_text(f'name = "a"\n[model]\nfrom = "{base}"\n[data]\ndataset = "x"\nsequence = 8\n')
    run, folder = load(file), tmp_path / "run" / "open"
    write, written = open_model.write_synced, []

    def killed(path: Path, content: bytes) -> None:
        if written:
            raise KeyboardInterrupt
        write(path, content)
        written.append(path)

    monkeypatch.setattr(open_model, "write_synced", killed)
    with pytest.raises(KeyboardInterrupt):
        open_model.copy_small_files(run, folder)
    monkeypatch.undo()
    open_model.copy_small_files(run, folder)
    assert read_small_files(folder) == read_small_files(base)
    assert sorted(read_small_files(folder)) == ["config.json", "tokenizer.json"]
    assert [path.name for path in folder.parent.iterdir()] == ["open"]
