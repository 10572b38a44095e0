"""A CSV of measured runs as lines of cells; a fault of the file is one error."""

import csv
from pathlib import Path

from penstock.errors import PenstockError


def lines(path: Path) -> list[dict[str, str]]:
    """Read at least one line; cells have no blanks around them."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            found = list(csv.DictReader(file))
    except OSError as error:
        raise PenstockError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise PenstockError(f"{path} is not a CSV file: {error}") from error
    if not found:
        raise PenstockError(f"{path} has no rows; it needs a header and one row per measured run")
    return [{name: (cell or "").strip() for name, cell in line.items() if name} for line in found]
