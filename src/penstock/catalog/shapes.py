"""`ModelShape`: a model without torch. The planner reads it, `model/` builds from it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

# Far above any model that exists. A larger config is a mistake or an attack: counting its tensors
# alone would take hours.
LARGEST = {
    "layers": 10_000,
    "hidden": 1 << 20,
    "heads": 1 << 16,
    "kv_heads": 1 << 16,
    "ffn": 1 << 24,
    "vocab": 1 << 26,
    "head_dim": 1 << 16,
    "context": 1 << 40,
    "window": 1 << 40,
    "experts": 1 << 16,
    "experts_active": 1 << 16,
    "expert_ffn": 1 << 24,
    "shared_experts": 1 << 16,
    "dense_layers": 10_000,
}
LARGEST_ALL_EXPERTS = 1 << 20  # of all layers together


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1's scaling to a longer context: slow rotations become slower, fast ones stay.

    A rotation is slow when it turns less than `low` times in the `original` context, fast when it
    turns more than `high` times; in between, the two are mixed.
    """

    factor: float  # slow rotations are divided by it
    low: float
    high: float
    original: int  # context of the first training, tokens


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer. Widths are in elements; an absent part is 0 or None."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int  # inner width of a dense block
    vocab: int
    tied: bool = False  # the head shares the embedding
    head_dim: int | None = None  # None: hidden / heads
    context: int = 2048  # longest sequence the shape was made for, tokens
    window: int = 0  # tokens that a token sees, itself included; 0: all before it
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    qk_norm: bool = False  # RMSNorm on each head's query and key
    attention_bias: bool = False  # biases on q, k, v
    gated: bool = True  # SwiGLU, three matrices; False: an older block with two (GPT, MPT)
    # Mixture of experts: 0 experts is a dense model.
    experts: int = 0  # routed experts per MoE layer
    experts_active: int = 0  # routed experts a token visits
    expert_ffn: int = 0  # inner width of one routed expert
    shared_experts: int = 0  # experts every token visits, each expert_ffn wide
    dense_layers: int = 0  # leading layers that keep a dense ffn
    router: str = "softmax"  # scores of the experts: "softmax" over all, or "sigmoid" of each
    router_normalised: bool = True  # the weights of the chosen experts add up to one
    routed_scale: float = 1.0  # what the routed experts give is multiplied by this
    # Multi-head latent attention (DeepSeek): 0 kv_rank is ordinary attention.
    q_rank: int = 0  # 0: full-rank query
    kv_rank: int = 0
    rope_dim: int = 0  # per head, of the query and of the one shared key
    nope_dim: int = 0  # per head
    v_dim: int = 0  # per head

    @cached_property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that can be trained without a sliding window.

        Up to the length of its window a model computes the same as without one.
        """
        return min(self.context, self.window or self.context)

    @property
    def moe(self) -> bool:
        return self.experts > 0

    def beyond_bounds(self, names: Iterable[str] = LARGEST) -> tuple[str, str] | None:
        """Return a field that is larger than in any model, and why; None if there is none."""
        for name in names:
            if (getattr(self, name) or 0) > LARGEST[name]:
                return name, f"more than {LARGEST[name]:,}"
        if self.layers * (self.experts + self.shared_experts) > LARGEST_ALL_EXPERTS:
            return "experts", f"more than {LARGEST_ALL_EXPERTS:,} over {self.layers:,} layers"
        return None

    def attention_params(self) -> int:
        """Return the parameters of the attention of one layer."""
        h, n = self.hidden, self.heads
        if self.kv_rank:
            qk = self.rope_dim + self.nope_dim
            query = (
                h * self.q_rank + self.q_rank + self.q_rank * n * qk if self.q_rank else h * n * qk
            )
            down = h * (self.kv_rank + self.rope_dim) + self.kv_rank
            up = self.kv_rank * n * (self.nope_dim + self.v_dim)
            return query + down + up + n * self.v_dim * h
        q, kv = n * self.head_width, self.kv_heads * self.head_width
        weights = h * q + 2 * h * kv + q * h
        bias = q + 2 * kv if self.attention_bias else 0
        norms = 2 * self.head_width if self.qk_norm else 0
        return weights + bias + norms

    def ffn_params(self, layer: int, active: bool = False) -> int:
        """Return the feed-forward parameters of a layer; `active`: those that one token uses."""
        matrices = 3 if self.gated else 2
        if not self.moe or layer < self.dense_layers:
            return matrices * self.hidden * self.ffn
        routed = self.experts_active if active else self.experts
        return (
            matrices * self.hidden * self.expert_ffn * (routed + self.shared_experts)
            + self.hidden * self.experts
        )

    def embedding_params(self) -> int:
        """Return the parameters of the input embedding, which a tied head shares."""
        return self.vocab * self.hidden

    def params(self, active: bool = False) -> int:
        """Return all parameters, or the active ones of one token."""
        per_layer = self.attention_params() + 2 * self.hidden
        first = min(self.dense_layers, self.layers) if self.moe else 0
        layers = self.layers * per_layer + (self.layers - first) * self.ffn_params(first, active)
        layers += first * self.ffn_params(0, active) if first else 0
        head = 0 if self.tied else self.embedding_params()
        return self.embedding_params() + layers + self.hidden + head

    def flops_per_token(self, sequence: int, frozen: bool = False) -> float:
        """Return the FLOPs of one token, forward and backward.

        6 × matmul parameters + 12 × layers × width × sequence. Attention is counted in full (not
        halved for the causal mask), as the common MFU does; the input embedding is a look-up and
        counts nothing. `frozen` weights have no gradients, which leaves 4 of the 6.
        """
        matmul = self.params(active=True) - (0 if self.tied else self.embedding_params())
        width = self.heads * (
            (self.rope_dim + self.nope_dim + self.v_dim) / 2 if self.kv_rank else self.head_width
        )
        return (4.0 if frozen else 6.0) * matmul + 12.0 * self.layers * width * sequence

    def with_vocab(self, vocab: int) -> "ModelShape":
        return replace(self, vocab=vocab)
