"""Replica-local state of a rank in one safetensors file: no pickle, known sizes."""

import json
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from penstock.guard.format.mapped_file import map_read_only
from penstock.guard.format.skeleton import ALIGNMENT
from penstock.untrusted import parse_table

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
_NAMES = {name: dtype for dtype, name in DTYPES.items()}


def local_file_name(rank: int) -> str:
    return f"local-r{rank:05d}.safetensors"


def safetensors_header(state: dict[str, Tensor]) -> tuple[bytes, dict[str, int], int]:
    """Return the bytes before the data, each tensor's offset in the file, and the file's size."""
    # Wide types first: with no gaps between them, which the format forbids, all stay aligned.
    ordered = sorted(state.items(), key=lambda one: (-one[1].dtype.itemsize, one[0]))
    about, end = {}, 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        about[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(about).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    before = len(text).to_bytes(8, "little") + text
    places = {name: len(before) + about[name]["data_offsets"][0] for name, _ in ordered}
    return before, places, len(before) + end


def read_local(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a rank's local file; a missing file is empty."""
    if not path.is_file():
        return {}
    content = map_read_only(path)
    length = int.from_bytes(bytes(content[:8].tolist()), "little")
    found = {}
    for name, about in parse_table(bytes(content[8 : 8 + length].numpy())).items():
        try:
            start, stop = (8 + length + offset for offset in about["data_offsets"])
            shape, dtype = about["shape"], _NAMES[about["dtype"]]
            fits = 8 + length <= start <= stop <= len(content)
            if not fits or stop - start != prod(shape) * dtype.itemsize:
                raise ValueError("its bytes are not where it says")
            found[name] = content[start:stop].clone().view(dtype).view(shape)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: {name!r:.200}: {error}") from None
    return found
