"""`LaunchRecord`: the contents of plan.json. Its fields document the format of the file.

`launch/` decides everything in it before the ranks start and writes it into the run's folder.
Ranks, supervisors, drills and everything that shows a run read it from there. An absent field has
the default below: a fork that was never launched has only `forked_from` and perhaps `dataset`, and
files of earlier versions lack what came later. `RunFolder.write_plan` adds a hash of all fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ForkOrigin:
    """The run and the step that a fork began from."""

    run: str
    step: int | None  # None where the file is damaged


@dataclass(frozen=True)
class LaunchRecord:
    """The decisions of the last launch of a run."""

    device: str = ""  # "cuda" or "cpu"; "" before the first launch
    device_name: str = ""  # as torch prints it; "" on a CPU
    machine: str = ""  # the hosts in words
    layout: dict[str, Any] = field(default_factory=dict)  # `Layout.to_json`
    ranks: int = 0
    hour_layout: dict[str, Any] = field(default_factory=dict)  # of this hour, if it has fewer ranks
    dataset: Any = None  # name@version, one with its location, or a list of them for a mixture
    vocab: int = 0  # tokens of the dataset's tokenizer
    tokenizer: str = ""  # its hash
    masked: bool | None = None  # the data marks tokens that are not learned; None: not recorded
    samples: int = 0  # of one epoch
    held_out: int = 0  # samples
    params: int | None = None  # of the model; None for the user's own module
    trained: int | None = None  # parameters of an adapter; None: all are trained
    flops_per_token: float | None = None  # forward and backward; None for the user's own module
    steps: int = 0
    batch_tokens: int = 0  # tokens of one optimizer step, over all ranks (of one site)
    sequence: int = 0  # tokens
    pairs: bool = False  # a sample is a pair of sequences
    learning_rate: float = 0.0
    precision_why: str = ""  # why train.precision = "auto" means what it does here
    rates: dict[str, Any] | None = None  # prices and carbon, `plan/cost/rates.py`
    loss_source: str = ""  # hash of the user's loss file
    module_source: str = ""  # hash of the user's module file
    paths: dict[str, str] = field(default_factory=dict)  # files of the run file, where they were
    forked_from: ForkOrigin | None = None
    replanned: dict[str, Any] = field(default_factory=dict)  # after memory ran out
    predicted: dict[str, Any] = field(default_factory=dict)  # `Plan.to_json`, or {"none": why}
    hosts: tuple[dict[str, Any], ...] = ()  # node and ranks of each, of a run on several hosts

    @property
    def launched(self) -> bool:
        """Tell whether the run was ever launched."""
        return bool(self.layout)

    @property
    def attempt_layout(self) -> dict[str, Any]:
        """Return the layout of the present attempt; `layout` is that of all accelerators."""
        return self.hour_layout or self.layout

    @property
    def sample_tokens(self) -> int:
        """Return the tokens of a sample: a sequence, or both of a pair."""
        return self.sequence * (2 if self.pairs else 1)

    @property
    def sources(self) -> dict[str, str]:
        """Return the hashes of the user's own files, by their names in plan.json."""
        named = {"loss_source": self.loss_source, "module_source": self.module_source}
        return {name: digest for name, digest in named.items() if digest}

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> "LaunchRecord":
        """Read the fields that are known; a value of another kind counts as absent."""
        values = {k: v for k, v in table.items() if k in _KINDS and type(v) in _KINDS[k]}
        if origin := values.pop("forked_from", None):
            step = origin.get("step")
            step = step if type(step) is int else None
            values["forked_from"] = ForkOrigin(str(origin.get("run", "")), step)
        if "hosts" in values:
            values["hosts"] = tuple(values["hosts"])
        return cls(**values)


# The JSON types of each field.
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("device", "device_name", "machine", "tokenizer", "precision_why"), (str,)),
    **dict.fromkeys(("loss_source", "module_source"), (str,)),
    **dict.fromkeys(("ranks", "vocab", "samples", "held_out", "params", "trained"), (int,)),
    **dict.fromkeys(("steps", "batch_tokens", "sequence"), (int,)),
    **dict.fromkeys(("flops_per_token", "learning_rate"), (int, float)),
    **dict.fromkeys(
        ("layout", "hour_layout", "rates", "paths", "forked_from", "replanned"), (dict,)
    ),
    "predicted": (dict,),
    "dataset": (str, dict, list),
    "masked": (bool,),
    "pairs": (bool,),
    "hosts": (list,),
}
