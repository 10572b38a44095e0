"""Documents that are not in a dataset, and why: what the stages of its build dropped, and what
reading kept aside."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.data.build.publish import ASIDE
from penstock.data.build.record import SampleDocument, read_build_record
from penstock.data.read.dataset import Dataset
from penstock.errors import PenstockError, nearest
from penstock.untrusted import parse_json

READ = "read"  # the stage that keeps aside


@dataclass(frozen=True)
class Dropped:
    samples: list[SampleDocument]
    total: int  # dropped for these reasons
    reasons: list[str]  # "stage: reason"


def dropped(dataset: Dataset, reason: str, count: int) -> Dropped:
    """Those that the build kept to show; a part of the reason's name is enough."""
    record = read_build_record(dataset.folder)
    if record is None:
        raise PenstockError(f"{dataset.id} has no build.json, so what was dropped is not known.")
    counts = {
        f"{stage.name}: {why}": documents
        for stage in record.stages
        for why, documents in stage.reasons.items()
    }
    fitting = _fitting(reason, counts)
    if not fitting:
        raise PenstockError(_unknown(dataset.id, reason, counts))
    kept = dict(record.dropped)
    if any(why.startswith(f"{READ}: ") for why in fitting):
        kept |= aside(dataset.folder)
    samples = [sample for why in fitting for sample in kept.get(why, [])]
    total = sum(counts[why] for why in fitting)
    if not samples:
        raise PenstockError(
            f"{total:,} were dropped for {', '.join(fitting)}, but none is there to look at: "
            f"{dataset.folder / ASIDE} is missing. Build the dataset again, or copy the file too."
        )
    return Dropped(samples[:count], total, fitting)


def aside(folder: Path) -> dict[str, list[SampleDocument]]:
    """ "read: reason" → what was kept aside for it, with the place in its file."""
    path = folder / ASIDE
    found: dict[str, list[SampleDocument]] = {}
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                one = parse_json(line)
                found.setdefault(f"{READ}: {one['reason']}", []).append(_sample(one))
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise PenstockError(
            f"{path} cannot be read: {error}. Delete it (the dataset does not need it)."
        ) from None
    return found


def _sample(one: dict[str, Any]) -> SampleDocument:
    """Its text is the first bytes; how long the whole is, nobody has counted."""
    place = one.get("row") or one.get("line")  # as in the ids of documents
    detail = f"{one['reason']}: {one['detail']}" if one.get("detail") else one["reason"]
    return SampleDocument(
        id=f"{one['file']}:{place}" if place is not None else one["file"],
        source=one.get("source", ""),
        text=one.get("head", ""),
        characters=0,
        score=-1,
        language="",
        columns={},
        detail=detail,
    )


def _fitting(reason: str, known: dict[str, int]) -> list[str]:
    exact = [why for why in known if reason in (why, why.partition(": ")[2])]
    return exact or [why for why in known if reason in why]


def _unknown(dataset: str, reason: str, counts: dict[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    known = ", ".join(f"{why} ({count:,})" for why, count in ordered) or "none"
    told = f"No document of {dataset} was dropped for {reason!r}. {nearest(reason, counts)}"
    return f"{told.rstrip()} There are: {known}."
