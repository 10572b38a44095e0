"""`Report`: the facts of a run as typed values; `penstock report --json` prints `to_json`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.ledger.journal.events import ReplicaGone
from penstock.ledger.ledger import Ledger
from penstock.ledger.scores import TaskScores
from penstock.run.folder import RunFolder
from penstock.watch.facts.advice import Advice
from penstock.watch.facts.costs import Costs
from penstock.watch.facts.energy_amounts import Energy
from penstock.watch.facts.incidents import incident_json
from penstock.watch.facts.plan_vs_actual import PlanVsActual
from penstock.watch.facts.rewards import (
    Rewards,
    held_out_rewards,
    recent,
    training_rewards,
)
from penstock.watch.facts.rounds import RoundFacts
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import BestCheckpoint, RunView
from penstock.watch.style.text import finite


@dataclass(frozen=True)
class Report:
    """The facts of a run at one moment. None is unknown."""

    name: str
    status: str  # new, running, done, stopped, stopped early, failed, killed or left
    folder: Path
    machine: str | None
    layout: dict[str, int] | None
    dataset: Any
    tokenizer: str | None  # hash; losses of other tokenizers are not comparable
    loss_kind: str | None  # what the loss is; losses of another kind are not comparable
    params: int | None
    precision: str | None
    precision_why: str | None  # how "auto" was decided
    step: int  # the last step
    steps: int  # planned
    tokens: int  # trained on
    epoch_tokens: int | None  # of one pass over the data; None of a mixture
    passes: float | None  # over the data so far
    loss: float | None  # mean of the last ten steps
    validation: tuple[tuple[int, float | None], ...]  # (step, loss on held-out samples)
    task_scores: tuple[TaskScores, ...]  # of benchmark tasks, by step
    rewards: Rewards | None  # of an objective on pairs: mean of the last ten steps
    held_out_rewards: tuple[Rewards, ...]
    tokens_per_s: float | None
    mfu: float | None
    ledger: Ledger  # where every accelerator-second went
    exact: bool  # the ledger was computed from single steps, not from rollups
    plan: PlanVsActual | None  # plan against actual
    energy: Energy | None
    costs: Costs | None
    advice: tuple[Advice, ...]
    wall_s: float
    ranks: int
    clipped_s: float  # of records that contradicted others; 0 in a whole journal
    data_skipped: tuple[dict[str, Any], ...]
    incidents: tuple[dict[str, Any], ...]
    faults: int
    lost_replicas: int  # the others went on without them
    stragglers: tuple[dict[str, Any], ...]
    rounds: RoundFacts | None  # of replicas that take local steps
    resumed_from: int | None  # step
    checkpoint: str | None  # the newest
    best: (
        BestCheckpoint | None
    )  # the one with the lowest validation loss, with `evaluate.keep_best`
    weights_hash: str | None
    sample: Any  # text that the model wrote at the end

    @property
    def validation_loss(self) -> float | None:
        """Loss of the last evaluation."""
        return self.validation[-1][1] if self.validation else None

    @classmethod
    def of(cls, folder: RunFolder) -> "Report":
        """Read a run's folder."""
        facts = RunFacts(RunView(folder))
        view, account, launch = facts.view, facts.view.account, facts.view.launch
        return cls(
            name=folder.name,
            status=view.status,
            folder=folder.path,
            machine=launch.machine or None,
            layout=launch.layout or None,
            dataset=launch.dataset,
            tokenizer=launch.tokenizer or None,
            loss_kind=view.run_or_none.train.loss_kind if view.run_or_none else None,
            params=launch.params,
            precision=view.run_or_none.train.precision if view.run_or_none else None,
            precision_why=launch.precision_why or None,
            step=view.step,
            steps=view.steps,
            tokens=view.tokens,
            epoch_tokens=view.epoch_tokens,
            passes=view.passes,
            loss=view.loss,
            validation=tuple((step, finite(loss)) for step, loss in view.validation),
            task_scores=view.task_scores,
            rewards=recent(training_rewards(view)),
            held_out_rewards=tuple(held_out_rewards(view)),
            tokens_per_s=view.tokens_per_s,
            mfu=view.mfu,
            ledger=account.ledger,
            exact=account.exact,
            plan=facts.plan,
            energy=facts.energy,
            costs=facts.costs,
            advice=tuple(facts.advice),
            wall_s=account.wall_s,
            ranks=account.ranks,
            clipped_s=account.clipped_s,
            data_skipped=tuple(line.payload for line in view.skipped_blocks),
            incidents=tuple(map(incident_json, view.incidents)),
            faults=view.fault_count,
            lost_replicas=len(view.supervisor_events_of(ReplicaGone)),
            stragglers=tuple(view.stragglers),
            rounds=facts.rounds,
            resumed_from=view.resumed_from,
            checkpoint=view.newest_checkpoint,
            best=view.best_checkpoint,
            weights_hash=view.weights_hash,
            sample=view.sample,
        )

    def to_json(self) -> dict[str, Any]:
        """Convert to plain values."""
        return {
            "run": self.name,
            "status": self.status,
            "folder": str(self.folder),
            "machine": self.machine,
            "layout": self.layout,
            "dataset": self.dataset,
            "tokenizer": self.tokenizer,
            "loss_kind": self.loss_kind,
            "params": self.params,
            "precision": self.precision,
            "precision_why": self.precision_why,
            "steps": self.step,
            "steps_planned": self.steps,
            "tokens": self.tokens,
            "epoch_tokens": self.epoch_tokens,
            "passes": self.passes,
            "loss": self.loss,
            "val_loss": self.validation_loss,
            "val_losses": [list(pair) for pair in self.validation],
            "task_scores": [one.to_json() for one in self.task_scores],
            "rewards": self.rewards.to_json() if self.rewards else None,
            "val_rewards": [one.to_json() for one in self.held_out_rewards],
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.mfu,
            "ledger": {str(cause): s for cause, s in self.ledger.seconds.items()},
            "exact": self.exact,
            "plan": self.plan.to_json() if self.plan else None,
            "energy": self.energy.to_json() if self.energy else None,
            "costs": self.costs.to_json() if self.costs else None,
            "advice": [item.to_json() for item in self.advice],
            "useful": self.ledger.useful,
            "effective": self.ledger.effective,
            "wall_s": self.wall_s,
            "ranks": self.ranks,
            "rank_s": self.ledger.total,  # the sum of the ledger: wall-clock × ranks
            "clipped_s": self.clipped_s,
            "data_skipped": list(self.data_skipped),
            "incidents": list(self.incidents),
            "faults": self.faults,
            "lost_replicas": self.lost_replicas,
            "stragglers": list(self.stragglers),
            "rounds": self.rounds.to_json() if self.rounds else None,
            "resumed_from": self.resumed_from,
            "checkpoint": self.checkpoint,
            "best": asdict(self.best) if self.best else None,
            "weights_hash": self.weights_hash,
            "sample": self.sample,
        }
