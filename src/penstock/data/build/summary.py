"""The manifest and the build record, made from what the stages counted."""

import os
import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from blake3 import blake3

from penstock.data.build.dedup import COPY, EVALUATION, LINES_ONLY, NEAR
from penstock.data.build.listing import REVISION, BuildSource
from penstock.data.build.parts import read_result
from penstock.data.build.read import ReadResult
from penstock.data.build.record import (
    BuildMachine,
    BuildRecord,
    SampleDocument,
    SourceRecord,
    StageRecord,
)
from penstock.data.build.rejected import describe_rejected, encoding_hint
from penstock.data.build.stage import StageRunner, StageTime
from penstock.data.build.tally import KEPT, DocumentTally
from penstock.data.build.tokens import NOT_SELECTED
from penstock.data.format.columns import read_columns
from penstock.data.format.manifest import FORMAT, PAIRS_STAGE, Json, Manifest, Shard, dtype_for
from penstock.data.recipe.recipe import Recipe
from penstock.data.workers.pool import Executor

_STEPS = 6  # named in a message
CHAT = "chat."  # prefix of the reasons of conversations that cannot be learned from
DEDUPLICATE, DECONTAMINATE, SAMPLE, TOKENIZE = "deduplicate", "decontaminate", "sample", "tokenize"


def stage_of(reason: str) -> str:
    """Return the stage of a reason that is known only once tokens are made."""
    if reason in (COPY, NEAR, LINES_ONLY):
        return DEDUPLICATE
    if reason == NOT_SELECTED:
        return SAMPLE
    return TOKENIZE if reason.startswith(CHAT) else DECONTAMINATE


@dataclass(frozen=True)
class BuildSummary:
    """Results of all stages of one build."""

    recipe: Recipe
    sources: tuple[BuildSource, ...]
    reading: ReadResult
    clean: DocumentTally
    tokens: DocumentTally
    shards: tuple[Shard, ...]
    tokenizer: bytes
    work: Path

    def manifest(self) -> Manifest:
        vocab = read_result(self.work / "tokenizer")["vocab"]
        return Manifest(
            name=self.recipe.name,
            format=FORMAT,
            dtype=dtype_for(vocab),
            vocab=vocab,
            tokens=sum(shard.tokens for shard in self.shards),
            documents=sum(shard.documents for shard in self.shards),
            tokenizer=blake3(self.tokenizer).hexdigest(),
            recipe={"kind": "recipe", "revision": REVISION, **self.recipe.identity()},
            lineage=self.lineage(),
            counts=self.counts(),
            shards=self.shards,
            packed=self.recipe.tokens.pack,
            pairs=self.recipe.pairs,
        )

    def lineage(self) -> dict[str, Json]:
        """Return what the dataset was made from, identified by content."""
        sources: list[Json] = [
            {
                "name": source.key,
                "files": read.files,
                "bytes": read.bytes,
                "documents": read.documents,
                "identity": read.identity,
                **({"commit": source.commit} if source.commit else {}),
            }
            for source, read in zip(self.sources, self.reading.sources, strict=True)
        ]
        lineage: dict[str, Json] = {"sources": sources}
        if self.recipe.label.good:
            lineage["classifier"] = read_result(self.work / "classifier")
        if self.recipe.decontaminate.against:
            identity = read_columns(self.work / "evaluations", "identity")["identity"]
            lineage["evaluations"] = identity.tobytes().decode()
        if origin := read_result(self.work / "tokenizer")["origin"]:
            lineage["tokenizer"] = origin
        return lineage

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the counts of the manifest: stage → kept, and reason → documents."""
        counts = {name: {"kept": kept, **reasons} for name, _, kept, reasons in self._flow()}
        if self.recipe.pairs:
            counts[PAIRS_STAGE] = {"kept": self.tokens.kept, **self.tokens.of(PAIRS_STAGE)}
        return counts

    def record(self, manifest: Manifest, stages: StageRunner, seconds: float) -> BuildRecord:
        dropped = {f"clean: {reason}": some for reason, some in _samples(self.clean).items()}
        for reason, some in _samples(self.tokens).items():
            if reason != KEPT:
                dropped[f"{stage_of(reason)}: {reason}"] = some
        return BuildRecord(
            dataset=f"{manifest.name}@{manifest.version}",
            ended=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(seconds, 3),
            machine=_machine(stages.pool),
            sources=self._sources(),
            stages=self._stages(stages.clocks),
            changes=self.clean.of("changes"),
            characters=self.tokens.histogram("characters"),
            tokens=self.tokens.histogram("tokens"),
            scores=self.clean.scores(),
            languages=self.clean.of("languages"),
            kept=_samples(self.tokens).get(KEPT, []),
            dropped=dict(sorted(dropped.items())),
            recipe=self.recipe.model_dump(mode="json"),
        )

    def _flow(self) -> list[tuple[str, int, int, dict[str, int]]]:
        """Return (stage, documents in, kept, reasons), in order."""
        rejected: dict[str, int] = {}
        for source in self.reading.sources:
            for reason, count in source.rejected.items():
                rejected[reason] = rejected.get(reason, 0) + count
        rows = [
            ("read", self.clean.documents, rejected),
            ("clean", self.clean.kept, self.clean.of("reasons")),
        ]
        kept = self.clean.kept
        for stage in (DEDUPLICATE, DECONTAMINATE, SAMPLE, TOKENIZE):
            reasons = {
                reason: count
                for reason, count in self.tokens.of("reasons").items()
                if stage_of(reason) == stage
            }
            kept -= sum(reasons.values())
            if reasons or stage == TOKENIZE or stage in self._asked():
                rows.append((stage, kept, reasons))
        return [(name, kept + sum(why.values()), kept, why) for name, kept, why in rows]

    def _asked(self) -> set[str]:
        dedup = self.recipe.dedup
        asked = {DEDUPLICATE} if dedup.documents or dedup.lines.on or dedup.near.on else set()
        return asked | ({DECONTAMINATE} if self.recipe.decontaminate.against else set())

    def _stages(self, clocks: Mapping[str, StageTime]) -> list[StageRecord]:
        """Return the stages that count documents, then the others that took time."""
        text_bytes = {"read": sum(read.bytes for read in self.reading.sources)}
        stages = []
        for name, documents, kept, reasons in self._flow():
            clock = clocks.get(name, StageTime())
            size = text_bytes.get(name, sum(raw.bytes for raw in self.reading.parts))
            stages.append(_stage(name, clock, size, documents, kept, reasons))
        there = {stage.name for stage in stages}
        total = self.tokens.of("stored").get("bytes", 0)
        for name, clock in clocks.items():
            if name not in there:
                stages.append(_stage(name, clock, total, self.tokens.kept, self.tokens.kept, {}))
        return stages

    def _sources(self) -> list[SourceRecord]:
        return [
            SourceRecord(
                name=source.label,
                where=source.where,
                files=read.files,
                bytes=read.bytes,
                documents=read.documents,
                rejected=read.rejected,
                encodings=read.encodings,
                damaged=read.damaged,
            )
            for source, read in zip(self.sources, self.reading.sources, strict=True)
        ]


def no_documents_message(
    recipe: Recipe,
    totals: ReadResult,
    clean: DocumentTally,
    later: Mapping[str, int],
    aside: Mapping[str, Json] | None,
) -> str:
    """Return an error message that no document is left: which steps dropped how many.

    `later` are the reasons of the stages after cleaning; `aside` is the first record that could
    not be read, if there is one.
    """
    if clean.documents:
        steps = Counter(clean.of("reasons"))
        for reason, count in later.items():
            steps[_step_of(reason, later)] += count
        counts = ", ".join(f"{count} by {step}" for step, count in steps.most_common(_STEPS))
        more = sum(steps.values()) - sum(count for _, count in steps.most_common(_STEPS))
        counts += f", {more} by others" if more else ""
        largest = steps.most_common(1)[0][0]
        by_default = largest.partition(".")[0] in recipe.default_filters()
        remedy = filters_note(recipe) if by_default else _loosen(largest, later)
        return (
            f"Dataset {recipe.name!r}: every document was dropped. Of {clean.documents} that were "
            f"read: {counts}. {remedy}."
        )
    begin = f"Dataset {recipe.name!r}: no document is left."
    rejected: Counter[str] = Counter()
    for source in totals.sources:
        rejected.update(source.rejected)
    if aside is None:
        return f"{begin} The files of its sources hold no row."
    nothing = (
        f"{begin} Nothing in its sources could be read as a document: {_listed(rejected)}. "
        f"The first is {describe_rejected(aside)}."
    )
    if remedy := encoding_hint(rejected, recipe.source[0].path):
        return f"{nothing} {remedy}"
    if recipe.pairs:
        return (
            f"{nothing} A pair has `prompt`, `chosen` and `rejected`: text, or lists of messages."
        )
    return (
        f"{nothing} Check `kind` and `text` (or `messages`, `prompt` and "
        "`response`) of [[source]]; without a recipe the fields `messages`, `prompt` and "
        "`completion`, or `text` are read."
    )


def filters_note(recipe: Recipe) -> str:
    """Say which filters apply by default, and how to go without them; "" where none does."""
    if not (names := recipe.default_filters()):
        return ""
    return (
        f"[clean] names no preset, so the filters of English web pages apply ({', '.join(names)}). "
        'Write preset = "code" in [clean] for code, books and text that is clean already, "none" '
        'to change nothing, or "web" to leave out this note'
    )


def _step_of(reason: str, later: Mapping[str, int]) -> str:
    """Return the name of a step after cleaning, with what it found.

    Reasons of cleaning are names of its steps already.
    """
    stage = stage_of(reason)
    if stage == DECONTAMINATE:
        names = sorted(why.removeprefix(EVALUATION) for why in later if stage_of(why) == stage)
        return f"{stage} (against {', '.join(names)})"
    return reason if stage == SAMPLE else f"{stage} ({reason.removeprefix(CHAT)})"


def _loosen(step: str, later: Mapping[str, int]) -> str:
    """Return what to change about the step that dropped the most documents."""
    if set(later) == {f"{CHAT}nothing to learn"}:
        return "Every conversation needs an answer of the assistant, which is what is learned"
    if f"{CHAT}no chat template" in later:
        return (
            "The tokenizer has no chat template, which lists of messages need: set "
            'data.chat_template = "chat.jinja", a file with one, or "default" for a plain one'
        )
    if step.startswith(TOKENIZE):
        return "Mend the rows, or the template of conversations"
    if step.startswith(DECONTAMINATE):
        return (
            "The documents hold the evaluation's texts: take it out of [decontaminate] against, or "
            "raise `words` there"
        )
    return "Loosen [clean] or [label]"


def _listed(reasons: Counter[str]) -> str:
    parts = [f"{why.removeprefix(CHAT)} ({count})" for why, count in reasons.most_common(5)]
    return ", ".join(parts) or "none"


def _stage(
    name: str, clock: StageTime, size: int, documents: int, kept: int, reasons: dict[str, int]
) -> StageRecord:
    return StageRecord(
        name=name,
        seconds=round(clock.seconds, 3),
        tasks=clock.tasks,
        tasks_before=clock.tasks_before,
        bytes=size,
        documents=documents,
        kept=kept,
        reasons=reasons,
    )


def _samples(tally: DocumentTally) -> dict[str, list[SampleDocument]]:
    return {reason: [sample for _, sample in some] for reason, some in tally.samples.items()}


def _machine(pool: Executor) -> BuildMachine:
    return BuildMachine(
        host=platform.node(),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        cores=len(os.sched_getaffinity(0)),
        workers=pool.workers,
        memory_bytes=pool.memory_bytes,
    )
