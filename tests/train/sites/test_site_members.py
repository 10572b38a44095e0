"""Sites as threads over a folder: real objects, equal weights, attacks, and sites that die."""

import contextlib
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.plan.job.codecs import deflated_share
from penstock.policy.sites import SiteLease, SitePosition
from penstock.train.codecs.codec import build_codec
from penstock.train.replicas.outer import HEADER
from penstock.train.sites import objects
from penstock.train.sites.bucket import MOST_ROUND_BYTES
from site_members import SECRET, SavedSite, Site, reference, together

LARGE = 1 << 30  # bytes


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
    for part in c.outer.views(c.outer.anchor).values():
        part.add_(1.0)
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
        saved = SavedSite(b)
        b.live(leases=2, resumed=True)  # what comes after the save is lost, and done again
        saved.load_into(again)
        assert again.live(resumed=True) == "end"

    together(a.live, dies_and_returns)
    assert torch.equal(again.outer.anchor, reference("int4"))


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.integers(1, 60)), max_size=8),
    st.integers(1, 50),
)
@pytest.mark.hypothesis
def test_any_bytes_come_back_and_never_grow(parts: list[tuple[bytes, int]], piece: int) -> None:
    payload = b"".join(part * times for part, times in parts)
    with mock.patch.object(objects, "PIECE_BYTES", piece):
        sealed = objects.seal("a/b", {}, payload, SECRET)
    assert objects.unseal("a/b", sealed, SECRET, len(payload)) == ({}, payload)
    assert len(sealed) <= len(objects.seal("a/b", {}, b"", SECRET)) + len(payload)


def test_bytes_are_deflated_as_the_plan_says() -> None:
    """Values of every size, such as differences of weights are: not one normal distribution."""
    spread = torch.linspace(-3, 3, 512).exp().repeat_interleave(512)
    values = torch.randn(512 * 512, generator=torch.Generator().manual_seed(0)) * spread
    for name in ("int8", "int4", "int2", "bf16", "none"):
        message = build_codec(name).encode(values).contiguous().view(torch.uint8).numpy().tobytes()
        assert len(objects.deflate(message)) / len(message) == pytest.approx(
            deflated_share(name), rel=0.06
        )


def signed(table: dict[str, Any], payload: bytes) -> bytes:
    """Seal bytes as they are, under a table that says anything of them."""
    with mock.patch.object(objects, "deflate", lambda payload: payload):
        return objects.seal("a/b", table, payload, SECRET)


@pytest.mark.parametrize(
    ("size", "content", "why"),
    [
        (1 << 40, objects.deflate(b"x" * 1000), r"holds 1099511627776 bytes, and 5000 are"),
        (-1, objects.deflate(b"x" * 1000), "holds -1 bytes"),
        (True, objects.deflate(b"x"), "holds True bytes"),
        ("9", objects.deflate(b"x" * 9), "holds '9' bytes"),
        (999, objects.deflate(b"x" * 1000), "does not hold the 999 bytes"),
        (1001, objects.deflate(b"x" * 1000), "does not hold the 1001 bytes"),
        (4000, objects.deflate(b"x" * 100_000_000), "does not hold the 4000 bytes"),
        (1000, objects.deflate(b"x" * 1000)[:-1], "does not hold the 1000 bytes"),
        (1000, objects.deflate(b"x" * 1000) + b"y", "does not hold the 1000 bytes"),
        (1000, b"no stream at all", "not a deflated stream"),
    ],
)
def test_a_stream_that_is_not_what_its_table_says_is_refused(
    size: object, content: bytes, why: str
) -> None:
    with pytest.raises(objects.BadObject, match=why):
        objects.unseal("a/b", signed({objects.DEFLATED: size}, content), SECRET, 5000)


@pytest.mark.parametrize("merged", [True, False])
def test_a_restarted_site_owes_by_what_it_has_published(tmp_path: Path, merged: bool) -> None:
    """In another layout, or on a GPU, the steps that it takes again are rounded otherwise."""
    a = Site(tmp_path, "a", codec="int2", grace_s=0.0)
    saves: list[SavedSite] = []
    a.worked = lambda: saves.append(SavedSite(a))
    creates = a.place.create

    def dies(name: str, content: bytes) -> bool:
        if name == "rounds/000003" and not merged:
            raise SystemExit
        return creates(name, content)

    a.place.create = dies  # type: ignore[method-assign]
    with contextlib.suppress(SystemExit):
        a.live(leases=3)
    again = Site(tmp_path, "a", codec="int2", grace_s=0.0)
    saves[1].load_into(again)
    assert again.member.here.lease is not None
    assert (again.member.here.lease.number, again.member.here.lease.base) == (1, 2)
    for weight in again.outer.weights.values():
        weight.mul_(1.01)
    again.member.tokens += 10
    again.member.trained()
    weights, outer = again.member.weights, again.outer
    keep_owed, seen = weights.keep_owed, []

    def watched(payload: bytes) -> None:
        sent = outer.codec.decode(
            torch.frombuffer(bytearray(payload[HEADER.size :]), dtype=torch.uint8),
            outer.layout.length,
        )
        owed = outer.anchor - outer.layout.pack(outer.weights, 0, outer.dtype) + outer.owed - sent
        outer.layout.clear_gaps(owed, 0)
        keep_owed(payload)
        seen.append((payload, outer.owed.clone(), owed))

    weights.keep_owed = watched  # type: ignore[method-assign]
    other = weights.message(10)
    again.live(leases=1, resumed=True)
    payload, owed, expected = seen[0]
    name = "published/000002/a"
    assert objects.unseal(name, again.place.get(name, LARGE), SECRET, LARGE)[1] == payload
    assert payload != other
    assert torch.equal(owed, expected)
    assert again.refused == []


def forged(
    target: Site, name: str, secret: bytes = SECRET, payload: bytes = b"", **more: Any
) -> None:
    """Put an object into the bucket that looks like one of a site."""
    about = target.member.bucket.about
    table = {"kind": "site", "by": "x", "run": "run", "fingerprint": about.fingerprint} | more
    target.place.put(name, objects.seal(name, table, payload, secret))


def poison(site: Site, kind: str) -> None:
    """Attack the run as a member named "evil" that holds a lease, or as a stranger."""
    place, size = site.place, site.member.bucket.about.bytes
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
        place.put(name, place.get(other))
    elif kind == "untrained":
        forged(site, name, payload=good, **(work | {"lease": 7}))
    elif kind == "round":
        place.put("rounds/000003", b"no round")
    elif kind == "large round":
        place.put("rounds/000003", b"")
        os.truncate(Path(str(place)) / "rounds/000003", LARGE)  # sparse: it takes no room


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
        ("large round", f"has {LARGE} bytes, and {MOST_ROUND_BYTES} are the most"),
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
    assert {site for site, _ in told} == {"rounds/000003" if "round" in kind else "evil"}
    assert a.member.bucket.received_bytes < LARGE / 10  # it was never read
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
        shutil.rmtree(tmp_path / "run" / folder)
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
    assert objects.unseal("a/b", sealed, SECRET, 5) == ({"x": 1}, b"bytes")
    for at in range(0, len(sealed), 7):
        changed = bytearray(sealed)
        changed[at] ^= 1
        with pytest.raises(objects.BadObject):
            objects.unseal("a/b", bytes(changed), SECRET, 5)
    with pytest.raises(objects.BadObject):
        objects.unseal("a/c", sealed, SECRET, 5)
