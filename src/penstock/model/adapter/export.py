"""An adapter written as a folder that PEFT loads, or merged into the base model's weights."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError
from penstock.files import sync, write_synced
from penstock.model.adapter.names import adapter_shapes, peft_config, peft_name
from penstock.model.nf4 import dequantize, quantize
from penstock.model.open.weights import OpenWeights
from penstock.model.open.write import DTYPES, save_tensors
from penstock.run.schema.adapter import FFN, AdapterSection

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_QUANTISED = re.compile(r"layers\.\d+\.(attention|ffn)\.(q|k|v|out|gate|up|down)\.weight")


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
    if shape.moe and set(FFN) & set(section.parts):
        # PEFT 0.21 with transformers 5 looks for such names in the routed experts, and warns only.
        raise PenstockError(
            "PEFT takes feed-forward adapters of a mixture of experts for those of routed experts, "
            "and would load this one wrongly. Write the whole model with --merged; an adapter of "
            'targets = ["attention"] can be written by itself'
        )
    missing = adapter_shapes(shape, section).keys() - named.keys()
    if missing:
        raise PenstockError(f"the adapter lacks {', '.join(sorted(missing)[:6])}")
    theirs = {
        peft_name(name, shape, family): named[name].detach().to("cpu", DTYPES[dtype]).contiguous()
        for name in adapter_shapes(shape, section)
    }
    config = json.dumps(peft_config(shape, family, section, base), indent=2) + "\n"
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
        raise PenstockError(f"{folder} cannot be written: {error}") from error
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
    scale = section.alpha / section.rank
    for name in weights.dimensions:
        whole = weights.read(name)
        if section.kind == "qlora" and _QUANTISED.fullmatch(name):
            whole = dequantize(quantize(whole), whole.shape[1], torch.float32)
        stem = name.removesuffix(".weight")
        if f"{stem}.adapter_a" in named:
            thin_a, thin_b = (named[f"{stem}.adapter_{side}"].float().cpu() for side in "ab")
            whole = whole.float() + thin_b @ thin_a * scale
        yield name, whole
