"""All that a checkpoint holds of a run: tensors by names that no layout changes, and scalars."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from penstock import __version__, secret
from penstock.errors import RunFailed
from penstock.guard import checkpoints
from penstock.guard.checkpoints import StoredCheckpoint
from penstock.guard.detect.fingerprints import weights_hash
from penstock.guard.detect.sentinels import Sentinels
from penstock.guard.detect.shape_differences import shape_differences
from penstock.guard.tiers.stores import ProtectedSteps
from penstock.ledger.journal.events import LocalStateDropped, MomentsDropped, StreamChanged
from penstock.policy.best import BestState, stops
from penstock.run.fingerprint import fingerprint, settings_fingerprint
from penstock.run.folder import plan_for_checkpoint
from penstock.run.save import to_table
from penstock.train.batches import Batches
from penstock.train.engine import Engine
from penstock.train.optim.optimizer import Optimizer
from penstock.train.parallel.parts import ModelParts
from penstock.train.rank_context import RankContext
from penstock.train.replica_state import with_outer_state
from penstock.train.replicas.rounds import RoundExchange
from penstock.train.site_rounds import SiteRounds


def weight_tensors(
    parts: ModelParts, optimizer: Optimizer, copies: bool = False
) -> dict[str, Tensor]:
    """Return the trained weights in full precision, and the model's buffers.

    `copies` adds parameters that another rank saves: they are needed for loading.
    """
    tensors = {
        name: optimizer.moments[name].get("master", param.detach())
        for name, param in parts.trained().items()
        if copies or name not in parts.copies
    }
    return tensors | parts.named_buffers()


def state_tensors(
    parts: ModelParts, optimizer: Optimizer, copies: bool = False
) -> dict[str, Tensor]:
    """Return weights and moments. They are the run's own: loading into them changes the run."""
    weights = weight_tensors(parts, optimizer, copies)
    tensors = {f"model/{name}": tensor for name, tensor in weights.items()}
    tensors |= {f"model/{name}": param.detach() for name, param in parts.frozen().items()}
    for name, moments in optimizer.moments.items():
        if copies or name not in parts.copies:
            tensors |= {f"optimizer/{name}/{k}": v for k, v in moments.items() if k != "master"}
    return tensors


@dataclass
class TrainingState:
    """The state of a run on one rank: what is saved, loaded, and sent to a replica that heals."""

    rank: RankContext
    engine: Engine
    batches: Batches
    sentinels: Sentinels
    exchange: RoundExchange | SiteRounds | None = None  # of what takes local steps
    best: BestState = field(default_factory=BestState)  # of the evaluations so far
    best_before: BestState = field(default_factory=BestState)  # before the last of them
    _constant: dict[str, Any] = field(default_factory=dict)  # scalars that no step changes

    @property
    def stops_early(self) -> bool:
        """Whether the validation loss has not improved for as long as the run file allows."""
        return stops(self.best, self.rank.run.evaluate.patience)

    def best_kept(self) -> ProtectedSteps:
        """Return the best checkpoints, which rotation must not delete."""
        return ProtectedSteps(self.rank.run.evaluate.keep_best, self.best.steps())

    def tensors(self, copies: bool = False) -> dict[str, Tensor]:
        """Return the reshardable tensors of this rank."""
        return self._named(state_tensors(self.engine.parts, self.engine.optimizer, copies))

    def _named(self, tensors: dict[str, Tensor], exact: bool = True) -> dict[str, Tensor]:
        """Return them by their names in a checkpoint, which may hold several replicas."""
        outer = self.engine.outer
        if outer is None:
            return tensors
        parts = self.engine.parts
        return with_outer_state(tensors, parts.trained(), parts.frozen(), outer, exact)

    def tensors_to_save(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return what a save copies: reshardable and replica-local tensors."""
        tensors = state_tensors(self.engine.parts, self.engine.optimizer)
        if self.rank.world.cuda:  # a forward pass may change these while they are being copied
            buffers = self.engine.parts.named_buffers()
            tensors |= {f"model/{name}": tensors[f"model/{name}"].clone() for name in buffers}
        local = self.engine.replicas.local_state()
        local |= self.exchange.local_state() if self.exchange else {}
        return self._named(tensors), local

    def scalars(self, step: int) -> dict[str, Any]:
        """Return what a checkpoint of `step` holds besides tensors. All ranks must call it."""
        run = self.rank.run
        if not self._constant:
            self._constant = {
                "penstock": __version__,
                "torch": torch.__version__,
                "optimizer": run.train.optimizer,
                "layout": self.rank.layout.to_json(),
                "fingerprint": fingerprint(run),
                "settings": settings_fingerprint(run),
                "plan": plan_for_checkpoint(self.rank.folder.read_plan()),
                "run": secret.visible_table(to_table(run)),
                "weights": self._weight_shapes(),
            }
            if self.engine.parts.stored_names:
                self._constant["stored_names"] = self.engine.parts.stored_names
        return (
            self._constant
            | {
                "step": step,
                "updates": self.engine.optimizer.updates,
                "tokens": self.batches.tokens_at(step),
                "stream": self.batches.stream.state(self.batches.position(step)),
                "sentinels": self.sentinels.to_json(),
                "best": self.best.to_json(),
            }
            | self._replica_scalars()
        )

    def _replica_scalars(self) -> dict[str, Any]:
        """Return what each replica that takes local steps counts and remembers on its own."""
        if self.exchange is None:
            return {}
        own = {
            "updates": self.engine.optimizer.updates,
            "sentinels": self.sentinels.to_json(),
        } | self.exchange.to_json()
        every = self.rank.world.gather(own if self.rank.leads_steps() else None)
        return {"replicas": [one for one in every if one is not None]}

    def load(self, found: StoredCheckpoint) -> None:
        """Load a checkpoint: tensors, position in the data, and what the guard remembers."""
        run, batches, scalars = self.rank.run, self.batches, found.scalars
        taken_over = bool(found.read_manifest().origin)
        batches.consumed = self._saved_position(scalars["stream"], taken_over)
        batches.tokens = scalars["tokens"]
        own = self._load_tensors(found)
        self._load_local(found, scalars["layout"])
        same = scalars["fingerprint"] == fingerprint(run)
        self.sentinels.restore(own.get("sentinels"), None if same else found.step)
        # A fork has evaluations, and checkpoints, of its own.
        mine = "best" in scalars and scalars["run"]["name"] == run.name and not taken_over
        self.best = BestState.from_json(scalars["best"]) if mine else BestState()
        batches.resumed_step = found.step

    def to_json(self) -> dict[str, Any]:
        """Return the scalars that a healing replica needs; tensors go another way."""
        return {
            "updates": self.engine.optimizer.updates,
            "consumed": self.batches.consumed,
            "tokens": self.batches.tokens,
            "resumed_step": self.batches.resumed_step,
            "sentinels": self.sentinels.to_json(),
            "best": self.best.to_json(),
            "best_before": self.best_before.to_json(),
        }

    def from_json(self, saved: dict[str, Any]) -> None:
        """Take the scalars of another replica, whose tensors are already here."""
        self.engine.optimizer.updates = saved["updates"]
        self.engine.optimizer.copy_masters()
        self.batches.consumed, self.batches.tokens = saved["consumed"], saved["tokens"]
        self.batches.resumed_step = saved["resumed_step"]
        self.sentinels.restore(saved["sentinels"])
        self.best = BestState.from_json(saved["best"])
        self.best_before = BestState.from_json(saved["best_before"])

    def weights_hash(self) -> str:
        """Return the hash of all weights. All ranks must call it; one of equal ranks hashes."""
        held = weight_tensors(self.engine.parts, self.engine.optimizer)
        world = self.rank.world
        return weights_hash(held, world, hashing=world.first_copy)

    def _saved_position(self, saved: dict[str, str | int], taken_over: bool) -> int:
        """Return the position in the stream that a checkpoint was saved at.

        Only one that was taken over from another run may have read other data than this run does.
        """
        stream = self.batches.stream
        forked = taken_over or self.rank.folder.read_launch_record().forked_from is not None
        if forked and saved != stream.state(int(saved["consumed"])):
            self.rank.journal.write(StreamChanged(saved=saved, now=stream.state(0)))
            return 0
        stream.check(saved)
        return int(saved["consumed"])

    def _load_tensors(self, found: StoredCheckpoint) -> dict[str, Any]:
        """Load weights and moments; after a fork to another optimizer, the weights alone.

        Returns the scalars that hold for this replica.
        """
        found.check_format()
        optimizer, scalars = self.engine.optimizer, found.scalars
        own = self._scalars_of_replica(found)
        exact = own is not None
        own = scalars if own is None else own
        named = state_tensors(self.engine.parts, optimizer, copies=True)
        tensors = self._named(named, exact)
        if what := shape_differences(scalars["weights"], self._weight_shapes()):
            raise RunFailed(
                f"{found.path}: a checkpoint of another model than this one: {what}. Put the model "
                "back as it was, or begin again with `--fresh`"
            )
        saved, optimizer_now = scalars["optimizer"], self.rank.run.train.optimizer
        if saved == optimizer_now:
            optimizer.updates = own["updates"]
        else:
            self.rank.journal.write(MomentsDropped(saved=saved, now=optimizer_now))
            tensors = {name: t for name, t in tensors.items() if name.startswith("model/")}
        checkpoints.load(found, tensors, self.rank.world)
        if self.exchange:
            self.exchange.resume(own if exact else None)
        optimizer.copy_masters()
        return own

    def _scalars_of_replica(self, found: StoredCheckpoint) -> dict[str, Any] | None:
        """Return what a checkpoint holds for this replica; None if it must begin at the anchor."""
        saved = found.scalars.get("replicas", [])
        if self.exchange is None:
            return found.scalars
        transport = self.exchange.outer.transport
        same = found.scalars["optimizer"] == self.rank.run.train.optimizer
        names = found.index().tensors.keys()
        there = same and len(saved) == transport.replicas and self.tensors().keys() <= names
        if all(self.rank.world.gather(there)):
            return saved[transport.replica]
        self.rank.journal.write(
            LocalStateDropped(names=["local steps"], saved=len(saved), now=transport.replicas)
        )
        return None

    def _load_local(self, found: StoredCheckpoint, layout: dict[str, int]) -> None:
        """Load replica-local state, which means nothing in another layout."""
        state = checkpoints.load_local(found, self.rank.world.rank)
        own = self.rank.layout.to_json()
        if state and layout == own:
            if self.exchange:
                self.exchange.load_local_state(state)
            else:
                self.engine.replicas.load_local_state(state)
        elif state:
            self.rank.journal.write(LocalStateDropped(names=sorted(state), saved=layout, now=own))

    def _weight_shapes(self) -> dict[str, list[int]]:
        """Return the shapes of all weights, whichever rank holds them. All ranks must call it."""
        weights = weight_tensors(self.engine.parts, self.engine.optimizer)
        own = {name: list(weight.shape) for name, weight in weights.items()}
        return {name: dims for part in self.rank.world.gather(own) for name, dims in part.items()}
