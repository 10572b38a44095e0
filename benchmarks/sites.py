"""Sites that meet in a bucket against data parallel, over a long thin link.

    python benchmarks/sites.py                                  1,500 steps of the default model
    python benchmarks/sites.py --steps 60 --tiny --data-parallel-steps 5     a look, in minutes

Two sites of one rank in network namespaces of this machine, and a real S3 server (Ceph RGW) in a
third. What leaves a site is shaped to `--rate` (tbf), and so is what comes to it; each link has a
wire with half of `--round-trip` in each direction. Bytes are those of the kernel's counters of each
site's interface, so HTTP, polling and lost packets count; the model's first start is not cut out.
Data parallel runs over the same links with the same optimizer for `--data-parallel-steps`, and its
bytes are scaled to the steps of the sites; its loss is that of one process with the same global
batch, which computes the same. Needs root, iproute2, ethtool and Ceph. One line of JSON at the end.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

ROOT = Path(__file__).parents[1]
LAB = f"psi{os.getpid() % 1000}"
SERVER, SITES = 3, (1, 2)
TINY = {"model.preset": None, "model.layers": 2, "model.hidden": 64, "model.heads": 4,
        "model.kv_heads": 2, "model.ffn": 128}  # fmt: skip


def shell(text: str) -> None:
    subprocess.run(["bash", "-ec", text], check=True)


@contextlib.contextmanager
def lab(rate: str, round_trip_s: float) -> Iterator[None]:
    """Make the hosts; put a wire with a delay between each site and the switch."""
    wires: list[subprocess.Popen[bytes]] = []
    shape = f"root tbf rate {rate} burst 32kb latency 200ms"
    try:
        shell(f"{ROOT}/scripts/netns.sh up {LAB} 3")
        for at in SITES:
            host, box = f"{LAB}-{at}", f"{LAB}-w{at}"
            shell(
                f"ip netns add {box}; ip -n {host} link set eth0 down; ip -n {host} link del eth0;"
                f"ip -n {box} link add wire type veth peer name eth0 netns {host};"
                f"ip -n {box} link add far type veth peer name p{at} netns {LAB}-sw;"
                f"ip -n {LAB}-sw link set p{at} master br0 up;"
                f"ip -n {host} addr add 10.77.0.{at}/24 dev eth0; ip -n {host} link set eth0 up;"
                f"ip -n {box} link set wire up; ip -n {box} link set far up;"
                f"for end in 'netns exec {host} ethtool -K eth0' 'netns exec {box} ethtool -K wire'"
                f" 'netns exec {box} ethtool -K far' 'netns exec {LAB}-sw ethtool -K p{at}'; do "
                "ip $end tx off tso off gso off gro off >/dev/null 2>&1 || true; done;"
                f"ip netns exec {host} tc qdisc replace dev eth0 {shape};"
                f"ip netns exec {LAB}-sw tc qdisc replace dev p{at} {shape}"
            )
            command = [sys.executable, ROOT / "benchmarks/wire.py", "wire", "far"]
            inside = ["ip", "netns", "exec", box]
            wires.append(subprocess.Popen([*inside, *command, str(round_trip_s / 2)]))
        yield
    finally:
        for wire in wires:
            wire.kill()
            wire.wait()
        shell(
            f"{ROOT}/scripts/netns.sh down {LAB}; for n in {LAB}-w1 {LAB}-w2; do "
            "ip netns del $n 2>/dev/null || true; done"
        )


@contextlib.contextmanager
def bucket(folder: Path) -> Iterator[dict[str, str]]:
    """Start the S3 server on its host; return the variables that clients read."""
    inside = ["ip", "netns", "exec", f"{LAB}-{SERVER}", ROOT / "scripts/ceph.sh"]
    where = f"10.77.0.{SERVER}"
    try:
        subprocess.run([*inside, "start", folder, where, "9200"], check=True, stdout=sys.stderr)
        subprocess.run([*inside, "bucket", folder, "data"], check=True, stdout=sys.stderr)
        yield {
            "AWS_ENDPOINT_URL": f"http://{where}:9200",
            "AWS_ACCESS_KEY_ID": "penstock",
            "AWS_SECRET_ACCESS_KEY": "penstock-secret",
            "AWS_REGION": "us-east-1",
        }
    finally:
        subprocess.run([*inside, "stop", folder], check=False, stdout=sys.stderr)


def sent_bytes(host: int) -> int:
    """Return what has left a host by its interface, by the kernel's counter."""
    command = [
        "ip",
        "netns",
        "exec",
        f"{LAB}-{host}",
        "cat",
        "/sys/class/net/eth0/statistics/tx_bytes",
    ]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def train(
    file: Path, host: int | None, env: dict[str, str], *fields: str
) -> "subprocess.Popen[str]":
    inside = [] if host is None else ["nsenter", f"--net=/run/netns/{LAB}-{host}", "--"]
    command = [*inside, sys.executable, "-m", "penstock", "train", str(file), "--json", *fields]
    return subprocess.Popen(command, env=os.environ | env, stdout=subprocess.PIPE, text=True)


def reports(processes: "Sequence[subprocess.Popen[str]]") -> list[dict[str, Any]]:
    found = [json.loads(process.communicate()[0]) for process in processes]
    assert all(one["status"] == "done" for one in found), found
    return found


def run_file(folder: Path, given: argparse.Namespace) -> Path:
    from penstock.run import toml

    table: dict[str, Any] = {
        "name": "bench",
        "model": {"preset": "llama-3m"},
        "data": {"dataset": "stdlib"},
        "train": {
            "steps": given.steps,
            "batch_tokens": 2 * given.worker_tokens,
            "optimizer": "muon",
            "precision": "fp32",
            "seed": given.seed,
        },
        "evaluate": {"every": f"{given.steps} steps"},
        "guard": {"checkpoint": "10 min", "timeout": "10 min"},
        "cluster": {"accelerators": 1},
    }
    if given.tiny:
        table["model"] = {k.removeprefix("model."): v for k, v in TINY.items() if v is not None}
        table["data"]["sequence"] = 128
    path = folder / "bench.toml"
    path.write_text("\n".join(toml.format_document(table)) + "\n")
    return path


def over_sites(file: Path, folder: Path, env: dict[str, str], given: argparse.Namespace) -> Any:
    began = {at: sent_bytes(at) for at in SITES}
    start = time.monotonic()
    fields = [
        f"train.sync.local_steps={given.local_steps}",
        f"train.sync.compress={given.compress}",
    ]
    fields += ["sites.bucket=s3://data/sites", "sites.grace=10 min"]
    sites = [
        train(file, at, env, *fields, f"dir={folder}/site-{at}", f"sites.name=site{at}")
        for at in SITES
    ]
    found = reports(sites)
    return {
        "seconds": time.monotonic() - start,
        "bytes": [sent_bytes(at) - began[at] for at in SITES],
        "val_loss": [one["val_loss"] for one in found],
        "weights_equal": len({one["weights_hash"] for one in found}) == 1,
        "ledger": [one.get("ledger") for one in found],
    }


def over_links(file: Path, folder: Path, steps: int) -> tuple[list[int], float]:
    """Return what data parallel over the same links sends in so many steps, and its seconds."""
    began, name = {at: sent_bytes(at) for at in SITES}, f"plain-{steps}"
    fields = [f"train.steps={steps}", f"name={name}", "cluster.nodes=2"]
    fields += ["evaluate.every=never", f"guard.durable={folder}/durable", "cluster.wait=10 min"]
    fields += ["guard.fast=never"]  # copies of the state would travel over the same link
    start = time.monotonic()
    hosts = [
        train(file, at, {"PENSTOCK_NODE": str(at)}, *fields, f"dir={folder}/hosts-{at}")
        for at in SITES
    ]
    for host in hosts:
        host.communicate()
        assert not host.returncode
    return [sent_bytes(at) - began[at] for at in SITES], time.monotonic() - start


def direct_step(file: Path, folder: Path, steps: int) -> dict[str, Any]:
    """Return bytes and seconds of a data-parallel step: a run of some steps less one of a step."""
    (few, few_s), (many, many_s) = (over_links(file, folder, n) for n in (1, 1 + steps))
    sent = [(b - a) / steps for a, b in zip(few, many, strict=True)]
    return {"step_seconds": (many_s - few_s) / steps, "bytes_per_step": sent}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--worker-tokens", type=int, default=8192)
    parser.add_argument("--local-steps", type=int, default=30)
    parser.add_argument("--compress", default="int2")
    parser.add_argument("--rate", default="20mbit")
    parser.add_argument("--round-trip", type=float, default=0.06, help="seconds")
    parser.add_argument("--data-parallel-steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="a model of 0.2M parameters")
    given = parser.parse_args()
    env = {"PENSTOCK_SITES_SECRET": token_hex(32)}
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        file = run_file(folder, given)
        plain = reports([train(file, None, {}, f"dir={folder}/one")])[0]
        with lab(given.rate, given.round_trip), bucket(folder / "ceph") as store:
            sites = over_sites(file, folder, env | store, given)
            direct = direct_step(file, folder, given.data_parallel_steps)
    fewer = [
        one * given.steps / own
        for one, own in zip(direct["bytes_per_step"], sites["bytes"], strict=True)
    ]
    print(
        json.dumps(
            {
                "given": vars(given),
                "sites": sites,
                "data_parallel": direct | {"val_loss": plain["val_loss"]},
                "fewer_bytes": fewer,
                "loss_over_data_parallel": sites["val_loss"][0] / plain["val_loss"] - 1,
            }
        )
    )


if __name__ == "__main__":
    main()
