"""Sites as threads over a folder: real objects, equal weights, attacks, and sites that die."""

import json
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.data.store.meeting_place import SharedFolder
from penstock.errors import PenstockError
from penstock.policy.sites import LeaseCut, SiteLease, SitePosition, SitesRules
from penstock.train.codecs.codec import build_codec
from penstock.train.optim.nesterov import Nesterov
from penstock.train.replicas.outer import HEADER, OuterStep
from penstock.train.sites import objects
from penstock.train.sites.bucket import SitesBucket, SitesRun
from penstock.train.sites.member import (
    MergedRound,
    SiteMember,
    load_position,
    saved_position,
)
from penstock.train.sites.weights import SiteWeights

SECRET = b"a secret that all of them share"
CUT = LeaseCut(steps=12, length=3, parts=2)
Weights = dict[str, torch.Tensor]


class Alone:
    """The transport of a site's outer step, which sends nothing by itself."""

    replica, replicas = 0, 1

    def begin(self, content: torch.Tensor) -> Any:
        raise AssertionError


def outer_step(codec: str = "int4") -> OuterStep:
    generator = torch.Generator().manual_seed(0)
    weights = {n: torch.randn(k, 7, generator=generator) for n, k in (("a", 40), ("b", 3))}
    return OuterStep(weights, build_codec(codec), Nesterov(0.9, 0.3), Alone())


def train_on(weights: Weights, lease: int) -> None:
    """Take the steps of a lease: any function of the weights and the lease."""
    generator = torch.Generator().manual_seed(lease)
    for weight in weights.values():
        weight.mul_(0.95).add_(torch.randn(weight.shape, generator=generator), alpha=0.1)


class Site:
    """A site, what it was told, and a thread that trains."""

    def __init__(self, folder: Path, name: str, offset_s: float = 0.0, **rules: Any) -> None:
        self.name, self.folder = name, folder
        self.refused: list[tuple[str, str]] = []
        self.rounds: list[MergedRound] = []
        self.leases: list[int] = []
        self.stopped = threading.Event()
        self.outer = outer_step(rules.pop("codec", "int4"))
        weights = SiteWeights(self.outer)
        own = SitesRules(CUT, **({"needed": 1, "late": 2, "grace_s": 0.5} | rules))
        about = SitesRun(
            "run", "f" * 64, CUT.steps, CUT.length, CUT.parts, weights.message_bytes, own.late
        )
        bucket = SitesBucket(
            place=SharedFolder(folder),
            secret=SECRET,
            site=name,
            identity=f"folder of {name}",
            about=about,
            rules=own,
            refuse=lambda site, why: self.refused.append((site, why)),
            check=weights.check,
        )
        self.member = SiteMember(
            bucket=bucket,
            weights=weights,
            snapshot_every=2,
            merged=self.rounds.append,
            dropped=lambda lease, number: None,
            unreachable=lambda why: None,
            stops=self.stopped.is_set,
            clock=lambda: time.monotonic() + offset_s,
        )

    def live(self, leases: int = 100, resumed: bool = False) -> str:
        """Train until the end, or until so many leases are done; return how it went."""
        self.member.begin(resumed)
        while (what := self.member.next()) == "train":
            if leases == len(self.leases):
                return "dead"
            lease = self.member.here.lease
            assert lease is not None
            train_on(dict(self.outer.weights), lease.number)
            self.leases.append(lease.number)
            self.member.tokens += 10
            self.member.trained()
        return what


def together(*lives: Callable[[], Any]) -> None:
    failed: list[BaseException] = []

    def guarded(life: Callable[[], Any]) -> None:
        try:
            life()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(life,), daemon=True) for life in lives]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if failed:
        raise failed[0]


def reference(codec: str) -> torch.Tensor:
    """Return the weights of two replicas that exchange directly."""
    first, second = outer_step(codec), outer_step(codec)
    for block in range(4):
        messages = []
        for part, own in enumerate((first, second)):
            train_on(dict(own.weights), 2 * block + part)
            message, owed = own.encode(0, 10)
            own.keep_owed(0, owed)
            messages.append(message)
        for own in (first, second):
            own.merge(messages, 1.0)
            own.adopt()
    return first.anchor


@pytest.mark.parametrize("codec", ["none", "int2"])
def test_two_sites_come_to_the_weights_of_two_replicas(tmp_path: Path, codec: str) -> None:
    """Their clocks are ten minutes apart, which nobody notices."""
    a = Site(tmp_path, "a", codec=codec, grace_s=60.0)
    b = Site(tmp_path, "b", codec=codec, grace_s=60.0, offset_s=-600.0)
    together(a.live, b.live)
    assert a.leases == [0, 2, 4, 6]
    assert b.leases == [1, 3, 5, 7]
    assert torch.equal(a.outer.anchor, b.outer.anchor)
    assert torch.equal(a.outer.anchor, reference(codec))
    assert torch.equal(a.outer.weights["a"], b.outer.weights["a"])
    assert a.refused == b.refused == []
    assert [one.sites for one in a.rounds[1:]] == [{"a": n, "b": n} for n in range(1, 5)]


def test_a_site_dies_another_joins_and_all_is_trained_on_once(tmp_path: Path) -> None:
    a, b = Site(tmp_path, "a"), Site(tmp_path, "b")
    together(a.live, lambda: b.live(leases=1))
    c = Site(tmp_path, "c")
    c.outer.weights["a"].add_(1.0)  # what a newcomer begins with is not what the run began with
    c.outer.anchor.add_(1.0)
    assert c.live() == "end"
    assert torch.equal(a.outer.anchor, c.outer.anchor)
    merged = {lease for site in (a, b) for lease in site.leases}
    assert merged == set(range(8))
    assert c.leases == []


def test_a_restarted_site_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    a = Site(tmp_path / "x", "a", grace_s=60.0)
    b = Site(tmp_path / "x", "b", grace_s=60.0)
    again = Site(tmp_path / "x", "b", grace_s=60.0)

    def dies_and_returns() -> None:
        assert b.live(leases=1) == "dead"
        saved = json.loads(json.dumps(saved_position(b.member)))
        outer = again.outer
        for name in ("anchor", "velocity", "owed"):
            getattr(outer, name).copy_(getattr(b.outer, name))
        for name, weight in b.outer.weights.items():
            outer.weights[name].copy_(weight)
        b.live(leases=2, resumed=True)  # what comes after the save is lost, and done again
        load_position(again.member, saved)
        assert again.live(resumed=True) == "end"

    together(a.live, dies_and_returns)
    assert torch.equal(again.outer.anchor, reference("int4"))


def forged(
    folder: Site, name: str, secret: bytes = SECRET, payload: bytes = b"", **more: Any
) -> None:
    """Put an object into the bucket that looks like one of a site."""
    about = folder.member.bucket.about
    table = {"kind": "site", "by": "x", "run": "run", "fingerprint": about.fingerprint} | more
    SharedFolder(folder.folder).put(name, objects.seal(name, table, payload, secret))


def poison(site: Site, kind: str) -> None:
    """Attack the run as a member named "evil" that holds a lease, or as a stranger."""
    place, size = SharedFolder(site.folder), site.member.bucket.about.bytes
    name, work = "published/000001/evil", {"site": "evil", "base": 1, "lease": 0}
    good = HEADER.pack(10) + bytes(size - HEADER.size)
    bad = HEADER.pack(10) + b"\xff" * (size - HEADER.size)
    if kind == "unsigned":
        place.put(name, b"weights")
    elif kind == "oversized":
        place.put(name, bytes(10 * size + (1 << 17)))
    elif kind == "another secret":
        forged(site, name, b"another secret", good, **work)
    elif kind == "nan":
        forged(site, name, payload=bad, **work)
    elif kind == "shape":
        forged(site, name, payload=good[:-1], **work)
    elif kind == "fingerprint":
        forged(site, name, payload=good, **(work | {"fingerprint": "0" * 64}))
    elif kind == "replayed":
        other = "published/000000/evil"
        forged(site, other, payload=b"", site="evil", base=0, lease=None)
        (site.folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(site.folder / other, site.folder / name)
    elif kind == "untrained":
        forged(site, name, payload=good, **(work | {"lease": 7}))
    elif kind == "round":
        place.put("rounds/000003", b"no round")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("unsigned", "is not signed"),
        ("oversized", "are the most"),
        ("another secret", "is signed with another secret"),
        ("nan", "values are NaN or infinite"),
        ("shape", "were expected"),
        ("fingerprint", "another fingerprint"),
        ("replayed", "a copy of another object"),
        ("untrained", "is work of round 1 on lease 7, merged or given out again"),
        ("round", "is not signed"),
    ],
)
def test_attacks_are_refused_by_name_and_the_run_goes_on(
    tmp_path: Path, kind: str, why: str
) -> None:
    evil = Site(tmp_path, "evil")
    assert evil.live(leases=0) == "dead"  # a member, with a lease, that turns bad
    assert evil.member.here == SitePosition(1, SiteLease(0, 1, 0))
    poison(evil, kind)
    a, b = Site(tmp_path, "a"), Site(tmp_path, "b")
    together(a.live, b.live)
    assert torch.equal(a.outer.anchor, b.outer.anchor)
    assert bool(a.outer.anchor.isfinite().all())
    told = [(site, text) for one in (a, b) for site, text in one.refused]
    assert told
    assert all(why in text for _, text in told)
    assert {site for site, _ in told} == {"rounds/000003" if kind == "round" else "evil"}
    assert sorted([*a.leases, *b.leases]) == list(range(8))


def test_another_run_and_an_emptied_bucket_are_one_message(tmp_path: Path) -> None:
    a = Site(tmp_path, "a")
    a.live(leases=1)
    other = Site(tmp_path, "b")
    other.member.bucket.about = replace(other.member.bucket.about, fingerprint="e" * 64)
    with pytest.raises(PenstockError, match="the sites there train another run: fingerprint is"):
        other.live()
    stranger = Site(tmp_path, "c")
    stranger.member.bucket.secret = b"not the secret of them"
    with pytest.raises(PenstockError, match=r"round 0 there is signed with another secret"):
        stranger.live()
    for folder in ("rounds", "published"):
        shutil.rmtree(tmp_path / folder)
    with pytest.raises(PenstockError, match="emptied"):
        a.live(resumed=True)


def test_a_secret_is_read_from_where_the_run_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PenstockError, match="the variable OWN is not set"):
        objects.read_secret("$OWN")
    monkeypatch.setenv("OWN", "short")
    with pytest.raises(PenstockError, match="fewer than 16 characters"):
        objects.read_secret("$OWN")
    (tmp_path / "key").write_text("0123456789abcdef\n")
    assert objects.read_secret(str(tmp_path / "key")) == b"0123456789abcdef"
    with pytest.raises(PenstockError, match="cannot be read"):
        objects.read_secret(str(tmp_path / "none"))


def test_every_object_is_checked_whole() -> None:
    sealed = objects.seal("a/b", {"x": 1}, b"bytes", SECRET)
    assert objects.unseal("a/b", sealed, SECRET) == ({"x": 1}, b"bytes")
    for at in range(0, len(sealed), 7):
        changed = bytearray(sealed)
        changed[at] ^= 1
        with pytest.raises(objects.BadObject):
            objects.unseal("a/b", bytes(changed), SECRET)
    with pytest.raises(objects.BadObject):
        objects.unseal("a/c", sealed, SECRET)
