"""Values of journal lines that may be damaged: each function returns a usable value or None.

The fields of an event have the types that `events.py` declares when this version wrote the line. A
damaged line may have anything there.
"""

# Some 30,000 years: a number beyond it in a damaged file is not a time.
LATEST_S = 1e12


def whole(value: object) -> int | None:
    """Return a whole number of zero or more; None for anything else."""
    return value if type(value) is int and value >= 0 else None


def number(value: object) -> float | None:
    """Return a number; None for anything else."""
    if type(value) is not int and type(value) is not float:
        return None
    return float(value) if abs(value) <= 1e300 or value != value else None


def unix_s(value: object) -> float | None:
    """Return a moment in unix seconds; None for anything else."""
    if type(value) is float:
        return value if abs(value) <= LATEST_S else None
    if type(value) is not int:
        return None
    try:
        moment = float(value)
    except OverflowError:
        return None
    return moment if abs(moment) <= LATEST_S else None
