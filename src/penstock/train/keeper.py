"""What the loop does to stay safe: resume, save when due, obey `control/`, refuse a bad step."""

from dataclasses import dataclass, field

import torch

from penstock import __version__
from penstock.data.stream import Stream
from penstock.errors import RunFailed
from penstock.guard import checkpoint
from penstock.guard.differences import differences
from penstock.guard.pulse import Pulse
from penstock.ledger.journal import Journal
from penstock.meter.clock import now
from penstock.plan.layout import Layout
from penstock.policy import checkpoint as policy
from penstock.run.file import Run
from penstock.run.fingerprint import fingerprint
from penstock.run.folder import RunFolder
from penstock.run.save import to_table
from penstock.train.engine import Engine
from penstock.train.replicas import Vote
from penstock.train.state import state, weights
from penstock.train.world import DIMENSIONS, World

# Before the first save its time is a guess; after it, a measurement.
FIRST_SAVE_S = 1.0


@dataclass
class Keeper:
    folder: RunFolder
    run: Run
    layout: Layout
    world: World
    journal: Journal
    stream: Stream
    engine: Engine
    pulse: Pulse
    resumed_step: int = 0
    consumed: int = 0  # position in the stream at `resumed_step`, samples
    tokens: int = 0  # trained on up to `resumed_step`, in this run and the one it was forked from
    saved_step: int = 0
    saved_s: float = field(default_factory=now)
    save_s: float = FIRST_SAVE_S

    def resume(self) -> int:
        """Load the newest good checkpoint; the step to go on from, 0 for a new run."""
        start = now()
        self.pulse.at("load", 0)
        found, rejected = checkpoint.newest_good(self.folder.checkpoints, self.world)
        for problem in rejected:
            self.journal.event("checkpoint_rejected", problem=problem)
        if found is None:
            return 0
        scalars = found.scalars
        self.consumed, self.tokens = self._position(scalars["stream"]), scalars["tokens"]
        self._load(found)
        self._resume_local(found, scalars["layout"])
        self.resumed_step = self.saved_step = found.step
        self.saved_s = now()
        self.journal.event("resumed", step=found.step, seconds=now() - start, path=found.path.name)
        return found.step

    def _load(self, found: checkpoint.Checkpoint) -> None:
        """Weights and moments; of a fork to another optimizer, whose moments are not there, the
        weights alone."""
        found.refuse_other_format()
        optimizer, state, scalars = self.engine.optimizer, self._state(copies=True), found.scalars
        if what := differences(scalars["weights"], self._shapes()):
            raise RunFailed(
                f"{found.path}: a checkpoint of another model than this one: {what}. Put the model "
                "back as it was, or begin again with `--fresh`"
            )
        saved, own = scalars["optimizer"], self.run.train.optimizer
        if saved == own:
            optimizer.updates = scalars["updates"]
        else:
            self.journal.event("moments_dropped", saved=saved, now=own)
            state = {name: t for name, t in state.items() if name.startswith("model/")}
        checkpoint.load(found, state, self.world)
        optimizer.lower()

    def _position(self, saved: dict[str, str | int]) -> int:
        """Where in the stream the checkpoint stood. Only a fork may read other data than before."""
        forked = "forked_from" in self.folder.read_plan()
        if forked and saved != self.stream.state(int(saved["consumed"])):
            self.journal.event("stream_changed", saved=saved, now=self.stream.state(0))
            return 0
        self.stream.check(saved)
        return int(saved["consumed"])

    def position(self, step: int) -> int:
        """Samples used by all optimizer steps up to and with `step`."""
        return self.consumed + (step - self.resumed_step) * self.run.batch_samples

    def tokens_at(self, step: int) -> int:
        return self.tokens + (step - self.resumed_step) * self.run.batch_tokens

    def _resume_local(self, found: checkpoint.Checkpoint, layout: dict[str, int]) -> None:
        state = checkpoint.load_local(found, self.world.rank)
        if state and layout == self.layout.to_json():
            self.engine.replicas.load_local_state(state)
        elif state:
            self.journal.event(
                "local_state_dropped", names=sorted(state), saved=layout, now=self.layout.to_json()
            )

    def wishes(self, step: int) -> dict[str, bool]:
        """Save or stop after `step`? By the interval, or by a file in `control/`."""
        every = self.run.guard.checkpoint
        limits = (None, None) if every == "auto" else (every.steps, every.seconds)
        state = policy.State(step, now(), self.saved_step, self.saved_s, self.save_s)
        wishes = self.folder.wishes()
        wishes["save"] |= policy.due(state, *limits)
        return wishes

    def own_wishes(self) -> dict[str, bool]:
        """What any rank may ask, not rank 0 alone."""
        return {}

    def after(self, step: int, vote: Vote, last: bool) -> None:
        """Saves what the vote asked for, and the end of the run."""
        if vote.wishes["save"] or vote.wishes["stop"] or last:
            self.save(step)

    def before_update(self) -> None:
        """Weights are about to change: what is still being copied of them must be through."""

    def settle(self) -> None:
        """Returns when everything that was begun is safe."""

    def rollback(self, before_step: int) -> int:
        """Loads the newest good checkpoint from before a step; the step to go on from."""
        raise NotImplementedError

    def refuse_bad(self, step: int, vote: Vote) -> None:
        if not vote.good:
            raise RunFailed(
                f"step {step}: loss {vote.loss}, gradient norm {vote.grad_norm}: not finite, so "
                "the step was not taken. Lower train.learning_rate, or look at this step's data. "
                f"The last checkpoint is step {self.saved_step}."
            )

    def save(self, step: int) -> None:
        if step == self.saved_step:
            return
        start = now()
        self.pulse.at("save", step)
        scalars = {
            "penstock": __version__,
            "torch": torch.__version__,
            "step": step,
            "optimizer": self.run.train.optimizer,
            "updates": self.engine.optimizer.updates,
            "tokens": self.tokens_at(step),
            "stream": self.stream.state(self.position(step)),
            "layout": self.layout.to_json(),
            "fingerprint": fingerprint(self.run),
            "run": to_table(self.run),
            "weights": self._shapes(),
        }
        made = checkpoint.save(
            self.folder.checkpoints,
            step,
            self._state(),
            self.engine.replicas.local_state(),
            scalars,
            self.world,
        )
        size = 0
        if self.world.rank == 0:
            size = made.size_bytes
            checkpoint.retain(self.folder.checkpoints, self.run.guard.keep)
            self.folder.granted("save")
        self.world.gather(None)  # deleting can be slow, and the next step's wait is bounded
        self.saved_step, self.saved_s, self.save_s = step, now(), now() - start
        self.journal.span("checkpoint", start, now(), step=step, path=made.path.name, bytes=size)

    def _state(self, copies: bool = False) -> dict[str, torch.Tensor]:
        return state(self.engine.parts, self.engine.optimizer, copies)

    def _shapes(self) -> dict[str, list[int]]:
        """Of all weights, whichever rank holds them."""
        own = {
            n: list(w.shape) for n, w in weights(self.engine.parts, self.engine.optimizer).items()
        }
        return {name: shape for part in self.world.gather(own) for name, shape in part.items()}

    def weights_hash(self) -> str:
        """All ranks must ask. Of ranks with equal weights the first one hashes."""
        first = all(self.world.place(d) == 0 for d in DIMENSIONS if d != "pipeline")
        held = weights(self.engine.parts, self.engine.optimizer)
        return checkpoint.weights_hash(held, self.world, hashing=first)
