"""Stage 3, clean: from a raw part to the part of documents that are kept, and why others went.

Repair, personal data, boilerplate lines, language, filters, the user's own steps, labels: in this
order, so that what judges a document sees it as it will be trained on. A document that one step
drops is not seen by the next. Steps that remove lines do not change conversations, which are
trained on whole.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np

from penstock.data.build.parts import Extras, Ints, Part, read_part, result
from penstock.data.build.record import Sample
from penstock.data.build.tally import TEXT_CHARACTERS, Tally
from penstock.data.clean import custom, language
from penstock.data.clean import filters as clean_filters
from penstock.data.clean.boilerplate import strip
from penstock.data.clean.personal import scrub
from penstock.data.clean.repair import repair
from penstock.data.format.columns import Columns, read_columns
from penstock.data.label.classifier import Classifier
from penstock.data.label.scores import LabelConfig, label_texts
from penstock.data.recipe.clean import Cleaning
from penstock.data.workers.text_batches import batch_ranges

_BATCH_CHARACTERS = 1 << 22  # cleaned at once; a part is cut so that steps need little memory
EMPTY = "empty"


@dataclass
class _Batch:
    """Documents on their way. Lists are equally long and lose the same places."""

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
class Cleaner:
    """What a task needs to know. Picklable; the classifier stays in its file."""

    cleaning: Cleaning
    label: LabelConfig
    classifier: Path | None
    sources: tuple[str, ...]  # labels, for samples


def clean_part(raw: Path, source: int, cleaner: Cleaner) -> Columns:
    part = read_part(raw)
    tally = Tally(documents=len(part.ids), bytes=sum(len(text) for text in part.texts))
    kept: list[tuple[_Batch, Ints, list[bytes]]] = []
    for first, last in batch_ranges(part.texts, _BATCH_CHARACTERS):
        batch = _Batch(
            part.texts[first:last],
            part.ids[first:last],
            [Extras.from_json(one) for one in part.extras[first:last]],
            [""] * (last - first),
            {},
        )
        work = _Work(batch, tally, cleaner, cleaner.sources[source])
        work.mend()
        work.tell_language()
        work.filter()
        work.ask_own_steps()
        kept.append((batch, *work.label()))
    tally.kept = sum(len(batch.ids) for batch, _, _ in kept)
    clean = Part(
        texts=[text for batch, _, _ in kept for text in batch.texts],
        ids=[one for batch, _, _ in kept for one in batch.ids],
        extras=[one for _, _, extras in kept for one in extras],
        scores=np.concatenate([np.zeros(0, np.int64), *(scores for _, scores, _ in kept)]),
    )
    return {**clean.columns(), **result(tally.to_json())}


class _Work:
    def __init__(self, batch: _Batch, tally: Tally, cleaner: Cleaner, source: str) -> None:
        self.batch, self.tally, self.cleaner, self.source = batch, tally, cleaner, source

    def mend(self) -> None:
        """Changes texts; only those that nothing is left of go."""
        batch, cleaning = self.batch, self.cleaner.cleaning
        self._mend_texts()
        if cleaning.boilerplate:
            stripped = strip(batch.texts, cleaning.boilerplate)
            batch.texts = stripped.texts
            for counts in stripped.counts:
                self._changed("boilerplate", dict.fromkeys(counts, 1))
        self._drop([None if text.strip() else EMPTY for text in batch.texts])

    def _mend_texts(self) -> None:
        """Of conversations each message: what is trained on is them, not the plain text."""
        batch, cleaning = self.batch, self.cleaner.cleaning
        chats = [extra.conversation for extra in batch.extras]
        turns = [
            chat.texts() if chat else [text] for chat, text in zip(chats, batch.texts, strict=True)
        ]
        flat = [text for texts in turns for text in texts]
        if cleaning.repair:
            repaired = repair(flat, cleaning.repair)
            flat = repaired.texts
            self._changed("repair", repaired.counts)
        if cleaning.personal:
            scrubbed = scrub(flat, cleaning.personal)
            flat = scrubbed.texts
            for counts in scrubbed.counts:
                self._changed("personal", dict.fromkeys(counts, 1))
        left = iter(flat)
        for place, chat in enumerate(chats):
            mended = list(islice(left, len(turns[place])))
            if chat:
                chat = chat.with_texts(mended)
                batch.extras[place] = replace(batch.extras[place], conversation=chat)
            batch.texts[place] = chat.text() if chat else mended[0]

    def tell_language(self) -> None:
        config = self.cleaner.cleaning.language
        if config is None or not self.batch.ids:
            return
        found = language.identify(self.batch.texts)
        self.batch.languages = found.codes
        why = [None if kept else language.OTHER for kept in found.kept(config)]
        self._drop(why, lambda at: f"{found.codes[at]}, {found.shares[at]} % sure")

    def filter(self) -> None:
        filters = self.cleaner.cleaning.filters
        rules = filters.rules()
        if not rules or not self.batch.ids:
            return
        verdicts = clean_filters.run(self.batch.texts, filters)
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

    def ask_own_steps(self) -> None:
        for step in self.cleaner.cleaning.steps:
            batch = self.batch
            verdicts = [
                custom.apply(step, *document)
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
            # The measures are those of the texts before; labels take their own.
            batch.measures = {}
            why = [one.reason for one in verdicts]
            self._drop(why, lambda at: verdicts[at].detail, before)  # noqa: B023
            self._drop([None if text.strip() else EMPTY for text in self.batch.texts])

    def label(self) -> tuple[Ints, list[bytes]]:
        """The scores of what is left, and its extras with labels."""
        batch, cleaner = self.batch, self.cleaner
        classifier = load_classifier(cleaner.classifier) if cleaner.classifier else None
        columns = [extra.columns for extra in batch.extras]
        found = label_texts(batch.texts, batch.measures, columns, cleaner.label, classifier)
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
        """Counts, samples and removes the documents that have a reason; `texts`: as they were."""
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

    def _sample(self, at: int, text: str, detail: str) -> Sample:
        batch = self.batch
        return Sample(
            id=batch.ids[at],
            source=self.source,
            text=text[:TEXT_CHARACTERS],
            characters=len(text),
            score=0,
            language=batch.languages[at],
            columns=batch.extras[at].shown(),
            detail=detail,
        )


@lru_cache(maxsize=1)
def load_classifier(path: Path) -> Classifier:
    return Classifier.from_bytes(read_columns(path, "classifier")["classifier"].tobytes())
