"""Validation during training: when it is due, the loss on held-out samples, and what follows."""

from dataclasses import dataclass, field
from math import nan
from typing import Any

import torch

from penstock.data.tokenize.tokenizer import Tokenizer
from penstock.errors import PenstockError
from penstock.ledger.journal.events import EvaluateSpan, SampleFailed, StoppedEarly
from penstock.meter.clock import now
from penstock.model.user_module import NoLogits
from penstock.policy.best import judge, words
from penstock.policy.checkpoint import interval_ends
from penstock.policy.rounds import Rounds
from penstock.train.batches import Batches
from penstock.train.engine import Engine
from penstock.train.export.sampling import sample_continuation
from penstock.train.parallel.compile import compiles
from penstock.train.rank_context import RankContext
from penstock.train.replicas.reduce import REQUESTS, Vote
from penstock.train.state import TrainingState
from penstock.train.task_scores import TaskEvaluator

SAMPLE_TOKENS = 64  # written at the end of a run, so that a person can look at what the model says
PROMPT_TOKENS = 24


def rewards_of(figures: tuple[float, ...]) -> dict[str, Any]:
    """Name the figures of an objective on pairs, for the journal; others have none."""
    if not figures:
        return {}
    chosen, rejected, accuracy = figures
    return {"chosen": chosen, "rejected": rejected, "accuracy": accuracy}


@dataclass
class Evaluator:
    """Evaluations of a run, the best of them, early stopping, and its benchmark tasks."""

    rank: RankContext
    engine: Engine
    batches: Batches
    state: TrainingState
    tasks: TaskEvaluator | None  # None: the run has none
    rounds: Rounds  # only what all replicas agree on is evaluated
    evaluated_s: float = field(default_factory=now)  # when the last evaluation ended

    def __post_init__(self) -> None:
        every, held_out = self.rank.run.evaluate.every, self.batches.stream.held_out
        self._evaluates = every != "never" and held_out > 0

    def requests(self, step: int, since: int) -> dict[str, bool]:
        """Return whether an evaluation is due after `step`, or was after a step since `since`."""
        due = self.tasks.requests(step, since) if self.tasks else {}
        if not self._evaluates:
            return due
        every = self.rank.run.evaluate.every
        return due | {
            "evaluate": interval_ends(every, step, now() - self.evaluated_s, since)
            or step == self.batches.steps
        }

    def due_at_start(self, step: int) -> Vote | None:
        """Return what has to be done before the step after `step`, as the vote of a step.

        Before the first step: an evaluation, to know where the loss begins. Later: one that a stop
        cut short, since `patience` must count it; and benchmark tasks that a stop cut short.
        """
        due = {
            "evaluate": self._evaluates and (not step or self._missed(step)),
            "tasks": self.tasks is not None
            and self.rounds.ends(step)
            and self.tasks.was_cut_short(step, self.rounds.before(step)),
        }
        if not any(due.values()):
            return None
        return Vote(nan, nan, dict.fromkeys(REQUESTS, False) | due)

    def run(self, step: int) -> dict[str, bool]:
        """Evaluate. Return what follows from it: a save of the best so far, or a stop."""
        state, section = self.state, self.rank.run.evaluate
        loss = self._validation_loss(step)
        if loss is None:
            return {"stop": True}
        self._judge(step, loss)
        if step < self.batches.steps and state.stops_early:
            assert section.patience is not None
            if self.rank.world.lead:
                why = words(state.best, section.patience)
                self.rank.journal.write(StoppedEarly(step=step, why=why))
            return {"stop": True}
        # The first evaluation comes before the first step: there is nothing to save yet.
        return {"save": True} if step and section.keep_best and state.best.improved else {}

    def tasks_at_early_end(self) -> bool:
        """Return whether benchmark tasks are due because the run stops early."""
        return self.tasks is not None and self.state.stops_early

    def _missed(self, step: int) -> bool:
        section, last = self.rank.run.evaluate, self.state.best.last_step
        tracks_best = bool(section.keep_best) or section.patience is not None
        since = self.rounds.before(step)
        is_due = interval_ends(section.every, step, 0.0, since) or step == self.batches.steps
        is_due = is_due and self.rounds.ends(step)
        return last is not None and last < step and tracks_best and is_due

    def _judge(self, step: int, loss: float) -> None:
        """Compare an evaluation with the best so far. Every rank comes to the same answers.

        In live mode the loss of a peer may cut off what follows, and the evaluation is made again:
        the later one counts, since all replicas have it.
        """
        state, section = self.state, self.rank.run.evaluate
        if state.best.last_step != step:
            state.best_before = state.best
        state.best = judge(state.best_before, step, loss, section.keep_best, section.min_delta)

    def _validation_loss(self, step: int) -> float | None:
        """Return the loss on held-out samples; None if it was cut short because the run stops."""
        start, rank, batches, stream = now(), self.rank, self.batches, self.batches.stream
        rank.pulse.at("evaluate", step)
        count = min(stream.held_out, max(1, rank.run.evaluate.tokens // stream.sequence))
        share = batches.share(0, count)
        samples = batches.loader.load(stream.read_held_out(share.start, share.stop, of=count))
        tokens = count * stream.sequence
        micros = batches.micros(samples, count)
        if stream.masked:  # always true of pairs, which are then counted instead of tokens
            counted = batches.count_over_ranks(samples)
            tokens, micros = counted.tokens, counted.weigh(micros)
        if compiles(rank.run.train.compile, rank.layout, rank.world):
            # Layers are compiled for the shape of training; rows that do not count cost less.
            rows = rank.layout.microbatch * rank.run.train.sample_sequences
            micros = [micro.padded(rows) for micro in micros]
        total = self.engine.runner.evaluate(micros, self._nobody_stops)
        if total is None:
            rank.journal.write_span(EvaluateSpan(), start, now())
            return None
        sums = torch.cat((total.view(1), self.engine.runner.figures().to(total.device)))
        means = (rank.world.sum_(sums) / tokens).tolist() if tokens else [nan]  # all is damaged
        self.evaluated_s = now()
        more = rewards_of(tuple(means[1:]))
        span = EvaluateSpan(step=step, val_loss=means[0], samples=count, **more)
        rank.journal.write_span(span, start, now())
        return means[0]

    def _nobody_stops(self) -> bool:
        """Return whether nobody wants the run to stop; every rank gets the same answer.

        Asked between microbatches: an evaluation may be longer than a notice of preemption leaves.
        """
        self.rank.pulse.beat()
        world = self.rank.world
        stops = world.lead and self.rank.folder.control_requests()["stop"]
        return not world.sum_(torch.tensor([int(stops)])).item()

    def write_sample(self) -> None:
        """Let the model continue the beginning of a held-out (or the first) sample."""
        rank, parts, stream = self.rank, self.engine.parts, self.batches.stream
        start = now()
        rank.pulse.at("evaluate", self.batches.steps)
        # Rank 0's, whose disk may be another than ours: ranks go on together or not at all.
        prompt, problem = rank.world.broadcast(self._prompt())
        try:
            if problem:
                raise PenstockError(problem)
            parts.train(False)
            tokens = sample_continuation(
                self.engine.runner.logits,
                prompt,
                SAMPLE_TOKENS,
                stream.row_tokens,
                rank.run.train.seed,
                device=rank.world.device,
                multiple=2 * rank.layout.context * rank.layout.tensor,
            )
            parts.train()
            decode = Tokenizer.from_json(stream.dataset.tokenizer_json()).decode
            cut = "…" if len(prompt) > SAMPLE_TOKENS else ""
            given = cut + decode(prompt[-SAMPLE_TOKENS:])
            texts: dict[str, Any] = {"prompt": given, "sample": decode(tokens)}
        except NoLogits:
            return  # a module of the user's own that returns only its loss, not what comes next
        except Exception as error:  # a look at the model must not fail a run that is done
            rank.journal.write(SampleFailed(error=f"{type(error).__name__}: {error}"))
            return
        rank.journal.write_span(EvaluateSpan(**texts), start, now())

    def _prompt(self) -> tuple[list[int], str]:
        """Return the beginning of the first sample, and why there is none."""
        stream = self.batches.stream
        read = stream.read_held_out if stream.held_out else stream.read
        try:
            first = read(0, 1)
        except PenstockError as error:
            return [], str(error)
        length = PROMPT_TOKENS
        if stream.pairs and first.loss is not None:  # the prompt alone, for the model to answer
            length = int(first.loss[0].argmax()) or PROMPT_TOKENS
        prompt = first.tokens[0, :length].tolist()
        return prompt, f"{first.skipped[0].file} is damaged" if first.skipped else ""
