"""Sites for tests: real members over a real bucket, which train on tensors of a few numbers."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from penstock.policy.sites import LeaseCut, SitesRules
from penstock.train.codecs.codec import build_codec
from penstock.train.optim.nesterov import Nesterov
from penstock.train.replicas.outer import HEADER, OuterStep
from penstock.train.sites.bucket import SitesBucket, SitesRun, open_place
from penstock.train.sites.member import (
    MergedRound,
    SiteMember,
    load_position,
    saved_position,
)
from penstock.train.sites.weights import PART_BYTES, SiteWeights
from penstock.train.sites.whole import WholeModel

SECRET = b"a secret that all of them share"
BUCKET_VALUES = 128  # so that even these are in several buckets
CUT = LeaseCut(steps=12, length=3, parts=2)
Weights = dict[str, torch.Tensor]


class Alone:
    """The transport of a site's outer step, which sends nothing by itself."""

    replica, replicas = 0, 1

    def begin(self, content: torch.Tensor) -> Any:
        raise AssertionError


class OneRank:
    """The world of a site of one rank."""

    rank, lead, device = 0, True, torch.device("cpu")

    def index(self, dimension: str) -> int:
        return 0

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value

    def broadcast_(self, values: torch.Tensor) -> torch.Tensor:
        return values


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

    def __init__(self, place: Path | str, name: str, offset_s: float = 0.0, **rules: Any) -> None:
        self.name = name
        self.place = open_place(str(place), "run")
        self.refused: list[tuple[str, str]] = []
        self.rounds: list[MergedRound] = []
        self.leases: list[int] = []
        self.jumps: list[tuple[int, int]] = []
        self.not_cleaned: list[str] = []
        self.saved: int | None = None  # the round of its oldest checkpoint
        self.stopped = threading.Event()
        self.worked: Callable[[], None] = lambda: None  # called after each lease
        self.outer = outer_step(rules.pop("codec", "int4"))
        held = self.outer.weights
        whole = WholeModel(held, [list(held)], OneRank(), self.outer.codec.block, BUCKET_VALUES)
        part_bytes = rules.pop("part_bytes", PART_BYTES)
        weights = SiteWeights(self.outer, whole, part_bytes=part_bytes)
        own = SitesRules(**({"cut": CUT, "needed": 1, "late": 2, "grace_s": 0.5} | rules))
        cut = own.cut
        about = SitesRun(
            "run", "f" * 64, cut.steps, cut.length, cut.parts, weights.message_bytes, own.late
        )
        bucket = SitesBucket(
            place=self.place,
            secret=SECRET,
            site=name,
            identity=f"folder of {name}",
            about=about,
            rules=own,
            refuse=lambda site, why: self.refused.append((site, why)),
            check=weights.check,
            snapshot_sizes=weights.snapshot_sizes,
        )
        self.member = SiteMember(
            bucket=bucket,
            weights=weights,
            snapshot_every=2,
            merged=self.rounds.append,
            dropped=lambda lease, number: None,
            joined=lambda began, number: self.jumps.append((began, number)),
            unreachable=lambda why: None,
            not_cleaned=self.not_cleaned.append,
            work_published=lambda: None,
            needs=lambda: self.member.here.at if self.saved is None else self.saved,
            stops=self.stopped.is_set,
            clock=lambda: time.monotonic() + offset_s,
            sleep=lambda pause_s: time.sleep(min(pause_s, 0.005)),
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
            self.worked()
            self.member.tokens += 10
            self.member.trained()
        return what


class SavedSite:
    """What a checkpoint of a site holds."""

    def __init__(self, site: Site) -> None:
        self.position = json.loads(json.dumps(saved_position(site.member)))
        outer = site.outer
        self.flat = {name: getattr(outer, name).clone() for name in ("anchor", "velocity", "owed")}
        self.weights = {name: weight.clone() for name, weight in outer.weights.items()}

    def load_into(self, site: Site) -> None:
        for name, values in self.flat.items():
            getattr(site.outer, name).copy_(values)
        for name, values in self.weights.items():
            site.outer.weights[name].copy_(values)
        load_position(site.member, self.position)


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
            length = own.layout.length
            found = [own.codec.decode(one[HEADER.size :], length) for one in messages]
            mean = found[0] * 0.5 + found[1] * 0.5
            own.layout.clear_gaps(mean, 0)
            own.optimizer.step(own.anchor, own.velocity, mean)
            own.adopt()
    return first.anchor
