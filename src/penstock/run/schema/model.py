"""`[model]`: a preset, a shape, an open model, or the user's own code."""

from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, model_validator

from penstock.catalog.models import names, preset
from penstock.catalog.open.folder import model_folder, shape_of_model
from penstock.catalog.open.generic import linear_modules
from penstock.catalog.open.hub import ModelNotFound
from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError, nearest
from penstock.run.schema.adapter import (
    AdapterSection,
    module_params,
    unknown_module,
    unknown_target,
)
from penstock.run.schema.code import SPEC
from penstock.run.schema.section import (
    CountOrZero,
    Flag,
    InvalidFields,
    Positive,
    PositiveCount,
    Section,
    Text,
    Width,
)

SHAPE_FIELDS = [
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn",
    "vocab",
    "tied",
    "qk_norm",
    "head_dim",
    "context",
    "rope_theta",
    "experts",
    "experts_active",
    "expert_ffn",
    "shared_experts",
    "dense_layers",
    "router",
]
_COUNTED = ("layers", "dense_layers", "experts", "shared_experts")  # one by one, in a plan
NO_WEIGHTS = 'an adapter needs weights to start from; write from = "..." in [model]'
SOURCES = {"preset": "preset", "from_": "from", "module": "module"}  # python name: name in the file


class ModelSection(Section):
    """The model to train: one of `preset`, `from`, `module`, or your own shape by its fields.

    Shape fields beside `preset` replace the preset's.
    """

    preset: Text | None = Field(
        None, description="Name of a shape; `penstock catalog models` lists them."
    )
    from_: Text | None = Field(
        None,
        alias="from",
        description="Open model to start from: the folder of Hugging Face safetensors, or "
        "`hf:org/name`, `hf:org/name@revision` on the hub. Its tokenizer reads raw data. A "
        "relative folder starts at the current one, or else at the run file's.",
    )
    module: Text | None = Field(
        None,
        description='Your own code, "my_model.py:build": a function that gives an nn.Module. The '
        "file is looked for in the current folder, then beside the run file.",
    )
    layers: PositiveCount | None = Field(None, description="Number of layers.")
    hidden: Width | None = Field(None, description="Width of the residual stream, elements.")
    heads: PositiveCount | None = Field(None, description="Query heads per layer.")
    kv_heads: PositiveCount | None = Field(
        None, description="Key and value heads per layer; as `heads` if not given."
    )
    ffn: Width | None = Field(None, description="Inner width of the feed-forward block, elements.")
    vocab: Width | None = Field(None, description="Vocabulary, tokens; the dataset's if not given.")
    tied: Flag | None = Field(
        None, description="The head shares the embedding; false if not given."
    )
    qk_norm: Flag | None = Field(
        None, description="Normalise each head's query and key; false if not given."
    )
    head_dim: Width | None = Field(
        None, description="Width of a head, elements; hidden / heads if not given."
    )
    context: Width | None = Field(None, description="Longest sequence, tokens; 2048 if not given.")
    rope_theta: Positive | None = Field(
        None, description="Base of the rotary position angles; 10000 if not given."
    )
    experts: CountOrZero | None = Field(
        None, description="Routed experts per layer; 0 is a dense model."
    )
    experts_active: PositiveCount | None = Field(
        None, description="Routed experts that a token visits."
    )
    expert_ffn: Width | None = Field(None, description="Inner width of one expert, elements.")
    shared_experts: CountOrZero | None = Field(None, description="Experts that every token visits.")
    dense_layers: CountOrZero | None = Field(
        None, description="Leading layers that have no experts but a block of width `ffn`."
    )
    router: Literal["softmax", "sigmoid"] | None = Field(
        None,
        description="Scores of the experts: softmax over all, or a sigmoid of each, whose balance "
        "an exported model can hold (with `qk_norm`); softmax if not given.",
    )
    adapter: AdapterSection | None = Field(None, description="Adapter training; only with `from`.")

    def given(self) -> dict[str, int | float | bool | str]:
        """Return the shape fields that the file sets."""
        values = {name: getattr(self, name) for name in SHAPE_FIELDS}
        return {name: value for name, value in values.items() if value is not None}

    def base(self) -> ModelShape | None:
        """Return the shape, with vocab 0 if it comes from the dataset; None for `module`.

        Also None for a `from` that is not on this machine: such a run can still be shown, and
        loading a file must not wait for the network. `shape` fetches it.
        """
        if self.module:
            return None
        if self.from_:
            try:
                return shape_of_model(self.from_, fetch=False)
            except ModelNotFound:
                return None
        given = self.given()
        if self.preset:
            shape = replace(preset(self.preset), **given)  # type: ignore[arg-type]
            full = tuple(layer for layer in shape.full_layers if layer < shape.layers)
            return replace(shape, full_layers=full or shape.full_layers)
        return ModelShape(**({"kv_heads": self.heads, "ffn": 0, "vocab": 0} | given))  # type: ignore[arg-type]

    def shape(self, vocab: int | None) -> ModelShape:
        """Return the whole shape; `vocab` is that of the dataset, used if the file sets none."""
        shape = shape_of_model(self.from_) if self.from_ else self.base()
        if shape is None:
            raise PenstockError(
                "model: the shape of `module` is known only once it is loaded; write preset, or "
                "layers, hidden, heads and ffn, to plan without loading"
            )
        if shape.vocab:
            return shape
        if not vocab:
            raise PenstockError(
                "model.vocab: not given and the dataset has none; write vocab = 32000"
            )
        return shape.with_vocab(vocab)

    def tokenizer(self) -> str | None:
        """Return the folder of the tokenizer of `from`, for raw data; None for other models."""
        return str(model_folder(self.from_)) if self.from_ else None

    def trained_params(self, shape: ModelShape) -> int:
        """Return how many parameters the adapter trains, or all that the model has."""
        if self.adapter is None:
            return shape.params()
        if shape.generic and self.from_:
            return module_params(self.adapter, linear_modules(model_folder(self.from_)))
        return self.adapter.trained(shape)

    def _unknown_target(self, shape: ModelShape | None) -> str:
        """Say which target of the adapter does not exist; a model that is not here may have any."""
        if self.adapter is None or not self.from_ or shape is None:
            return ""
        if shape.generic:
            found = linear_modules(model_folder(self.from_, fetch=False))
            return unknown_module(self.adapter, found)
        return unknown_target(self.adapter)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = [name for python, name in SOURCES.items() if getattr(self, python)]
        given = self.given()
        if len(sources) > 1:
            raise InvalidFields(
                (sources[1], f"`{sources[0]}` is given too; keep one of {', '.join(sources)}")
            )
        if sources and sources[0] != "preset" and given:
            raise InvalidFields(
                (next(iter(given)), f"`{sources[0]}` brings its own shape; remove this field")
            )
        if not sources:
            self._whole_shape(given)
        if self.module and not SPEC.fullmatch(self.module):
            raise InvalidFields(("module", 'not a file and a function; write "my_model.py:build"'))
        if self.adapter and not (self.from_ or self.preset):  # a preset can be planned
            raise InvalidFields(("adapter", NO_WEIGHTS))
        return self

    def _whole_shape(self, given: dict[str, int | float | bool | str]) -> None:
        if not given:
            raise InvalidFields(
                ("", 'names no model; write preset = "llama-3m" or a shape of your own')
            )
        needed = ["layers", "hidden", "heads"]
        needed += ["experts_active", "expert_ffn"] if self.experts else ["ffn"]
        missing = [name for name in needed if name not in given]
        if missing:
            listed, them = ", ".join(missing), "it" if len(missing) == 1 else "them"
            raise InvalidFields(
                ("", f'an own shape also needs {listed}; write {them} or preset = "llama-3m"')
            )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        try:
            shape = self.base()
        except PenstockError as error:
            if self.from_:
                raise InvalidFields(("from", str(error).partition('": ')[2])) from None
            guess = nearest(self.preset or "", names())
            what = "no such preset; write one that `penstock catalog models` lists"
            if guess:
                what = f"no such preset. {guess} `penstock catalog models` lists all"
            raise InvalidFields(("preset", what)) from None
        problems = _misfits(shape) if shape and not shape.generic else []
        if told := self._unknown_target(shape):
            problems.append(("adapter.targets", told))
        if problems:
            raise InvalidFields(*problems)
        return self


def _misfits(shape: ModelShape) -> list[tuple[str, str]]:
    """Return problems of a shape: sizes that attention or routing cannot split evenly."""
    if beyond := shape.beyond_bounds(_COUNTED):
        return [(beyond[0], f"{beyond[1]}, which no model has; write fewer")]
    problems = []
    if shape.heads % shape.kv_heads:
        what = f"{shape.heads} heads cannot share {shape.kv_heads} key-value heads evenly"
        problems.append(("kv_heads", f"{what}; write a divisor of {shape.heads}"))
    if shape.kv_rank:  # latent attention has head widths of its own
        if shape.kv_heads != shape.heads:
            what = f"latent attention has as many as heads = {shape.heads}"
            problems.append(("kv_heads", f"{what}; write kv_heads = {shape.heads}"))
    elif not shape.head_dim and shape.hidden % shape.heads:
        what = f"not a multiple of heads = {shape.heads}"
        problems.append(
            ("hidden", f"{what}; write {shape.heads * max(1, shape.hidden // shape.heads)}")
        )
    elif shape.head_width % 2:
        what = f"heads of width {shape.head_width}: rotary positions need an even width"
        problems.append(("head_dim" if shape.head_dim else "heads", f"{what}; write an even one"))
    if shape.moe and not 0 < shape.experts_active <= shape.experts:
        what = f"a token visits between 1 and {shape.experts} experts"
        problems.append(("experts_active", f"{what}; write one of these"))
    if shape.activation == "clamped" and (
        not shape.moe or shape.dense_layers or shape.shared_experts
    ):
        what = "only routed experts have the clamped gate of this preset"
        problems.append(("experts", f"{what}; write no dense_layers and no shared_experts"))
    if shape.moe and (told := shape.routing_problem()):
        problems.append(("experts", f"{told}; write the preset's, or another preset"))
    if shape.moe and not shape.expert_ffn:
        problems.append(("expert_ffn", "experts need a width; write one such as 1024"))
    if not shape.ffn and (not shape.moe or shape.dense_layers):
        problems.append(("ffn", "layers without experts need a width; write one such as 4096"))
    return problems
