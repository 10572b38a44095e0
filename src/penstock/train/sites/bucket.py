"""The bucket of a run's sites: its rounds, what sites published for them, and snapshots.

    rounds/000000                 the run: what all sites must agree on, and its first weights' hash
    rounds/000007                 a round: the publications that it merges, the hash of the weights
    published/000006/berlin       what a site says since round 6: its work, or that it is ready
    snapshots/000100              weights and outer momentum after a round

Every object is created once and never changed, so a round that two sites write at the same time is
that of the one who was first. Anything else under these names is refused by the name of its site,
once, and passed over.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from blake3 import blake3

from penstock.data.store.meeting_place import MeetingPlace, ObjectStore, SharedFolder
from penstock.data.store.objects import is_url
from penstock.errors import PenstockError, RunFailed
from penstock.policy.sites import Members, Publication, SitesRules, SitesState
from penstock.train.sites.objects import HEAD_BYTES, BadObject, NotSigned, seal, unseal

MOST_BAD = 100  # strangers' objects in the place of one round that are passed over
Refuse = Callable[[str, str], None]  # the site (or object), and why


@dataclass(frozen=True)
class SitesRun:
    """What all sites of a run must agree on: the table of round 0."""

    run: str  # name
    fingerprint: str
    steps: int
    length: int
    parts: int
    bytes: int  # of what a site publishes
    late: int


@dataclass
class SitesBucket:
    """The objects of one run's sites, as one site sees them."""

    place: MeetingPlace
    secret: bytes
    site: str
    identity: str  # of this site's run folder
    about: SitesRun
    rules: SitesRules
    refuse: Refuse
    check: Callable[[bytes], str]  # why the bytes of a publication cannot be merged; empty if so
    states: list[SitesState] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)  # tables, by number
    received_bytes: int = 0
    sent_bytes: int = 0
    _content: dict[str, bytes] = field(default_factory=dict)  # by hash: seen, and not merged yet
    # By site and round: what was read, None where it was refused for good.
    _seen: dict[tuple[str, int], Publication | None] = field(default_factory=dict)
    _refused: set[tuple[str, str]] = field(default_factory=set)

    def open(self, anchor: str) -> str:
        """Find the run, or begin it with first weights of this hash; return their hash there.

        With an empty `anchor` it must be there. Raises `PenstockError` if it is another run.
        """
        self._refuse_store_without_create()
        table = asdict(self.about) | {"kind": "run", "anchor": anchor}
        if anchor:
            self.place.create(_round(0, 0), seal(_round(0, 0), table, b"", self.secret))
        try:
            found, _ = self._get(_round(0, 0))
        except FileNotFoundError:
            raise RunFailed(
                f"{self.place}: the run of this site is not there: the bucket was emptied, or is "
                "another; put it back, or start a new run"
            ) from None
        except BadObject as error:
            raise PenstockError(
                f"{self.place}: round 0 there {error}; give all sites the same sites.secret, or "
                "name another sites.bucket"
            ) from None
        for name, own in asdict(self.about).items():
            if found.get(name) != own:
                raise PenstockError(
                    f"{self.place}: the sites there train another run: {name} is "
                    f"{found.get(name)!r} there and {own!r} here; put the run file back as it is "
                    "in the other sites, or name another sites.bucket"
                )
        self.states, self.rounds = [SitesState()], [found]
        return str(found["anchor"])

    @property
    def newest(self) -> SitesState:
        return self.states[-1]

    def read_rounds(self) -> None:
        """Read the rounds that were written since."""
        while (found := self._read_round(self.newest.number + 1)) is not None:
            number = self.newest.number + 1
            try:
                if found["before"] != self._hash_of_round(number - 1):
                    raise BadObject("does not follow the round before it")
                members = tuple(Publication(**one) for one in found["members"])
                state = self.newest.after(members, self.rules)
            except (KeyError, TypeError, ValueError) as error:
                raise RunFailed(
                    f"{self.place}: round {number} is signed and cannot be: {error}. Somebody who "
                    "knows the secret wrote it, or the bucket was emptied while sites were running"
                ) from None
            self.states.append(state)
            self.rounds.append(found)

    def members(self, number: int) -> Members:
        """Return what a round has merged."""
        return tuple(Publication(**one) for one in self.rounds[number]["members"])

    def anchor_before(self, number: int) -> str:
        """Return the hash of the weights that the site which wrote a round began it with."""
        return str(self.rounds[number]["anchor"])

    def write_round(self, members: Members, anchor: str) -> None:
        """Write the next round, unless another site was first."""
        number = self.newest.number + 1
        if self._read_round(number - 1) != self.rounds[number - 1]:
            raise RunFailed(
                f"{self.place}: round {number - 1} is not there as it was written; the bucket was "
                "emptied or changed while sites were running. Put it back, or start a new run"
            )
        table = {
            "kind": "round",
            "number": number,
            "by": self.site,
            "before": self._hash_of_round(number - 1),
            "members": [asdict(one) for one in members],
            "anchor": anchor,
        }
        self._create_round(number, table)

    def publish(self, said: Publication, payload: bytes) -> None:
        """Publish work on a lease, or that this site is ready for one."""
        table = asdict(said) | {"kind": "site", "by": self.identity, **self._run_fields()}
        del table["content"]
        name = _published(said.base, self.site)
        content = seal(name, table, payload, self.secret)
        if self.place.create(name, content):
            self.sent_bytes += len(content)
            return
        try:
            there, _ = unseal(name, self.place.get(name), self.secret)
        except BadObject as error:  # a stranger was first; no round can have taken that in
            self.refuse(self.site, f"{name} {error}")
            self.place.put(name, content)
            return
        if there.get("by") != self.identity:
            self.refuse(self.site, f"{name} is of another run folder with the same sites.name")

    def candidates(self) -> Members:
        """Return what the next round may merge."""
        state, found = self.newest, []
        bases = {own.base for own in state.held.values()} | {state.number}
        for base in sorted(bases):
            for name, size in self.place.list(f"published/{base:06d}").items():
                site = name.rpartition("/")[2]
                own = state.held.get(site)
                expected = own.base if own else state.number
                if base == expected and (said := self._look(site, base, size)):
                    if why := state.refusal(said):
                        self._refuse_once(site, f"{name} {why}")
                    found.append(said)
        return state.candidates(found)

    def content(self, said: Publication) -> bytes:
        """Return the bytes of a publication that a round has merged."""
        if said.content not in self._content:
            name = _published(said.base, said.site)
            _, payload = self._get(name)
            if blake3(payload).hexdigest() != said.content:
                raise RunFailed(f"{self.place}/{name} is not what its round has merged")
            self._content[said.content] = payload
        return self._content[said.content]

    def forget(self, said: Publication) -> None:
        """Drop the bytes of a publication that this site has merged."""
        self._content.pop(said.content, None)

    def put_snapshot(self, number: int, payload: bytes) -> None:
        """Store weights and momentum after a round, unless they are there."""
        name = f"snapshots/{number:06d}"
        table = {"kind": "snapshot", "number": number, **self._run_fields()}
        content = seal(name, table, payload, self.secret)
        if self.place.create(name, content):
            self.sent_bytes += len(content)

    def newest_snapshot(self) -> tuple[int, bytes] | None:
        """Return the newest snapshot of a round that was written, and its number."""
        for name in sorted(self.place.list("snapshots"), reverse=True):
            number = int(name.rpartition("/")[2])
            if number <= self.newest.number:
                try:
                    return number, self._get(name)[1]
                except BadObject as error:
                    self.refuse(name, str(error))
        return None

    def _look(self, site: str, base: int, size: int) -> Publication | None:
        """Return a publication that is good; refuse any other, once."""
        key = (site, base)
        if key in self._seen:
            return self._seen[key]
        said, why, final = None, "", True
        if size > HEAD_BYTES + self.about.bytes:
            why, final = f"has {size} bytes, and {self.about.bytes} are the most", False
        else:
            try:
                said = self._read_published(site, base)
            except FileNotFoundError:
                return None
            except BadObject as error:
                why, final = str(error), not isinstance(error, NotSigned)
        if final:
            self._seen[key] = said
        if why:
            self._refuse_once(site, f"{_published(base, site)} {why}")
        return said

    def _refuse_once(self, what: str, why: str) -> None:
        if (what, why) not in self._refused:
            self._refused.add((what, why))
            self.refuse(what, why)

    def _read_published(self, site: str, base: int) -> Publication:
        table, payload = self._get(_published(base, site))
        if table.get("fingerprint") != self.about.fingerprint:
            raise BadObject("is of a run with another fingerprint")
        lease = table.get("lease")
        same = (table.get("kind"), table.get("site"), table.get("base")) == ("site", site, base)
        if not same or not (lease is None or type(lease) is int):
            raise BadObject("does not say what its name says")
        if lease is None:
            return Publication(site, base, None)
        if len(payload) != self.about.bytes:
            raise BadObject(f"holds {len(payload)} bytes, and {self.about.bytes} were expected")
        if why := self.check(payload):
            raise BadObject(why)
        content = blake3(payload).hexdigest()
        self._content[content] = payload
        return Publication(site, base, lease, content)

    def _get(self, name: str) -> tuple[dict[str, Any], bytes]:
        content = self.place.get(name)
        self.received_bytes += len(content)
        return unseal(name, content, self.secret)

    def _run_fields(self) -> dict[str, str]:
        return {"run": self.about.run, "fingerprint": self.about.fingerprint}

    def _read_round(self, number: int) -> dict[str, Any] | None:
        """Return the table of a round, or None if it was not written yet."""
        for tried in range(MOST_BAD):
            try:
                return self._get(_round(number, tried))[0]
            except FileNotFoundError:
                return None
            except BadObject as error:
                self._refuse_once(_round(number, tried), str(error))
        raise RunFailed(f"{self.place}: {MOST_BAD} bad objects in the place of round {number}")

    def _create_round(self, number: int, table: dict[str, Any]) -> None:
        """Write a round under its first name that no stranger has taken."""
        for tried in range(MOST_BAD):
            name = _round(number, tried)
            content = seal(name, table, b"", self.secret)
            if self.place.create(name, content):
                self.sent_bytes += len(content)
                return
            try:
                self._get(name)
                return  # another site was first
            except BadObject:
                continue
        raise RunFailed(f"{self.place}: {MOST_BAD} bad objects in the place of round {number}")

    def _hash_of_round(self, number: int) -> str:
        return blake3(json.dumps(self.rounds[number], sort_keys=True).encode()).hexdigest()

    def _refuse_store_without_create(self) -> None:
        """Refuse a store that writes over an object which must only be created."""
        name = f"probe/{self.site}"
        self.place.put(name, b"probe")
        if self.place.create(name, b"again"):
            raise PenstockError(
                f"{self.place}: the store writes over objects that exist where it was asked not to "
                "(If-None-Match); sites need a store that can refuse that: S3, GCS, Azure, Ceph "
                "without versioning, or a folder"
            )


def open_place(bucket: str, run: str) -> MeetingPlace:
    """Return the place that `sites.bucket` names, for one run."""
    if is_url(bucket):
        return ObjectStore(f"{bucket.rstrip('/')}/{run}")
    return SharedFolder(Path(bucket).expanduser() / run)


def _round(number: int, tried: int) -> str:
    return f"rounds/{number:06d}" + (f".{tried}" if tried else "")


def _published(base: int, site: str) -> str:
    return f"published/{base:06d}/{site}"
