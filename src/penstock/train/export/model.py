"""A run's checkpoint exported as a folder that transformers, and all that read its format, can
load.

This works in one process without the run's layout: tensors are read from the checkpoint a few at a
time, and written. Config and tokenizer are those of the model that the run started from; without
one they follow from the shape and the dataset's tokenizer.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.catalog.open.folder import CONFIG, model_folder, read_config, read_small_files
from penstock.catalog.open.generic import generic_shape, is_generic
from penstock.catalog.open.models import config_of, family_of, shape_of
from penstock.catalog.shapes import ModelShape
from penstock.data.read.run_tokenizer import read_tokenizer
from penstock.errors import PenstockError, RunFailed
from penstock.files import refuse_existing
from penstock.guard import checkpoints
from penstock.guard.checkpoints import (
    StoredCheckpoint,
    best_first,
    problems_of,
    published_checkpoints,
)
from penstock.guard.tiers.journal_facts import (
    newer_is_gone_message,
    newest_recorded,
    no_checkpoint_message,
)
from penstock.model.adapter.export import merged_module_tensors, write_adapter
from penstock.model.adapter.export import merged_tensors as merged_tensors
from penstock.model.adapter.names import adapter_shapes
from penstock.model.open.names import tensor_shapes
from penstock.model.open.weights import OpenWeights
from penstock.model.open.write import DTYPES, dtype_of_config, generation_config, write_model
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.schema.run import Run
from penstock.train.export.folder import MARK, export_mark, refuse_foreign, replace_when_done
from penstock.train.export.tokenizer import tokenizer_files, with_template

READ_BYTES = 1 << 30  # read from a checkpoint at a time


@dataclass(frozen=True)
class ExportResult:
    """The outcome of an export."""

    folder: str
    step: int
    kind: str  # "model" or "adapter"
    family: str
    dtype: str
    bytes: int  # of the weights
    passed_over: tuple[str, ...] = ()  # newer checkpoints that are damaged or gone

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ModelDescription:
    """The files of a model besides its weights."""

    shape: ModelShape
    family: str
    config: dict[str, Any]
    beside: dict[str, bytes]  # tokenizer and generation
    dtype: str = "bf16"  # of the weights, where nobody asks for another


def export(
    folder: RunFolder,
    out: Path | None = None,
    step: int | None = None,
    dtype: str | None = None,
    merged: bool = False,
    best: bool = False,
    force: bool = False,
) -> ExportResult:
    """Write the newest good checkpoint of a run, that of `step`, or the `best` one.

    For an adapter run it writes the adapter in PEFT's format, or with `merged` the model with the
    adapter merged in. Without `dtype`, weights have the type of the model that the run started
    from, bf16 if it started from none, and an adapter by itself fp32. `force` replaces an earlier
    export.
    """
    run = load(folder.run_file)
    _refuse(run, folder, dtype, merged)
    where = out or folder.path / ("merged" if merged else "export")
    refuse_existing(where, force, other="name another with --out")
    refuse_foreign(where)
    what = describe_model(run, folder)
    found, passed_over = choose_checkpoint(folder, step, best)
    adapter = run.model.adapter
    alone = bool(adapter) and not merged
    dtype = dtype or ("fp32" if alone else what.dtype)
    beside = what.beside | {MARK: export_mark(folder.name, found.step, dtype, what.beside)}
    what = replace(what, beside=beside)
    stored = found.scalars.get("stored_names", {})
    with replace_when_done(where) as fresh:
        if adapter and run.model.from_:
            names = (
                _saved_shapes(found) if what.shape.generic else adapter_shapes(what.shape, adapter)
            )
            named = dict(_read_tensors(found, names))
            base = run.model.from_
            if alone:
                size = write_adapter(
                    fresh, what.shape, what.family, adapter, named, base, beside, dtype
                )
            else:
                where_from = model_folder(base)
                whole = (
                    merged_module_tensors(where_from, adapter, named, stored)
                    if what.shape.generic
                    else merged_tensors(OpenWeights(where_from), adapter, named)
                )
                size = export_weights(fresh, what, whole, dtype)
        else:
            if what.shape.generic:
                names = _saved_shapes(found)
            else:
                _refuse_balance(found, what)
                names = tensor_shapes(what.shape)
            read = ((stored.get(name, name), t) for name, t in _read_tensors(found, names))
            size = export_weights(fresh, what, read, dtype)
    kind = "adapter" if alone else "model"
    return ExportResult(str(where), found.step, kind, what.family, dtype, size, passed_over)


def export_weights(
    out: Path, what: ModelDescription, named: Iterable[tuple[str, Tensor]], dtype: str
) -> int:
    """Write all tensors of a model, by our names, as a folder; return the bytes of the weights."""
    return write_model(out, what.shape, what.family, named, what.config, what.beside, dtype)


def describe_model(run: Run, folder: RunFolder) -> ModelDescription:
    """Return shape, family, config and tokenizer of a run's model."""
    kept = read_tokenizer(run, folder)
    if run.model.from_:
        files = read_small_files(folder.open_model)
        config = read_config(folder.open_model)
        config = {name: v for name, v in config.items() if name not in _NOT_KEPT}
        beside = {name: held for name, held in files.items() if name != CONFIG}
        return ModelDescription(
            generic_shape(config) if is_generic(config) else shape_of(config),
            config["model_type"],
            config,
            with_template(beside, kept.content),
            dtype_of_config(read_config(folder.open_model)),
        )
    shape = run.model.shape(kept.vocab)
    family = family_of(shape)
    beside, ids = tokenizer_files(kept.content, shape.context)
    config = config_of(shape, family) | ids
    return ModelDescription(shape, family, config, {**beside, **generation_config(config)})


_NOT_KEPT = ("torch_dtype", "_name_or_path")  # of another file


def _refuse(run: Run, folder: RunFolder, dtype: str | None, merged: bool) -> None:
    if run.model.module:
        raise PenstockError(
            f"run '{folder.name}' trains your own module ({run.model.module}), which no family of "
            "open models describes. Its weights are in the checkpoints of the run, under "
            f"{folder.checkpoints}"
        )
    if dtype is not None and dtype not in DTYPES:
        raise PenstockError(f"--dtype {dtype}: not a format of weights; write {', '.join(DTYPES)}")
    if merged and not run.model.adapter:
        raise PenstockError(f"--merged: run '{folder.name}' has no adapter; leave it out")


def choose_checkpoint(
    folder: RunFolder, step: int | None = None, best: bool = False, option: str = "--step"
) -> tuple[StoredCheckpoint, tuple[str, ...]]:
    """Find the newest checkpoint of the run whose hashes are right, that of `step`, or the best.

    Also returns what is wrong with newer ones: those that were passed over or are gone. `option`
    is what the user named the step by.
    """
    recorded = newest_recorded(folder)  # first: a run at work publishes newer ones
    every = published_checkpoints(folder.checkpoints)
    if best:
        if step is not None:
            raise PenstockError(f"--best and --step {step}: two checkpoints; give one of them")
        if every and not (every := best_first(every)):
            raise PenstockError(
                f"--best: no checkpoint of run '{folder.name}' is of a step that was evaluated; "
                "write keep_best = true in [evaluate] to keep the best one"
            )
    if step is not None:
        there = ", ".join(str(one.step) for one in reversed(every)) or "none"
        every = [one for one in every if one.step == step]
        if not every:
            raise PenstockError(f"{option} {step}: there is no such checkpoint; there are: {there}")
    if not every:
        raise PenstockError(no_checkpoint_message(folder))
    rejected: list[str] = []
    run = load(folder.run_file)
    for one in every:
        wrong = problems_of(folder, run, one)
        if not wrong:
            newest = step is None and not best
            steps = [each.step for each in every]
            if newest and (gone := newer_is_gone_message(recorded, one.step, steps)):
                rejected.append(gone)
            return one, tuple(rejected)
        rejected.append(f"{one.path.name}: {'; '.join(wrong)}")
    raise RunFailed(f"no checkpoint of run '{folder.name}' is whole: {'; '.join(rejected)}")


def _saved_shapes(found: StoredCheckpoint) -> Mapping[str, tuple[int, ...]]:
    """Return all weights of a checkpoint, with their dimensions: of a generic model the names are
    those of its module in transformers.
    """
    return {name: tuple(size) for name, size in found.scalars["weights"].items()}


def _read_tensors(
    found: StoredCheckpoint, dimensions: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a checkpoint in float32, reading a few at a time."""
    saved = found.scalars["weights"]
    missing = [name for name in dimensions if name not in saved]
    if missing:
        raise RunFailed(f"{found.path} lacks {', '.join(missing[:6])}")
    held: dict[str, Tensor] = {}
    size = 0
    for name, shape in dimensions.items():
        held[name] = torch.empty(shape, dtype=torch.float32)
        size += held[name].nbytes
        if size >= READ_BYTES:
            yield from _load_tensors(found, held)
            held, size = {}, 0
    yield from _load_tensors(found, held)


def _load_tensors(found: StoredCheckpoint, held: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    checkpoints.load(found, {f"model/{name}": tensor for name, tensor in held.items()}, None)
    yield from held.items()


def _refuse_balance(found: StoredCheckpoint, what: ModelDescription) -> None:
    """Refuse experts with a balance that the family cannot store; without it tokens would go to
    other experts.
    """
    known = tensor_shapes(what.shape)
    extra = {
        name: tuple(shape)
        for name, shape in found.scalars["weights"].items()
        if name.endswith("ffn.balance") and name not in known
    }
    moved = [
        name for name, tensor in (_read_tensors(found, extra) if extra else ()) if tensor.any()
    ]
    if moved:
        raise PenstockError(
            f"{what.family} has no place for the balance of experts, which is not zero "
            f"({moved[0]}): without it tokens would go to other experts than in training. To "
            'export a model with experts, train it with router = "sigmoid", qk_norm = true and '
            "shared_experts in [model], which is written as dots1; or with train.balance_rate = 0"
        )
