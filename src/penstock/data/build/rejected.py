"""Messages about rows of raw files that a build could not read, or had to cut."""

import json
from collections.abc import Iterable, Mapping

from penstock.data.format.manifest import ANSWERS_CUT, PAIRS_STAGE, Json, Manifest
from penstock.data.label.scores import LabelConfig
from penstock.data.sources.options import ReadOptions
from penstock.data.sources.records import decode_failure
from penstock.secret import redact

_CHAT = "chat."  # prefix of the reasons of conversations that cannot be learned from
_ONCE = json.loads(json.dumps(LabelConfig().copies))
_MANY = 0.2  # share of lost rows above which the message begins with it


def rejected_rows_note(manifest: Manifest) -> str:
    """Return a note on how many rows are missing and why; empty if all were read."""
    read, made = (manifest.counts.get(stage, {}) for stage in ("read", "tokenize"))
    reasons = {reason: count for reason, count in read.items() if reason != "kept"}
    reasons |= {why: count for why, count in made.items() if why.startswith(_CHAT)}
    lost = sum(reasons.values())
    if not lost:
        return ""
    listed = ", ".join(f"{n:,} {why.removeprefix(_CHAT)}" for why, n in reasons.items())
    name, total = f"{manifest.name}@{manifest.version}", sum(read.values())
    loud = f"{lost / total:.0%} OF THE ROWS ARE LOST: " if lost > _MANY * total else ""
    remedy = encoding_hint(reasons)
    return (
        f"{loud}{lost:,} of {total:,} rows of {manifest.name} were kept aside ({listed}); "
        f"`penstock data show {name}` says where they are{f'. {remedy}' if remedy else ''}"
    )


def cut_documents_note(manifest: Manifest) -> str:
    """Return a note that documents are longer than the packed length; empty if all fit.

    The manifest counts pieces, and each document is at least one. If [label] copies documents, the
    number of pieces says nothing.
    """
    if manifest.pairs:
        cut = manifest.counts.get(PAIRS_STAGE, {}).get(ANSWERS_CUT, 0)
        return (
            f"answers of {cut:,} of {manifest.documents:,} pairs of {manifest.name} are longer "
            f"than data.sequence = {manifest.packed} leaves them, and their ends are cut"
            if cut
            else ""
        )
    label = manifest.recipe.get("label")
    copies = label.get("copies") if isinstance(label, dict) else None
    if copies is not None and json.loads(json.dumps(copies)) != _ONCE:
        return ""
    whole = manifest.counts.get("tokenize", {}).get("kept", 0)
    if not manifest.packed or not whole or manifest.documents <= whole:
        return ""
    return (
        f"documents of {manifest.name} are longer than data.sequence = {manifest.packed} and are "
        f"cut: {whole:,} became {manifest.documents:,} pieces"
    )


def loss_warning(documents: int, rejected: Mapping[str, int], path: str) -> str:
    """Return a warning that much of a source could not be read; empty if little is lost."""
    lost = sum(rejected.values())
    total = documents + lost
    if lost <= _MANY * total or not documents:
        return ""
    listed = ", ".join(f"{count:,} {why}" for why, count in rejected.items())
    told = f"{lost / total:.0%} OF THE ROWS ARE LOST: {lost:,} of {total:,} ({listed})"
    return f"{told}. {remedy}" if (remedy := encoding_hint(rejected, path)) else told


def first_rows_warning(
    documents: int, rejected: Mapping[str, int], first: Mapping[str, Json], path: str
) -> str:
    """Return a warning, before a build, of rows that it will keep aside; `first` is one of them."""
    lost = sum(rejected.values())
    total = documents + lost
    loud = f"{lost / total:.0%} OF THE ROWS WILL BE LOST: " if lost > _MANY * total else ""
    listed = ", ".join(f"{count:,} {why}" for why, count in rejected.items())
    told = (
        f"{loud}{lost:,} of the first {total:,} rows will be kept aside ({listed}). "
        f"The first is {describe_rejected(first)}"
    )
    return f"{told}. {remedy}" if (remedy := encoding_hint(rejected, path)) else told


def describe_rejected(record: Mapping[str, Json]) -> str:
    """Return one line about a record that could not be read."""
    line = f", line {record['line']}" if record.get("line") else ""
    line = f", row {record['row']}{line}" if record.get("row") else line
    detail = f" ({record['detail']})" if record.get("detail") else ""
    return f"{record['file']}{line}: {record['reason']}{detail}"


def encoding_hint(reasons: Iterable[str], path: str = "FILES") -> str:
    """Return how to read text that is not UTF-8; empty if nothing was dropped for that."""
    if decode_failure(ReadOptions().encodings) not in reasons:
        return ""
    return (
        "Text in another encoding, such as Latin-1, needs a recipe, which data.dataset may name:"
        f'\n[[source]]\npath = "{redact(path)}"\nencodings = ["utf-8", "latin-1"]'
        '\n[clean]\npreset = "code"\n'
        'or `penstock data build FILES \'source.encodings=["utf-8", "latin-1"]\'`'
    )
