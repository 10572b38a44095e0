"""Documents that are not in a dataset, and why: dropped by a stage, or rejected when read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.data.build.publish import ASIDE
from penstock.data.build.record import SampleDocument, read_build_record
from penstock.data.read.dataset import Dataset
from penstock.errors import PenstockError, nearest
from penstock.untrusted import parse_json

READ = "read"  # the stage whose rejected records are in aside.jsonl


@dataclass(frozen=True)
class DroppedDocuments:
    """A few documents that were dropped for some reasons, and how many there were."""

    samples: list[SampleDocument]
    total: int  # dropped for these reasons
    reasons: list[str]  # "stage: reason"


def dropped_documents(dataset: Dataset, reason: str, count: int) -> DroppedDocuments:
    """Return the samples that the build kept; a part of the reason's name is enough."""
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
        kept |= rejected_samples(dataset.folder)
    samples = [sample for why in fitting for sample in kept.get(why, [])]
    total = sum(counts[why] for why in fitting)
    if not samples:
        raise PenstockError(
            f"{total:,} were dropped for {', '.join(fitting)}, but none is there to look at: "
            f"{dataset.folder / ASIDE} is missing. Build the dataset again, or copy the file too."
        )
    return DroppedDocuments(samples[:count], total, fitting)


def rejected_samples(folder: Path) -> dict[str, list[SampleDocument]]:
    """Return "read: reason" → rejected records, with their places in the files."""
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
    """Return a rejected record as a sample. Its text is the first bytes; the length is unknown."""
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
    message = f"No document of {dataset} was dropped for {reason!r}. {nearest(reason, counts)}"
    return f"{message.rstrip()} There are: {known}."
