"""The names of our adapters in PEFT, and the `adapter_config.json` that describes them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock.catalog.shapes import ModelShape
from penstock.model.open.names import tensor_locations
from penstock.run.schema.adapter import AdapterSection, matrices

_SIDES = {"adapter_a": "lora_A", "adapter_b": "lora_B"}
_ROOT = "base_model.model."


def adapter_shapes(shape: ModelShape, adapter: AdapterSection) -> dict[str, tuple[int, int]]:
    """Return the dimensions of every matrix of the adapter, by our name."""
    found = {}
    for layer in range(shape.layers):
        for part, inputs, outputs in matrices(shape, layer):
            if part.rpartition(".")[2] in adapter.parts:
                at = f"layers.{layer}.{part}"
                found[f"{at}.adapter_a"] = (adapter.rank, inputs)
                found[f"{at}.adapter_b"] = (outputs, adapter.rank)
    return found


def peft_name(name: str, shape: ModelShape, family: str) -> str:
    """Return PEFT's name: `layers.0.attention.q.adapter_a` →
    `base_model.model.….q_proj.lora_A.weight`.
    """
    matrix, _, side = name.rpartition(".")
    return f"{_ROOT}{_their_module(matrix, shape, family)}.{_SIDES[side]}.weight"


def is_fused(name: str, shape: ModelShape, family: str) -> bool:
    """Return whether an adapter's matrix is only some rows of one of theirs."""
    matrix = name.rpartition(".")[0]
    return tensor_locations(f"{matrix}.weight", shape, family)[0].rows is not None


def peft_config(
    shape: ModelShape, family: str, adapter: AdapterSection, base: str
) -> dict[str, Any]:
    """Return the config in PEFT's format; fields that are left out have its defaults. `base` is
    `model.from`.
    """
    modules = {
        _their_module(name.rpartition(".")[0], shape, family)
        for name in adapter_shapes(shape, adapter)
    }
    return _peft_config(sorted({name.rpartition(".")[2] for name in modules}), adapter, base)


def module_peft_config(names: Iterable[str], adapter: AdapterSection, base: str) -> dict[str, Any]:
    """Return the config for the adapter of a generic model: every module by its whole name, since
    others may end like it.
    """
    return _peft_config(sorted({name.rpartition(".")[0] for name in names}), adapter, base)


def module_peft_name(name: str) -> str:
    """Return PEFT's name of an adapter matrix of a generic model."""
    module, _, side = name.rpartition(".")
    return f"{_ROOT}{module}.{_SIDES[side]}.weight"


def _peft_config(targets: list[str], adapter: AdapterSection, base: str) -> dict[str, Any]:
    where, _, revision = base.removeprefix("hf:").partition("@")
    if Path(base).expanduser().is_dir():
        where, revision = str(Path(base).expanduser().absolute()), ""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": where,
        "revision": revision or None,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": adapter.dropout,
        "target_modules": targets,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
    }


def _their_module(matrix: str, shape: ModelShape, family: str) -> str:
    (theirs,) = tensor_locations(f"{matrix}.weight", shape, family)[0].names
    return theirs.removesuffix(".weight")
