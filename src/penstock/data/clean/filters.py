"""Runs the filters over documents and says of each: kept, or the first rule it broke, and why.

A verdict depends on its document alone: not on its neighbours, their order or the batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.data.clean import c4, fineweb, gopher
from penstock.data.clean.batch import Batch, Measures, batches
from penstock.data.clean.config import Filters


@dataclass(frozen=True)
class Verdicts:
    texts: list[str]  # what is left of each document: C4 removes lines
    broken: npt.NDArray[np.int16]  # the first rule that each document broke, -1 where kept
    rules: tuple[str, ...]  # the names of all rules, in order
    measures: Measures  # `filter.measure` → one value a document, of dropped ones too

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        return self.broken < 0

    def reason(self, document: int) -> str | None:
        """The name of the rule that dropped the document; None if it is kept."""
        place = int(self.broken[document])
        return None if place < 0 else self.rules[place]

    def counts(self) -> dict[str, int]:
        """Documents kept, and dropped by reason, in the order of the rules."""
        found = np.bincount(self.broken + 1, minlength=len(self.rules) + 1).tolist()
        named = zip(("kept", *self.rules), found, strict=True)
        return {name: count for name, count in named if count or name == "kept"}


def run(texts: Sequence[str], config: Filters) -> Verdicts:
    """Judges each text by every filter that is on."""
    rules = config.rules()
    left: list[str] = []
    # An empty batch gives each measure its name even when there is no document.
    parts = [_measure(Batch([]), config, left)]
    parts += [_measure(batch, config, left) for batch in batches(texts)]
    measures = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    broken = np.full(len(texts), -1, np.int16)
    for place, rule in reversed(list(enumerate(rules))):
        if rule.bound is not None:
            values = measures[rule.measure]
            fails = values < rule.bound if rule.kind == "least" else values > rule.bound
            broken[fails] = place
    return Verdicts(left, broken, tuple(rule.name for rule in rules), measures)


def _measure(batch: Batch, config: Filters, left: list[str]) -> Measures:
    """Every measure of every filter that is on; appends what is left of the texts."""
    out: Measures = {}

    def add(name: str, measures: Measures) -> None:
        out.update({f"{name}.{key}": values for key, values in measures.items()})

    if config.gopher_repetition:
        add("gopher_repetition", gopher.repetition(batch, config.gopher_repetition))
    if config.gopher_quality:
        add("gopher_quality", gopher.quality(batch, config.gopher_quality))
    texts, word_counts = batch.texts, batch.word_counts
    if config.c4:
        cleaned = c4.clean(batch, config.c4)
        add("c4", cleaned.measures)
        texts, word_counts = cleaned.texts, cleaned.word_counts
    if config.fineweb:
        add("fineweb", fineweb.measure(texts, word_counts, config.fineweb))
    left.extend(texts)
    return out
