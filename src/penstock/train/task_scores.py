"""Benchmark tasks during training: when they are due, and how the ranks take part.

Rank 0 runs the harness. For every round of forward passes it sends all ranks the token sequences:
each data rank gets a batch, and ranks that share a batch run it together, as in a training step.
Two numbers per sequence come back in one sum over all ranks. So only rank 0 reads the tasks, and a
task that fails there leaves no rank behind.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from penstock.ledger.journal.events import EvaluateSpan, TaskScoresEvent, TasksFailed
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import journal_files
from penstock.ledger.journal.values import whole
from penstock.meter.clock import now
from penstock.model.user_module import NoLogits
from penstock.policy.checkpoint import interval_ends
from penstock.train.engine import Engine
from penstock.train.rank_context import RankContext
from penstock.train.tasks.forward import Answer, BatchRunner, BatchShapes, Question, TokenRow

if TYPE_CHECKING:  # it reads tokenizers and templates, which no other rank needs
    from penstock.train.tasks.open import TaskText

LOGIT_BYTES = 512 << 20  # of one batch, in full precision
END, STOPPED = "end", "stopped"


class Stopped(Exception):
    """Raised out of the harness when somebody wants the run to stop."""


@dataclass
class TaskEvaluator:
    """The benchmark tasks of a run, on every rank."""

    rank: RankContext
    engine: Engine
    steps: int  # of the run
    vocab: int
    evaluated_s: float = field(default_factory=now)  # when the last evaluation ended
    _tasks: dict[str, Any] | None = None

    def requests(self, step: int, since: int) -> dict[str, bool]:
        """Return whether tasks are due after `step`, or were after a step since `since`."""
        return {"tasks": self._is_due(step, now() - self.evaluated_s, since)}

    def was_cut_short(self, step: int, since: int) -> bool:
        """Return whether tasks were due at the step of a loaded checkpoint and have no scores.

        All ranks must call it. A run that is stopped in the middle of its tasks does them again.
        """
        if not step or not self._is_due(step, 0.0, since):
            return False
        return bool(self.rank.world.broadcast(step not in self._recorded_steps()))

    def run(self, step: int) -> dict[str, bool]:
        """Evaluate. Return a stop if somebody wanted one meanwhile."""
        rank, start = self.rank, now()
        rank.pulse.at("evaluate", step)
        with self.engine.parts.evaluating():
            stopped = self._lead(step) if rank.world.lead else self._follow()
        self.evaluated_s = now()
        rank.journal.write_span(EvaluateSpan(step=step), start, now())
        return {"stop": True} if stopped else {}

    def _is_due(self, step: int, elapsed_s: float, since: int) -> bool:
        every = self.rank.run.evaluate.tasks_every
        ended = every != "never" and interval_ends(every, step, elapsed_s, since)
        return ended or step == self.steps

    def _recorded_steps(self) -> set[int]:
        files = [f for f in journal_files(self.rank.folder.journal, "events") if 0 in f.ranks]
        lines = [line for file in files for line in read_events(file.path)]
        events = [line.event for line in lines]
        steps = [e.step for e in events if isinstance(e, TaskScoresEvent | TasksFailed)]
        return {number for step in steps if (number := whole(step)) is not None}

    def _lead(self, step: int) -> bool:
        """Run the harness on rank 0. Return whether the run is to stop."""
        forward = _LeadingForward(self)
        end = END
        try:
            self.rank.journal.write(self._evaluate(step, forward))
        except Stopped:
            end = STOPPED
        except Exception as error:  # a benchmark must not fail a run
            if forward.failed is not None:  # ranks that compute together cannot go on
                raise forward.failed from None
            words = f"{type(error).__name__}: {error}"
            self.rank.journal.write(TasksFailed(step=step, error=words[:500]))
        self.rank.world.broadcast({"end": end})
        return end == STOPPED

    def _evaluate(self, step: int, forward: "_LeadingForward") -> TaskScoresEvent:
        # Not at the top: the harness is heavy, and an extra.
        from penstock.train.tasks.evaluate import evaluate_tasks
        from penstock.train.tasks.load import load_tasks
        from penstock.train.tasks.model import PenstockLM

        section = self.rank.run.evaluate
        if self._tasks is None:
            self._tasks = load_tasks(section.tasks, section.tasks_dir, "evaluate.tasks")
        text = self._text
        model = PenstockLM(
            forward, text.tokenizer, self._runner.shapes.longest_width, text.stop_ids
        )
        found = evaluate_tasks(model, self._tasks, section.tasks_limit)
        scores = [one.to_json() for one in found.scores]
        return TaskScoresEvent(
            step=step, scores=scores, limit=section.tasks_limit, truncated=found.truncated
        )

    def _follow(self) -> bool:
        """Answer what rank 0 asks until it ends. Return whether the run is to stop."""
        while True:
            asked = self.rank.world.broadcast(None)
            if "end" in asked:
                return bool(asked["end"] == STOPPED)
            with suppress(NoLogits):  # on every rank, before any of them sends
                self.answer(asked)

    def answer(self, asked: dict[str, Any]) -> torch.Tensor:
        """Run this rank's batch of a round; return the answers of all, [batch, row, 2]."""
        world, batches = self.rank.world, asked["batches"]
        self.rank.pulse.beat()
        # A data rank without a batch runs the first one: forward passes of all ranks must meet.
        has_own = world.data_rank < len(batches)
        rows = [TokenRow(*one) for one in batches[world.data_rank if has_own else 0]]
        found = self._runner.run(asked["question"], rows, asked["width"])
        height = max(len(batch) for batch in batches)
        every = torch.zeros(len(batches), height, 2, dtype=torch.float64)
        if has_own and self._first_of_batch:
            every[world.data_rank, : len(rows)] = found
        return world.sum_(every.to(world.device)).cpu()

    @cached_property
    def _first_of_batch(self) -> bool:
        """Return whether this rank tells the answers of a batch that several ranks share."""
        index = self.rank.world.index
        return all(index(name) == 0 for name in ("pipeline", "context", "tensor"))

    @cached_property
    def _text(self) -> "TaskText":
        from penstock.train.tasks.open import run_text

        return run_text(self.rank.run, self.rank.folder)

    @cached_property
    def _runner(self) -> BatchRunner:
        """Return what runs a batch: in at most the memory that a training step takes.

        Texts are as long as the samples of training, which all layouts are known to run.
        """
        rank, layout = self.rank, self.rank.layout
        budget = min(layout.microbatch * rank.run.sequence, LOGIT_BYTES // (4 * self.vocab))
        shapes = BatchShapes(
            rank.run.sequence, budget, multiple=2 * layout.context * layout.tensor, few=True
        )
        return BatchRunner(self.engine.runner.logits, shapes, rank.world.device)


class _LeadingForward:
    """Forward passes on all ranks, as the harness of rank 0 asks for them."""

    def __init__(self, tasks: TaskEvaluator) -> None:
        self.tasks = tasks
        self.failed: BaseException | None = None  # an error of the ranks, not of the harness

    def __call__(self, question: Question, rows: Sequence[TokenRow]) -> list[Answer]:
        tasks = self.tasks
        shapes, world = tasks._runner.shapes, tasks.rank.world
        answers: list[Answer] = [(0.0, 0.0)] * len(rows)
        for width, part in shapes.rounds(rows, world.data_ranks):
            if tasks.rank.folder.control_requests()["stop"]:
                raise Stopped
            found = self._round(
                {
                    "question": question,
                    "width": width,
                    "batches": [[rows[i].to_message() for i in numbers] for numbers in part],
                }
            )
            for numbers, values in zip(part, found, strict=True):
                for i, (first, second) in zip(numbers, values.tolist(), strict=False):
                    answers[i] = first, second
        return answers

    def _round(self, message: dict[str, Any]) -> torch.Tensor:
        try:
            return self.tasks.answer(self.tasks.rank.world.broadcast(message))
        except NoLogits:
            raise
        except BaseException as error:
            self.failed = error
            raise
