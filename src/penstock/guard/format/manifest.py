"""`manifest.json`: the identity of a checkpoint in one record whose hash covers all of it.

A folder can be renamed, copied into another run or half restored. So the manifest holds the step,
the run and its settings, and a load compares them with the folder's name and with the run. Format 3
had a hash of `files` alone; its step and settings are read from `scalars.json`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.guard.format.file_names import FileTable, check_file_table
from penstock.guard.format.index import INDEX
from penstock.untrusted import hash_json, is_count, parse_table

MANIFEST = "manifest.json"
FORMAT = 4  # 3 had no run in the manifest, 2 the places of tensors in a pickle, 1 other names
READABLE_FORMATS = (3, 4)
UNSUPPORTED = "a checkpoint in format"  # begins the words for one that is not read


class UnsupportedFormat(ValueError):
    """A whole manifest of a format that this version cannot read."""

    def __init__(self, format_: int, files: FileTable) -> None:
        super().__init__(
            f"{UNSUPPORTED} {format_}, and this version of Penstock reads format "
            f"{' and '.join(map(str, READABLE_FORMATS))}"
        )
        self.format, self.files = format_, files


@dataclass(frozen=True)
class CheckpointManifest:
    """The description of a checkpoint: step, run, settings, files."""

    step: int | None  # None in format 3, whose hash does not cover it
    files: FileTable
    run: str = ""  # identity of the run; "" in format 3, or if no run made it
    settings: str = ""  # `run/fingerprint.settings` of it; "" where it is not compared
    layout: dict[str, Any] = field(default_factory=dict)
    # Only in a checkpoint taken over from another run: "run", "name", "step".
    origin: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        """Return the record with its hashes. Earlier versions read only the hash of the files."""
        body = {"format": self.format} | asdict(self) | {"blake3": hash_json(self.files)}
        return json.dumps(body | {"whole": hash_json(body)}, indent=1).encode()

    @property
    def digest(self) -> str:
        """The hash of the whole record. The journal uses it to tell this checkpoint from
        another."""
        return hash_json(asdict(self))

    @staticmethod
    def from_bytes(content: bytes) -> "CheckpointManifest":
        """Parse a manifest. Raises UnsupportedFormat, or ValueError if it is damaged."""
        found = parse_table(content)
        body = {name: value for name, value in found.items() if name != "whole"}
        format_, files = found.get("format"), found.get("files")
        if found.get("whole") == hash_json(body) and found.get("blake3") == hash_json(files):
            return _checked(body)
        of_before = type(format_) is int and 0 < format_ < 4 and "whole" not in found
        if of_before and found.get("blake3") == hash_json(files):
            checked = check_file_table(files, MANIFEST)
            if (format_ == 3) != (INDEX in checked):
                raise ValueError(f"format {format_} does not go with its files")
            if format_ == 3:
                return CheckpointManifest(None, checked, format=3)
            raise UnsupportedFormat(int(str(format_)), checked)
        raise ValueError("content does not match its hash")


def _checked(body: Mapping[str, Any]) -> CheckpointManifest:
    format_, files = body.get("format"), check_file_table(body.get("files"), MANIFEST)
    if format_ != FORMAT:
        raise UnsupportedFormat(format_ if type(format_) is int else -1, files)
    step = body.get("step")
    if not is_count(step):
        raise ValueError(f"step {step!r:.40} is no number of steps")
    run, hashed = body.get("run"), body.get("settings")
    if not isinstance(run, str) or not isinstance(hashed, str):
        raise ValueError("the run is not named by a text")
    layout, origin = body.get("layout"), body.get("origin")
    if not isinstance(layout, dict) or not isinstance(origin, dict):
        raise ValueError("layout or origin is no table")
    return CheckpointManifest(step, files, run, hashed, layout, origin)


def manifest_fields(run: str, scalars: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest fields other than step and files, for a save with these scalars."""
    return {
        "run": run,
        "settings": str(scalars.get("settings", "")),
        "layout": dict(scalars.get("layout", {})),
    }


def manifest_bytes(step: int, files: FileTable, **about: Any) -> bytes:
    """Return the manifest of a checkpoint as it is written."""
    return CheckpointManifest(step, files, **about).to_bytes()
