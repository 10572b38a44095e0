"""The time of what replicas exchange after local steps: encode, send, wait, decode, apply.

At the end of a round every rank encodes its differences, all ranks with the same part of the model
gather each other's bytes, and each decodes all of them and takes the outer step. Of a site rank 0
encodes the whole model, every rank decodes the messages of all sites and takes the outer step on
its own part (`train/sites/weights.py`). Codec and outer step are work of the rank. The transfer
is exposed, except where a part of the model has some steps until it is due (`policy/rounds.py`).
"""

from dataclasses import dataclass

from penstock.plan.hardware import network
from penstock.plan.hardware.network import CommGroup
from penstock.plan.job.codecs import (
    DEFLATE_BYTES_PER_S,
    HEADER_BYTES,
    INFLATE_BYTES_PER_S,
    codec_size,
    deflated_share,
)
from penstock.plan.job.job import Job
from penstock.plan.job.tensors import published_tensors, rank_tensors
from penstock.plan.step import probed
from penstock.policy.rounds import Rounds, part_of

# Requests of a site in a round, in sequence: put the message, list, get, put the round, list.
# Estimated.
BUCKET_REQUESTS = 5
GATHERED = 3  # whole models: the differences, and for the hash anchor and outer momentum
WIDE_BYTES = 4
AGREED_BYTES = 8 * 16  # by a replica, of what all do next; the exchange waits for it


@dataclass(frozen=True)
class CodecWork:
    """The work of a codec on one element, as times of adding two vectors of so many elements."""

    encode: float  # with the difference, and what is owed before and after
    decode: float  # of one message, into the mean


# Measured on one core (`benchmarks/sync_plan.py --codecs`), with the copies around the codec.
WORK = {
    "none": CodecWork(15, 5),
    "bf16": CodecWork(20, 5),
    "int8": CodecWork(23, 5),
    "int4": CodecWork(28, 5),
    "int2": CodecWork(65, 5),
    "topk": CodecWork(280, 5),
}
APPLY = 15.0  # the outer optimizer and the copy of the weights, in the same unit


@dataclass(frozen=True)
class OuterTime:
    """Seconds and bytes of one round, on one rank."""

    message_bytes: float  # of all parts, that it gives to the others
    sent_bytes: float  # to all of them
    encode_s: float
    decode_s: float
    apply_s: float
    agree_s: float
    transfer_s: float
    exposed_s: float  # of the transfer; training waits for it

    @property
    def work_s(self) -> float:
        return self.encode_s + self.decode_s + self.apply_s

    @property
    def hidden_s(self) -> float:
        return self.transfer_s - self.exposed_s


def rounds(job: Job, steps: int) -> Rounds:
    """Return the calendar of a run of so many steps whose replicas take local steps."""
    sync = job.sync
    return Rounds(steps, sync.local_steps, sync.parts)


def replica_group(job: Job) -> CommGroup:
    """Return the ranks of all replicas that hold the same part of the model."""
    lay = job.layout
    stride = lay.tensor * lay.context * lay.shard
    return network.group(job.machine, lay.replicate, stride)


def message_bytes(job: Job) -> int:
    """Return the bytes that a rank gives to the others in a round; of a site, that it publishes."""
    return sum(part_bytes(job))


def published_share(job: Job) -> float:
    """Return the share of its message that a replica publishes: sites deflate theirs."""
    return deflated_share(job.sync.codec) if job.sync.sites else 1.0


def part_bytes(job: Job) -> list[int]:
    """Return the bytes of each part; `train/replicas/flat.py` cuts in the same way."""
    size = codec_size(job.sync.codec, int(max(4.0, job.software.reduce_bytes)))
    tensors = published_tensors(job)
    padded = [-(-count // size.block) * size.block for count in tensors]
    whole, start = sum(padded), 0
    found = [HEADER_BYTES] * job.sync.parts
    for length in padded:
        part = part_of(start, length, whole, job.sync.parts)
        found[part] += length // size.block * size.block_bytes
        start += length
    return found


def outer_time(job: Job, inner_s: float) -> OuterTime:
    """Predict one round of replicas whose inner steps take `inner_s`."""
    lay, sync = job.layout, job.sync
    own, unit_s = message_bytes(job) * published_share(job), _add_s(job, published_tensors(job))
    work = WORK[sync.codec.partition(":")[0]]
    each_s = transfer_s(job, own / sync.parts)
    late_s = rounds(job, sync.local_steps).late_steps * inner_s
    return OuterTime(
        message_bytes=own,
        sent_bytes=own if sync.sites else own * (lay.replicate - 1),
        encode_s=work.encode * unit_s,
        decode_s=work.decode * unit_s * job.agreeing,
        apply_s=APPLY * _add_s(job, rank_tensors(job)),
        agree_s=_agree_s(job),
        transfer_s=each_s * sync.parts,
        exposed_s=waited_s(each_s, late_s, sync.parts),
    )


def _add_s(job: Job, tensors: tuple[int, ...]) -> float:
    """Time an addition of two vectors of so many elements, a part of the model at a time."""
    return probed.add_s(job.machine, sum(tensors) / job.sync.parts) * job.sync.parts


def parts(job: Job, inner_s: float) -> dict[str, float]:
    """Return what a round adds to each of its steps, by part of the step."""
    if not job.apart:
        return {}
    found, steps = outer_time(job, inner_s), job.sync.local_steps
    return {
        "outer": found.work_s / steps,
        "exchange": (found.exposed_s + found.agree_s) / steps,
    }


def waited_s(each_s: float, late_s: float, parts: int) -> float:
    """Return what a round waits for its parts, each of which has `late_s` of work to travel behind.

    Parts travel one after the other, so none of them takes from another's time.
    """
    return parts * max(0.0, each_s - late_s)


def transfer_s(job: Job, size_bytes: float) -> float:
    """Predict the time of the gathering of a message of `size_bytes` from every replica."""
    if job.sync.sites:
        return bucket_s(job, size_bytes)
    g = replica_group(job)
    if network.leaves_node(g) or not probed.is_probed(job.machine):
        return network.spread_s(g, size_bytes)
    # A ring of n ranks sends 2 (n − 1) / n of what it sums, and n − 1 times what it gathers.
    return probed.all_reduce_s(job.machine, size_bytes * g.ways / 2, g.ways)


def bucket_s(job: Job, size_bytes: float) -> float:
    """Predict the time of a round of sites that meet in a bucket: each puts an object of
    `size_bytes`, sees those of the others and gets them. The slowest of the sites that the cluster
    file names is waited for.
    """
    return max(
        (
            size_bytes / link.upload_bytes_per_s
            + (job.agreeing - 1) * size_bytes / link.download_bytes_per_s
            + size_bytes / DEFLATE_BYTES_PER_S
            + (job.agreeing - 1) * size_bytes / INFLATE_BYTES_PER_S
            + BUCKET_REQUESTS * link.round_trip_s
            for link in job.machine.site_links
        ),
        default=0.0,
    )


def _agree_s(job: Job) -> float:
    """Predict the time of the sum over all ranks with which a round ends; in a site, of what its
    ranks tell each other. Members are read from the bucket, with the messages.
    """
    if job.sync.sites:
        return _inside_site_s(job)
    g = network.group(job.machine, job.layout.ranks)
    if network.leaves_node(g) or not probed.is_probed(job.machine):
        return sum(2 * (leg.ways - 1) * leg.tier.hop_s for leg in g.legs)
    return probed.all_reduce_s(job.machine, AGREED_BYTES, g.ways)


def _inside_site_s(job: Job) -> float:
    """Time what the ranks of a site gather on rank 0 and get from it: fp32 values of the whole
    model, where none holds it all, and the messages of all sites. Either way each rank passes on
    what it gets, which is half of what a sum over all ranks sends.
    """
    lay = job.layout
    if lay.ranks == 1:
        return 0.0
    size = float(message_bytes(job) * job.agreeing)
    if lay.ranks > lay.replicate:
        size += GATHERED * WIDE_BYTES * sum(published_tensors(job))
    g = network.group(job.machine, lay.ranks)
    if network.leaves_node(g) or not probed.is_probed(job.machine):
        return network.all_reduce_s(g, size) / 2
    return probed.all_reduce_s(job.machine, size, g.ways) / 2
