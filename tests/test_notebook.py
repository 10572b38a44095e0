"""The notebook of `examples/`, executed by a Jupyter kernel from its first cell to its last."""

import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "penstock.ipynb"


def executed(where: Path, monkeypatch: pytest.MonkeyPatch, **changed: str) -> str:
    """Execute the notebook in a folder; return what its cells print. An error in a cell raises."""
    book: Any = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(book)
    for cell in book.cells:
        for old, new in changed.items():
            cell.source = cell.source.replace(f'"{old}"', f'"{new}"')
    # The kernel of this Python, whatever kernels are installed for the user.
    share = where / "jupyter" / "kernels" / "python3"
    share.mkdir(parents=True)
    command = f'["{sys.executable}", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"]'
    spec = f'{{"argv": {command}, "display_name": "Python 3", "language": "python"}}'
    (share / "kernel.json").write_text(spec)
    monkeypatch.setenv("JUPYTER_PATH", str(where / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(where / "ipython"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    client = NotebookClient(book, timeout=280, resources={"metadata": {"path": str(where)}})
    client.execute()
    told = [
        output.get("text") or output.get("data", {}).get("text/plain", "")
        for cell in book.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]
    return "".join(told)


def test_the_notebook_trains_and_reports(
    tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = executed(tmp_path, monkeypatch, **{"stdlib": tiny, "1Ki": "256"})
    assert "('done', 60)" in said
    assert "fits in memory: True" in said
    assert "step 60: validation loss" in said
    assert "compute " in said
    assert (tmp_path / "runs" / "notebook" / "run.toml").exists()


@pytest.mark.slow
def test_the_notebook_trains_on_the_default_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = executed(tmp_path, monkeypatch)
    assert "('done', 60)" in said


def test_the_notebook_is_kept_without_outputs() -> None:
    book: Any = nbformat.read(NOTEBOOK, as_version=4)
    for cell in book.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
