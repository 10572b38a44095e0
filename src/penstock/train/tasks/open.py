"""A model to evaluate in one process: a checkpoint of a run, or a folder of an open model."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from penstock.catalog.open.folder import CONFIG, GENERATION, read_config, read_small_files
from penstock.catalog.open.generic import is_generic, refuse_missing_library
from penstock.data.read.run_tokenizer import read_tokenizer
from penstock.errors import PenstockError
from penstock.guard.checkpoints import published_checkpoints
from penstock.model.adapter.export import CONFIG as ADAPTER_CONFIG
from penstock.model.initialize import decoder_on_meta
from penstock.model.open.files import check_open_files, check_weight_files
from penstock.model.open.module import build_module
from penstock.model.open.module_weights import ModuleWeights
from penstock.model.open.weights import OpenWeights, load_open_weights
from penstock.model.open.write import DTYPES, dtype_of_config
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.schema.run import Run
from penstock.train.export.generate import load_parts, newest_checkpoint
from penstock.train.export.model import choose_checkpoint, describe_model
from penstock.train.export.tokenizer import tokenizer_files
from penstock.train.parallel.materialize import fill_transformers_model
from penstock.train.parallel.parts import ModelParts
from penstock.train.parallel.runner import PlainRunner
from penstock.train.tasks.forward import BatchRunner, BatchShapes
from penstock.train.tasks.text import TaskTokenizer, context_length

LOGIT_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}  # of one batch, in full precision
NEWEST, BEST = "newest", "best"


@dataclass(frozen=True)
class TaskText:
    """Tokenizer and limits of a model, which the harness needs besides the weights."""

    tokenizer: TaskTokenizer
    context: int  # tokens
    stop_ids: frozenset[int]


@dataclass(frozen=True)
class OpenedModel:
    """A model that answers, and where it came from."""

    name: str  # of the run, or the folder
    text: TaskText
    logits: Callable[[Tensor], Tensor]
    vocab: int
    device: torch.device
    dtype: str
    step: int | None = None  # of the checkpoint
    note: str = ""

    def runner(self, batch: int | None) -> BatchRunner:
        """Return what runs batches, of at most `batch` rows."""
        budget = LOGIT_BYTES[self.device.type] // (4 * self.vocab)
        shapes = BatchShapes(self.text.context, budget, batch)
        return BatchRunner(self.logits, shapes, self.device)


def open_run(folder: RunFolder, checkpoint: str = NEWEST, dtype: str | None = None) -> OpenedModel:
    """Open a checkpoint of a run: `newest`, `best`, or a step."""
    if checkpoint == NEWEST:
        saved, note = newest_checkpoint(folder)
    else:
        step = None if checkpoint == BEST else _step(checkpoint)
        found, passed_over = choose_checkpoint(folder, step, checkpoint == BEST, "--checkpoint")
        saved, note = found, "; ".join(passed_over)
    run = load(folder.run_file)
    kept = read_tokenizer(run, folder)
    text = run_text(run, folder)
    device = _device()
    parts = load_parts(run, kept.vocab, saved, device)
    if dtype:
        for module in parts.modules:
            module.to(dtype_named(dtype))
    logits = PlainRunner(parts).logits
    written = dtype or _dtype_name(next(parts.modules[0].parameters()).dtype)
    return OpenedModel(folder.name, text, logits, kept.vocab, device, written, saved.step, note)


def refuse_absent(folder: RunFolder, checkpoint: str) -> None:
    """Refuse a checkpoint that the run does not have, without reading any."""
    if checkpoint in (NEWEST, BEST):
        return
    step = _step(checkpoint)
    if all(one.step != step for one in published_checkpoints(folder.checkpoints)):
        choose_checkpoint(folder, step, option="--checkpoint")


def run_text(run: Run, folder: RunFolder) -> TaskText:
    """Return tokenizer and context of a run's model, as an export would have them."""
    if run.model.module:
        files, ids = tokenizer_files(read_tokenizer(run, folder).content, run.sequence)
        return _text(files, ids | {"max_position_embeddings": run.sequence}, str(folder.path))
    what = describe_model(run, folder)
    return _text(what.beside, what.config, str(folder.path))


def open_folder(folder: Path, dtype: str | None = None) -> OpenedModel:
    """Open a folder of safetensors: native families in our decoder, others in transformers."""
    if (folder / ADAPTER_CONFIG).is_file() and not (folder / CONFIG).is_file():
        raise PenstockError(
            f"{folder} holds an adapter without its model; export the run with --merged, or name "
            "the run itself"
        )
    config = read_config(folder)
    refuse_missing_library(config)
    text = _text(read_small_files(folder), config, str(folder))
    dtype = dtype or dtype_of_config(config)
    kind, device = dtype_named(dtype), _device()
    if is_generic(config):
        check_weight_files(folder)
        model = build_module(folder, kind)
        fill_transformers_model(model, ModuleWeights(folder, model), device, 0)
        vocab = int(config["vocab_size"])
    else:
        shape = check_open_files(folder).shape
        model = decoder_on_meta(shape).to(kind)
        load_open_weights(model, OpenWeights(folder), device)
        vocab = shape.vocab
    logits = PlainRunner(ModelParts([_still(model)])).logits
    return OpenedModel(str(folder), text, logits, vocab, device, dtype)


def _still(model: nn.Module) -> nn.Module:
    model.eval()
    for param in model.parameters():
        param.requires_grad_(False)
    return model


def _text(files: Mapping[str, bytes], config: Mapping[str, Any], where: str) -> TaskText:
    tokenizer = TaskTokenizer(files, where)
    return TaskText(tokenizer, context_length(config, tokenizer), _stop_ids(files, config))


def _stop_ids(files: Mapping[str, bytes], config: Mapping[str, Any]) -> frozenset[int]:
    """Return the tokens that end a text by the model's own account."""
    try:
        told = json.loads(files[GENERATION]).get("eos_token_id")
    except (KeyError, ValueError, AttributeError):
        told = None
    found = config.get("eos_token_id") if told is None else told
    every = found if isinstance(found, list) else [found]
    return frozenset(one for one in every if type(one) is int)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def dtype_named(name: str) -> torch.dtype:
    """Return the format that --dtype names."""
    if name not in DTYPES:
        raise PenstockError(f"--dtype {name}: not a format of weights; write {', '.join(DTYPES)}")
    return DTYPES[name]


def _dtype_name(dtype: torch.dtype) -> str:
    """Return the name that --dtype takes, or torch's where it takes none."""
    names = {ours: name for name, ours in DTYPES.items()}
    return names.get(dtype, str(dtype).removeprefix("torch."))


def _step(text: str) -> int:
    if not text.isdecimal():
        raise PenstockError(
            f"--checkpoint {text}: not a checkpoint; write a step, {NEWEST} or {BEST}"
        )
    return int(text)
