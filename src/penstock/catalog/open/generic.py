"""Causal language models that our decoder does not build: they run through their own module in
transformers. This file reads their shape, for the plan, from `config.json` and the headers of the
weights.

transformers is never imported here, since that takes seconds: which architectures the installed
one has is read from its source.
"""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.catalog.open.config import HubConfig, Unsupported
from penstock.catalog.open.headers import INDEX, SINGLE, StoredTensor, read_headers
from penstock.catalog.open.models import FAMILIES
from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError, nearest

EXTRA = "pip install 'penstock[transformers]'"
# Names of one thing in the configs of different architectures; the first one that is there counts.
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
_FFN = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_NO_LIMIT = 1 << 20  # tokens, where the config names no longest sequence
# Layers that carry a state along the sequence, over the border of a document too.
_RECURRENT = re.compile(
    r"mamba|rwkv|recurrent|jamba|zamba|xlstm|lfm2|nemotron_h|falcon_h1|granitemoehybrid|"
    r"qwen3_next|qwen3_5|minimax|kimi_linear|olmo_hybrid"
)
_ALIBI = ("bloom", "mpt")  # their positions are a bias by distance, built from a padding mask
_BLOCK = re.compile(r"(.*?)\.(\d+)\.(.+)\.weight")  # a matrix in a layer of a list
_ATTENTION = re.compile(r"attn|attention")
ROUTERS = ("gate", "router")


def is_generic(config: dict[str, Any]) -> bool:
    """Return whether a config is of an architecture that our decoder does not build."""
    return isinstance(name := config.get("model_type"), str) and name not in FAMILIES


@cache
def known_architectures() -> frozenset[str] | None:
    """Return the causal language models of the installed transformers; None if there is none, or
    its source cannot be read.
    """
    found = find_spec("transformers")
    if found is None or not found.submodule_search_locations:
        return None
    source = Path(found.submodule_search_locations[0]) / "models" / "auto" / "modeling_auto.py"
    try:
        text = source.read_text()
    except OSError:
        return None
    table = re.search(r"\nMODEL_FOR_CAUSAL_LM_MAPPING_NAMES\b.*?\n\)", text, re.S)
    return frozenset(re.findall(r'\(\s*"([^"]+)",', table[0])) if table else None


def refuse_missing_library(config: dict[str, Any]) -> None:
    """Refuse a generic model on a machine without transformers."""
    if is_generic(config) and find_spec("transformers") is None:
        raise Unsupported(
            f'model_type "{config["model_type"]}" is not built into Penstock and runs through '
            f"transformers, which is not installed; {EXTRA}. Built in: {', '.join(FAMILIES)}"
        )


def generic_shape(config: dict[str, Any], folder: Path | None = None) -> ModelShape:
    """Return an estimate of the shape; refuse what transformers itself could not run."""
    name, read = str(config["model_type"])[:80], HubConfig(config)
    _refuse_unknown(config, name)
    layers, hidden = _count(read, _LAYERS, "layers"), _count(read, _HIDDEN, "widths")
    heads = _count(read, _HEADS, "", 1)
    entries = _stored(folder)
    experts = _count(read, _EXPERTS, "", 0)
    ffn = _count(read, _FFN, "", 4 * hidden)
    kv_heads = 1 if config.get("multi_query") is True else _count(read, _KV_HEADS, "", heads)
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=read.count("vocab_size"),
        tied=read.flag("tie_word_embeddings", True),
        context=_count(read, _CONTEXT, "", _NO_LIMIT),
        gated=any("gate" in name for name in entries),
        experts=experts,
        experts_active=min(experts, read.count("num_experts_per_tok", 1)) if experts else 0,
        expert_ffn=read.count("moe_intermediate_size", ffn) if experts else 0,
        architecture=name,
        counted=sum(_size(one) for one in entries.values() if one.dtype != "BOOL"),
    )


def document_problem(config: dict[str, Any], sequence: int) -> str:
    """Say why documents of one sample cannot be kept apart in a generic model; "" if nothing of its
    config speaks against it. Ranks measure it as well.
    """
    name = str(config.get("model_type"))
    window = config.get("sliding_window")
    if _RECURRENT.search(name):
        return f'the layers of "{name}" carry a state from one document into the next'
    if name in _ALIBI or config.get("alibi") is True:
        return f'the positions of "{name}" (ALiBi) take no mask by documents in transformers'
    if isinstance(window, int) and window < sequence and config.get("use_sliding_window", True):
        return f"its sliding window of {window} tokens is shorter than data.sequence = {sequence}"
    return ""


def linear_modules(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the matrices in the layers that may get an adapter: name → inputs, outputs.

    From the headers: two-dimensional weights inside of the longest numbered list, without routers.
    """
    lists: dict[str, dict[str, tuple[int, int]]] = {}
    for name, entry in _stored(folder).items():
        found = _BLOCK.fullmatch(name)
        if found and len(entry.shape) == 2 and found[3].rpartition(".")[2] not in ROUTERS:
            module = name.removesuffix(".weight")
            lists.setdefault(found[1], {})[module] = (entry.shape[1], entry.shape[0])
    return max(lists.values(), key=len, default={})


def is_target(module: str, targets: tuple[str, ...]) -> bool:
    """Return whether a module of a layer gets an adapter.

    A target is the end of the module's name, or `attention` or `ffn`: all in the layers whose name
    speaks of attention, and all else.
    """
    inside = "attention" if _ATTENTION.search(module) else "ffn"
    return inside in targets or any(f".{module}".endswith(f".{one}") for one in targets)


def _refuse_unknown(config: dict[str, Any], name: str) -> None:
    known = known_architectures()
    code = config.get("auto_map")
    if known is not None and name not in known:
        if isinstance(code, dict) and code:
            file = str(next(iter(code.values())))[:80]
            raise Unsupported(
                f'model_type "{name}" is not in the installed transformers, and auto_map names '
                f"code that came with the model ({file}). Penstock never runs such code. Read it, "
                'and if you trust it, load the model in a file of your own: model.module = "…"'
            )
        raise Unsupported(
            f'model_type "{name}" is neither a family of Penstock ({", ".join(FAMILIES)}) nor a '
            f"causal language model of the installed transformers. {nearest(name, known)} A newer "
            "transformers may know it"
        )
    if config.get("is_encoder_decoder") is True:
        raise Unsupported(
            f'model_type "{name}" with is_encoder_decoder = true: only models that read from left '
            "to right are trained"
        )
    if config.get("quantization_config"):
        raise Unsupported(
            "quantization_config: weights that are quantised are not trained; take the model in "
            "16 bits"
        )


def _count(read: HubConfig, names: tuple[str, ...], what: str, default: int | None = None) -> int:
    for name in names:
        if read.has(name):
            return read.count(name)
    if default is None:
        raise Unsupported(
            f"it states no number of {what} ({', '.join(names)}); only language models by "
            "themselves are trained, not those with pictures or sound"
        )
    return default


def _stored(folder: Path | None) -> dict[str, StoredTensor]:
    """Return what the weights' headers say; nothing where the weights are not here yet, or are
    damaged, which the check of the files reports.
    """
    if folder is None or not ((folder / SINGLE).is_file() or (folder / INDEX).is_file()):
        return {}
    try:
        return read_headers(folder)
    except PenstockError:
        return {}


def _size(entry: StoredTensor) -> int:
    size = 1
    for dimension in entry.shape:
        size *= dimension
    return size
