"""The safetensors files of an open model, checked by their headers alone: nothing is allocated.

A header has the name, type and dimensions of every tensor in a file. So a missing, superfluous or
wrongly shaped tensor, a file that is cut short, and weights that are not safetensors are reported
before any process starts. Without torch.
"""

from dataclasses import dataclass
from pathlib import Path

from penstock.catalog.open.folder import is_local, model_folder, read_config
from penstock.catalog.open.generic import is_generic
from penstock.catalog.open.headers import FLOAT_TYPES, StoredTensor, read_headers
from penstock.catalog.open.models import shape_of
from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError
from penstock.model.open.names import TensorLocation, tensor_locations, tensor_shapes

_SHOWN = 6
PREDICT_AHEAD = ("glm4_moe", "deepseek_v3")


@dataclass(frozen=True)
class OpenFiles:
    """The checked files of a model: every tensor of ours has its location."""

    folder: Path
    shape: ModelShape
    family: str
    entries: dict[str, StoredTensor]  # by their names
    locations: dict[str, TensorLocation]  # by our names


def check_open_files(folder: Path) -> OpenFiles:
    """Read the headers of a folder's files and check them against its config; one error lists all
    problems.
    """
    config = read_config(folder)
    shape, family = shape_of(config), str(config["model_type"])
    entries = read_headers(folder)
    found = {
        name: _first_present(tensor_locations(name, shape, family), entries)
        for name in tensor_shapes(shape)
    }
    problems = [
        *_tensor_problems(shape, family, entries, found),
        *_extra_tensors(shape, family, entries, found),
    ]
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise PenstockError(
            f"{folder}: its weights are not those of its config.json ({family}, {shape.layers} "
            f"layers): {'; '.join(problems[:_SHOWN])}{more}. Save or download the model again"
        )
    return OpenFiles(folder, shape, family, entries, {n: p for n, p in found.items() if p})


def check_local_open_model(given: str | None) -> None:
    """Check `model.from` if it is a folder here; the hub's are checked once downloaded."""
    if given and is_local(given):
        check_weight_files(model_folder(given))


def check_weight_files(folder: Path) -> None:
    """Check the files of a folder by their headers.

    Only ranks know the tensors of a module of transformers; its files must be whole and hold
    floating-point weights.
    """
    if not is_generic(read_config(folder)):
        check_open_files(folder)
        return
    for name, entry in read_headers(folder).items():
        if len(entry.shape) > 1 and entry.dtype not in (*FLOAT_TYPES, "BOOL", "U8"):
            raise PenstockError(
                f"{entry.file}: {name} is stored as {entry.dtype}, of {', '.join(FLOAT_TYPES)}. "
                "Take a revision of the model whose weights are not quantised"
            )


def _first_present(
    candidates: list[TensorLocation], entries: dict[str, StoredTensor]
) -> TensorLocation | None:
    for place in candidates:
        if all(name in entries for name in place.names):
            return place
    return None


def _tensor_problems(
    shape: ModelShape,
    family: str,
    entries: dict[str, StoredTensor],
    found: dict[str, TensorLocation | None],
) -> list[str]:
    problems = []
    for name, dimensions in tensor_shapes(shape).items():
        place = found[name]
        if place is None:
            usual = tensor_locations(name, shape, family)[0].names
            absent = next(one for one in usual if one not in entries)
            problems.append(f"{absent} is missing")
            continue
        expected = place.stored_shape(dimensions)
        for theirs in place.names:
            entry = entries[theirs]
            if entry.dtype not in FLOAT_TYPES:
                problems.append(f"{theirs} is stored as {entry.dtype}, of {', '.join(FLOAT_TYPES)}")
            elif entry.shape != expected:
                problems.append(f"{theirs} is {entry.shape}, not {expected}")
    return problems


def _extra_tensors(
    shape: ModelShape,
    family: str,
    entries: dict[str, StoredTensor],
    found: dict[str, TensorLocation | None],
) -> list[str]:
    used = {name for place in found.values() if place for name in place.names}
    # Old Llama files keep the rotary frequencies; some with a tied head keep a copy of it.
    harmless = {"lm_head.weight"} if shape.tied else set()
    # A layer that predicts further tokens stands after the last one; transformers drops it too.
    ahead = f"model.layers.{shape.layers}." if family in PREDICT_AHEAD else "\0"
    return [
        f"{name} has no place in the model"
        for name in sorted(entries.keys() - used - harmless)
        if not name.endswith("rotary_emb.inv_freq") and not name.startswith(ahead)
    ]
