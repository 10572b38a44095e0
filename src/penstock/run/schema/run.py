"""`Run`: the whole run file, checked, with the values that follow from it."""

import math
import re
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from penstock.errors import PenstockError
from penstock.run.schema.apart import apart_problems
from penstock.run.schema.budget import BudgetSection
from penstock.run.schema.cluster import ClusterSection
from penstock.run.schema.data import DataSection
from penstock.run.schema.evaluate import EvaluateSection
from penstock.run.schema.guard import GuardSection
from penstock.run.schema.layout import LayoutSection
from penstock.run.schema.log import LogSection
from penstock.run.schema.model import ModelSection
from penstock.run.schema.section import InvalidFields, Section, Text, text
from penstock.run.schema.sites import SitesSection, sites_problems
from penstock.run.schema.train import (
    ADAPTER_RATE,
    BALANCE_RATE,
    DEFAULT_TOKENS,
    FINETUNE_RATE,
    PAIRS_ADAPTER_RATE,
    PAIRS_RATE,
    TrainSection,
    choose_batch_tokens,
    choose_learning_rate,
)

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9_-])?", re.ASCII)
DEFAULT_SEQUENCE = 2048


def read_name(value: object) -> str:
    # A name becomes a folder: it must not climb out of `dir` or hide itself.
    name = text(value)
    if len(name) > 100:
        raise ValueError(f"{len(name)} characters long; write at most 100")
    if not NAME.fullmatch(name):
        raise ValueError(
            "not a name; write letters, digits, '.', '_' and '-', starting with a letter or digit "
            "and not ending with '.'"
        )
    return name


Name = Annotated[
    str,
    PlainValidator(read_name),
    WithJsonSchema({"title": "name", "type": "string", "pattern": f"^{NAME.pattern}$"}),
]


class Run(Section):
    """A run file."""

    name: Name = Field(
        description="Name of the run, and of its folder; the file's name if not given."
    )
    dir: Text = Field("runs", description="Where runs live: a folder or a URL.")
    model: ModelSection = Field(description="The model.")
    data: DataSection = Field(DataSection(), description="The data.")
    train: TrainSection = Field(TrainSection(tokens=DEFAULT_TOKENS), description="The training.")
    evaluate: EvaluateSection = Field(EvaluateSection(), description="The validation.")
    layout: LayoutSection | None = Field(None, description="The layout; chosen if left out.")
    sites: SitesSection | None = Field(None, description="Sites that meet in a bucket.")
    cluster: ClusterSection = Field(ClusterSection(), description="The machines.")
    guard: GuardSection = Field(GuardSection(), description="Checkpoints and faults.")
    budget: BudgetSection = Field(BudgetSection(), description="Limits of cost and time.")
    log: LogSection = Field(LogSection(), description="Outlets.")

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return Path(self.dir).expanduser() / self.name

    @property
    def sequence(self) -> int:
        """Tokens per sequence."""
        if self.data.sequence:
            return self.data.sequence
        shape = self.model.base()
        return min(DEFAULT_SEQUENCE, shape.longest) if shape else DEFAULT_SEQUENCE

    @property
    def sample_tokens(self) -> int:
        """Tokens per sample: a sequence, or the two sequences of a pair."""
        return self.sequence * self.train.sample_sequences

    @property
    def batch_tokens(self) -> int:
        """Tokens per optimizer step, over all ranks."""
        return self.train.batch_tokens or choose_batch_tokens(self.train.tokens, self.sample_tokens)

    @property
    def batch_samples(self) -> int:
        """Samples (sequences, or pairs of them) per optimizer step, over all ranks."""
        return self.batch_tokens // self.sample_tokens

    @property
    def learning_rate(self) -> float:
        """Peak learning rate."""
        if self.train.learning_rate != "auto":
            return self.train.learning_rate
        if self.train.on_pairs:
            return PAIRS_ADAPTER_RATE if self.model.adapter else PAIRS_RATE
        if self.model.from_:
            return ADAPTER_RATE if self.model.adapter else FINETUNE_RATE
        shape = self.model.base()
        assert shape is not None, "checked when the file was loaded"
        return choose_learning_rate(shape.hidden, self.train.optimizer)

    @property
    def balance_rate(self) -> float:
        """Step of the balance of experts.

        Open weights come balanced, and the files of some families have no place for a change.
        """
        if self.train.balance_rate is not None:
            return self.train.balance_rate
        return 0.0 if self.model.from_ else BALANCE_RATE

    def choices(self) -> dict[str, int | float]:
        """Return the fields that the file left open, with the chosen values."""
        chosen: dict[str, int | float] = {}
        if self.data.sequence is None:
            chosen["data.sequence"] = self.sequence
        if self.train.batch_tokens is None:
            chosen["train.batch_tokens"] = self.batch_tokens
        if self.train.learning_rate == "auto":
            chosen["train.learning_rate"] = self.learning_rate
        return chosen

    def steps(self, samples_per_epoch: int | None = None) -> int:
        """Return the optimizer steps, rounded up; only `epochs` needs `samples_per_epoch`."""
        total = self._steps(samples_per_epoch)
        if misfit := self.train.misfit(total):
            field, what = misfit
            value = attrgetter(field)(self.train)
            shown = value if isinstance(value, int) else f'"{value}"'
            raise PenstockError(f"train.{field} = {shown}: {what}")
        return total

    def _steps(self, samples_per_epoch: int | None) -> int:
        if self.train.steps:
            return self.train.steps
        if self.train.tokens:
            return -(-self.train.tokens // self.batch_tokens)
        if not samples_per_epoch:
            raise PenstockError("train.epochs: the dataset has no samples; choose another")
        return math.ceil((self.train.epochs or 0) * samples_per_epoch / self.batch_samples)

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        problems = [*self._batch_problems(), *self._length_problems(), *self._layout_problems()]
        problems += [*apart_problems(self), *sites_problems(self)]
        if problems:
            raise InvalidFields(*problems)
        return self

    def _batch_problems(self) -> list[tuple[str, str]]:
        shape, sequence, batch = self.model.base(), self.sequence, self.train.batch_tokens
        problems = []
        if shape and sequence > shape.longest:
            part = shape.limits[shape.longest]
            what = f"longer than the model's {part} of {shape.longest} tokens"
            own = "" if self.model.from_ else f", or model.context = {sequence} too"
            problems.append(("data.sequence", f"{what}; write {shape.longest}{own}"))
        # The length of a model that is not here is unknown; `settled` looks again.
        known = bool(shape or self.model.module or self.data.sequence)
        sample = self.sample_tokens
        if batch and known and batch % sample:
            less = batch // sample * sample
            near = f"{less} or {less + sample}" if less else str(sample)
            each = "pairs of two sequences" if self.train.on_pairs else "sequences"
            what = f"not a whole number of {each} of {sequence} tokens"
            problems.append(("train.batch_tokens", f"{what}; write {near}"))
        if shape is None and self.model.module and self.train.learning_rate == "auto":
            what = '"auto" needs the width of the model, which `module` does not say'
            problems.append(("train.learning_rate", f"{what}; write a number such as 3e-4"))
        if self.model.adapter and self.train.optimizer == "muon":
            what = "adapters are moved by AdamW, and all else is frozen"
            problems.append(("train.optimizer", f'{what}; write "adamw"'))
        if self.train.on_pairs and not self.model.from_:
            what = "compares the model with the one that it began as, which must have been trained"
            if not self.train.has_reference:
                what = "needs a model that was trained before"
            own = ", not your own module" if self.model.module else ""
            problems.append(
                ("train.objective", f"{what}; write model.from with an open model{own}")
            )
        return problems

    def _length_problems(self) -> list[tuple[str, str]]:
        if self.train.epochs:
            return []  # known only with the dataset; `steps` checks again
        misfit = self.train.misfit(self._steps(None))
        return [(f"train.{misfit[0]}", misfit[1])] if misfit else []

    def _layout_problems(self) -> list[tuple[str, str]]:
        layout, here = self.layout, self.cluster
        if layout is None or here.accelerators == "all":
            return []
        count, per_replica = here.accelerators * here.nodes, layout.per_replica
        if layout.replicate and layout.replicate * per_replica != count:
            value = layout.replicate * per_replica
            what = f"replicate × shard × tensor × pipeline × context = {value}"
            return [("layout", f"{what}, but there are {count} accelerators; make them equal")]
        if count % per_replica:
            what = f"one replica takes {per_replica} accelerators, which do not divide {count}"
            return [("layout", f"{what}; write a divisor of {count}")]
        return []
