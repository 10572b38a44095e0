"""`[train]`: how long, how large a batch, which optimizer, schedule and precision."""

import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from penstock.run.schema.code import SPEC
from penstock.run.schema.preference import (
    DEFAULTS,
    NOT_BUILT,
    ON_PAIRS,
    PAIR,
    WITH_REFERENCE,
    PreferenceSection,
    preference_problem,
)
from penstock.run.schema.quantity import Portion
from penstock.run.schema.section import (
    CountOrAuto,
    Flag,
    InvalidFields,
    NotNegative,
    PartOfRun,
    Positive,
    PositiveCount,
    PositiveOrAuto,
    Section,
    Seed,
    Share,
    Steps,
    Text,
    Tokens,
    number,
)

LENGTHS = ("tokens", "steps", "epochs")
DEFAULT_TOKENS = 1_000_000
_COMPRESS = re.compile(r"none|bf16|int8|int4|int2|topk:([0-9]+(\.[0-9]+)?)%")
OF_GRADIENTS = ("none", "bf16", "int8")  # codecs that replicas may use in every step


def choose_batch_tokens(tokens: int | None, sequence: int) -> int:
    """Choose the batch of a run that sets none: 1/512 of its tokens, as a power of two.

    A run needs at least some hundred updates for its schedule. 2048 tokens keep a small device
    busy; above 4Mi a larger batch hardly saves steps. A run measured in steps or epochs does not
    know its tokens beforehand and gets the minimum. Always whole sequences.
    """
    power = 2 ** round(math.log2(max(1, (tokens or 0) / 512)))
    return max(1, min(max(power, 2048), 4 * 2**20) // sequence) * sequence


# For trained weights: far below the rate that trained them, or they forget. Adapters start from
# zero, and take about ten times that (Hu et al. 2021, and the usual recipes since).
FINETUNE_RATE, ADAPTER_RATE = 2e-5, 2e-4
# On pairs a little goes far: TRL's default, and ten times that for an adapter.
PAIRS_RATE, PAIRS_ADAPTER_RATE = 1e-6, 1e-5


def choose_learning_rate(hidden: int, optimizer: str = "adamw") -> float:
    """Choose the peak rate by width: in published AdamW runs about 1 / width, 3e-4 at 4096.

    Muon's steps are scaled to be as long as AdamW's. Narrow models, though, allow and need higher
    rates with Muon: see docs/design/optimizers.md.
    """
    most = 1.2e-2 if optimizer == "muon" else 3e-3
    return min(most, 3e-4 * 4096 / hidden)


BALANCE_RATE = 1e-3  # of scores between 0 and 1, a step (arXiv 2408.15664)


def _betas(value: object) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError("not two numbers; write [0.9, 0.95]")
    read = number(least=0, below=1)
    return read(value[0]), read(value[1])


def _compress(value: object) -> str:
    found = _COMPRESS.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError('not a codec; write "none", "bf16", "int8", "int4", "int2" or "topk:3%"')
    if found[1] and not 0 < float(found[1]) <= 50:
        raise ValueError('a share of the values above 0 and up to 50%; write "topk:3%"')
    return found[0]


Momentum = Annotated[
    float,
    PlainValidator(number(least=0, below=1)),
    WithJsonSchema({"title": "number", "type": "number"}),
]
Betas = Annotated[
    tuple[float, float],
    PlainValidator(_betas),
    WithJsonSchema(
        {
            "title": "two numbers",
            "type": "array",
            "items": {"type": "number"},
            "minItems": 2,
            "maxItems": 2,
        }
    ),
]
Compress = Annotated[
    str,
    PlainValidator(_compress),
    WithJsonSchema(
        {
            "title": '"none", "bf16", "int8", "int4", "int2" or "topk:SHARE%"',
            "type": "string",
            "pattern": f"^({_COMPRESS.pattern})$",
        }
    ),
]


class SyncSection(Section):
    """Agreement of replicas: in every step, or after some steps of their own."""

    local_steps: CountOrAuto = Field(
        1,
        description="Steps that a replica takes before all of them agree. Above 1 (DiLoCo) they "
        "exchange how far their weights have moved, and an outer optimizer applies the mean; "
        'layout.replicate must be given. "auto": chosen for the links between nodes when the run '
        "starts, with codec, parts, optimizer and replicas where the file does not say them.",
    )
    compress: Compress = Field(
        "none",
        description="Codec of what replicas send: gradients take bf16 or int8, the differences of "
        "local steps also int4, int2 or topk. What it leaves out is sent later.",
    )
    outer_rate: Positive = Field(1.0, description="Learning rate of the outer optimizer.")
    outer_momentum: Momentum = Field(
        0.3, description="Nesterov momentum of the outer optimizer; 0 is off."
    )
    stream: PositiveCount = Field(
        1,
        description="Parts of the model that are exchanged in turn while training goes on; 1: the "
        "whole model at once, and training waits for it.",
    )

    @property
    def apart(self) -> bool:
        """Whether replicas take steps of their own; not while that is still to be chosen."""
        return self.inner_steps > 1

    @property
    def auto(self) -> bool:
        """Whether the planner is to choose how replicas agree."""
        return self.local_steps == "auto"

    @property
    def inner_steps(self) -> int:
        """Steps of a round; 1 while that is still to be chosen."""
        return 1 if self.local_steps == "auto" else self.local_steps

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.local_steps == "auto":
            return self
        if not self.apart:
            if self.compress not in OF_GRADIENTS:
                what = "too coarse for gradients, which are exchanged in every step"
                raise InvalidFields(("compress", f'{what}; write "int8", or local_steps = 30'))
            for name in ("outer_rate", "outer_momentum", "stream"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise InvalidFields((name, "only for local_steps above 1; remove it"))
        if self.stream > self.local_steps:
            what = f"more parts than the {self.local_steps} steps in which each has its turn"
            raise InvalidFields(("stream", f"{what}; write {self.local_steps} or less"))
        return self


class TrainSection(Section):
    """Length, batch, optimizer, schedule and precision of the training."""

    tokens: Tokens | None = Field(
        None,
        description="Length of the run, tokens; 1M if none of tokens, steps and epochs is given.",
    )
    steps: Steps | None = Field(None, description="Length of the run, optimizer steps.")
    epochs: Positive | None = Field(None, description="Length of the run, passes over the dataset.")
    batch_tokens: Tokens | None = Field(
        None,
        description="Tokens per optimizer step, over all ranks; a pair of answers counts as two "
        "sequences, with what fills them up. If not given, 1/512 of the run's "
        "tokens as a power of two between 2Ki and 4Mi.",
    )
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw",
        description="Optimizer; muon is for the matrices of the layers, with adamw for embedding, "
        "head, norms, biases and routers; adapters need adamw.",
    )
    betas: Betas = Field((0.9, 0.95), description="Decay of AdamW's two running means.")
    eps: Positive = Field(1e-8, description="AdamW's guard against division by zero.")
    muon_momentum: Momentum = Field(0.95, description="Decay of Muon's running mean.")
    weight_decay: NotNegative = Field(0.1, description="Decoupled weight decay.")
    clip: NotNegative = Field(1.0, description="Largest norm of the whole gradient; 0 is off.")
    balance_rate: NotNegative | None = Field(
        None,
        description="Step by which experts that got few tokens become more likely to be chosen; 0 "
        "is off; if not given, 1e-3, and 0 with `model.from`.",
    )
    learning_rate: PositiveOrAuto = Field(
        "auto",
        description='Peak learning rate; "auto" is 3e-4 × 4096 / hidden, at most 3e-3 (with muon '
        "1.2e-2); with `model.from` 2e-5, and 2e-4 for an adapter; on pairs 1e-6 and 1e-5.",
    )
    final: Share = Field(0.1, description="Learning rate at the end, as a share of the peak.")
    schedule: Literal["cosine", "wsd"] = Field(
        "cosine", description="Shape of the learning rate; wsd: warm up, stay, decay."
    )
    warmup: PartOfRun = Field(
        Portion(share=0.05), description="Rise of the learning rate at the start."
    )
    decay: PartOfRun = Field(
        Portion(share=0.2), description="Fall of the learning rate at the end, for wsd."
    )
    objective: Literal["next_token", "dpo", "ipo", "simpo", "orpo"] = Field(
        "next_token",
        description="What is learned: the next token of the data; or, from pairs of answers "
        "(`prompt`, `chosen`, `rejected`), to prefer the chosen one: dpo, ipo, and without a "
        "reference model simpo, orpo.",
    )
    preference: PreferenceSection = Field(
        PreferenceSection(), description="For an objective on pairs."
    )
    loss: Text | None = Field(
        None,
        description='Your own loss, "my_loss.py:smooth": a function of (logits [n, vocab], targets '
        "[n]) that returns one loss per token [n]; cross-entropy if not given.",
    )
    precision: Literal["auto", "fp32", "bf16", "fp8", "fp64"] = Field(
        "auto",
        description="Number format of the matrix work; auto is bf16 on GPUs and CPUs that multiply "
        "it faster than fp32 (a CPU is timed for 10 ms), else fp32; fp64 is for equality checks.",
    )
    weights: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="Number format of the weights that are kept and updated, for precision bf16 "
        "and fp8; bf16 takes less memory and rounds updates at random.",
    )
    states: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="Number format of the optimizer's running means; bf16 takes half the memory.",
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto", description="Layers as compiled kernels (torch.compile); auto is on for CUDA."
    )
    deterministic: Flag = Field(False, description="Bit-exact on CUDA too, at a cost in speed.")
    seed: Seed = Field(0, description="Seed of the initial weights and the sample order.")
    sync: SyncSection = Field(SyncSection(), description="How replicas agree.")

    @model_validator(mode="before")
    @classmethod
    def _default_length(cls, table: Any) -> Any:
        if isinstance(table, dict) and not any(name in table for name in LENGTHS):
            return {**table, "tokens": DEFAULT_TOKENS}
        return table

    @model_validator(mode="before")
    @classmethod
    def _preference_of_objective(cls, table: Any) -> Any:
        objective = table.get("objective") if isinstance(table, dict) else None
        if not isinstance(objective, str):
            return table
        if why := NOT_BUILT.get(objective):
            known = ", ".join(f'"{name}"' for name in ON_PAIRS)
            raise InvalidFields(("objective", f"{why}; write one of {known}"))
        given = table.get("preference", {})
        if isinstance(given, dict) and objective in DEFAULTS:
            return {**table, "preference": {**DEFAULTS[objective], **given}}
        return table

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        given = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidFields(
                (given[1], f"`{given[0]}` is given too; keep one of {', '.join(given)}")
            )
        return self

    @model_validator(mode="after")
    def _loss_is_a_function(self) -> Self:
        if self.loss and not SPEC.fullmatch(self.loss):
            raise InvalidFields(("loss", 'not a file and a function; write "my_loss.py:smooth"'))
        return self

    @model_validator(mode="after")
    def _objective_fits(self) -> Self:
        if not self.on_pairs and self.preference != PreferenceSection():
            wanted = "dpo" if self.preference.gamma is None else "simpo"
            what = f'only for an objective on pairs; write objective = "{wanted}" or remove it'
            raise InvalidFields(("preference", what))
        if self.on_pairs and self.loss:
            what = f'objective = "{self.objective}" has its own loss'
            raise InvalidFields(("loss", f"{what}; remove one of the two"))
        if self.on_pairs and (problem := preference_problem(self.objective, self.preference)):
            raise InvalidFields((f"preference.{problem[0]}", problem[1]))
        return self

    @property
    def on_pairs(self) -> bool:
        """Whether the objective compares two answers; a sample is then a pair of sequences."""
        return self.objective in ON_PAIRS

    @property
    def has_reference(self) -> bool:
        """Whether the objective compares the model with the one that it began as."""
        return self.objective in WITH_REFERENCE

    @property
    def loss_kind(self) -> str:
        """The kind of loss, in words. Losses of different kinds cannot be compared."""
        if self.on_pairs:
            return f"{self.objective}, {self.preference.words()}"
        return self.loss or self.objective

    @property
    def sample_sequences(self) -> int:
        """Sequences of a sample."""
        return PAIR if self.on_pairs else 1

    @model_validator(mode="after")
    def _weights_fit(self) -> Self:
        if self.weights == "bf16" and self.precision not in ("auto", "bf16", "fp8"):
            what = f'narrower than the matrix work, which precision = "{self.precision}" asks for'
            raise InvalidFields(
                ("weights", f'{what}; write weights = "fp32" or precision = "bf16"')
            )
        return self

    @model_validator(mode="after")
    def _schedule_fits(self) -> Self:
        warmup, decay = self.warmup.share or 0.0, self.decay.share or 0.0
        if self.schedule == "wsd" and warmup + decay > 1:
            what = f"warmup {self.warmup} and decay {self.decay} are more than the whole run"
            raise InvalidFields(("decay", f"{what}; lower one of them"))
        return self

    def misfit(self, total_steps: int) -> tuple[str, str] | None:
        """Return the schedule field that is too long for a run of this length, and why."""
        warmup, decay = self.warmup.of(total_steps), self.decay.of(total_steps)
        if self.sync.apart and self.sync.inner_steps > total_steps:
            what = f"more than the {total_steps} steps of the run, so replicas would never agree"
            return "sync.local_steps", f"{what}; write {max(1, total_steps // 10)} or less"
        if warmup > total_steps:
            what = f"longer than the run of {total_steps} steps"
            return "warmup", f'{what}; write fewer steps, or a share such as "5%"'
        # One step of slack: two shares that fill the run may each round up.
        if self.schedule == "wsd" and warmup + decay > total_steps + 1:
            what = f"warmup {warmup} and decay {decay} steps do not fit into {total_steps} steps"
            return "decay", f"{what}; lower one of them"
        return None
