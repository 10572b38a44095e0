"""Run files and generated runs for the tests of this room."""

import pytest

from penstock.run.load import load


@pytest.fixture
def run_of(tmp_path):
    """Loads the text of a run file, with overrides."""

    def read(text, *overrides):
        file = tmp_path / "run.toml"
        file.write_text(text, encoding="utf-8")
        return load(file, overrides)

    return read
