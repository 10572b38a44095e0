"""An adapter written as a folder that PEFT loads, or merged into the base model's weights."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from penstock.catalog.open.generic import linear_modules
from penstock.catalog.open.headers import read_headers
from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError
from penstock.files import sync, write_synced
from penstock.model.adapter.names import (
    adapter_shapes,
    is_fused,
    module_peft_config,
    module_peft_name,
    peft_config,
    peft_name,
)
from penstock.model.nf4 import dequantize, quantize
from penstock.model.open.module_weights import read_stored
from penstock.model.open.weights import OpenWeights
from penstock.model.open.write import DTYPES, save_tensors
from penstock.run.schema.adapter import FFN, AdapterSection

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_QUANTISED = re.compile(
    r"layers\.\d+\.(attention|ffn)\.(q_down|q|kv_down|kv|k|v|out|gate|up|down)\.weight"
)


def write_adapter(
    folder: Path,
    shape: ModelShape,
    family: str,
    section: AdapterSection,
    named: Mapping[str, Tensor],
    base: str,
    beside: Mapping[str, bytes],
    dtype: str = "fp32",
) -> int:
    """Write the adapter, whose matrices are in `named` by our names; return the bytes of its
    weights.

    `base` is `model.from`; `beside` are other files: those of the tokenizer.
    """
    if folder.exists():
        raise PenstockError(f"{folder} is there already; name another folder, or remove it")
    if shape.moe and not shape.generic and set(FFN) & set(section.parts):
        # PEFT 0.21 with transformers 5 looks for such names in the routed experts, and warns only.
        raise PenstockError(
            "PEFT takes feed-forward adapters of a mixture of experts for those of routed experts, "
            "and would load this one wrongly. Write the whole model with --merged; an adapter of "
            'targets = ["attention"] can be written by itself'
        )
    if shape.generic:
        peft_names = {name: module_peft_name(name) for name in named}
        told = module_peft_config(named, section, base)
    else:
        ours = adapter_shapes(shape, section)
        if fused := [name for name in ours if is_fused(name, shape, family)]:
            raise PenstockError(
                f"{family} has one matrix for several of ours ({fused[0].rpartition('.')[0]}), and "
                "PEFT one adapter for each of theirs. Write the whole model with --merged"
            )
        if missing := ours.keys() - named.keys():
            raise PenstockError(f"the adapter lacks {', '.join(sorted(missing)[:6])}")
        peft_names = {name: peft_name(name, shape, family) for name in ours}
        told = peft_config(shape, family, section, base)
    theirs = {
        peft: named[name].detach().to("cpu", DTYPES[dtype]).contiguous()
        for name, peft in peft_names.items()
    }
    config = json.dumps(told, indent=2) + "\n"
    aside = folder.with_name(f".{folder.name}.writing")
    try:
        shutil.rmtree(aside, ignore_errors=True)  # left by an export that was killed
        aside.mkdir(parents=True)
        save_tensors(theirs, aside / WEIGHTS)
        for name, content in {**beside, CONFIG: config.encode()}.items():
            write_synced(aside / name, content)
        sync(aside)
        aside.rename(folder)
        sync(folder.parent)
    except (OSError, SafetensorError) as error:  # the second of a full disk, too
        why = getattr(error, "strerror", None) or error
        raise PenstockError(
            f"{folder}: cannot be written: {why}; name another with --out"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return sum(tensor.nbytes for tensor in theirs.values())


@torch.no_grad()
def merged_tensors(
    weights: OpenWeights, section: AdapterSection, named: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors of the model with the adapter merged in, by our names, one at a time.

    A QLoRA adapter is merged into the 4-bit values that it was trained with: merged into the
    original weights it would compute something else than the run did.
    """
    for name in weights.dimensions:
        narrow = section.kind == "qlora" and _QUANTISED.fullmatch(name) is not None
        yield name, _merged(name, weights.read(name), section, named, narrow)


@torch.no_grad()
def merged_module_tensors(
    folder: Path,
    section: AdapterSection,
    named: Mapping[str, Tensor],
    stored_names: Mapping[str, str],
) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors of a generic model's files with the adapter merged in, under the names of
    the files. `stored_names` are those that differ from the module's.
    """
    ours = {stored: name for name, stored in stored_names.items()}
    matrices = {f"{name.rpartition('.')[0]}.weight" for name in named}
    if missing := matrices - {ours.get(stored, stored) for stored in read_headers(folder)}:
        raise PenstockError(f"{folder} has no {min(missing)}, which the adapter belongs to")
    quantised = linear_modules(folder) if section.kind == "qlora" else {}
    for name, tensor in read_stored(folder):
        narrow = name.removesuffix(".weight") in quantised
        yield name, _merged(ours.get(name, name), tensor, section, named, narrow)


def _merged(
    name: str, whole: Tensor, section: AdapterSection, named: Mapping[str, Tensor], narrow: bool
) -> Tensor:
    """Return a weight with its adapter, if it has one; `narrow`: the run kept it in 4 bits."""
    if narrow:
        whole = dequantize(quantize(whole), whole.shape[1], torch.float32)
    stem = name.removesuffix(".weight")
    if f"{stem}.adapter_a" in named:
        thin_a, thin_b = (named[f"{stem}.adapter_{side}"].float().cpu() for side in "ab")
        whole = whole.float() + thin_b @ thin_a * (section.alpha / section.rank)
    return whole
