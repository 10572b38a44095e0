"""Our names of a model's tensors, and where each is in a Hugging Face checkpoint. Without torch.

Our names are the same for all families (`layers.7.attention.q.weight`). Theirs differ in the
experts: one tensor for each expert and matrix, or, in the format of transformers 5, one for all
experts of a layer, with gate and up one above the other.
"""

from dataclasses import dataclass

from penstock.catalog.shapes import ModelShape

_TOP = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_PARTS = {
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "attention.q_down": "self_attn.q_a_proj",
    "attention.q_down_norm": "self_attn.q_a_layernorm",
    "attention.kv_down": "self_attn.kv_a_proj_with_mqa",
    "attention.kv_down_norm": "self_attn.kv_a_layernorm",
    "attention.kv": "self_attn.kv_b_proj",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
    "ffn.shared.gate": "mlp.shared_experts.gate_proj",
    "ffn.shared.up": "mlp.shared_experts.up_proj",
    "ffn.shared.down": "mlp.shared_experts.down_proj",
}
# By `norms` of the shape: their name of a norm says where it stood in the families that have it.
_BEFORE = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_AFTER = {
    "attention_post_norm": "post_attention_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}
_BOTH = {"attention_norm": "input_layernorm", "ffn_norm": "pre_feedforward_layernorm", **_AFTER}
_NORMS = {"before": _BEFORE, "after": _AFTER, "both": _BOTH}
_BALANCE = "mlp.gate.e_score_correction_bias"
# Layer-wise: their name of the block that routes, and of an expert's matrices.
_EXPERTS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
_FUSED = ("phi3",)  # families with one matrix for q, k and v, and one for gate and up
_GPT_OSS = "gpt_oss"
_MIXTRAL = {"gate": "w1", "up": "w3", "down": "w2"}


@dataclass(frozen=True)
class TensorLocation:
    """The place of one of our tensors in a checkpoint: one of theirs, several to be stacked, or
    rows of a larger one.

    A transposed one has its last two dimensions swapped; `dimension` counts in theirs.
    """

    names: tuple[str, ...]
    stacked: bool = False
    rows: tuple[int, int] | None = None  # first and end, of `dimension`
    whole: int = 0  # rows of theirs
    dimension: int = 0
    step: int = 1  # from one of our rows to the next in theirs
    transposed: bool = False

    def stored_shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        """Return the dimensions of each of their tensors, from those of ours."""
        if self.stacked:
            return ours[1:]
        theirs = (*ours[:-2], ours[-1], ours[-2]) if self.transposed else ours
        if self.rows is None:
            return theirs
        return (*theirs[: self.dimension], self.whole, *theirs[self.dimension + 1 :])

    def index(self, index: tuple[slice, ...]) -> tuple[slice, ...]:
        """Return the place in theirs of a part of ours, before it is transposed."""
        full = [*index, *[slice(None)] * (3 - len(index))] if self.transposed else [*index]
        if self.transposed:
            full[-2:] = full[-1], full[-2]
        if self.rows is None:
            return tuple(full)
        full += [slice(None)] * (self.dimension + 1 - len(full))
        start, stop, step = full[self.dimension].indices(self.held)
        begin = self.rows[0]
        ends = begin + start * self.step, begin + (stop - 1) * self.step + 1
        full[self.dimension] = slice(ends[0], max(ends), step * self.step)
        return tuple(full)

    @property
    def held(self) -> int:
        """Rows of theirs that are ours."""
        return len(range(*self.rows, self.step)) if self.rows else 0


def tensor_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Return the dimensions of every tensor of a model, by our name."""
    hidden = shape.hidden
    found: dict[str, tuple[int, ...]] = {"embed.weight": (shape.vocab, hidden)}
    for index in range(shape.layers):
        at = f"layers.{index}"
        found |= {f"{at}.{norm}.weight": (hidden,) for norm in _NORMS[shape.norms]}
        attention = _latent_shapes(shape) if shape.kv_rank else _attention_shapes(shape)
        found |= {f"{at}.attention.{name}": size for name, size in attention.items()}
        if shape.moe and index >= shape.dense_layers:
            found |= _moe_shapes(shape, f"{at}.ffn")
        else:
            found |= _swiglu_shapes(f"{at}.ffn", hidden, shape.ffn)
    found["norm.weight"] = (hidden,)
    if not shape.tied:
        found["head.weight"] = (shape.vocab, hidden)
    return found


def _attention_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    hidden, width = shape.hidden, shape.head_width
    found: dict[str, tuple[int, ...]] = {}
    for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
        found[f"{name}.weight"] = (heads * width, hidden)
        if shape.attention_bias:
            found[f"{name}.bias"] = (heads * width,)
    found["out.weight"] = (hidden, shape.heads * width)
    if shape.out_bias:
        found["out.bias"] = (hidden,)
    if shape.sinks:
        found["sinks"] = (shape.heads,)
    if shape.qk_norm:
        q, k = (shape.heads, shape.kv_heads) if shape.qk_norm_whole else (1, 1)
        found |= {"q_norm.weight": (q * width,), "k_norm.weight": (k * width,)}
    return found


def _latent_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    hidden, heads, queries = shape.hidden, shape.heads, shape.heads * shape.score_channels
    found: dict[str, tuple[int, ...]] = {"q.weight": (queries, shape.q_rank or hidden)}
    if shape.q_rank:
        found |= {
            "q_down.weight": (shape.q_rank, hidden),
            "q_down_norm.weight": (shape.q_rank,),
        }
    return found | {
        "kv_down.weight": (shape.kv_rank + shape.rope_dim, hidden),
        "kv_down_norm.weight": (shape.kv_rank,),
        "kv.weight": (heads * (shape.nope_dim + shape.v_dim), shape.kv_rank),
        "out.weight": (hidden, heads * shape.v_dim),
    }


def tensor_locations(name: str, shape: ModelShape, family: str) -> list[TensorLocation]:
    """Return where one of our tensors may be stored: in the usual files, and for experts also in
    fused ones.
    """
    if name in _TOP:
        return [TensorLocation((_TOP[name],))]
    _, index, part = name.split(".", 2)
    at = f"model.layers.{index}"
    if part.startswith("ffn.experts."):
        return _expert_locations(at, part.removeprefix("ffn.experts."), shape, family)
    if part in ("ffn.router.weight", "ffn.router.bias"):
        router = "router" if family == _GPT_OSS else "gate"
        kind = part.rpartition(".")[2]
        return [TensorLocation((f"{at}.{_moe_block(family)}.{router}.{kind}",))]
    if part == "attention.sinks":
        return [TensorLocation((f"{at}.self_attn.sinks",))]
    if part == "ffn.balance":
        return [TensorLocation((f"{at}.{_BALANCE}",))]
    stem, _, kind = part.rpartition(".")
    if family in _FUSED and (fused := _fused_location(f"{at}.", stem, shape)):
        return [fused]
    theirs = {**_PARTS, **_NORMS[shape.norms]}[stem]
    if stem == "attention.q" and shape.q_rank:
        theirs = "self_attn.q_b_proj"
    return [TensorLocation((f"{at}.{theirs}.{kind}",))]


def _fused_location(at: str, stem: str, shape: ModelShape) -> TensorLocation | None:
    """Return the rows of a fused matrix that are one of ours; None for other tensors."""
    q, kv = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    widths = {"attention.q": q, "attention.k": kv, "attention.v": kv}
    name = f"{at}self_attn.qkv_proj.weight"
    if stem in ("ffn.gate", "ffn.up"):
        widths = {"ffn.gate": shape.ffn, "ffn.up": shape.ffn}
        name = f"{at}mlp.gate_up_proj.weight"
    if stem not in widths:
        return None
    begin = sum(list(widths.values())[: list(widths).index(stem)])
    return TensorLocation((name,), rows=(begin, begin + widths[stem]), whole=sum(widths.values()))


def is_buffer(name: str) -> bool:
    """Return whether a tensor is a buffer: the balance of experts, which is kept in float32 and has
    no gradient.
    """
    return name.endswith("ffn.balance")


def _swiglu_shapes(at: str, hidden: int, ffn: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{at}.gate.weight": (ffn, hidden),
        f"{at}.up.weight": (ffn, hidden),
        f"{at}.down.weight": (hidden, ffn),
    }


def _moe_shapes(shape: ModelShape, at: str) -> dict[str, tuple[int, ...]]:
    experts, hidden, ffn = shape.experts, shape.hidden, shape.expert_ffn
    found: dict[str, tuple[int, ...]] = {f"{at}.router.weight": (experts, hidden)}
    if shape.expert_bias:
        found |= {
            f"{at}.router.bias": (experts,),
            f"{at}.experts.gate_bias": (experts, ffn),
            f"{at}.experts.up_bias": (experts, ffn),
            f"{at}.experts.down_bias": (experts, hidden),
        }
    if shape.router == "sigmoid":
        found[f"{at}.balance"] = (experts,)
    found |= {
        f"{at}.experts.gate": (experts, ffn, hidden),
        f"{at}.experts.up": (experts, ffn, hidden),
        f"{at}.experts.down": (experts, hidden, ffn),
    }
    if shape.shared_experts:
        found |= _swiglu_shapes(f"{at}.shared", hidden, shape.shared_experts * ffn)
    return found


def _moe_block(family: str) -> str:
    return "block_sparse_moe" if family == "mixtral" else "mlp"


def _gpt_oss_location(at: str, tensor: str, shape: ModelShape) -> TensorLocation:
    """Return the place of an expert's matrices or biases: gate and up take turns, and matrices are
    transposed.
    """
    matrix, _, bias = tensor.partition("_")
    kind, width = (f"_{bias}", 1) if bias else ("", 2)
    if matrix == "down":
        return TensorLocation((f"{at}.mlp.experts.down_proj{kind}",), transposed=not bias)
    return TensorLocation(
        (f"{at}.mlp.experts.gate_up_proj{kind}",),
        rows=(0 if matrix == "gate" else 1, 2 * shape.expert_ffn),
        whole=2 * shape.expert_ffn,
        dimension=width,
        step=2,
        transposed=not bias,
    )


def _expert_locations(at: str, matrix: str, shape: ModelShape, family: str) -> list[TensorLocation]:
    if family == _GPT_OSS:
        return [_gpt_oss_location(at, matrix, shape)]
    theirs = (_MIXTRAL if family == "mixtral" else _EXPERTS)[matrix]
    each = tuple(
        f"{at}.{_moe_block(family)}.experts.{expert}.{theirs}.weight"
        for expert in range(shape.experts)
    )
    ffn = shape.expert_ffn
    if matrix == "down":
        fused = TensorLocation((f"{at}.mlp.experts.down_proj",))
    else:
        rows = (0, ffn) if matrix == "gate" else (ffn, 2 * ffn)
        fused = TensorLocation((f"{at}.mlp.experts.gate_up_proj",), False, rows, 2 * ffn, 1)
    return [TensorLocation(each, stacked=True), fused]
