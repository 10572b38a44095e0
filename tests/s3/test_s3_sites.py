"""Sites that meet in a real object store, which goes away for a while."""

import threading
import time

import pytest
import torch

from penstock.policy.sites import LeaseCut
from site_members import Site, reference, together

pytestmark = pytest.mark.s3


def test_two_sites_come_to_the_weights_of_two_replicas(s3):
    a = Site("s3://data/sites-equal", "a", grace_s=60.0)
    b = Site("s3://data/sites-equal", "b", grace_s=60.0)
    together(a.live, b.live)
    assert torch.equal(a.outer.anchor, reference("int4"))
    assert torch.equal(a.outer.anchor, b.outer.anchor)


def test_sites_wait_for_a_bucket_that_went_away(s3):
    a = Site("s3://data/sites-away", "a", grace_s=60.0)
    b = Site("s3://data/sites-away", "b", grace_s=60.0)
    told = []
    a.member.unreachable = told.append

    def outage():
        while len(a.rounds) < 2:
            time.sleep(0.01)
        s3.do("kill")
        while not told:
            time.sleep(0.01)
        s3.do("again")

    away = threading.Thread(target=outage)
    away.start()
    together(a.live, b.live)
    away.join()
    assert told
    assert torch.equal(a.outer.anchor, reference("int4"))
    assert torch.equal(a.outer.anchor, b.outer.anchor)


def test_a_site_dies_and_a_newcomer_starts_from_what_is_published(s3):
    a, b = Site("s3://data/sites-join", "a"), Site("s3://data/sites-join", "b")
    together(a.live, lambda: b.live(leases=1))
    c = Site("s3://data/sites-join", "c")
    c.outer.anchor.add_(1.0)
    assert c.live() == "end"
    assert torch.equal(a.outer.anchor, c.outer.anchor)


def test_the_bucket_stays_small_over_many_rounds(s3):
    long = {"cut": LeaseCut(steps=30, length=1, parts=2), "grace_s": 60.0}
    a, b = (Site("s3://data/sites-clean", name, **long) for name in "ab")
    together(a.live, b.live)
    assert torch.equal(a.outer.anchor, b.outer.anchor)
    assert a.not_cleaned == b.not_cleaned == []
    assert len(a.place.list("rounds")) <= 7
    assert len(a.place.list("published")) <= 14
    assert len(a.place.list("snapshots")) <= 3
