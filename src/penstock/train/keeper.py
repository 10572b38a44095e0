"""What the loop does to stay safe: resume, save when due, obey `control/`, go back."""

from dataclasses import dataclass, field
from typing import Any

import torch

from penstock import __version__, secret
from penstock.data.read.stream import Stream
from penstock.errors import RunFailed
from penstock.guard.detect.pulse import Pulse
from penstock.guard.detect.sentinels import Sentinels
from penstock.guard.detect.shape_differences import shape_differences
from penstock.guard.format.published import Checkpoint
from penstock.guard.save import save_load
from penstock.guard.tiers.stores import ProtectedSteps
from penstock.ledger.journal.writer import Journal
from penstock.meter.clock import now
from penstock.plan.job.layout import Layout
from penstock.policy.best import BestState, judge, stops
from penstock.run.fingerprint import fingerprint, settings
from penstock.run.folder import RunFolder, kept_of_plan
from penstock.run.save import to_table
from penstock.run.schema.run import Run
from penstock.train.engine import Engine
from penstock.train.replicas.reduce import Vote
from penstock.train.saving import Saving
from penstock.train.state import state, weights
from penstock.train.world.world import World


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
    sentinels: Sentinels
    resumed_step: int = 0
    consumed: int = 0  # position in the stream at `resumed_step`, samples
    best: BestState = field(default_factory=BestState)  # of the evaluations so far
    best_before: BestState = field(default_factory=BestState)  # before the last of them
    tokens: int = 0  # trained on up to `resumed_step`, in this run and the one it was forked from
    _about: dict[str, Any] = field(default_factory=dict)  # of the run, the same in every save

    def __post_init__(self) -> None:
        folder, run, world, pulse = self.folder, self.run, self.world, self.pulse
        self.saving = Saving(
            folder, run, world, self.journal, pulse, self._saved, self._scalars, self._best_kept
        )

    def resume(self) -> int:
        """Load the newest good checkpoint; the step to go on from, 0 for a new run."""
        return self._resume() or 0

    def rollback(self, before_step: int) -> int | None:
        """Load the newest good checkpoint from before a step; the step to go on from, or None if
        there is none. Later ones are no more: they hold what is being taken back."""
        self.saving.forget(before_step - 1)
        self.engine.replicas.load_local_state({})
        return self._resume()

    def _resume(self) -> int | None:
        start = now()
        self.pulse.at("load", 0)
        self.saving.bring()
        looked = self.saving.tiers().newest_good()
        for words in looked.told:
            self.journal.event("record_mended", words=words)
        for problem in looked.rejected:
            self.journal.event("checkpoint_rejected", problem=problem)
        for problem in looked.unreachable:
            self.journal.event("place_unreachable", problem=problem)
        found = looked.checkpoint
        if found is None:
            return None
        scalars, taken_over = found.scalars, bool(found.about().origin)
        self.consumed = self._position(scalars["stream"], taken_over)
        self.tokens = scalars["tokens"]
        self._load(found)
        self._resume_local(found, scalars["layout"])
        same = scalars["fingerprint"] == fingerprint(self.run)
        self.sentinels.restore(scalars.get("sentinels"), None if same else found.step)
        # A fork has evaluations, and checkpoints, of its own.
        own = "best" in scalars and scalars["run"]["name"] == self.run.name and not taken_over
        self.best = BestState.from_json(scalars["best"]) if own else BestState()
        self.resumed_step = found.step
        self.saving.resumed(found.step, durable=found.tier != "memory")
        spent, path = now() - start, str(found.path)
        self.journal.event("resumed", step=found.step, tier=found.tier, path=path, seconds=spent)
        return found.step

    def _load(self, found: Checkpoint) -> None:
        """Weights and moments; of a fork to another optimizer, whose moments are not there, the
        weights alone."""
        found.refuse_other_format()
        optimizer, state, scalars = self.engine.optimizer, self._state(copies=True), found.scalars
        if what := shape_differences(scalars["weights"], self._shapes()):
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
        save_load.load(found, state, self.world)
        optimizer.lower()

    def _position(self, saved: dict[str, str | int], taken_over: bool) -> int:
        """Where in the stream the checkpoint stood. Only one that was taken over from another run
        may have read other data than this run does."""
        forked = taken_over or "forked_from" in self.folder.read_plan()
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

    def _resume_local(self, found: Checkpoint, layout: dict[str, int]) -> None:
        state = save_load.load_local(found, self.world.rank)
        if state and layout == self.layout.to_json():
            self.engine.replicas.load_local_state(state)
        elif state:
            self.journal.event(
                "local_state_dropped", names=sorted(state), saved=layout, now=self.layout.to_json()
            )

    def wishes(self, step: int) -> dict[str, bool]:
        """Save or stop after `step`? By the interval, or by a file in `control/`."""
        return self.saving.wishes(step) | self.own_wishes()

    def own_wishes(self) -> dict[str, bool]:
        """What any rank may ask, not rank 0 alone."""
        return self.saving.own_wishes()

    def evaluated(self, step: int, loss: float) -> None:
        """Take in an evaluation. Every rank comes to the same answers.

        In live mode the loss of a peer may cut off what follows, and the evaluation is made again:
        the later one counts, since all replicas have it.
        """
        section = self.run.evaluate
        if self.best.last_step != step:
            self.best_before = self.best
        self.best = judge(self.best_before, step, loss, section.keep_best, section.min_delta)

    @property
    def stops_early(self) -> bool:
        """Whether the validation loss has not improved for as long as the run file allows."""
        return stops(self.best, self.run.evaluate.patience)

    def _best_kept(self) -> ProtectedSteps:
        return ProtectedSteps(self.run.evaluate.keep_best, self.best.steps())

    def place(self) -> dict[str, Any]:
        """Where the run stands, for a replica that takes it over from this one."""
        return {
            "consumed": self.consumed,
            "tokens": self.tokens,
            "resumed_step": self.resumed_step,
            "saved_step": self.saving.saved_step,
            "sentinels": self.sentinels.to_json(),
            "best": self.best.to_json(),
            "best_before": self.best_before.to_json(),
        }

    def take_place(self, place: dict[str, Any]) -> None:
        self.consumed, self.tokens = place["consumed"], place["tokens"]
        self.resumed_step = place["resumed_step"]
        self.saving.resumed(place["saved_step"])
        self.sentinels.restore(place["sentinels"])
        self.best = BestState.from_json(place["best"])
        self.best_before = BestState.from_json(place["best_before"])

    def prepare(self) -> None:
        """In the warm-up: begins what the first save need not do then."""
        self._scalars(self.resumed_step)
        self.saving.prepare()

    def prepared(self) -> None:
        self.saving.prepared()

    def after(self, step: int, vote: Vote, last: bool) -> None:
        """Begins the saves that the vote asked for; the end of the run waits for its own."""
        self.saving.after(step, vote, last)

    def before_update(self) -> None:
        """Weights are about to change: what is still being copied of them must be through."""
        self.saving.before_update()

    def settle(self) -> None:
        """Returns when everything that was begun is safe."""
        self.saving.settle()

    def _scalars(self, step: int) -> dict[str, Any]:
        if not self._about:
            self._about = {
                "penstock": __version__,
                "torch": torch.__version__,
                "optimizer": self.run.train.optimizer,
                "layout": self.layout.to_json(),
                "fingerprint": fingerprint(self.run),
                "settings": settings(self.run),
                "plan": kept_of_plan(self.folder.read_plan()),
                "run": secret.visible_table(to_table(self.run)),
                "weights": self._shapes(),
            }
        return self._about | {
            "step": step,
            "updates": self.engine.optimizer.updates,
            "tokens": self.tokens_at(step),
            "stream": self.stream.state(self.position(step)),
            "sentinels": self.sentinels.to_json(),
            "best": self.best.to_json(),
        }

    def _saved(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """What a save copies: reshardable and replica-local."""
        found = self._state()
        if self.world.cuda:  # a forward pass may change these while they are still being copied
            buffers = self.engine.parts.named_buffers()
            found |= {f"model/{name}": found[f"model/{name}"].clone() for name in buffers}
        return found, self.engine.replicas.local_state()

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
        held = weights(self.engine.parts, self.engine.optimizer)
        return save_load.weights_hash(held, self.world, hashing=self.world.first_copy)
