"""A model written as a folder that transformers, and all that read its format, can load.

Tensors come one at a time and leave in files of at most 5 GB, so that a model larger than memory
can be written. The folder is written under another name and renamed when it is complete.
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from penstock.catalog.open.folder import CONFIG, GENERATION
from penstock.catalog.open.headers import INDEX, SINGLE
from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError
from penstock.files import sync, write_synced
from penstock.model.open.names import is_buffer, tensor_locations, tensor_shapes

SHARD_BYTES = 5_000_000_000
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_THEIR_DTYPE = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def dtype_of_config(config: Mapping[str, Any]) -> str:
    """Return our name of the type that a config.json states for its weights; bf16 if it states none
    of ours.
    """
    said = str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch.")
    ours = {theirs: name for name, theirs in _THEIR_DTYPE.items()}
    return "fp32" if said == "float64" else ours.get(said, "bf16")


def write_model(
    folder: Path,
    shape: ModelShape,
    family: str,
    named: Iterable[tuple[str, Tensor]],
    config: Mapping[str, Any],
    beside: Mapping[str, bytes],
    dtype: str = "bf16",
    shard_bytes: int = SHARD_BYTES,
) -> int:
    """Write tensors under our names in `family`'s format; return the bytes of the weights.

    `config` is the config.json without its dtype, `beside` the other files: tokenizer and
    generation. Every tensor of the shape must come, in any order; the
    names of a generic model are those of its module.
    """
    if folder.exists():
        raise PenstockError(f"{folder} is there already; name another folder, or remove it")
    aside = folder.with_name(f".{folder.name}.writing")
    try:
        shutil.rmtree(aside, ignore_errors=True)  # left by an export that was killed
        aside.mkdir(parents=True)
        size = (
            _write_module_weights(aside, named, dtype, shard_bytes)
            if shape.generic
            else _write_weights(aside, shape, family, named, dtype, shard_bytes)
        )
        told = {**config, "dtype": _THEIR_DTYPE[dtype]}
        for name, content in {**beside, CONFIG: _json(told)}.items():
            write_synced(aside / name, content)
        sync(aside)
        aside.rename(folder)
        sync(folder.parent)
    except (OSError, SafetensorError) as error:  # the second of a full disk, too
        shutil.rmtree(aside, ignore_errors=True)
        why = getattr(error, "strerror", None) or error
        raise PenstockError(
            f"{folder}: cannot be written: {why}; name another with --out"
        ) from error
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return size


def generation_config(config: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the generation config: which tokens begin and end a text."""
    names = ("bos_token_id", "eos_token_id")
    ids = {name: config[name] for name in names if config.get(name) is not None}
    return {GENERATION: _json(ids)}


def _write_weights(
    folder: Path,
    shape: ModelShape,
    family: str,
    named: Iterable[tuple[str, Tensor]],
    dtype: str,
    shard_bytes: int,
) -> int:
    missing, shards = tensor_shapes(shape), _ShardWriter(folder, shard_bytes)
    fused: dict[str, tuple[Tensor, int]] = {}  # their tensors that lack rows, and how many
    for name, tensor in named:
        if missing.pop(name, None) != tuple(tensor.shape):
            raise PenstockError(f"{name} of {tuple(tensor.shape)} is no tensor of this {family}")
        wide = torch.float32 if is_buffer(name) else DTYPES[dtype]
        place = tensor_locations(name, shape, family)[0]
        parts = tensor.detach().unbind(0) if place.stacked else [tensor.detach()]
        for theirs, part in zip(place.names, parts, strict=True):
            kept = (part.mT if place.transposed else part).to("cpu", wide, copy=True).contiguous()
            if place.rows is None:
                shards.add(theirs, kept)
                continue
            size = place.stored_shape(tuple(tensor.shape))
            if theirs not in fused:
                fused[theirs] = torch.empty(size, dtype=wide), place.whole
            whole, lack = fused.pop(theirs)
            whole[place.index(())] = kept
            if lack > place.held:
                fused[theirs] = whole, lack - place.held
            else:
                shards.add(theirs, whole)
    if missing:
        raise PenstockError(f"the model lacks {', '.join(sorted(missing)[:6])}: nothing is written")
    return shards.finish()


def _write_module_weights(
    folder: Path, named: Iterable[tuple[str, Tensor]], dtype: str, shard_bytes: int
) -> int:
    """Write the tensors of a module of transformers under its own names."""
    shards = _ShardWriter(folder, shard_bytes)
    for name, tensor in named:
        kept = DTYPES[dtype] if tensor.is_floating_point() else tensor.dtype
        shards.add(name, tensor.detach().to("cpu", kept, copy=True).contiguous())
    return shards.finish()


def save_tensors(held: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file with the rights of any other new file, on disk when it returns."""
    path.touch()
    rights = path.stat().st_mode  # safetensors would let only the owner read it
    save_file(held, path, metadata={"format": "pt"})
    path.chmod(rights)
    sync(path)


class _ShardWriter:
    """Files of tensors, each closed when it is full."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder, self._limit = folder, limit_bytes
        self._held: dict[str, Tensor] = {}
        self._held_bytes = 0
        self._files: list[list[str]] = []  # the names of each file's tensors
        self._total = {"total_parameters": 0, "total_size": 0}

    def add(self, name: str, tensor: Tensor) -> None:
        if self._held and self._held_bytes + tensor.nbytes > self._limit:
            self._close()
        self._held[name] = tensor
        self._held_bytes += tensor.nbytes
        self._total["total_parameters"] += tensor.numel()
        self._total["total_size"] += tensor.nbytes

    def finish(self) -> int:
        """Name the files, now that their number is known, and return the bytes of all."""
        self._close()
        if len(self._files) == 1:
            (self._folder / "0").rename(self._folder / SINGLE)
            return self._total["total_size"]
        index: dict[str, str] = {}
        for number, names in enumerate(self._files):
            file = f"model-{number + 1:05d}-of-{len(self._files):05d}.safetensors"
            (self._folder / str(number)).rename(self._folder / file)
            index |= dict.fromkeys(names, file)
        told = {"metadata": self._total, "weight_map": dict(sorted(index.items()))}
        write_synced(self._folder / INDEX, _json(told))
        return self._total["total_size"]

    def _close(self) -> None:
        save_tensors(self._held, self._folder / str(len(self._files)))
        self._files.append(list(self._held))
        self._held, self._held_bytes = {}, 0


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
