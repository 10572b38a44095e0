"""The safetensors files of a folder, as their headers describe them. Without torch.

A header has the name, type and dimensions of every tensor in a file. So parameters are counted, and
a file that is cut short or weights that are not safetensors are reported, before any process
starts.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

from penstock.errors import PenstockError
from penstock.untrusted import INDEX_BYTES, parse_json, preview, read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
FLOAT_TYPES = tuple(_BYTES)
_MOST_DIMENSIONS = 64
_LARGEST_HEADER = 100 << 20
_SHOWN = 6


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file, as the file's header describes it."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


def read_headers(folder: Path) -> dict[str, StoredTensor]:
    """Return every tensor of a folder's files, by its stored name."""
    found: dict[str, StoredTensor] = {}
    for file, named in _files(folder).items():
        header = _header(file)
        missing = sorted(named - header.keys())
        if missing:
            raise PenstockError(f"{file} has no {missing[0]}, which {INDEX} says it holds")
        found |= {name: one for name, one in header.items() if not named or name in named}
    return found


def _files(folder: Path) -> dict[Path, set[str]]:
    """Return each file with the tensors that the index lists for it; an empty set means all."""
    if (folder / INDEX).is_file():
        try:
            listed = read_json(folder / INDEX, INDEX_BYTES)["weight_map"]
            by_file: dict[Path, set[str]] = {}
            for name, file in listed.items():
                by_file.setdefault(folder / Path(file).name, set()).add(name)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PenstockError(f"{folder / INDEX} is no index of weights: {error}") from None
        absent = sorted(file.name for file in by_file if not file.is_file())
        if absent:
            raise PenstockError(
                f"{folder} lacks {len(absent)} of {len(by_file)} files of weights: "
                f"{', '.join(absent[:_SHOWN])}. Download them again"
            )
        return by_file
    if (folder / SINGLE).is_file():
        return {folder / SINGLE: set()}
    pickles = sorted(one.name for one in folder.glob("*.bin*"))
    if pickles:
        raise PenstockError(
            f"{folder} has its weights as pickle ({pickles[0]}), which can run code when it is "
            "read. Take a revision with safetensors, or convert it once where you trust it: "
            "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(other_folder)"
        )
    there = ", ".join(sorted(one.name for one in folder.iterdir())[:12]) or "nothing"
    raise PenstockError(f"{folder} has no weights: neither {SINGLE} nor {INDEX}, only {there}")


def _header(file: Path) -> dict[str, StoredTensor]:
    """Read what a file says it holds; an error where it is not all there."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, _LARGEST_HEADER):
            raise PenstockError(f"{file} is not a safetensors file, or cut short; copy it again")
        try:
            header = parse_json(stream.read(length))
            if not isinstance(header, dict):
                raise ValueError("it is no object")
            told = {name: one for name, one in header.items() if name != "__metadata__"}
            entries = {name: _entry(file, name, one) for name, one in told.items()}
        except ValueError as error:
            raise PenstockError(f"{file} has a damaged header ({error}); copy it again") from None
    spans = sorted(one["data_offsets"] for one in told.values())
    whole = 8 + length + (spans[-1][1] if spans else 0)
    if size < whole:
        raise PenstockError(f"{file} is cut short: {size} of {whole} bytes; copy it again")
    if size > whole or any(a[1] != b[0] for a, b in pairwise([[0, 0], *spans])):
        raise PenstockError(f"{file}: its tensors overlap or do not fill it; copy it again")
    return entries


def _entry(file: Path, name: str, one: Any) -> StoredTensor:
    """Check a header's entry of one tensor. Raises ValueError if it cannot be true."""
    told = one if isinstance(one, dict) else {}
    dtype, shape, offsets = (told.get(field) for field in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or not _is_size_list(shape) or not _is_size_list(offsets):
        raise ValueError(f"{preview(name)}: no dtype, shape and data_offsets")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"{preview(name)}: data_offsets = {preview(offsets)}")
    width = _BYTES.get(dtype)
    if width is not None and prod(shape) * width != offsets[1] - offsets[0]:
        raise ValueError(
            f"{preview(name)}: {dtype} of {preview(shape)} is not what its offsets hold"
        )
    return StoredTensor(file, dtype[:20], tuple(shape))


def _is_size_list(value: object) -> TypeGuard[list[int]]:
    """Return whether this is a list of a few sizes that a file can have."""
    return (
        isinstance(value, list)
        and len(value) <= _MOST_DIMENSIONS
        and all(type(one) is int and 0 <= one < 1 << 63 for one in value)
    )
