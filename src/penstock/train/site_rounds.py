"""The agreement of a site with the others: between its leases, and nowhere else.

A site numbers its steps by the round in which its lease was granted, so the numbers of all sites
fit together: step (R - 1) × H + h is the h-th of a lease that was granted after round R. A number
is left out where a site was late.
"""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any

from torch import Tensor

from penstock.errors import PenstockError
from penstock.guard.checkpoints import steps_for_restart
from penstock.guard.tiers.identity import run_identity
from penstock.guard.tiers.stores import DiskStore
from penstock.ledger.journal.events import (
    BucketNotCleaned,
    SiteJoinedAnew,
    SiteLeaseLost,
    SiteRefused,
    SiteRound,
    StoreUnreachable,
    WarmUpSpan,
)
from penstock.meter.clock import StepClock, now
from penstock.policy.sites import LeaseCut, SitesRules
from penstock.run.fingerprint import fingerprint
from penstock.run.schema.sites import SitesSection
from penstock.train.batches import Batches, LeaseBatches
from penstock.train.optim.optimizer import Optimizer
from penstock.train.parallel.parts import ModelParts
from penstock.train.progress import Progress
from penstock.train.rank_context import RankContext
from penstock.train.replicas.outer import OuterStep
from penstock.train.replicas.reduce import REQUESTS, Vote
from penstock.train.sites.bucket import SitesBucket, SitesRun, open_place
from penstock.train.sites.lead import SiteLead
from penstock.train.sites.member import MergedRound, SiteMember, load_position, saved_position
from penstock.train.sites.objects import read_secret
from penstock.train.sites.weights import SiteWeights
from penstock.train.sites.whole import WholeModel


class RestartSteps:
    """The steps of the checkpoints that a restart of this site may go on from.

    A store may take long to list, so that is done aside: an answer may be old, and name more.
    """

    def __init__(self, find: Callable[[], list[int]]) -> None:
        self._find = find
        self._steps: list[int] | None = None
        self._search: threading.Thread | None = None

    def steps(self) -> list[int] | None:
        """Return all such steps by the last search, and begin the next one; None if not known."""
        if self._search is None or not self._search.is_alive():
            self._search = threading.Thread(target=self._look, daemon=True)
            self._search.start()
        return self._steps

    def _look(self) -> None:
        with contextlib.suppress(OSError):  # what was known before is still there, or later
            self._steps = self._find()


@dataclass
class SiteRounds:
    """The rounds of a site: `LocalSteps` where replicas meet in a bucket.

    The ranks of a site are one replica, laid out in any way, and take every step together. Rank 0
    alone talks to the bucket (`sites/lead.py`); after that the others take over where the site is.
    """

    rank: RankContext
    batches: Batches
    outer: OuterStep
    optimizer: Optimizer
    parts: ModelParts
    save_due: Callable[[int], bool] = lambda step: False  # by the number of a step alone
    back_before: int = field(default=0, init=False)
    _ended: int = field(default=0, init=False)  # the last step after which a round ended
    _resumed: bool = field(default=False, init=False)
    _begun: bool = field(default=False, init=False)
    _bytes: tuple[int, int] = field(default=(0, 0), init=False)
    _fed: LeaseBatches | None = field(default=None, init=False)  # what the feed reads
    _began_at: int = field(default=0, init=False)  # round: what it needs until it has saved

    def __post_init__(self) -> None:
        run, sites = self.rank.run, self._section
        sync = run.train.sync
        if not sync.apart or sync.stream > 1:
            raise PenstockError(
                f'train.sync.local_steps = "auto": {sync.local_steps} steps in {sync.stream} parts '
                "were chosen, and sites exchange the whole model after some steps; write "
                "local_steps = 30 and stream = 1"
            )
        self.cut = LeaseCut(self.batches.steps, sync.inner_steps, sites.count)
        world, parts = self.rank.world, self.parts
        whole = WholeModel(parts.trained(), parts.trained_names(), world, self.outer.codec.block)
        weights = self._weights = SiteWeights(self.outer, whole, self.rank.pulse.beat)
        self._lead = SiteLead(weights, world, self.rank.pulse.beat)
        rules = SitesRules(self.cut, sites.needed, sites.late, sites.grace)
        about = SitesRun(
            run=run.name,
            fingerprint=fingerprint(run),
            steps=self.cut.steps,
            length=self.cut.length,
            parts=self.cut.parts,
            bytes=weights.message_bytes,
            late=sites.late,
        )
        self.bucket = SitesBucket(
            place=open_place(sites.bucket, run.name),
            secret=read_secret(sites.secret) if world.lead else b"",
            site=sites.name,
            identity=run_identity(DiskStore(self.rank.folder.path), world),
            about=about,
            rules=rules,
            refuse=self._refused,
            check=weights.check,
            snapshot_sizes=weights.snapshot_sizes,
        )
        self.member = SiteMember(
            bucket=self.bucket,
            weights=self._lead.member_weights(),
            snapshot_every=sites.snapshot,
            merged=self._merged,
            dropped=self._dropped,
            joined=self._joined,
            unreachable=self._unreachable,
            not_cleaned=self._not_cleaned,
            work_published=lambda: self.rank.pulse.beside("site_published", self.rank.pulse.step),
            needs=self._needs,
            stops=self._stops,
        )
        self.batches.open_ended(self.cut)
        self._restarts = RestartSteps(lambda: steps_for_restart(self.rank.folder, run))

    @property
    def _section(self) -> SitesSection:
        assert self.rank.run.sites is not None
        return self.rank.run.sites

    def ends(self, step: int) -> bool:
        """Return whether a round ends with `step`."""
        lease = self.batches.lease
        return step == self._ended or (lease is not None and step == lease.last_step)

    def before(self, step: int) -> int:
        """Return the last step of the round before that of `step`."""
        lease = self.batches.lease
        return lease.first_step - 1 if lease and step <= lease.last_step else self._ended

    def begin_step(self, at: Progress) -> bool:
        """Make sure that there is a lease for the next step; return whether it is another one than
        the feed reads. Without one, what is left to do is `at.pending`.
        """
        lease = self.batches.lease
        if not self._begun or lease is None or at.step >= lease.last_step:
            start = now()
            self.rank.pulse.at("save")  # it may be long: a link, or another site, is slow
            if asked := self._meet_outside_a_step(at.step):
                at.pending = Vote(nan, nan, dict.fromkeys(REQUESTS, False) | asked)
            self.rank.journal.write_span(WarmUpSpan(parts={"sites": now() - start}), start, now())
        if self.batches.lease is None or self.batches.lease is self._fed:
            return False
        self._fed = self.batches.lease
        at.step = max(at.step, self._fed.first_step - 1)
        return True

    def _meet_outside_a_step(self, step: int) -> dict[str, bool]:
        """Find the run in the bucket, and a lease; return what else follows."""
        if not self._begun:
            if self._led(lambda: "" if self.member.begin(self._resumed) else "stop"):
                return {"stop": True}
            self._begun, self._began_at = True, self.member.here.at
            self.optimizer.copy_masters()
        lease = self.batches.lease
        if lease and step < lease.last_step:
            return {}  # resumed inside a round
        if lease:  # resumed where it ends
            self.member.trained()
        return self._advance(step)

    def close(self, step: int, vote: Vote, tokens: int, back_before: int, clock: StepClock) -> Vote:
        """Publish and merge where a lease ends; return what follows after `step`."""
        self.member.tokens += tokens
        self.back_before = 0
        lease = self.batches.lease
        assert lease is not None
        if step < lease.last_step:
            due = self.save_due(step)
            return replace(vote, requests=vote.requests | {"save": due, "busy": due})
        self._ended, self.back_before = step, back_before
        if back_before:
            return vote
        with clock.part("exchange"):
            self.rank.pulse.at("save")  # it may be long: a link, or another site, is slow
            self.member.trained()
            asked = self._advance(step)
            self.rank.pulse.at("updated")
        return replace(vote, requests=vote.requests | asked)

    def _advance(self, step: int) -> dict[str, bool]:
        """Meet the others until there is a lease to train on; return what else follows."""
        what = self._led(self._next)
        self.optimizer.copy_masters()
        if what == "end":
            self.batches.steps = step
            section = self.rank.run.evaluate
            held_out = self.batches.stream.held_out > 0
            return {
                "evaluate": section.every != "never" and held_out,
                "tasks": bool(section.tasks),
            }
        return {"stop": True} if what == "stop" else {}

    def _next(self) -> str:
        what = self.member.next()
        self._take_lease()
        return what

    def _led(self, ask: Callable[[], str]) -> str:
        """Return what the bucket answers rank 0, on all ranks, which then are where it is."""
        what, place = self._lead.run(ask, self.to_json)
        if place is not None:
            self._restore(place)
        return what

    def _take_lease(self) -> None:
        here, state = self.member.here, self.member.state
        if here.lease is None:
            self.batches.lease = None
            return
        first = (here.at - 1) * self.cut.length + 1
        known = LeaseBatches(
            here.lease.number, first, self.cut, state.done, max(1, len(state.held))
        )
        if known != self.batches.lease:
            self.batches.lease = known

    # What a checkpoint holds: the interface of `RoundExchange`.

    def to_json(self) -> dict[str, Any]:
        """Return what a checkpoint keeps besides tensors."""
        lease = self.batches.lease
        counts = None if lease is None else [lease.done, lease.active]
        place = saved_position(self.member) | {"counts": counts}
        return {"tokens": [self.member.tokens], "site": place}

    def resume(self, saved: dict[str, Any] | None) -> None:
        """Go on from loaded tensors; None: from weights of another run, as a new one begins."""
        self._weights.loaded()
        if saved is None or "site" not in saved:
            self.outer.restart()
            return
        self._restore(saved)
        self._resumed, self._fed = self.member.here.at > 0, None
        self._begun = False  # the rounds after it are to be found

    def _restore(self, saved: dict[str, Any]) -> None:
        """Be where `to_json` says."""
        load_position(self.member, saved["site"])
        here, counts = self.member.here, saved["site"]["counts"]
        known = None
        if here.lease and counts:
            first = (here.at - 1) * self.cut.length + 1
            known = LeaseBatches(here.lease.number, first, self.cut, *counts)
        if known != self.batches.lease:
            self.batches.lease = known

    def local_state(self) -> dict[str, Tensor]:
        """Return nothing: what is on its way is in the bucket."""
        return {}

    def load_local_state(self, state: dict[str, Tensor]) -> None:
        """Restore nothing."""

    def _needs(self) -> int | None:
        """Return the first round that a restart of this site begins from."""
        steps = self._restarts.steps()
        if not steps:
            return None if steps is None else self._began_at
        return min(self.member.here.at, (steps[0] - 1) // self.cut.length + 1)

    # What the journal is told.

    def _merged(self, done: MergedRound) -> None:
        sent, received = self._bytes
        self._bytes = done.sent_bytes, done.received_bytes
        self.rank.journal.write(
            SiteRound(
                number=done.number,
                by=done.by,
                sites=done.sites,
                sent_bytes=done.sent_bytes - sent,
                received_bytes=done.received_bytes - received,
                late={site: done.number - 1 - base for site, base in done.sites.items()},
            ),
            synced=False,
        )

    def _refused(self, site: str, why: str) -> None:
        self.rank.journal.write(SiteRefused(site=site, why=why))

    def _dropped(self, lease: int, number: int) -> None:
        self.rank.journal.write(SiteLeaseLost(lease=lease, number=number))

    def _joined(self, merged: int, number: int) -> None:
        self.batches.lease = None
        self.rank.journal.write(SiteJoinedAnew(merged=merged, number=number))

    def _not_cleaned(self, why: str) -> None:
        self.rank.journal.write(BucketNotCleaned(problem=why))

    def _unreachable(self, why: str) -> None:
        self.rank.journal.write(StoreUnreachable(problem=why))

    def _stops(self) -> bool:
        self.rank.pulse.beat()
        return self.rank.folder.control_requests()["stop"]
