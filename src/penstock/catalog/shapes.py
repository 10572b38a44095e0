"""`ModelShape`: a model without torch. The planner reads it, `model/` builds from it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from penstock.catalog.rope import LongScaling, RopeScaling

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
    "expert_groups": 1 << 16,
    "groups_active": 1 << 16,
    "q_rank": 1 << 20,
    "kv_rank": 1 << 20,
    "rope_dim": 1 << 16,
    "nope_dim": 1 << 16,
    "v_dim": 1 << 16,
}
LARGEST_ALL_EXPERTS = 1 << 20  # of all layers together


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
    full_layers: tuple[int, ...] = ()  # layers without the window that the others have
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    rotary_width: int = 0  # channels of a head that are rotated, the first ones; 0: all
    rope_pairs: bool = False  # neighbours turn together, not a channel and one half a head away
    window_theta: float = 0.0  # layers with a window: their own base, unscaled; 0: as the others
    norm_eps: float = 1e-5
    norm_offset: bool = False  # norms multiply by 1 + their weight
    norms: str = "before"  # each block: "before", "after" it, or "both"
    qk_norm: bool = False  # RMSNorm on queries and keys, head by head
    qk_norm_whole: bool = False  # that norm is over all heads together
    attention_bias: bool = False  # biases on q, k, v
    out_bias: bool = False  # a bias on attention's output
    sinks: bool = False  # each head has a learned score that no key has: it only takes weight away
    score_width: int = 0  # scores are divided by the root of this; 0: by that of the head's width
    embed_scaled: bool = False  # embedded tokens are multiplied by the root of the hidden width
    activation: str = "silu"  # of the feed-forward gate: "silu", "gelu_tanh", or "clamped"
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
    expert_groups: int = 0  # a token's experts come from some of these groups; 0: from all experts
    groups_active: int = 0  # groups that a token chooses from
    expert_bias: bool = False  # biases on the router and on the matrices of routed experts
    # Multi-head latent attention (DeepSeek): 0 kv_rank is ordinary attention.
    q_rank: int = 0  # 0: full-rank query
    kv_rank: int = 0
    rope_dim: int = 0  # per head, of the query and of the one shared key
    nope_dim: int = 0  # per head
    v_dim: int = 0  # per head
    # A model that runs through its module in transformers: the fields above are then estimates.
    architecture: str = ""  # model_type in transformers; "" is our own decoder
    counted: int = 0  # parameters in the files' headers; 0 where there are none

    @cached_property
    def head_width(self) -> int:
        """Width of one attention head; latent attention has `score_channels` and `v_dim`."""
        return self.head_dim or self.hidden // self.heads

    @property
    def score_channels(self) -> int:
        """Width of a query and a key, per head."""
        return self.nope_dim + self.rope_dim if self.kv_rank else self.head_width

    @cached_property
    def rotated_channels(self) -> int:
        """Channels of a query and a key that are rotated, per head."""
        return self.rope_dim or self.rotary_width or self.head_width

    def routing_problem(self) -> str:
        """Say why tokens cannot choose their experts by groups; "" if they can."""
        groups, chosen = self.expert_groups, self.groups_active
        if not groups:
            return ""
        each = self.experts // groups
        if self.experts % groups or each < 2:
            return f"{self.experts} experts in {groups} groups: not two or more in each, evenly"
        if not 0 < chosen <= groups:
            return f"{chosen} of {groups} groups of experts"
        if self.experts_active > chosen * each:
            return f"{chosen} groups of {each} experts are less than {self.experts_active} experts"
        return ""

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that can be trained.

        A window that all layers share is not computed: up to its length a model computes the same
        as without one.
        """
        return min(self.limits)

    @property
    def limits(self) -> dict[int, str]:
        """Tokens that a sequence may have at most, and of what."""
        found = {self.context: "context"}
        if self.window and not self.full_layers:
            found.setdefault(self.window, "sliding window")
        if isinstance(self.rope_scaling, LongScaling):
            found.setdefault(self.rope_scaling.original, "context before longrope")
        return found

    @cached_property
    def attention_kinds(self) -> tuple["ModelShape", ...]:
        """The shape as its layers see it, with one window and one rotary base each.

        One shape, or those of layers without and with a window; `attention_kind` says which.
        """
        if not self.full_layers:
            return (self,)
        one = replace(self, full_layers=(), window_theta=0.0)
        if not self.window_theta:
            return replace(one, window=0), one
        return replace(one, window=0), replace(one, rope_theta=self.window_theta, rope_scaling=None)

    def attention_kind(self, layer: int) -> int:
        """Return which of `attention_kinds` a layer has."""
        return int(bool(self.full_layers) and layer not in self.full_layers)

    def attended_tokens(self, sequence: int) -> float:
        """Return the tokens that a token of a sequence sees, as the mean of all layers.

        As if no token were masked for being later: `sequence` without a window. A window's tokens
        count by what is visible, twice.
        """
        full = sum(layer < self.layers for layer in self.full_layers)
        if not self.full_layers or sequence <= self.window:
            return sequence
        windowed = self.window * (2 - self.window / sequence)
        return (full * sequence + (self.layers - full) * windowed) / self.layers

    @property
    def generic(self) -> bool:
        """Whether the model runs through its module in transformers, and not our decoder."""
        return bool(self.architecture)

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
            qk = self.score_channels
            query = (
                h * self.q_rank + self.q_rank + self.q_rank * n * qk if self.q_rank else h * n * qk
            )
            down = h * (self.kv_rank + self.rope_dim) + self.kv_rank
            up = self.kv_rank * n * (self.nope_dim + self.v_dim)
            return query + down + up + n * self.v_dim * h
        q, kv = n * self.head_width, self.kv_heads * self.head_width
        weights = h * q + 2 * h * kv + q * h
        bias = q + 2 * kv if self.attention_bias else 0
        bias += h if self.out_bias else 0
        return weights + bias + self.qk_norm_params() + (n if self.sinks else 0)

    def qk_norm_params(self) -> int:
        """Return the parameters of the norms on queries and keys of one layer."""
        if not self.qk_norm:
            return 0
        return self.head_width * (self.heads + self.kv_heads if self.qk_norm_whole else 2)

    @property
    def block_norms(self) -> int:
        """Norms of a layer around its two blocks."""
        return 4 if self.norms == "both" else 2

    def ffn_params(self, layer: int, active: bool = False) -> int:
        """Return the feed-forward parameters of a layer; `active`: those that one token uses."""
        matrices = 3 if self.gated else 2
        if not self.moe or layer < self.dense_layers:
            return matrices * self.hidden * self.ffn
        routed = self.experts_active if active else self.experts
        return (
            matrices * self.hidden * self.expert_ffn * (routed + self.shared_experts)
            + self.hidden * self.experts
            + self.expert_bias_params(routed)
        )

    def expert_bias_params(self, routed: int) -> int:
        """Return the biases of a layer's router and of so many routed experts."""
        if not self.expert_bias:
            return 0
        return self.experts + routed * (self.hidden + (2 if self.gated else 1) * self.expert_ffn)

    def embedding_params(self) -> int:
        """Return the parameters of the input embedding, which a tied head shares."""
        return self.vocab * self.hidden

    def params(self, active: bool = False) -> int:
        """Return all parameters, or the active ones of one token.

        Where the files of a generic model were counted, the formula only tells the active share.
        """
        if self.counted:
            formula = replace(self, counted=0)
            share = formula.params(active=True) / formula.params() if active else 1.0
            return round(self.counted * share)
        per_layer = self.attention_params() + self.block_norms * self.hidden
        first = min(self.dense_layers, self.layers) if self.moe else 0
        layers = self.layers * per_layer + (self.layers - first) * self.ffn_params(first, active)
        layers += first * self.ffn_params(0, active) if first else 0
        head = 0 if self.tied else self.embedding_params()
        return self.embedding_params() + layers + self.hidden + head

    def flops_per_token(self, sequence: int, frozen: bool = False) -> float:
        """Return the FLOPs of one token, forward and backward.

        6 × matmul parameters + 12 × layers × width × sequence. Attention is counted in full (not
        halved for the causal mask), as the common MFU does, but not beyond windows; the input
        embedding is a look-up and counts nothing. `frozen` weights have no gradients, which leaves
        4 of the 6.
        """
        matmul = self.params(active=True) - (0 if self.tied else self.embedding_params())
        width = self.heads * (
            (self.score_channels + self.v_dim) / 2 if self.kv_rank else self.head_width
        )
        return (
            4.0 if frozen else 6.0
        ) * matmul + 12.0 * self.layers * width * self.attended_tokens(sequence)

    def with_vocab(self, vocab: int) -> "ModelShape":
        return replace(self, vocab=vocab)
