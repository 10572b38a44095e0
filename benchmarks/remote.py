"""A run that reads its dataset from S3 over a link of 1 Gbit/s: how long it waits for data.

Ceph RGW stands in one network namespace, the reader in another, the link between them is shaped.
The reader takes batches through the real stream and feed and clocks its waits as the trainer does,
with a cold cache that holds a third of the set. Needing half of what the link carries it should not
wait; needing twice as much it should get what the plan's data ceiling says.

    python benchmarks/remote.py            # as root, with Ceph installed; makes and removes all
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from penstock.data.build.copy import copy_dataset
from penstock.data.format.writer import DatasetWriter
from penstock.data.read.dataset import Dataset
from penstock.data.read.feed import Feed
from penstock.data.read.stream import Stream
from penstock.data.store.cache import Cache
from penstock.meter.clock import StepClock
from penstock.plan.step.step import data_tokens_per_s

LINK_BYTES_PER_S = 125e6
SEQUENCE, BATCH, VOCAB = 2048, 256, 1 << 16
SET_BYTES, CACHE_BYTES = 4 << 30, 5 << 28
SERVER, CLIENT = "penstock-s3", "penstock-run"
ADDRESS, PORT = "10.78.0.1", 9200
CEPH = Path(__file__).parents[1] / "scripts" / "ceph.sh"


def run(*command: object, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        check=True,
        text=True,
        **more,  # type: ignore[call-overload]
    )


def inside(namespace: str, *command: object, **more: object) -> subprocess.CompletedProcess[str]:
    return run("ip", "netns", "exec", namespace, *command, **more)


def lay_link() -> None:
    for name in (SERVER, CLIENT):
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
    run("ip", "-n", SERVER, "link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", CLIENT)
    for number, name in enumerate((SERVER, CLIENT), start=1):
        run("ip", "-n", name, "addr", "add", f"10.78.0.{number}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        shape = ("tbf", "rate", "1gbit", "burst", "128kb", "latency", "50ms")
        inside(name, "tc", "qdisc", "replace", "dev", "eth0", "root", *shape)


def write_set(folder: Path) -> Dataset:
    rng = np.random.default_rng(0)
    with DatasetWriter(folder, "bench", VOCAB, b"{}") as writer:
        for _ in range(SET_BYTES >> 23):
            writer.add(rng.integers(0, VOCAB, 1 << 22, dtype=np.uint16))
        return Dataset.open(writer.finish({}, {}, {}))


def read(url: str, cache: Path, tokens_per_s: float, warm_s: float, clocked_s: float) -> None:
    """A consumer with a fixed step time; prints what it measured."""
    dataset = Dataset.open(url, Cache(cache, CACHE_BYTES))
    stream = Stream(dataset, SEQUENCE, seed=1, holdout=0.0, order="window")
    feed = Feed(stream, ((k * BATCH, (k + 1) * BATCH) for k in itertools.count()))
    step_s = BATCH * SEQUENCE / tokens_per_s
    clock = StepClock(cuda=False)
    began = time.perf_counter()
    spans = []
    while (now := time.perf_counter() - began) < warm_s + clocked_s:
        clock.begin()
        with clock.part("fetch"):
            feed.next()
        with clock.part("compute"):
            time.sleep(step_s)
        spans.append((now, clock.settle()))
    late = [span for at, span in spans if at >= warm_s]
    total = sum(span["total"] for span in late)
    print(
        json.dumps(
            {
                "data_wait": sum(span["fetch"] for span in late) / total,
                "data_wait_first": sum(s["fetch"] for at, s in spans if at < warm_s) / warm_s,
                "tokens_per_s": len(late) * BATCH * SEQUENCE / total,
                "fetched_bytes_per_s": dataset._files.access.fetched_bytes / (now or 1.0)
                if dataset._files
                else 0.0,
            }
        )
    )
    sys.stdout.flush()
    os._exit(0)  # the feed's thread is in the middle of something


def measure(url: str, folder: Path, factor: float, warm_s: float, clocked_s: float) -> dict:
    rate = factor * LINK_BYTES_PER_S / 2
    cache = folder / f"cache-{factor:g}"
    more = ("--read", url, cache, rate, warm_s, clocked_s)
    done = inside(CLIENT, sys.executable, __file__, *more, stdout=subprocess.PIPE)
    shutil.rmtree(cache)
    return json.loads(done.stdout)


def main() -> None:
    if os.geteuid() or not shutil.which("radosgw"):
        print("left out: it needs root for its network, and Ceph (ceph-mon, ceph-osd, radosgw)")
        return
    folder = Path(tempfile.mkdtemp(prefix="penstock-remote-"))
    try:
        lay_link()
        os.environ["CEPH_BYTES"] = str(2 * SET_BYTES)
        said = inside(SERVER, CEPH, "start", folder / "ceph", ADDRESS, PORT, stdout=subprocess.PIPE)
        for word in said.stdout.split()[1:]:
            name, _, value = word.partition("=")
            os.environ[name] = value
        inside(SERVER, CEPH, "bucket", folder / "ceph", "data")
        dataset = write_set(folder)
        sent = inside(
            SERVER, sys.executable, __file__, "--send", dataset.folder, stdout=subprocess.PIPE
        )
        shutil.rmtree(dataset.folder)
        url = sent.stdout.strip()
        half = measure(url, folder, 0.5, 60.0, 60.0)
        print(
            f"needs half the link: data_wait {100 * half['data_wait']:.2f} % after the first "
            f"minute ({100 * half['data_wait_first']:.1f} % in it), "
            f"{half['tokens_per_s'] / 1e6:.1f} M tokens/s, "
            f"{half['fetched_bytes_per_s'] / 1e6:.0f} MB/s fetched",
            flush=True,
        )
        twice = measure(url, folder, 2.0, 20.0, 40.0)
        ceiling = data_tokens_per_s(LINK_BYTES_PER_S, VOCAB, SEQUENCE)
        print(
            f"needs twice the link: {twice['tokens_per_s'] / 1e6:.1f} M tokens/s, plan's data "
            f"ceiling {ceiling / 1e6:.1f} M ({twice['tokens_per_s'] / ceiling:.2f} of it), "
            f"data_wait {100 * twice['data_wait']:.0f} %, "
            f"{twice['fetched_bytes_per_s'] / 1e6:.0f} MB/s fetched"
        )
    finally:
        if (folder / "ceph").exists():
            run(CEPH, "stop", folder / "ceph")
        for name in (SERVER, CLIENT):
            subprocess.run(["ip", "netns", "del", name], check=False)
        shutil.rmtree(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--read", nargs=5)
    parser.add_argument("--send")
    given = parser.parse_args()
    if given.read:
        where, cache, *numbers = given.read
        read(where, Path(cache), *map(float, numbers))
    elif given.send:
        print(copy_dataset(Dataset.open(given.send), "s3://data"))
    else:
        main()
