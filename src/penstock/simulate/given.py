"""Failure rates from the command line: `failures.stall="10 min"` beside fields of the run file."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from penstock.errors import PenstockError
from penstock.run.clusters.file import FailuresSection
from penstock.run.clusters.load import CLUSTER
from penstock.run.mistakes import describe_error, describe_errors
from penstock.run.override import apply_overrides, parse_overrides

PREFIX = "failures."


def split(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides of the run file, and those of the failure rates."""
    own = [item for item in overrides if item.startswith(PREFIX)]
    return [item for item in overrides if item not in own], own


def changed(base: FailuresSection, overrides: Sequence[str] | Mapping[str, Any]) -> FailuresSection:
    """Return the rates with some fields changed; refuse what a cluster file would not take."""
    tables = [{"failures": overrides}] if isinstance(overrides, Mapping) else overrides
    if not overrides:
        return base
    found, problems = parse_overrides(tables, CLUSTER)
    known = {path for path in CLUSTER.by_path if path[0] == "failures" and len(path) == 2}
    names = ", ".join(path[1] for path in sorted(known))
    problems += [
        f"command line: {'.'.join(one.path)}: no such field. There are {names}"
        for one in found
        if one.path not in known
    ]
    table = {"failures": base.model_dump(exclude_none=True)}
    problems += apply_overrides(found, table, CLUSTER)
    if problems:
        raise PenstockError("\n".join(problems))
    try:
        return FailuresSection.model_validate(table["failures"])
    except ValidationError as error:
        told = describe_errors(
            error, lambda detail: describe_error(_inside(detail), table, CLUSTER)
        )
        raise PenstockError("\n".join(f"{found[0].source}: {one.text}" for one in told)) from None


def _inside(detail: Any) -> Any:
    """Return an error of the section as one of the file that holds it."""
    return {**detail, "loc": ("failures", *detail["loc"])}
