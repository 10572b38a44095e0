"""Rows of raw files that a build could not read, in words for who trains on the rest."""

import json
from collections.abc import Iterable, Mapping

from penstock.data.format.manifest import Manifest
from penstock.data.label.scores import LabelConfig
from penstock.data.sources.decode import not_decodable
from penstock.data.sources.options import Options
from penstock.secret import redact

_CHAT = "chat."  # begins the reasons of conversations that cannot be learned from
_ONCE = json.loads(json.dumps(LabelConfig().copies))
_MANY = 0.2  # lost rows, from which on the first words say it


def rows_aside(manifest: Manifest) -> str:
    """How many rows are missing and why; empty where all were read."""
    read, made = (manifest.counts.get(stage, {}) for stage in ("read", "tokenize"))
    reasons = {reason: count for reason, count in read.items() if reason != "kept"}
    reasons |= {why: count for why, count in made.items() if why.startswith(_CHAT)}
    lost = sum(reasons.values())
    if not lost:
        return ""
    listed = ", ".join(f"{n:,} {why.removeprefix(_CHAT)}" for why, n in reasons.items())
    name, total = f"{manifest.name}@{manifest.version}", sum(read.values())
    loud = f"{lost / total:.0%} OF THE ROWS ARE LOST: " if lost > _MANY * total else ""
    remedy = other_encoding(reasons)
    return (
        f"{loud}{lost:,} of {total:,} rows of {manifest.name} were kept aside ({listed}); "
        f"`penstock data show {name}` says where they are{f'. {remedy}' if remedy else ''}"
    )


def cut_long(manifest: Manifest) -> str:
    """Say that documents are longer than what they were packed for; empty where all fit.

    The manifest counts the pieces, each document is one at least. Where [label] copies documents,
    pieces tell nothing.
    """
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


def many_lost(documents: int, rejected: Mapping[str, int], path: str) -> str:
    """Say that much of a source could not be read; empty where little is lost."""
    lost = sum(rejected.values())
    total = documents + lost
    if lost <= _MANY * total or not documents:
        return ""
    listed = ", ".join(f"{count:,} {why}" for why, count in rejected.items())
    told = f"{lost / total:.0%} OF THE ROWS ARE LOST: {lost:,} of {total:,} ({listed})"
    return f"{told}. {remedy}" if (remedy := other_encoding(rejected, path)) else told


def other_encoding(reasons: Iterable[str], path: str = "FILES") -> str:
    """Say what to write where text is not UTF-8; empty where nothing was dropped for that."""
    if not_decodable(Options().encodings) not in reasons:
        return ""
    return (
        "Text in another encoding, such as Latin-1, needs a recipe, which data.dataset may name:"
        f'\n[[source]]\npath = "{redact(path)}"\nencodings = ["utf-8", "latin-1"]'
        '\n[clean]\npreset = "code"\n'
        'or `penstock data build FILES \'source.encodings=["utf-8", "latin-1"]\'`'
    )
