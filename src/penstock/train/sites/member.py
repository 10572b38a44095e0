"""What a site does between its steps: publish, write rounds, merge them, and get its next lease.

Nothing here runs while a site trains on its lease. `policy/sites.py` decides; a bucket that does
not answer is asked again until it does.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from penstock.errors import PenstockError, RunFailed
from penstock.policy import sites as policy
from penstock.policy.sites import SiteAction, SiteLease, SitePosition, SitesState
from penstock.train.sites.bucket import RoundsGone, SitesBucket
from penstock.train.sites.weights import MemberWeights

LONGEST_PAUSE_S = 2.0
Answer = TypeVar("Answer")


@dataclass
class SiteMember:
    """One site among those that meet in a bucket."""

    bucket: SitesBucket
    weights: MemberWeights
    snapshot_every: int
    merged: Callable[["MergedRound"], None]  # is told of every round
    dropped: Callable[[int, int], None]  # of a lease that was given out again: number, round
    joined: Callable[[int, int], None]  # of a jump over rounds that are deleted: from, to
    unreachable: Callable[[str], None]
    not_cleaned: Callable[[str], None]
    work_published: Callable[[], None]
    needs: Callable[[], int | None]  # first round that a restart begins from; None: not known
    stops: Callable[[], bool]  # asked while it waits
    here: SitePosition = field(default_factory=SitePosition)
    tokens: int = 0  # trained on since the lease was granted
    published: bool = False  # what it owes is counted for the work on its lease
    snapshot: int | None = None  # the newest that it has put into the bucket
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _quorum_since: tuple[int, float] | None = None  # round, own clock
    _said_unreachable: str = ""
    _said_not_cleaned: str = ""

    @property
    def site(self) -> str:
        return self.bucket.site

    @property
    def state(self) -> SitesState:
        """What followed from the round that this site has merged last."""
        return self.bucket.state(self.here.at)

    @property
    def finished(self) -> bool:
        return self.state.finished(self.bucket.rules)

    def begin(self, resumed: bool) -> bool:
        """Find the run in the bucket, or begin it; False if asked to stop meanwhile.

        A site that has nothing of its own starts from what is published.
        """
        return self._patiently(lambda: self._begin(resumed)) is not None

    def _begin(self, resumed: bool) -> bool:
        bucket, own = self.bucket, self.weights.anchor_hash()
        first = bucket.open("" if resumed else own)
        try:
            if resumed:
                self._find_round()
            elif not self._begin_at_snapshot() and first != own:
                raise PenstockError(
                    f"{bucket.place}: the other sites began with other weights than this one, and "
                    "there is no snapshot yet to start from; lower sites.snapshot in a site that "
                    "runs, or wait for its next one"
                )
            bucket.read_rounds()
            bucket.check_end()
        except RoundsGone as gone:
            self._join_anew(str(gone))
        if not resumed:
            self.weights.adopt()
        return True

    def _find_round(self) -> None:
        """Find the round that this site has merged last in the bucket."""
        bucket, at = self.bucket, self.here.at
        if not bucket.begin_at(at):
            bucket.check_end()
            raise RunFailed(
                f"{bucket.place}: this site has merged round {at}, and it is not in the bucket: it "
                "was emptied or is another"
            )

    def _begin_at_snapshot(self) -> bool:
        """Start from the newest snapshot; False if there is none."""
        number = self.bucket.begin_at_snapshot(self.weights.load_snapshot)
        if number is None:
            return False
        self.bucket.read_rounds()
        newest = self.bucket.newest
        # A lease that a site of this name holds is still its own. With rounds to merge that is
        # found out later.
        self.here = SitePosition(
            number, newest.held.get(self.site) if newest.number == number else None
        )
        return True

    def _join_anew(self, why: str) -> None:
        """Go on from the newest snapshot, as a new site does: rounds that it lacks are gone."""
        began = self.here.at
        if not self._begin_at_snapshot() or self.here.at <= began:
            raise RunFailed(
                f"{self.bucket.place}: {why} and this site has merged round {began} last, but "
                "there is no snapshot of a later round to go on from. Put the bucket back as it "
                "was, or start a new run"
            )
        self.weights.adopt()
        self.tokens, self.published = 0, False
        self.joined(began, self.here.at)

    def trained(self) -> None:
        """Note that all steps of the lease are taken."""
        self.here = replace(self.here, trained=True)

    def next(self) -> str:
        """Return "train" when this site holds a lease to train on, "end" when the run is over, or
        "stop" when it was asked to stop while it waited.
        """
        waits = 0.05
        while True:
            action = self._patiently(self._step)
            if action is None:
                return "stop"
            if action.kind in ("train", "end"):
                return action.kind
            if action.kind == "move":
                waits = 0.05
                continue
            if self.stops():
                return "stop"
            self.sleep(waits)
            waits = min(LONGEST_PAUSE_S, waits * 1.1)

    def _step(self) -> SiteAction:
        try:
            self.bucket.read_rounds()
            action = policy.next_action(self.site, self.here, self.bucket.states, self.bucket.rules)
            if action.kind == "move":
                self._move(action)
            elif action.kind == "meet":
                self._meet()
        except RoundsGone as gone:
            self._join_anew(str(gone))
            return SiteAction("move", self.here.at)
        return action

    def _meet(self) -> None:
        """Publish, and write the next round when it is time."""
        self.bucket.check_newest()
        said = policy.publication(self.site, self.here)
        said = replace(said, needs=self.needs(), snapshot=self.snapshot)
        if said.lease is None:
            self.bucket.publish(said, b"")
        elif not self.published:
            published = self.bucket.publish(said, self.weights.message(self.tokens))
            self.weights.keep_owed(published)
            self.published = True
            self.work_published()
        found, rules = self.bucket.candidates(), self.bucket.rules
        number, now = self.bucket.newest.number, self.clock()
        if len(found) < rules.needed:
            self._quorum_since = None
            return
        if self._quorum_since is None or self._quorum_since[0] != number:
            self._quorum_since = number, now
        if self.bucket.newest.closes(found, now - self._quorum_since[1], rules):
            self.bucket.write_round(found, self._newest_hash())

    def _newest_hash(self) -> str:
        """Return the hash of the weights after the newest round; empty if this site is behind."""
        return self.weights.anchor_hash() if self.here.at == self.bucket.newest.number else ""

    def _move(self, action: SiteAction) -> None:
        began = self.here
        if began.trained and not self.published and not action.dropped:
            # Work that was done again after a restart: its first publication is merged already.
            merged = self.bucket.members(action.to)
            own = next(one for one in merged if one.site == self.site)
            self.weights.keep_owed(self.bucket.content(own))
            self.published = True
        for number in range(self.here.at + 1, action.to + 1):
            self._merge(number)
        self.weights.adopt()
        if action.dropped and began.lease:
            self.dropped(began.lease.number, action.to)
        self.here = policy.moved(self.here, action)
        self.tokens, self.published = 0, False
        if self.bucket.writer(action.to) == self.site:
            self._clean()

    def _clean(self) -> None:
        """Delete what no site needs any more; what cannot be deleted now may be later."""
        try:
            self.bucket.clean()
            self._said_not_cleaned = ""
        except OSError as error:
            if not self._said_not_cleaned:
                self._said_not_cleaned = str(error)
                self.not_cleaned(str(error))

    def _merge(self, number: int) -> None:
        bucket, members = self.bucket, self.bucket.members(number)
        before, own = bucket.anchor_before(number), self.weights.anchor_hash()
        by = bucket.writer(number)
        if before and before != own:
            raise RunFailed(
                f"{bucket.place}: site {by} wrote round {number} from other weights than those of "
                "this site after the same rounds: one of them computes wrong"
            )
        work = [one for one in members if one.lease is not None]
        if work:
            payloads = [bucket.content(one) for one in work]
            self.weights.merge(payloads, bucket.state(number).share)
            for one in work:
                bucket.forget(one)
        self.here = replace(self.here, at=number)  # what follows may fail, and is not made again
        newer = number > max(bucket.newest.snapshots, default=0)  # else it is there already
        if number % self.snapshot_every == 0 and by == self.site and newer:
            with contextlib.suppress(OSError):  # newcomers start from the one before
                bucket.put_snapshot(number, self.weights.snapshot)
                self.snapshot = number
        self.merged(
            MergedRound(
                number=number,
                by=by,
                sites={one.site: one.base for one in members if one.lease is not None},
                sent_bytes=bucket.sent_bytes,
                received_bytes=bucket.received_bytes,
            )
        )

    def _patiently(self, ask: Callable[[], Answer]) -> Answer | None:
        """Return what the bucket answers, once it does; None if asked to stop meanwhile."""
        while True:
            try:
                found = ask()
                self._said_unreachable = ""
                return found
            except PermissionError as error:
                raise PenstockError(f"sites.bucket: {error}") from None
            except OSError as error:
                if not self._said_unreachable:
                    self._said_unreachable = str(error)
                    self.unreachable(str(error))
                if self.stops():
                    return None
                self.sleep(LONGEST_PAUSE_S)


@dataclass(frozen=True)
class MergedRound:
    """A round that a site has merged. Bytes are those of this process so far."""

    number: int
    by: str
    sites: dict[str, int]  # whose work it is, and the round in which its lease was granted
    sent_bytes: int
    received_bytes: int


def saved_position(member: SiteMember) -> dict[str, object]:
    """Return what a checkpoint keeps of a site's place in the run."""
    lease = member.here.lease
    return {
        "at": member.here.at,
        "lease": None if lease is None else [lease.number, lease.base, lease.age_from],
        "trained": member.here.trained,
        "tokens": member.tokens,
        "published": member.published,
    }


def load_position(member: SiteMember, saved: dict[str, object]) -> None:
    """Restore what `saved_position` returned."""
    lease = saved["lease"]
    own = SiteLease(*lease) if isinstance(lease, list) else None
    member.here = SitePosition(int(str(saved["at"])), own, bool(saved["trained"]))
    member.tokens, member.published = int(str(saved["tokens"])), bool(saved["published"])
