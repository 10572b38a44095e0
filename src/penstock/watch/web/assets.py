"""The files of the page: its own, and a copy of uPlot, which draws the charts.

uPlot's two files come unchanged from the npm package `uplot` 1.6.32 (MIT, static/uPlot.LICENSE):
`npm pack uplot@1.6.32`, then package/dist. They travel with the page because the page must work
without a network, and because the Python packages that carry them bring IPython along.
"""

import mimetypes
from functools import cache
from pathlib import Path

from penstock.style import cause_variables

CAUSES = "causes.css"  # generated: the colours of the causes
FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
}


def asset(name: str) -> tuple[bytes, str] | None:
    """Read a file by its name in an address: content and type, or None if there is no such file."""
    if name == CAUSES:
        return cause_variables().encode(), "text/css; charset=utf-8"
    path = files().get(name)
    if path is None:
        return None
    kind = TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "text/plain"
    return path.read_bytes(), f"{kind}; charset=utf-8"


@cache
def files() -> dict[str, Path]:
    """List every file of the page by name. Requests are looked up here, so none can leave it."""
    return {path.name: path for path in FOLDER.iterdir() if path.suffix in TYPES}
