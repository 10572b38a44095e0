"""The bucket of a run's sites: its rounds, what sites published for them, and snapshots.

    rounds/000000                 the run: what all sites must agree on, and its first weights' hash
    rounds/000007                 a round: the publications that it merges, the hash of the weights,
                                  and what follows (who holds which lease)
    published/000006/berlin       what a site says since round 6: its work, or that it is ready
    snapshots/000100              weights and outer momentum after a round
    snapshots/000100.part3        the same of a large model; then 000100 names the hashes of parts

Every object is created once and never changed, so a round that two sites write at the same time is
that of the one who was first. Anything else under these names is refused by the name of its site,
once, and passed over.

Old objects are deleted by the site that wrote the newest round, once that round says that nobody
needs them (`SitesState.floor`). Rounds go in their order, so a round that is there has all later
ones after it; only round 0 stays. A site that finds the round that it knows as the newest gone has
been away for too long: it joins anew (`RoundsGone`).
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from blake3 import blake3

from penstock.data.store.meeting_place import MeetingPlace, ObjectStore, SharedFolder
from penstock.data.store.objects import ObjectTooLarge, is_url
from penstock.errors import PenstockError, RunFailed
from penstock.policy.sites import Members, Publication, SitesRules, SitesState
from penstock.train.sites.objects import HEAD_BYTES, BadObject, NotSigned, seal, unseal

MOST_ROUND_BYTES = 16 << 20  # of the record of a round: about 200 for each site
MOST_BAD = 100  # strangers' objects in the place of one round that are passed over
MOST_DELETED = 8  # rounds that are deleted at a time, so that a site does not wait for it long
Refuse = Callable[[str, str], None]  # the site (or object), and why


class RoundsGone(Exception):
    """Rounds that this site has not merged were deleted: it has been away for too long."""


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
    snapshot_sizes: list[int]  # bytes of its parts
    # After each round that this site knows, in order: what follows from it, and its table.
    states: list[SitesState] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
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
            found, _ = self._get(_round(0, 0), MOST_ROUND_BYTES)
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

    def begin_at(self, number: int) -> bool:
        """Know the rounds from `number` on; False if its record was deleted, or never written.

        `open` comes first.
        """
        if number == 0:
            return True
        found = self._read_round(number)
        if found is None:
            return False
        if "state" in found:
            self.states, self.rounds = [self._state_in(found, number)], [found]
            return True
        self.read_rounds()  # of an earlier version, which deleted none
        return self.newest.number >= number

    @property
    def newest(self) -> SitesState:
        return self.states[-1]

    def state(self, number: int) -> SitesState:
        """Return what follows from a round."""
        return self.states[self._at(number)]

    def read_rounds(self) -> None:
        """Read the rounds that were written since."""
        while (found := self._read_round(self.newest.number + 1)) is not None:
            number = self.newest.number + 1
            try:
                if found["before"] != self._hash_of_round(number - 1):
                    raise BadObject("does not follow the round before it")
                members = tuple(Publication(**one) for one in found["members"])
                state = self.newest.after(members, self.rules)
                if found.get("state", state.to_json()) != state.to_json():
                    raise BadObject("says that other leases follow from it")
            except (KeyError, TypeError, ValueError) as error:
                raise RunFailed(
                    f"{self.place}: round {number} is signed and cannot be: {error}. Somebody who "
                    "knows the secret wrote it, or the bucket was emptied while sites were running"
                ) from None
            self.states.append(state)
            self.rounds.append(found)

    def members(self, number: int) -> Members:
        """Return what a round has merged."""
        return tuple(Publication(**one) for one in self.rounds[self._at(number)]["members"])

    def writer(self, number: int) -> str:
        """Return the site that wrote a round."""
        return str(self.rounds[self._at(number)]["by"])

    def anchor_before(self, number: int) -> str:
        """Return the hash of the weights that the site which wrote a round began it with."""
        return str(self.rounds[self._at(number)]["anchor"])

    def check_newest(self) -> None:
        """Raise `RoundsGone` if rounds were written after the newest that this site knows, and are
        deleted already; `RunFailed` if the bucket was changed otherwise.
        """
        number = self.newest.number
        found = self._read_round(number)
        if number and found == self.rounds[-1]:
            return
        self.check_end()
        if found is None and self._read_round(number + 1) is not None:
            return  # it was deleted, and what comes next is to be read
        if found != self.rounds[-1]:
            raise RunFailed(
                f"{self.place}: round {number} is not there as it was written; the bucket was "
                "emptied or changed while sites were running. Put it back, or start a new run"
            )

    def check_end(self) -> None:
        """Raise `RoundsGone` if rounds are missing between the newest that this site knows and a
        later one.
        """
        there = {_number_in(name) for name in self.place.list("rounds")}
        missing = self.newest.number + 1
        while missing in there:
            missing += 1
        if any(self._read_round(n) is not None for n in sorted(there) if n > missing):
            raise RoundsGone(f"round {missing} was deleted")

    def write_round(self, members: Members, anchor: str) -> None:
        """Write the next round, unless another site was first."""
        number = self.newest.number + 1
        table = {
            "kind": "round",
            "number": number,
            "by": self.site,
            "before": self._hash_of_round(number - 1),
            "members": [asdict(one) for one in members],
            "anchor": anchor,
            "state": self.newest.after(members, self.rules).to_json(),
        }
        self._create_round(number, table)
        self.check_newest()  # what was written into a gap is no round, and is never read

    def publish(self, said: Publication, payload: bytes) -> bytes:
        """Publish work on a lease, or that this site is ready for one; return what is published.

        That is an earlier payload if this site was restarted since: in another layout, or on a
        GPU, steps that are taken again may be rounded otherwise.
        """
        table = asdict(said) | {"kind": "site", "by": self.identity, **self._run_fields()}
        del table["content"]
        name = _published(said.base, self.site)
        content = seal(name, table, payload, self.secret)
        if self.place.create(name, content):
            self.sent_bytes += len(content)
            return payload
        try:
            there, earlier = self._get(name, self._most_published)
        except BadObject as error:  # a stranger was first; no round can have taken that in
            self.refuse(self.site, f"{name} {error}")
            self.place.put(name, content)
            return payload
        if there.get("by") != self.identity:
            self.refuse(self.site, f"{name} is of another run folder with the same sites.name")
        elif payload and not self.check(earlier):
            return earlier
        return payload

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
            try:
                _, payload = self._get(name, self._most_published)
            except FileNotFoundError:
                raise RoundsGone(f"{name} was deleted") from None
            except BadObject as error:
                raise RunFailed(f"{self.place}/{name} was merged by a round, and {error}") from None
            if blake3(payload).hexdigest() != said.content:
                raise RunFailed(f"{self.place}/{name} is not what its round has merged")
            self._content[said.content] = payload
        return self._content[said.content]

    def forget(self, said: Publication) -> None:
        """Drop the bytes of a publication that this site has merged."""
        self._content.pop(said.content, None)

    def put_snapshot(self, number: int, part: Callable[[int], bytes]) -> None:
        """Store weights and momentum after a round, unless they are there; `part` gives a part.

        One of several parts is a snapshot once its last object is there, which names the others.
        """
        about = {"kind": "snapshot", "number": number, **self._run_fields()}
        if len(self.snapshot_sizes) == 1:
            self._put_snapshot_object(_snapshot(number), about, part(0))
            return
        hashes = []
        for which in range(len(self.snapshot_sizes)):
            payload = part(which)
            hashes.append(blake3(payload).hexdigest())
            self._put_snapshot_object(_snapshot(number, which), about | {"part": which}, payload)
        self._put_snapshot_object(_snapshot(number), about | {"parts": hashes}, b"")

    def _put_snapshot_object(self, name: str, table: dict[str, Any], payload: bytes) -> None:
        content = seal(name, table, payload, self.secret)
        if not self.place.create(name, content):
            try:
                self._get(name, self._most_snapshot)  # by this site, before it was restarted
                return
            except BadObject as error:  # a stranger was first
                self._refuse_once(name, str(error))
                self.place.put(name, content)
        self.sent_bytes += len(content)

    def begin_at_snapshot(self, load: Callable[[int, bytes], None]) -> int | None:
        """Know the rounds from that of the newest snapshot on, and load its parts; return its
        number, or None if there is none."""
        sizes = {
            int(name.rpartition("/")[2]): size
            for name, size in self.place.list("snapshots").items()
            if name.rpartition("/")[2].isdecimal()
        }
        for number in sorted(sizes, reverse=True):
            name = _snapshot(number)
            try:
                if sizes[number] > self._most_snapshot:
                    raise _too_large(sizes[number], self._most_snapshot)
                if self.begin_at(number):
                    for which, payload in self._snapshot_parts(number):
                        load(which, payload)
                    return number
            except BadObject as error:
                self._refuse_once(name, str(error))
            except FileNotFoundError:
                continue  # deleted since it was listed
        return None

    def _snapshot_parts(self, number: int) -> Iterator[tuple[int, bytes]]:
        """Yield the parts of a snapshot; none of them if it does not name as many as expected."""
        table, payload = self._get(_snapshot(number), self._most_snapshot)
        hashes = table.get("parts")
        if hashes is None:
            yield 0, payload
            return
        if not isinstance(hashes, list) or len(hashes) != len(self.snapshot_sizes):
            raise BadObject(f"does not name {len(self.snapshot_sizes)} parts")
        for which, expected in enumerate(hashes):
            _, payload = self._get(_snapshot(number, which), self._most_snapshot)
            if blake3(payload).hexdigest() != expected:
                raise BadObject(f"has another part {which} than it names")
            yield which, payload

    def clean(self) -> None:
        """Delete what nobody needs after the newest round: the oldest first, some at a time.

        The newest round names the snapshots that stay, and they are there; so a site that is killed
        at any point here leaves nothing missing. The writer of the next round goes on.
        """
        state = self.newest
        at_floor = self._state_after(state.floor)
        if not state.floor or at_floor is None:
            return
        for name in self.place.list("snapshots"):
            if _number_in(name) < state.snapshots[0]:
                self.place.delete(name)
        records: dict[int, list[str]] = {}
        for name in self.place.list("rounds"):
            if 0 < _number_in(name) < state.kept_from(at_floor):
                records.setdefault(_number_in(name), []).append(name)
        for number in sorted(records)[:MOST_DELETED]:
            for name in self.place.list(f"published/{number - 1:06d}"):
                self.place.delete(name)
            for name in records[number]:
                self.place.delete(name)

    def _state_after(self, number: int) -> SitesState | None:
        """Return what follows from a round that this process may not have read."""
        if number >= self.states[0].number:
            return self.state(number)
        found = self._read_round(number)
        return None if found is None or "state" not in found else self._state_in(found, number)

    def _state_in(self, found: dict[str, Any], number: int) -> SitesState:
        try:
            return SitesState.from_json(found["state"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunFailed(
                f"{self.place}: round {number} is signed and cannot be: {error!r}. Somebody who "
                "knows the secret wrote it"
            ) from None

    def _at(self, number: int) -> int:
        first = self.states[0].number
        assert number >= first, f"round {number}, and {first} is the first that is known"
        return number - first

    def _look(self, site: str, base: int, size: int) -> Publication | None:
        """Return a publication that is good; refuse any other, once."""
        key = (site, base)
        if key in self._seen:
            return self._seen[key]
        said, why, final = None, "", True
        if size > self._most_published:
            why, final = str(_too_large(size, self._most_published)), False
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
        table, payload = self._get(_published(base, site), self._most_published)
        if table.get("fingerprint") != self.about.fingerprint:
            raise BadObject("is of a run with another fingerprint")
        lease, needs, snapshot = (table.get(name) for name in ("lease", "needs", "snapshot"))
        same = (table.get("kind"), table.get("site"), table.get("base")) == ("site", site, base)
        if not same or not all(_is_number(one) for one in (lease, needs, snapshot)):
            raise BadObject("does not say what its name says")
        if lease is None:
            return Publication(site, base, None, "", needs, snapshot)
        if len(payload) != self.about.bytes:
            raise BadObject(f"holds {len(payload)} bytes, and {self.about.bytes} were expected")
        if why := self.check(payload):
            raise BadObject(why)
        content = blake3(payload).hexdigest()
        self._content[content] = payload
        return Publication(site, base, lease, content, needs, snapshot)

    @property
    def _most_published(self) -> int:
        return HEAD_BYTES + self.about.bytes

    @property
    def _most_snapshot(self) -> int:
        return HEAD_BYTES + max(self.snapshot_sizes)

    def _get(self, name: str, most_bytes: int) -> tuple[dict[str, Any], bytes]:
        """Return an object of this run. Any other is `BadObject`; a larger one is not read."""
        try:
            content = self.place.get(name, most_bytes)
        except ObjectTooLarge as error:
            raise _too_large(error.size, most_bytes) from None
        self.received_bytes += len(content)
        return unseal(name, content, self.secret, most_bytes)

    def _run_fields(self) -> dict[str, str]:
        return {"run": self.about.run, "fingerprint": self.about.fingerprint}

    def _read_round(self, number: int) -> dict[str, Any] | None:
        """Return the table of a round, or None if it was not written yet."""
        for tried in range(MOST_BAD):
            try:
                return self._get(_round(number, tried), MOST_ROUND_BYTES)[0]
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
                self._get(name, MOST_ROUND_BYTES)
                return  # another site was first
            except BadObject:
                continue
        raise RunFailed(f"{self.place}: {MOST_BAD} bad objects in the place of round {number}")

    def _hash_of_round(self, number: int) -> str:
        table = self.rounds[self._at(number)]
        return blake3(json.dumps(table, sort_keys=True).encode()).hexdigest()

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


def _snapshot(number: int, part: int | None = None) -> str:
    return f"snapshots/{number:06d}" + ("" if part is None else f".part{part}")


def _number_in(name: str) -> int:
    """Return the number of a round or a snapshot by its name; -1 for a stranger's name."""
    written = name.rpartition("/")[2].partition(".")[0]
    return int(written) if written.isdecimal() else -1


def _too_large(size: int, most: int) -> NotSigned:
    return NotSigned(f"has {size} bytes, and {most} are the most")


def _is_number(value: object) -> bool:
    return value is None or (type(value) is int and value >= 0)
