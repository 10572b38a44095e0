"""The files of the page: our own, and uPlot from the package that carries it. Nothing else."""

import importlib.util
import mimetypes
from functools import cache
from pathlib import Path

from penstock.errors import PenstockError

OWN = Path(__file__).parent / "static"
# From the wheel `uplot-python`, found without importing it: only two of its files are of use here.
CHARTS = {"uPlot.js": "uPlot.iife.js", "uPlot.css": "uPlot.min.css"}
TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
}


def asset(name: str) -> tuple[bytes, str] | None:
    """Content and type of a file by its name in an address; None where there is no such file."""
    path = files().get(name)
    if path is None:
        return None
    kind = TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "text/plain"
    return path.read_bytes(), f"{kind}; charset=utf-8"


@cache
def files() -> dict[str, Path]:
    """All there are. What is asked for is looked up here, so no path can lead elsewhere."""
    found = {path.name: path for path in OWN.iterdir() if path.suffix in TYPES}
    charts = _charts()
    return found | {name: charts / file for name, file in CHARTS.items()}


def _charts() -> Path:
    spec = importlib.util.find_spec("uplot")
    folder = Path(spec.origin).parent / "static" if spec and spec.origin else None
    if folder is None or not (folder / CHARTS["uPlot.js"]).is_file():
        raise PenstockError(
            "the charts of the page come with the package `uplot-python`, which is not there: "
            "pip install uplot-python"
        )
    return folder
