"""Stage 3, clean: from a raw part to a part of kept documents, with the reasons of dropped ones.

The order is repair, personal data, boilerplate lines, language, filters, the user's own steps,
labels, so that filters see the text that will be trained on. A document that one step drops is not
seen by the next. Steps that remove lines do not change conversations, which are trained on whole.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np

from penstock.data.build.parts import DocumentPart, Extras, Ints, read_part, result_columns
from penstock.data.build.record import SampleDocument
from penstock.data.build.tally import TEXT_CHARACTERS, DocumentTally
from penstock.data.clean import custom, language
from penstock.data.clean import filters as clean_filters
from penstock.data.clean.boilerplate import strip_boilerplate
from penstock.data.clean.personal import scrub_texts
from penstock.data.clean.repair import repair_texts
from penstock.data.format.columns import Columns, read_columns
from penstock.data.label.classifier import Classifier
from penstock.data.label.scores import LabelConfig, label_texts
from penstock.data.recipe.clean import Cleaning
from penstock.data.workers.text_batches import batch_ranges

_BATCH_CHARACTERS = 1 << 22  # cleaned at once; a part is cut so that steps need little memory
EMPTY = "empty"


@dataclass
class _Batch:
    """Documents that are being cleaned. All lists have the same length and order."""

    texts: list[str]
    ids: list[str]
    extras: list[Extras]
    languages: list[str]
    measures: dict[str, np.ndarray]

    def keep(self, places: list[int]) -> None:
        self.texts = [self.texts[place] for place in places]
        self.ids = [self.ids[place] for place in places]
        self.extras = [self.extras[place] for place in places]
        self.languages = [self.languages[place] for place in places]
        self.measures = {name: values[places] for name, values in self.measures.items()}


@dataclass(frozen=True)
class CleanSettings:
    """Settings of all cleaning tasks. Picklable; the classifier stays in its file."""

    cleaning: Cleaning
    label: LabelConfig
    classifier: Path | None
    sources: tuple[str, ...]  # labels, for samples


def clean_part(raw: Path, source: int, settings: CleanSettings) -> Columns:
    part = read_part(raw)
    tally = DocumentTally(documents=len(part.ids), bytes=sum(len(text) for text in part.texts))
    kept: list[tuple[_Batch, Ints, list[bytes]]] = []
    for first, last in batch_ranges(part.texts, _BATCH_CHARACTERS):
        batch = _Batch(
            part.texts[first:last],
            part.ids[first:last],
            [Extras.from_json(one) for one in part.extras[first:last]],
            [""] * (last - first),
            {},
        )
        cleaner = _BatchCleaner(batch, tally, settings, settings.sources[source])
        cleaner.repair()
        cleaner.identify_languages()
        cleaner.filter()
        cleaner.run_own_steps()
        kept.append((batch, *cleaner.label()))
    tally.kept = sum(len(batch.ids) for batch, _, _ in kept)
    clean = DocumentPart(
        texts=[text for batch, _, _ in kept for text in batch.texts],
        ids=[one for batch, _, _ in kept for one in batch.ids],
        extras=[one for _, _, extras in kept for one in extras],
        scores=np.concatenate([np.zeros(0, np.int64), *(scores for _, scores, _ in kept)]),
    )
    return {**clean.columns(), **result_columns(tally.to_json())}


class _BatchCleaner:
    """The cleaning steps on one batch; counts and samples go into a tally."""

    def __init__(
        self, batch: _Batch, tally: DocumentTally, settings: CleanSettings, source: str
    ) -> None:
        self.batch, self.tally, self.settings, self.source = batch, tally, settings, source

    def repair(self) -> None:
        """Change texts; drop only documents that become empty."""
        batch, cleaning = self.batch, self.settings.cleaning
        self._repair_texts()
        if cleaning.boilerplate:
            stripped = strip_boilerplate(batch.texts, cleaning.boilerplate)
            batch.texts = stripped.texts
            for counts in stripped.counts:
                self._changed("boilerplate", dict.fromkeys(counts, 1))
        self._drop([None if text.strip() else EMPTY for text in batch.texts])

    def _repair_texts(self) -> None:
        """Repair and scrub texts; in conversations each message, since messages are trained on."""
        batch, cleaning = self.batch, self.settings.cleaning
        chats = [extra.conversation for extra in batch.extras]
        turns = [
            chat.texts() if chat else [text] for chat, text in zip(chats, batch.texts, strict=True)
        ]
        flat = [text for texts in turns for text in texts]
        if cleaning.repair:
            repaired = repair_texts(flat, cleaning.repair)
            flat = repaired.texts
            self._changed("repair", repaired.counts)
        if cleaning.personal:
            scrubbed = scrub_texts(flat, cleaning.personal)
            flat = scrubbed.texts
            for counts in scrubbed.counts:
                self._changed("personal", dict.fromkeys(counts, 1))
        left = iter(flat)
        for place, chat in enumerate(chats):
            repaired_turns = list(islice(left, len(turns[place])))
            if chat:
                chat = chat.with_texts(repaired_turns)
                batch.extras[place] = replace(batch.extras[place], conversation=chat)
            batch.texts[place] = chat.text() if chat else repaired_turns[0]

    def identify_languages(self) -> None:
        config = self.settings.cleaning.language
        if config is None or not self.batch.ids:
            return
        found = language.identify_languages(self.batch.texts)
        self.batch.languages = found.codes
        why = [None if kept else language.OTHER for kept in found.kept(config)]
        self._drop(why, lambda at: f"{found.codes[at]}, {found.shares[at]} % sure")

    def filter(self) -> None:
        filters = self.settings.cleaning.filters
        rules = filters.rules()
        if not rules or not self.batch.ids:
            return
        verdicts = clean_filters.run_filters(self.batch.texts, filters)
        before, self.batch.texts = self.batch.texts, verdicts.texts
        self.batch.measures = dict(verdicts.measures)
        self._changed(
            "c4", {"lines": sum(a != b for a, b in zip(before, verdicts.texts, strict=True))}
        )

        def measured(at: int) -> str:
            rule = rules[int(verdicts.broken[at])]
            value = float(verdicts.measures[rule.measure][at])
            return f"{rule.measure} is {value:.4g}; {rule.kind} {rule.bound:.4g}"

        self._drop([verdicts.reason(at) for at in range(len(before))], measured, before)
        self._drop([None if text.strip() else EMPTY for text in self.batch.texts])

    def run_own_steps(self) -> None:
        for step in self.settings.cleaning.steps:
            batch = self.batch
            verdicts = [
                custom.apply_step(step, *document)
                for document in zip(
                    batch.ids,
                    batch.texts,
                    (extra.row() for extra in batch.extras),
                    (extra.conversation is not None for extra in batch.extras),
                    strict=True,
                )
            ]
            before = batch.texts
            batch.texts = [
                text if said.text is None else said.text
                for text, said in zip(before, verdicts, strict=True)
            ]
            changed = sum(a != b for a, b in zip(before, batch.texts, strict=True))
            self._changed("step", {step.function: changed})
            # The measures belong to the texts before this step; labels compute new ones.
            batch.measures = {}
            why = [one.reason for one in verdicts]
            self._drop(why, lambda at: verdicts[at].detail, before)  # noqa: B023
            self._drop([None if text.strip() else EMPTY for text in self.batch.texts])

    def label(self) -> tuple[Ints, list[bytes]]:
        """Return the scores of the remaining documents, and their extras with labels."""
        batch, settings = self.batch, self.settings
        classifier = load_classifier(settings.classifier) if settings.classifier else None
        columns = [extra.columns for extra in batch.extras]
        found = label_texts(batch.texts, batch.measures, columns, settings.label, classifier)
        kept = np.flatnonzero(found.broken < 0)
        for at in kept.tolist():
            if batch.languages[at]:
                self.tally.count("languages", batch.languages[at])
            self.tally.score(int(found.scores[at]))
        extras = [
            replace(
                batch.extras[at],
                language=batch.languages[at],
                labels={name: int(values[at]) for name, values in found.labels.items()},
            ).to_json()
            for at in kept.tolist()
        ]
        self._drop(
            [found.reason(at) for at in range(len(batch.ids))],
            lambda at: f"score {found.scores[at] / 1000:.3f}",
        )
        return found.scores[kept], extras

    def _changed(self, step: str, counts: dict[str, int]) -> None:
        for kind, documents in counts.items():
            if documents:
                self.tally.count("changes", f"{step}.{kind}", documents)

    def _drop(
        self,
        why: list[str | None],
        detail: Callable[[int], str] = lambda at: "",
        texts: list[str] | None = None,
    ) -> None:
        """Count, sample and remove the documents that have a reason; samples show `texts`."""
        shown = self.batch.texts if texts is None else texts
        for at, reason in enumerate(why):
            if reason:
                self.tally.count("reasons", reason)
                self.tally.sample(
                    reason,
                    self.batch.ids[at],
                    lambda: self._sample(at, shown[at], detail(at)),  # noqa: B023
                )
        if any(why):
            self.batch.keep([at for at, reason in enumerate(why) if not reason])

    def _sample(self, at: int, text: str, detail: str) -> SampleDocument:
        batch = self.batch
        return SampleDocument(
            id=batch.ids[at],
            source=self.source,
            text=text[:TEXT_CHARACTERS],
            characters=len(text),
            score=0,
            language=batch.languages[at],
            columns=batch.extras[at].preview(),
            detail=detail,
        )


@lru_cache(maxsize=1)
def load_classifier(path: Path) -> Classifier:
    return Classifier.from_bytes(read_columns(path, "classifier")["classifier"].tobytes())
