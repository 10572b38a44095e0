"""The account of what replicas exchange: bytes by tier, seconds of a round, and utilisation.

Utilisation is the time of the inner steps, as if no replica knew of another, over the time that
they take with the exchange. For replicas that agree in every step it is counted in the same way.
"""

from dataclasses import dataclass, field
from typing import Any

from penstock.plan.job.codecs import codec_size
from penstock.plan.job.job import Job
from penstock.plan.job.outcome import StepTime
from penstock.plan.job.tensors import published_tensors
from penstock.plan.loss_cost import LossCost, loss_cost
from penstock.plan.step import outer
from penstock.plan.step.outer import OuterTime
from penstock.run.schema.run import Run
from penstock.style import TIMES, format_count, format_predicted

BUCKET = "bucket"  # where sites meet, beside the names of tiers
NO_SITES = "not known: the cluster file has no [[sites]] with upload and download"
FP32 = 4  # bytes of a gradient of plain data parallel


@dataclass(frozen=True)
class ExchangeLink:
    """The link that sets the pace of the exchange between replicas."""

    tier: str
    bytes_per_s: float  # of one accelerator and direction, or of a whole site to the bucket
    hop_s: float
    source: str


@dataclass(frozen=True)
class SyncAccount:
    """Traffic between the replicas of a run and its time. Bytes are those of one replica."""

    replicas: int
    local_steps: int
    codec: str
    stream: int
    rounds: int  # of the whole run
    published_bytes: float  # in a round, as if each other replica read the same copy
    sent_bytes: float  # in a round, as the collectives send it
    run_published_bytes: float  # in the whole run
    fewer: float  # bytes of plain data parallel in fp32 over those published, of the whole run
    by_tier: dict[str, float]  # bytes sent in a step
    inner_step_s: float
    step_s: float
    link: ExchangeLink
    outer: OuterTime | None  # of one rank in a round; None: they agree in every step
    loss: LossCost
    notes: tuple[str, ...] = field(default=())

    @property
    def utilization(self) -> float:
        """Return the share of the time in which inner steps are taken."""
        return self.inner_step_s / self.step_s

    @property
    def round_s(self) -> float:
        return self.local_steps * self.step_s

    def to_json(self) -> dict[str, Any]:
        exchange = None
        if self.outer:
            names = ("encode_s", "transfer_s", "agree_s", "decode_s", "apply_s")
            exchange = {name: getattr(self.outer, name) for name in names}
            exchange |= {"exposed_s": self.outer.exposed_s, "hidden_s": self.outer.hidden_s}
        return {
            "replicas": self.replicas,
            "local_steps": self.local_steps,
            "compress": self.codec,
            "stream": self.stream,
            "utilization": self.utilization,
            "inner_step_s": self.inner_step_s,
            "round_s": self.round_s,
            "rounds": self.rounds,
            "published_bytes": self.published_bytes,
            "sent_bytes": self.sent_bytes,
            "run_published_bytes": self.run_published_bytes,
            "fewer_bytes": self.fewer,
            "step_bytes_by_tier": dict(self.by_tier),
            "exchange": exchange,
            "link": {
                "tier": self.link.tier,
                "bytes_per_s": self.link.bytes_per_s,
                "hop_s": self.link.hop_s,
                "source": self.link.source,
            },
            "loss_cost": self.loss.to_json(),
        }

    def line(self) -> str:
        """Say in one line how replicas agree and what that costs."""
        who = "sites" if self.link.tier == BUCKET else "replicas"
        when = f"every {self.local_steps} steps" if self.outer else "in every step"
        how = f"{self.replicas} {who} agree {when}"
        streamed = f" in {self.stream} parts" if self.stream > 1 else ""
        wait = self.step_s - self.inner_step_s
        return (
            f"{how}{streamed}, {format_count(self.published_bytes)}B each by {self.codec} "
            f"({self.fewer:,.0f} × less than fp32 gradients): computing "
            f"{100 * self.utilization:.0f} % of the time, {format_predicted(wait, TIMES)} a step "
            f"goes to the exchange; loss {self.loss.words()}"
        )


def account(run: Run, job: Job, step: StepTime, steps: int) -> SyncAccount | None:
    """Return the account of a run of `steps` steps; None where no replica meets another."""
    if job.agreeing < 2:
        return None
    # Of a site one rank publishes for all.
    ranks, replicas = (1 if job.sync.sites else job.agreeing_ranks), job.agreeing
    elements = sum(published_tensors(job))
    every = FP32 * elements * steps
    if job.apart:
        found = outer.outer_time(job, step.inner_s)
        calendar = outer.rounds(job, steps)
        inner_s = step.inner_s
        own, sent = float(found.message_bytes), float(found.sent_bytes)
        parts = enumerate(outer.part_bytes(job))
        whole = float(sum(size * calendar.times_leaving(part) for part, size in parts))
        whole *= outer.published_share(job)
        number, per_step = calendar.count, sent / job.sync.local_steps
    else:
        found = None
        inner_s = step.step_s - step.parts.get("reduce", 0.0)
        own = elements * (job.software.replica_bytes or job.software.reduce_bytes)
        sent = 2 * own * (replicas - 1) / replicas
        whole, number, per_step = own * steps, steps, sent
    return SyncAccount(
        replicas=replicas,
        local_steps=job.sync.local_steps,
        codec=job.sync.codec,
        stream=job.sync.parts,
        rounds=number,
        published_bytes=own * ranks,
        sent_bytes=sent * ranks,
        run_published_bytes=whole * ranks,
        fewer=every / whole,
        by_tier=_by_tier(job, per_step * ranks),
        inner_step_s=inner_s,
        step_s=step.step_s,
        link=exchange_link(job),
        outer=found,
        loss=loss_cost(run.train.optimizer, replicas, job.sync, job),
        notes=_notes(job, own / outer.published_share(job), ranks, replicas),
    )


def derivation(found: SyncAccount | None) -> dict[str, tuple[str, ...]]:
    """Explain the numbers of an account, by their names in a plan."""
    if found is None:
        return {"sync": ("one replica: nothing is exchanged between replicas",)}
    link = found.link
    return {
        "sync": found.notes,
        "sync.utilization": (
            f"{found.utilization:.4f} = {found.inner_step_s:.5g} s of a step without other "
            f"replicas / {found.step_s:.5g} s with them",
            *found.notes,
        ),
        "sync.fewer_bytes": (
            f"{found.fewer:.4g} = fp32 gradients of every step / "
            f"{found.run_published_bytes:.5g} bytes that a replica publishes",
        ),
        "sync.link": (f"{link.tier}: {link.source}",),
        "sync.loss_cost": (found.loss.why,),
    }


def _by_tier(job: Job, sent: float) -> dict[str, float]:
    """Return what a replica sends in a step over each tier.

    In a ring of the replicas the last of each domain sends to the next domain, and the others stay
    inside. Sites upload to the bucket.
    """
    if job.sync.sites:
        return {BUCKET: sent}
    group = outer.replica_group(job)
    found: dict[str, float] = {}
    left = 1.0  # share of the ranks of a ring whose next is not reached by a nearer tier
    for leg in reversed(group.legs):
        edge = 1.0 / leg.below
        found[leg.tier.name] = sent * (edge - (1.0 - left))
        left = 1.0 - edge
    return {name: sent for name, sent in found.items() if sent > 0}


def exchange_link(job: Job) -> ExchangeLink:
    """Return the link that sets the pace: the slowest upload of a site, or the farthest tier."""
    sources = job.machine.sources
    if job.sync.sites:
        slowest = min(job.machine.site_links, key=lambda s: s.upload_bytes_per_s, default=None)
        if slowest is None:
            return ExchangeLink(BUCKET, 0.0, 0.0, NO_SITES)
        whence = f"[[sites]] {slowest.name} of {sources.get('tiers') or sources.get('', '')}"
        return ExchangeLink(BUCKET, slowest.upload_bytes_per_s, slowest.round_trip_s, whence)
    far = outer.replica_group(job).legs[-1].tier
    source = sources.get("tiers") or sources.get("", "given")
    return ExchangeLink(far.name, far.bytes_per_s, far.hop_s, source)


def _notes(job: Job, own: float, ranks: int, ways: int) -> tuple[str, ...]:
    size = codec_size(job.sync.codec, 4)
    elements = sum(published_tensors(job))
    coded = f"by {job.sync.codec} ({8 * size.value_bytes:g} bits a value) are {own:,.0f} bytes"
    if job.sync.sites:
        found = [f"{elements:,} values of the model {coded}, which one rank publishes for all"]
    else:
        found = [f"{elements:,} values of a rank {coded}, × {ranks} ranks of a replica"]
    if job.sync.sites:
        found.append(
            f"a site puts its bytes into the bucket once, deflated to "
            f"{100 * outer.published_share(job):.3g} % (measured on a model of 3.3M parameters), "
            f"and gets those of {ways - 1} others; the "
            f"slowest site is waited for, with {outer.BUCKET_REQUESTS} requests in turn (estimated)"
        )
    elif job.apart:
        found.append(
            f"every rank gathers the bytes of all {ways}: it sends its own {ways - 1} times; what "
            "a round takes is divided by its steps"
        )
        found.append("codec and outer optimizer: counted passes over the values, at the speed of "
                     "adding two vectors")  # fmt: skip
    else:
        found.append(f"sums of {ways} replicas: each sends 2 ({ways} - 1) / {ways} of its bytes")
    return tuple(found)
