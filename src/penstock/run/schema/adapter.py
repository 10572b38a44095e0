"""`[model.adapter]`: small trained matrices beside the frozen weights of `model.from`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from penstock.catalog.open.generic import is_target
from penstock.catalog.shapes import ModelShape
from penstock.errors import nearest
from penstock.run.schema.section import (
    InvalidFields,
    Positive,
    PositiveCount,
    Section,
    ShareBelowOne,
    Text,
)

ATTENTION, FFN = ("q_down", "q", "kv_down", "kv", "k", "v", "out"), ("gate", "up", "down")
GROUPS = {"attention": ATTENTION, "ffn": FFN}
# Names in other tools → ours, for error messages.
ELSEWHERE = {
    **{f"{name}_proj": name for name in ("q", "k", "v", "gate", "up", "down")},
    "o_proj": "out",
    "q_a_proj": "q_down",
    "q_b_proj": "q",
    "kv_a_proj_with_mqa": "kv_down",
    "kv_b_proj": "kv",
    "all-linear": 'attention", "ffn',
}


class AdapterSection(Section):
    """Train a small adapter beside the frozen weights of `model.from`."""

    kind: Literal["lora", "qlora"] = Field(
        "lora",
        description="Kind of adapter; qlora keeps the frozen weights of the layers in 4 bit.",
    )
    rank: PositiveCount = Field(16, description="Rank of the adapter matrices, elements.")
    alpha: Positive = Field(32.0, description="Scale: the adapter counts alpha / rank.")
    targets: tuple[Text, ...] = Field(
        ("attention", "ffn"),
        description="Parts of each layer that get an adapter: `attention` (or of it `q`, `k`, `v`, "
        "`out`; of latent attention `q_down`, `q`, `kv_down`, `kv`, `out`), `ffn` (or of it "
        "`gate`, `up`, `down`); routed experts and routers get none. Of a "
        "model that runs through transformers: `attention`, `ffn`, or names of its modules.",
    )
    dropout: ShareBelowOne = Field(
        0.0, description="Share of the adapter's inputs that is left out at random in training."
    )

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the matrices that get an adapter, in the order of a layer."""
        asked = {part for target in self.targets for part in GROUPS.get(target, (target,))}
        return tuple(part for part in (*ATTENTION, *FFN) if part in asked)

    def trained(self, shape: ModelShape) -> int:
        """Return the number of trained parameters."""
        return sum(
            self.rank * (inputs + outputs)
            for layer in range(shape.layers)
            for name, inputs, outputs in matrices(shape, layer)
            if name.rpartition(".")[2] in self.parts
        )

    @model_validator(mode="after")
    def _some_target(self) -> Self:
        if not self.targets:
            raise InvalidFields(
                ("targets", 'none, so that nothing is trained; write ["attention", "ffn"]')
            )
        return self


def unknown_target(adapter: AdapterSection) -> str:
    """Say which target is no part of a layer of our decoder, and what to write; "" if all are."""
    known = (*GROUPS, *ATTENTION, *FFN)
    for target in adapter.targets:
        if target not in known:
            ours = ELSEWHERE.get(target)
            guess = f'Here it is "{ours}".' if ours else nearest(target, known)
            return f'"{target}" is no part of a layer; write {", ".join(known)}. {guess}'.strip()
    return ""


def unknown_module(adapter: AdapterSection, modules: Iterable[str]) -> str:
    """Say which target names no matrix in the layers of a generic model; "" if all do."""
    leaves = sorted({name.rpartition(".")[2] for name in modules})
    for target in adapter.targets:
        if leaves and not any(is_target(name, (target,)) for name in modules):
            listed = ", ".join([*GROUPS, *leaves])
            guess = nearest(target, [*GROUPS, *leaves])
            return f'"{target}" is no matrix of its layers; write {listed}. {guess}'.strip()
    return ""


def module_params(adapter: AdapterSection, modules: Mapping[str, tuple[int, int]]) -> int:
    """Return the trained parameters of an adapter of a generic model."""
    return sum(adapter.rank * sum(m) for n, m in modules.items() if is_target(n, adapter.targets))


def matrices(shape: ModelShape, layer: int) -> Iterator[tuple[str, int, int]]:
    """Yield the matrices of a layer that can have an adapter: canonical name, inputs, outputs."""
    hidden, width = shape.hidden, shape.head_width
    queries, values = shape.heads * shape.score_channels, shape.kv_heads * width
    if shape.kv_rank:
        if shape.q_rank:
            yield "attention.q_down", hidden, shape.q_rank
        yield "attention.q", shape.q_rank or hidden, queries
        yield "attention.kv_down", hidden, shape.kv_rank + shape.rope_dim
        yield "attention.kv", shape.kv_rank, shape.heads * (shape.nope_dim + shape.v_dim)
        yield "attention.out", shape.heads * shape.v_dim, hidden
    else:
        yield "attention.q", hidden, queries
        yield "attention.k", hidden, values
        yield "attention.v", hidden, values
        yield "attention.out", queries, hidden
    dense = not shape.moe or layer < shape.dense_layers
    inner = shape.ffn if dense else shape.shared_experts * shape.expert_ffn
    within = "ffn" if dense else "ffn.shared"
    if inner:
        yield f"{within}.gate", hidden, inner
        yield f"{within}.up", hidden, inner
        yield f"{within}.down", inner, hidden


def misfits(adapter: AdapterSection, shape: ModelShape) -> list[str]:
    """Return why this model cannot have this adapter; empty if it can."""
    if adapter.kind == "qlora" and shape.moe:
        return [
            'model.adapter.kind = "qlora": routed experts are not kept in 4 bit, and they are '
            'nearly all of this model; write kind = "lora"'
        ]
    if shape.generic:
        return []  # its targets were compared with the names in its files
    there = {
        name.rpartition(".")[2]
        for layer in range(shape.layers)
        for name, _, _ in matrices(shape, layer)
    }
    # A group is what the model has of it.
    asked = [part for part in adapter.parts if part in adapter.targets or part in FFN]
    missing = [part for part in asked if part not in there]
    if strange := [part for part in missing if part in ATTENTION]:
        has = ", ".join(part for part in ATTENTION if part in there)
        return [
            f"model.adapter.targets: {', '.join(strange)}: the attention of this model has no such "
            f'matrix; write of {has}, or "attention" for all of them'
        ]
    if missing:
        return [
            f"model.adapter.targets: {', '.join(missing)}: every feed-forward part of this model "
            'is routed experts, which get no adapter; write targets = ["attention"]'
        ]
    return []
