"""The stages of a build in order, each skipped if its results are in the work folder."""

import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.data.build.clean import CleanSettings, clean_part
from penstock.data.build.dedup import RemainingTexts, decontaminate, deduplicate, part_path
from penstock.data.build.examples import learn_labels, read_evaluations
from penstock.data.build.listing import BuildSource
from penstock.data.build.parts import read_result, read_texts, result_columns, result_of
from penstock.data.build.progress import WARNING
from penstock.data.build.publish import copy_tasks, is_published, is_whole, publish
from penstock.data.build.read import (
    RawPart,
    ReadResult,
    SourceTotals,
    combine_reads,
    read_tasks,
    rejected_records,
)
from penstock.data.build.rejected import loss_warning
from penstock.data.build.shards import merge_tasks, shard_count, write_shard_of_range
from penstock.data.build.stage import StageRunner, total_tally
from penstock.data.build.summary import BuildSummary, filters_note, no_documents_message
from penstock.data.build.tally import DocumentTally
from penstock.data.build.tokenizer import (
    TRAIN,
    check_template,
    load_named,
    sample_limit,
    sample_parts,
    tokenizer_json,
    train_from_samples,
    train_from_texts,
    wider_limit,
)
from penstock.data.build.tokens import EncodeSettings, tokenize_part
from penstock.data.format.columns import Columns, write_columns
from penstock.data.format.manifest import SHARDS, Json, Shard
from penstock.data.recipe.recipe import Recipe
from penstock.data.store.object_path import ObjectPath, map_places, remove_tree
from penstock.data.tokenize.special import read_special
from penstock.data.workers.pool import Task
from penstock.errors import PenstockError

SAMPLE_FROM_BYTES = 1 << 30  # from here on, all workers look for the texts that train a tokenizer
WARNINGS = 3  # shown per source
_FAST_FROM_BYTES = 16 << 20  # for less text, trying a fast tokenizer takes longer than it saves
_SAMPLED_PARTS = 16  # by one task


class Pipeline:
    """One build: the stages in order, each skipped if its results are in the work folder."""

    def __init__(
        self,
        recipe: Recipe,
        sources: tuple[BuildSource, ...],
        home: Path,
        work: Path,
        stages: StageRunner,
        part_bytes: int,
    ) -> None:
        self.recipe, self.sources, self.home, self.work = recipe, sources, home, work
        self.stages = stages
        self.started = time.monotonic()
        self.read_tasks = read_tasks(sources, work, part_bytes)

    def run(self) -> Path:
        if not isinstance(self.work, ObjectPath):  # an object is never half written
            for left in self.work.rglob(".writing-*"):
                left.unlink()
        self.prepare()
        reads = self.read()
        clean = self.clean(reads)
        tokens = self.tokens(reads, clean)
        shards = self.shards(reads, clean, tokens)
        tokenizer = tokenizer_json(self.work / "tokenizer")
        results = BuildSummary(
            self.recipe, self.sources, reads, clean, tokens, shards, tokenizer, self.work
        )
        manifest = results.manifest()
        published = is_published(self.home / f"{manifest.name}@{manifest.version}")
        if not published and not is_whole(self.work / "dataset", manifest):
            # It was published and then deleted, but the work folder was not: do all of it again.
            remove_tree(self.work)
            return self.run()
        copies = copy_tasks(self.home, self.work / "dataset", manifest, self.work / "publish")
        if copies:
            self.stages.run("publish", copies, None)
        self.stages.pool.close()  # the memory of workers is known when they have ended
        seconds = time.monotonic() - self.started
        return publish(
            self.home,
            self.work / "dataset",
            manifest,
            tokenizer,
            results.record(manifest, self.stages, seconds).to_json(),
            rejected_records(self.read_tasks, self.sources),
        )

    def prepare(self) -> None:
        """Load what the recipe names besides its sources, first: a wrong path must fail early."""
        recipe = self.recipe
        if recipe.label.good:
            self._once("train classifier", Task(self.work / "classifier", learn_labels, (recipe,)))
        if recipe.decontaminate.against:
            runs = Task(self.work / "evaluations", read_evaluations, (recipe,))
            self._once("read evaluations", runs)
            _, shortest, _, skipped = read_result(runs.path)
            for name, texts in skipped.items():
                if texts:
                    self.stages.watcher.note(
                        f"evaluation {name}: {texts} texts of fewer than {shortest} words are not "
                        "searched for"
                    )
        if recipe.tokens.tokenizer != TRAIN:
            self._once("load tokenizer", Task(self.work / "tokenizer", load_named, (recipe,)))
        check_template(recipe, self.work / "tokenizer")

    def read(self) -> ReadResult:
        recipe = self.recipe
        as_they_are = recipe.clean.preset == "none" and not recipe.dedup.documents
        if as_they_are and any(item.is_chat for item in recipe.source):
            self.stages.watcher.note(
                f"{recipe.name}: conversations are used as they are; copies and personal data stay"
            )
        if note := filters_note(recipe):
            self.stages.watcher.note(f"{recipe.name}: {note}")
        summary = self.work / "stages" / "read"
        if not summary.exists():
            tasks = [task for _, task in self.read_tasks]
            self.stages.run("read", tasks, None)
            reads = combine_reads(self.read_tasks, self.sources)
            parts = [
                [item.path.name, item.source, item.documents, item.bytes] for item in reads.parts
            ]
            totals = [asdict(source) for source in reads.sources]
            write_columns(summary, result_columns({"parts": parts, "sources": totals}))
        stored = read_result(summary)
        reads = ReadResult(
            tuple(RawPart(self.work / "raw" / part[0], *part[1:]) for part in stored["parts"]),
            tuple(SourceTotals(**source) for source in stored["sources"]),
        )
        self._warn(reads)
        return reads

    def _warn(self, reads: ReadResult) -> None:
        """Warn about files that gave no document; nothing in a file stops a build."""
        for source, read in zip(self.sources, reads.sources, strict=True):
            for what in read.warnings[:WARNINGS]:
                self.stages.watcher.note(f"{WARNING}{source.label}: {what}")
            if (more := len(read.warnings) - WARNINGS) > 0:
                self.stages.watcher.note(f"{WARNING}{source.label}: {more} more such files")
            if lost := loss_warning(read.documents, read.rejected, source.where):
                self.stages.watcher.note(f"{WARNING}{source.label}: {lost}")
            if not read.documents:
                self.stages.watcher.note(f"{WARNING}{source.label}: the source gave no document")

    def _first_aside(self) -> dict[str, Json] | None:
        return next(rejected_records(self.read_tasks, self.sources), None)

    def clean(self, reads: ReadResult) -> DocumentTally:
        recipe, summary = self.recipe, self.work / "stages" / "clean"
        if not summary.exists():
            learned = self.work / "classifier" if recipe.label.good else None
            labels = tuple(source.label for source in self.sources)
            settings = CleanSettings(recipe.cleaning(), recipe.label.config(), learned, labels)
            paths = self._parts("clean", len(reads.parts))
            tasks = [
                Task(path, clean_part, (raw.path, raw.source, settings), raw.bytes, _documents)
                for path, raw in zip(paths, reads.parts, strict=True)
            ]
            documents = sum(raw.documents for raw in reads.parts)
            self.stages.run("clean", tasks, documents)
            total = total_tally([task.path for task in tasks])
            write_columns(summary, result_columns(total.to_json()))
        remove_tree(self.work / "raw")
        return DocumentTally.from_json(read_result(summary))

    def tokens(self, reads: ReadResult, clean: DocumentTally) -> DocumentTally:
        recipe, summary = self.recipe, self.work / "stages" / "tokens"
        if not summary.exists():
            if not clean.kept:
                raise PenstockError(
                    no_documents_message(recipe, reads, clean, {}, self._first_aside())
                )
            kept = self._removals(reads, clean)
            if recipe.tokens.tokenizer == TRAIN:
                self._refuse_nothing(reads, clean, kept)
                self._train_tokenizer(reads, kept)
            copies = recipe.label.config().copies
            loss = recipe.tokens.loss if any(item.is_chat for item in recipe.source) else None
            size = sum(raw.bytes for raw in reads.parts)
            settings = EncodeSettings(
                kept,
                self.work / "tokenizer",
                copies,
                loss,
                size < _FAST_FROM_BYTES,
                pair_sequence=recipe.tokens.pack if recipe.pairs else 0,
            )
            paths = self._parts("tokens", len(reads.parts))
            tasks = [
                Task(
                    paths[place],
                    tokenize_part,
                    (place, self._names(raw), settings),
                    raw.bytes,
                    _documents,
                )
                for place, raw in enumerate(reads.parts)
            ]
            self.stages.run("tokenize", tasks, clean.kept)
            total = total_tally([task.path for task in tasks])
            write_columns(summary, result_columns(total.to_json()))
        for folder in ("clean", "dedup", "decontaminate", "sample"):
            remove_tree(self.work / folder)
        return DocumentTally.from_json(read_result(summary))

    def _train_tokenizer(self, reads: ReadResult, kept: RemainingTexts) -> None:
        path, parts = self.work / "tokenizer", range(len(reads.parts))
        size = sum(raw.bytes for raw in reads.parts)
        if path.exists() or size < SAMPLE_FROM_BYTES:
            texts = (self.recipe, kept, len(parts))
            self._once("train tokenizer", Task(path, train_from_texts, texts))
            return
        groups = [tuple(parts[at : at + _SAMPLED_PARTS]) for at in parts[::_SAMPLED_PARTS]]
        limit: int | None = sample_limit(size)
        while limit is not None:
            samples = self._parts(f"sample/{limit:016x}", len(groups))
            tasks = [
                Task(sample, sample_parts, (group, kept, limit))
                for sample, group in zip(samples, groups, strict=True)
            ]
            self.stages.run("find texts for the tokenizer", tasks, None)
            limit = wider_limit(limit, sum(self._results(samples)))
        self._once("train tokenizer", Task(path, train_from_samples, (self.recipe, samples)))

    def _results(self, paths: tuple[Path, ...]) -> list[Any]:
        return list(map_places(read_result, paths, self.work))

    def _refuse_nothing(
        self, reads: ReadResult, clean: DocumentTally, kept: RemainingTexts
    ) -> None:
        """Refuse to train a tokenizer on no text, and say where the text went."""
        parts = range(len(reads.parts))
        if any(text for part in parts for text in kept(part)[0]):
            return
        reasons: Counter[str] = Counter()
        for part in parts:
            texts, _ = read_texts(part_path(kept.clean, part))
            reasons.update(why for why, _ in kept.apply(part, texts)[1].values())
        raise PenstockError(no_documents_message(self.recipe, reads, clean, reasons, None))

    def shards(
        self, reads: ReadResult, clean: DocumentTally, tokens: DocumentTally
    ) -> tuple[Shard, ...]:
        recipe, summary = self.recipe, self.work / "stages" / "shards"
        if not summary.exists():
            if not tokens.kept:
                raise PenstockError(
                    no_documents_message(recipe, reads, clean, tokens.of("reasons"), None)
                )
            parts = self._parts("tokens", len(reads.parts))
            tokenizer = tokenizer_json(self.work / "tokenizer")
            size = tokens.of("stored")["bytes"]
            count = shard_count(size, recipe.shards.size)
            end = read_special(tokenizer).end_id
            folder = self.work / "dataset" / SHARDS
            merges, inputs = merge_tasks(parts, count, size, self.work / "merged")
            if merges:
                self.stages.run("merge", merges, None)
            # Each pair fills one bin: both of its sequences.
            pack = recipe.tokens.pack * (2 if recipe.pairs else 1)
            tasks = [
                Task(
                    path,
                    write_shard_of_range,
                    (number, count, inputs[number], folder, pack, end),
                    size // count,
                    _shard_documents,
                )
                for number, path in enumerate(self._parts("shard", count))
            ]
            self.stages.run("shard", tasks, tokens.kept)
            made = [shard for shard in self._results(tuple(task.path for task in tasks)) if shard]
            write_columns(summary, result_columns(made))
        for name in ("tokens", "merged"):
            remove_tree(self.work / name)
        return tuple(Shard(**item) for item in read_result(summary))

    def _removals(self, reads: ReadResult, clean: DocumentTally) -> RemainingTexts:
        recipe, parts = self.recipe, len(reads.parts)
        kept = RemainingTexts(self.work / "clean")
        size = sum(raw.bytes for raw in reads.parts)
        dedup = recipe.dedup
        config = dedup.documents_config(), dedup.lines_config(), dedup.near_config()
        if any(config):
            with self.stages.timed("deduplicate"):
                tell = self.stages.progress("deduplicate", size, clean.kept)
                folder = self.work / "dedup"
                kept = deduplicate(
                    folder, self.work.name, parts, kept, config, self.stages.pool, tell
                )
        if recipe.decontaminate.against:
            runs = self.work / "evaluations"
            with self.stages.timed("decontaminate"):
                tell = self.stages.progress("decontaminate", size, clean.kept)
                folder = self.work / "decontaminate"
                kept = decontaminate(folder, parts, kept, runs, self.stages.pool, tell)
        return kept

    def _names(self, raw: RawPart) -> tuple[str, str]:
        """Return the names of a part's source: the label for people, and the key in the dataset."""
        source = self.sources[raw.source]
        return source.label, source.key

    def _once(self, name: str, task: Task) -> None:
        """Run a single task in this process."""
        with self.stages.timed(name):
            if not task.path.exists():
                self.stages.watcher.stage(name, task.bytes, None)
                task.run()

    def _parts(self, stage: str, count: int) -> tuple[Path, ...]:
        return tuple(part_path(self.work / stage, place) for place in range(count))


def _documents(columns: Columns) -> int:
    return int(result_of(columns)["documents"])


def _shard_documents(columns: Columns) -> int:
    shard = result_of(columns)
    return int(shard["documents"]) if shard else 0
