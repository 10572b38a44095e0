"""Rows of raw files that a build could not read, in words for who trains on the rest."""

from penstock.data.manifest import Manifest

_CHAT = "chat."  # begins the reasons of conversations that cannot be learned from


def rows_aside(manifest: Manifest) -> str:
    """How many rows are missing and why; empty where all were read."""
    read, made = (manifest.counts.get(stage, {}) for stage in ("read", "tokenize"))
    reasons = {reason: count for reason, count in read.items() if reason != "kept"}
    reasons |= {why: count for why, count in made.items() if why.startswith(_CHAT)}
    lost = sum(reasons.values())
    if not lost:
        return ""
    listed = ", ".join(f"{n:,} {why.removeprefix(_CHAT)}" for why, n in reasons.items())
    name = f"{manifest.name}@{manifest.version}"
    return (
        f"{lost:,} of {sum(read.values()):,} rows of {manifest.name} were kept aside ({listed}); "
        f"`penstock data show {name}` says where they are"
    )
