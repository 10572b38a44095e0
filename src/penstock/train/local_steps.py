"""Agreement of replicas that take local steps: when a round ends, and only then.

What depends on a clock or a file (a stop, a save by the minute) waits for the end of the round.
What the step's number alone decides needs no agreement: a save every so many steps is made at its
step, of each replica's own weights.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from penstock.ledger.journal.events import RoundEnded
from penstock.meter.clock import StepClock
from penstock.policy.rounds import Rounds
from penstock.train.optim.optimizer import Optimizer
from penstock.train.progress import Progress
from penstock.train.rank_context import RankContext
from penstock.train.replicas.outer import OuterStep
from penstock.train.replicas.reduce import REQUESTS, Vote
from penstock.train.replicas.rounds import RoundExchange


@dataclass
class LocalSteps:
    """The rounds of replicas that take local steps."""

    rounds: Rounds
    exchange: RoundExchange
    optimizer: Optimizer
    rank: RankContext
    save_due: Callable[[int], bool]  # by the number of a step alone
    back_before: int = field(default=0, init=False)  # what the replicas last agreed on
    _sent_bytes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.world, self.journal, self.pulse = self.rank.world, self.rank.journal, self.rank.pulse

    @property
    def outer(self) -> OuterStep:
        return self.exchange.outer

    def begin_step(self, at: Progress) -> bool:
        """Return whether the next step needs another feed than those before it."""
        return False

    def ends(self, step: int) -> bool:
        """Return whether all replicas agree after `step`."""
        return self.rounds.ends(step)

    def before(self, step: int) -> int:
        """Return the last step after which all replicas agreed, before `step`."""
        return self.rounds.before(step)

    def close(self, step: int, vote: Vote, tokens: int, back_before: int, clock: StepClock) -> Vote:
        """Take the outer step where a round ends; return what all ranks do after `step`.

        `tokens` were trained on in this step. `back_before` is the step that this replica wants to
        go back before, or 0: if any wants it, the outer step is not taken.
        """
        self.exchange.count(tokens)
        self.back_before = 0
        ends = self.rounds.ends(step)
        if ends:
            with clock.part("exchange"):
                self.pulse.at("reduce")
                vote = self._agree(vote, back_before)
        if not self.back_before:
            self._exchange(step, clock)
        if ends:
            sent, self._sent_bytes = self.outer.sent_bytes - self._sent_bytes, self.outer.sent_bytes
            if self.world.first_inside:
                self.journal.write(RoundEnded(step=step, sent_bytes=sent), synced=False)
            return vote
        due = self.save_due(step)  # with "busy": replicas do not know if others still write
        return replace(vote, requests=vote.requests | {"save": due, "busy": due})

    def _agree(self, vote: Vote, back_before: int) -> Vote:
        """Agree with all replicas on requests, and on whether to go back."""
        replicas, own = self.world.size("replicate"), self.world.index("replicate")
        rows = torch.zeros(replicas, 1 + len(REQUESTS), dtype=torch.float64)
        if self.world.first_inside:
            asked = [float(vote.requests.get(name, False)) for name in REQUESTS]
            rows[own] = torch.tensor([float(back_before), *asked])
        every = self.world.sum_(rows.to(self.world.device)).cpu()
        self.back_before = int(min((n for n in every[:, 0].tolist() if n), default=0))
        counts = every[:, 1:].sum(0).tolist()
        return replace(
            vote, requests={n: count > 0 for n, count in zip(REQUESTS, counts, strict=True)}
        )

    def _exchange(self, step: int, clock: StepClock) -> None:
        exchange, outer = self.exchange, self.outer
        arriving, leaving = list(exchange.waiting(step)), list(self.rounds.leaving(step))
        if not arriving and not leaving:
            return
        with clock.part("exchange"):
            self.pulse.at("reduce")
            for part in arriving:
                outer.wait(part)
        with clock.part("compute"):
            exchange.arrive(step)
            exchange.leave(step)
        if not exchange.is_late(step):
            with clock.part("exchange"):
                for part in leaving:
                    outer.wait(part)
        with clock.part("compute"):
            exchange.settle(step)
            self.optimizer.copy_masters()
        self.pulse.at("updated")
