"""Builds a dataset from a recipe: source → clean → label → deduplicate → tokens → shards → version.

Every stage writes files into a work folder and is skipped when they are there, so a build that was
killed at any moment goes on where it stopped, and ends with the version of one that was not. The
version comes from content and recipe alone: not from paths, time, workers or machine.
"""

import os
import shutil
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from penstock.data.build.clean import Cleaner, clean_part
from penstock.data.build.dedup import Kept, decontaminate, deduplicate, part_path
from penstock.data.build.examples import classifier, evaluation_texts
from penstock.data.build.home import building, follow, point
from penstock.data.build.list import Source, build_key, list_sources
from penstock.data.build.parts import read_result, read_texts, result
from penstock.data.build.progress import WARNING, Quiet, Watcher
from penstock.data.build.publish import is_whole, publish
from penstock.data.build.read import (
    RawPart,
    Reading,
    ReadSource,
    read_tasks,
    reading,
    records_aside,
)
from penstock.data.build.ready import refuse_unready
from penstock.data.build.rejected import many_lost
from penstock.data.build.shards import shard_count, shard_of_range
from penstock.data.build.stage import Stages, tally_of
from penstock.data.build.summary import Story, filters_note, nothing_left
from penstock.data.build.tally import Tally
from penstock.data.build.tokenizer import TRAIN, check_template, loaded, tokenizer_json, trained
from penstock.data.build.tokens import Encoder, tokenize_part
from penstock.data.clean import custom
from penstock.data.format.columns import write_columns
from penstock.data.format.locate import built_versions, datasets_home
from penstock.data.format.manifest import SHARDS, Json, Shard
from penstock.data.read.dataset import Dataset
from penstock.data.recipe.recipe import Recipe
from penstock.data.tokenize.special import read_special
from penstock.data.workers.pool import Task, WorkerPool
from penstock.errors import PenstockError

WORK = ".building-"  # begins the names of work folders
PART_BYTES = 16 << 20  # of text in a part, which holds one document at least
WARNINGS = 3  # of a source that are told
_FAST_FROM_BYTES = 16 << 20  # below, trying out a fast engine takes longer than it saves
_WORKER_BYTES = 400 << 20  # that a worker may come to hold
_MEMORY_BYTES = 4 << 30  # of a build


def default_workers() -> int:
    """One for each core, while they fit the memory of a build."""
    return max(1, min(len(os.sched_getaffinity(0)), _MEMORY_BYTES // _WORKER_BYTES))


def build(recipe: Recipe, *, workers: int | None = None, watcher: Watcher | None = None) -> Dataset:
    """The dataset of a recipe: found, when its sources are as they were, or built."""
    watcher = watcher or Quiet()
    home = datasets_home()
    sources = list_sources(recipe)
    key = build_key(recipe, sources)
    work = home / f"{WORK}{recipe.name}@{key}"
    if (dataset := follow(home, recipe.name, key)) and not work.exists():
        return dataset
    refuse_unready(sources)

    for step in recipe.cleaning().steps:  # a mistake in one should not cost hours
        custom.check(step)

    def waiting(what: str, done: int, total: int) -> None:
        watcher.note(f"{recipe.name}: {what}")

    with building(home, recipe.name, waiting):
        # Another process may have built it while this one waited.
        dataset = follow(home, recipe.name, key)
        if dataset is None:
            before = built_versions(home, recipe.name)
            with WorkerPool(workers or default_workers()) as pool:
                folder = _Build(recipe, sources, home, work, Stages(pool, watcher)).run()
            dataset = Dataset.open(folder)
            if before and dataset.version not in before:
                there = ", ".join(f"{recipe.name}@{one}" for one in before[:3])
                watcher.note(f"{dataset.id} is new: sources or recipe are not those of {there}")
            point(home, recipe.name, key, dataset.version)
        for left in home.glob(f"{WORK}{recipe.name}@*"):
            shutil.rmtree(left)
        return dataset


class _Build:
    def __init__(
        self,
        recipe: Recipe,
        sources: tuple[Source, ...],
        home: Path,
        work: Path,
        stages: Stages,
    ) -> None:
        self.recipe, self.sources, self.home, self.work = recipe, sources, home, work
        self.stages = stages
        self.started = time.monotonic()
        self.read_tasks = read_tasks(sources, work, PART_BYTES)

    def run(self) -> Path:
        for left in self.work.rglob(".writing-*"):
            left.unlink()
        self.prepare()
        found = self.read()
        clean = self.clean(found)
        tokens = self.tokens(found, clean)
        shards = self.shards(found, clean, tokens)
        tokenizer = tokenizer_json(self.work / "tokenizer")
        story = Story(self.recipe, self.sources, found, clean, tokens, shards, tokenizer, self.work)
        manifest = story.manifest()
        published = (self.home / f"{manifest.name}@{manifest.version}").is_dir()
        if not published and not is_whole(self.work / "dataset", manifest):
            # It was published, and deleted before the work folder was: all is done again.
            shutil.rmtree(self.work)
            return self.run()
        self.stages.pool.close()  # the memory of workers is known when they have ended
        seconds = time.monotonic() - self.started
        return publish(
            self.home,
            self.work / "dataset",
            manifest,
            tokenizer,
            story.record(manifest, self.stages, seconds).to_json(),
            records_aside(self.read_tasks, self.sources),
        )

    def prepare(self) -> None:
        """What the recipe names besides its sources, first: a wrong path should not cost hours."""
        recipe = self.recipe
        if recipe.label.good:
            self._once("train classifier", Task(self.work / "classifier", classifier, (recipe,)))
        if recipe.decontaminate.against:
            runs = Task(self.work / "evaluations", evaluation_texts, (recipe,))
            self._once("read evaluations", runs)
            _, shortest, _, skipped = read_result(runs.path)
            for name, texts in skipped.items():
                if texts:
                    self.stages.watcher.note(
                        f"evaluation {name}: {texts} texts of fewer than {shortest} words are not "
                        "searched for"
                    )
        if recipe.tokens.tokenizer != TRAIN:
            self._once("load tokenizer", Task(self.work / "tokenizer", loaded, (recipe,)))
        check_template(recipe, self.work / "tokenizer")

    def read(self) -> Reading:
        recipe = self.recipe
        as_they_are = recipe.clean.preset == "none" and not recipe.dedup.documents
        if as_they_are and any(one.is_chat for one in recipe.source):
            self.stages.watcher.note(
                f"{recipe.name}: conversations are used as they are; copies and personal data stay"
            )
        if told := filters_note(recipe):
            self.stages.watcher.note(f"{recipe.name}: {told}")
        summary = self.work / "stages" / "read"
        if not summary.exists():
            tasks = [task for _, task in self.read_tasks]
            self.stages.run(
                "read", tasks, None, lambda path: sum(n for n, _ in read_result(path)["parts"])
            )
            found = reading(self.read_tasks, self.sources)
            parts = [[one.path.name, one.source, one.documents, one.bytes] for one in found.parts]
            totals = [asdict(source) for source in found.sources]
            write_columns(summary, result({"parts": parts, "sources": totals}))
        stored = read_result(summary)
        found = Reading(
            tuple(RawPart(self.work / "raw" / part[0], *part[1:]) for part in stored["parts"]),
            tuple(ReadSource(**source) for source in stored["sources"]),
        )
        self._warn(found)
        return found

    def _warn(self, found: Reading) -> None:
        """Nothing fatal is in a file, but what gave nothing is told aloud."""
        for source, read in zip(self.sources, found.sources, strict=True):
            for what in read.warnings[:WARNINGS]:
                self.stages.watcher.note(f"{WARNING}{source.label}: {what}")
            if (more := len(read.warnings) - WARNINGS) > 0:
                self.stages.watcher.note(f"{WARNING}{source.label}: {more} more such files")
            if lost := many_lost(read.documents, read.rejected, source.where):
                self.stages.watcher.note(f"{WARNING}{source.label}: {lost}")
            if not read.documents:
                self.stages.watcher.note(f"{WARNING}{source.label}: the source gave no document")

    def _first_aside(self) -> dict[str, Json] | None:
        return next(records_aside(self.read_tasks, self.sources), None)

    def clean(self, found: Reading) -> Tally:
        recipe, summary = self.recipe, self.work / "stages" / "clean"
        if not summary.exists():
            learned = self.work / "classifier" if recipe.label.good else None
            labels = tuple(source.label for source in self.sources)
            cleaner = Cleaner(recipe.cleaning(), recipe.label.config(), learned, labels)
            paths = self._parts("clean", len(found.parts))
            tasks = [
                Task(path, clean_part, (raw.path, raw.source, cleaner), raw.bytes)
                for path, raw in zip(paths, found.parts, strict=True)
            ]
            documents = sum(raw.documents for raw in found.parts)
            self.stages.run("clean", tasks, documents, _documents)
            total = tally_of([task.path for task in tasks])
            write_columns(summary, result(total.to_json()))
        shutil.rmtree(self.work / "raw", ignore_errors=True)
        return Tally.from_json(read_result(summary))

    def tokens(self, found: Reading, clean: Tally) -> Tally:
        recipe, summary = self.recipe, self.work / "stages" / "tokens"
        if not summary.exists():
            if not clean.kept:
                raise PenstockError(nothing_left(recipe, found, clean, {}, self._first_aside()))
            kept = self._removals(found, clean)
            if recipe.tokens.tokenizer == TRAIN:
                self._refuse_nothing(found, clean, kept)
                texts = (recipe, kept, len(found.parts))
                self._once("train tokenizer", Task(self.work / "tokenizer", trained, texts))
            copies = recipe.label.config().copies
            loss = recipe.tokens.loss if any(one.is_chat for one in recipe.source) else None
            size = sum(raw.bytes for raw in found.parts)
            encoder = Encoder(kept, self.work / "tokenizer", copies, loss, size < _FAST_FROM_BYTES)
            paths = self._parts("tokens", len(found.parts))
            tasks = [
                Task(paths[place], tokenize_part, (place, self._names(raw), encoder), raw.bytes)
                for place, raw in enumerate(found.parts)
            ]
            self.stages.run("tokenize", tasks, clean.kept, _documents)
            total = tally_of([task.path for task in tasks])
            write_columns(summary, result(total.to_json()))
        for folder in ("clean", "dedup", "decontaminate"):
            shutil.rmtree(self.work / folder, ignore_errors=True)
        return Tally.from_json(read_result(summary))

    def _refuse_nothing(self, found: Reading, clean: Tally, kept: Kept) -> None:
        """Refuse to train a tokenizer on no text, and say where the text went."""
        parts = range(len(found.parts))
        if any(text for part in parts for text in kept(part)[0]):
            return
        reasons: Counter[str] = Counter()
        for part in parts:
            texts, _ = read_texts(part_path(kept.clean, part))
            reasons.update(why for why, _ in kept.apply(part, texts)[1].values())
        raise PenstockError(nothing_left(self.recipe, found, clean, reasons, None))

    def shards(self, found: Reading, clean: Tally, tokens: Tally) -> tuple[Shard, ...]:
        recipe, summary = self.recipe, self.work / "stages" / "shards"
        if not summary.exists():
            if not tokens.kept:
                raise PenstockError(nothing_left(recipe, found, clean, tokens.of("reasons"), None))
            parts = self._parts("tokens", len(found.parts))
            tokenizer = tokenizer_json(self.work / "tokenizer")
            size = tokens.of("stored")["bytes"]
            count = shard_count(size, recipe.shards.size)
            end = read_special(tokenizer).end_id
            folder = self.work / "dataset" / SHARDS
            tasks = [
                Task(
                    path,
                    shard_of_range,
                    (number, count, parts, folder, recipe.tokens.pack, end),
                    size // count,
                )
                for number, path in enumerate(self._parts("shard", count))
            ]
            self.stages.run("shard", tasks, tokens.kept, _shard_documents)
            made = [shard for task in tasks if (shard := _shard(task.path))]
            write_columns(summary, result([asdict(shard) for shard in made]))
        shutil.rmtree(self.work / "tokens", ignore_errors=True)
        return tuple(Shard(**one) for one in read_result(summary))

    def _removals(self, found: Reading, clean: Tally) -> Kept:
        recipe, parts = self.recipe, len(found.parts)
        kept = Kept(self.work / "clean")
        size = sum(raw.bytes for raw in found.parts)
        dedup = recipe.dedup
        config = dedup.documents_config(), dedup.lines_config(), dedup.near_config()
        if any(config):
            with self.stages.clocked("deduplicate"):
                tell = self.stages.progress("deduplicate", size, clean.kept)
                folder = self.work / "dedup"
                kept = deduplicate(
                    folder, self.work.name, parts, kept, config, self.stages.pool, tell
                )
        if recipe.decontaminate.against:
            runs = self.work / "evaluations"
            with self.stages.clocked("decontaminate"):
                tell = self.stages.progress("decontaminate", size, clean.kept)
                folder = self.work / "decontaminate"
                kept = decontaminate(folder, parts, kept, runs, self.stages.pool, tell)
        return kept

    def _names(self, raw: RawPart) -> tuple[str, str]:
        """Of a part's source: for people, and in the dataset."""
        source = self.sources[raw.source]
        return source.label, source.key

    def _once(self, name: str, task: Task) -> None:
        """A task of its own, in this process."""
        with self.stages.clocked(name):
            if not task.path.exists():
                self.stages.watcher.stage(name, task.bytes, None)
                task.run()

    def _parts(self, stage: str, count: int) -> tuple[Path, ...]:
        return tuple(part_path(self.work / stage, place) for place in range(count))


def _documents(path: Path) -> int:
    return int(read_result(path)["documents"])


def _shard(path: Path) -> Shard | None:
    found = read_result(path)
    return Shard(**found) if found else None


def _shard_documents(path: Path) -> int:
    shard = _shard(path)
    return shard.documents if shard else 0
