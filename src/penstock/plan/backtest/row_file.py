"""A CSV of measured runs as lines of cells; a fault of the file is one error."""

import csv
from pathlib import Path

from penstock.errors import PenstockError


def lines(path: Path) -> list[dict[str, str]]:
    """Read at least one line; cells have no blanks around them."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = [name.strip() for name in reader.fieldnames or ()]
            found = list(reader)
    except OSError as error:
        raise PenstockError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise PenstockError(f"{path} is not a CSV file: {error}") from error
    if twice := [name for n, name in enumerate(columns) if name and name in columns[:n]]:
        raise PenstockError(f"{path}: the column '{twice[0]}' is there twice; remove one")
    if not found:
        raise PenstockError(f"{path} has no rows; it needs a header and one row per measured run")
    return [{name: (cell or "").strip() for name, cell in line.items() if name} for line in found]
