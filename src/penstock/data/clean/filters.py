"""Run the filters over documents: each is kept, or dropped by the first rule it breaks.

The result depends only on the document itself, not on its neighbours, their order or the batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.data.clean import c4, fineweb, gopher
from penstock.data.clean.batch import Measures, TextBatch, split_batches
from penstock.data.clean.config import Filters


@dataclass(frozen=True)
class FilterResults:
    """The results of all filters for several documents."""

    texts: list[str]  # the remaining text of each document: C4 removes lines
    broken: npt.NDArray[np.int16]  # the first rule that each document broke, -1 where kept
    rules: tuple[str, ...]  # the names of all rules, in order
    measures: Measures  # `filter.measure` → one value per document, also of dropped ones

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        return self.broken < 0

    def reason(self, document: int) -> str | None:
        """Return the name of the rule that dropped the document; None if it is kept."""
        place = int(self.broken[document])
        return None if place < 0 else self.rules[place]

    def counts(self) -> dict[str, int]:
        """Return the number of documents kept, and dropped by each rule, in the rules' order."""
        found = np.bincount(self.broken + 1, minlength=len(self.rules) + 1).tolist()
        named = zip(("kept", *self.rules), found, strict=True)
        return {name: count for name, count in named if count or name == "kept"}


def run_filters(texts: Sequence[str], config: Filters) -> FilterResults:
    """Apply every filter that is on to each text."""
    rules = config.rules()
    left: list[str] = []
    # An empty batch names all measures even if there is no document.
    parts = [_measure(TextBatch([]), config, left)]
    parts += [_measure(batch, config, left) for batch in split_batches(texts)]
    measures = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    broken = np.full(len(texts), -1, np.int16)
    for place, rule in reversed(list(enumerate(rules))):
        if rule.bound is not None:
            values = measures[rule.measure]
            fails = values < rule.bound if rule.kind == "least" else values > rule.bound
            broken[fails] = place
    return FilterResults(left, broken, tuple(rule.name for rule in rules), measures)


def _measure(batch: TextBatch, config: Filters, left: list[str]) -> Measures:
    """Return every measure of every filter that is on; append the remaining texts to `left`."""
    out: Measures = {}

    def add(name: str, measures: Measures) -> None:
        out.update({f"{name}.{key}": values for key, values in measures.items()})

    if config.gopher_repetition:
        add("gopher_repetition", gopher.measure_repetition(batch, config.gopher_repetition))
    if config.gopher_quality:
        add("gopher_quality", gopher.measure_quality(batch, config.gopher_quality))
    texts, word_counts = batch.texts, batch.word_counts
    if config.c4:
        cleaned = c4.apply_c4(batch, config.c4)
        add("c4", cleaned.measures)
        texts, word_counts = cleaned.texts, cleaned.word_counts
    if config.fineweb:
        add("fineweb", fineweb.measure_lines(texts, word_counts, config.fineweb))
    left.extend(texts)
    return out
