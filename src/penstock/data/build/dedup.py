"""Stages 4 and 5: find copies and contaminated documents. They only write down what to remove.

The order is equal documents, equal lines, near copies, documents with evaluation texts; each step
sees what the steps before it left. A removed document keeps its place as an empty text, so that
places mean the same in all steps.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from penstock.data.build.parts import Ints, read_result, read_texts, result_columns
from penstock.data.dedup.contamination import (
    EvaluationNgrams,
    Overlap,
    find_contaminated,
    index_evaluations,
)
from penstock.data.dedup.exact import ExactDocuments, ExactLines, find_exact_copies, remove_lines
from penstock.data.dedup.near import find_near_copies
from penstock.data.dedup.signatures import MinHash
from penstock.data.dedup.stages import Removed
from penstock.data.format.columns import Columns, read_columns
from penstock.data.format.types import Progress
from penstock.data.workers.pool import Executor, Task, run_stage

COPY, NEAR, LINES_ONLY = "copy", "near copy", "only lines of others"
EVALUATION = "in evaluation "  # prefix of the reasons of documents with evaluation texts


def part_path(folder: Path, part: int) -> Path:
    return folder / f"{part:06d}"


@dataclass(frozen=True)
class RemainingTexts:
    """The texts that remain after the steps so far; call it with the number of a part."""

    clean: Path  # folders with a file for each part
    documents: Path | None = None
    lines: Path | None = None
    near: Path | None = None
    evaluations: Path | None = None

    def __call__(self, part: int) -> tuple[list[str], Ints]:
        texts, scores = read_texts(part_path(self.clean, part))
        return self.apply(part, texts)[0], scores

    def apply(self, part: int, texts: list[str]) -> tuple[list[str], dict[int, tuple[str, str]]]:
        """Return the texts, empty where a document is removed, and place → (reason, detail)."""
        why: dict[int, tuple[str, str]] = {}
        left = list(texts)

        def take(reason: str, removed: Removed) -> None:
            kept = zip(removed.kept_part.tolist(), removed.kept_documents.tolist(), strict=True)
            for place, copy in zip(removed.documents.tolist(), kept, strict=True):
                left[place] = ""
                why[place] = reason, f"of document {copy[1] + 1} of part {copy[0] + 1}"

        if self.documents:
            take(COPY, Removed.read(part_path(self.documents, part)))
        if self.lines:
            self._without_lines(part, left, why)
        if self.near:
            take(NEAR, Removed.read(part_path(self.near, part)))
        if self.evaluations:
            for place, evaluation, words in read_result(part_path(self.evaluations, part)):
                left[place] = ""
                why[place] = f"{EVALUATION}{evaluation}", words
        return left, why

    def _without_lines(self, part: int, left: list[str], why: dict[int, tuple[str, str]]) -> None:
        assert self.lines
        removed = Removed.read(part_path(self.lines, part))
        assert removed.lines is not None
        lines_of: dict[int, list[int]] = {}
        for place, line in zip(removed.documents.tolist(), removed.lines.tolist(), strict=True):
            lines_of.setdefault(place, []).append(line)
        for place, lines in lines_of.items():
            left[place] = remove_lines(left[place], lines)
            if not left[place].strip():
                left[place] = ""
                why[place] = LINES_ONLY, ""


def deduplicate(
    folder: Path,
    inputs: str,
    parts: int,
    kept: RemainingTexts,
    config: tuple[ExactDocuments | None, ExactLines | None, MinHash | None],
    pool: Executor,
    progress: Progress,
) -> RemainingTexts:
    """Run the steps that are on; return the texts that remain."""
    documents, lines, minhash = config
    if documents:
        find_exact_copies(
            folder / "documents", inputs, parts, kept, documents, pool, progress=progress
        )
        kept = replace(kept, documents=folder / "documents" / "removed")
    if lines:
        find_exact_copies(folder / "lines", inputs, parts, kept, lines, pool, progress=progress)
        kept = replace(kept, lines=folder / "lines" / "removed")
    if minhash:
        find_near_copies(folder / "near", inputs, parts, kept, minhash, pool, progress=progress)
        kept = replace(kept, near=folder / "near" / "removed")
    return kept


def decontaminate(
    folder: Path, parts: int, kept: RemainingTexts, runs: Path, pool: Executor, progress: Progress
) -> RemainingTexts:
    """Find documents with evaluation texts; `runs` is the file of `evaluation_runs`."""
    found = folder / "found"
    tasks = [
        Task(part_path(found, part), _contaminated, (part, kept, runs)) for part in range(parts)
    ]
    run_stage("decontaminate", tasks, pool, progress)
    return replace(kept, evaluations=found)


def evaluation_runs(texts: dict[str, list[str]], config: Overlap) -> Columns:
    """Return the word runs of all evaluation texts as a file, which workers map into memory."""
    known = index_evaluations(texts, config)
    columns: Columns = result_columns(
        [config.words, config.shortest, list(known.names), known.skipped]
    )
    for length, (hashes, numbers, owners) in known.ngrams.items():
        columns |= {f"{length}.hashes": hashes, f"{length}.names": numbers}
        columns[f"{length}.texts"] = owners
    return columns


@lru_cache(maxsize=1)
def _evaluations(path: Path) -> EvaluationNgrams:
    words, shortest, names, skipped = read_result(path)
    columns = read_columns(path)
    lengths = sorted({int(name.partition(".")[0]) for name in columns if name[0].isdigit()})
    runs = {
        length: (
            columns[f"{length}.hashes"],
            columns[f"{length}.names"],
            columns[f"{length}.texts"],
        )
        for length in lengths
    }
    return EvaluationNgrams(Overlap(words, shortest), tuple(names), runs, skipped)


def _contaminated(part: int, kept: RemainingTexts, runs: Path) -> Columns:
    found = find_contaminated(kept(part)[0], _evaluations(runs))
    return result_columns([[one.document, one.evaluation, one.words] for one in found])
