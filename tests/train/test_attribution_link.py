"""A link of known speed: what the gradients take on it is found as `communicate`.

Two ranks in a network namespace of their own, whose loopback carries so many bits a second. Each
sends the other as many bytes as its gradients have, and both ways share the loopback.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.ledger.causes import Cause
from penstock.ledger.merge import merge
from penstock.run.folder import RunFolder
from penstock.run.load import load

pytestmark = pytest.mark.netns
MakeFile = Callable[..., Path]
BYTES_PER_S = 25_000_000
STEPS = 8
FIELDS = {
    "model.layers": 4,
    "model.hidden": 256,
    "model.heads": 4,
    "model.kv_heads": 4,
    "model.ffn": 1024,
    "train.steps": STEPS,
    "train.precision": "fp32",
    "train.batch_tokens": 64,
    "cluster.accelerators": 2,
    "evaluate.every": "never",
    "guard.fast": "never",
    "guard.checkpoint": "100 steps",
    "guard.compare": "never",
    "guard.timeout": "120 s",
}


@pytest.fixture
def slow_link() -> Iterator[list[str]]:
    """What to put before a command so that it runs there."""
    name = f"penstock-link-{os.getpid()}"
    rate = f"{BYTES_PER_S * 8 // 10**6}mbit"
    for command in (
        f"ip netns add {name}",
        f"ip -n {name} link set lo up",
        f"ip netns exec {name} tc qdisc add dev lo root tbf rate {rate} burst 256kb latency 4s",
    ):
        subprocess.run(command.split(), check=True)
    yield ["ip", "netns", "exec", name]
    subprocess.run(["ip", "netns", "del", name], check=True)


def test_what_a_slow_link_takes_is_communication(run_file: MakeFile, slow_link: list[str]) -> None:
    path = run_file("link", **FIELDS)
    command = [*slow_link, sys.executable, "-m", "penstock", "train", str(path), "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    folder = RunFolder(load(path).folder)
    params = json.loads(folder.plan_file.read_text())["params"]
    seconds = merge(folder.journal).ledger.seconds
    each_s = 2 * 4 * params / BYTES_PER_S  # both ways, four bytes a gradient
    found_s = seconds[Cause.COMMUNICATE] / 2 / STEPS
    print(f"{params} gradients: {each_s:.3f} s a step on the link, {found_s:.3f} s found")
    assert found_s == pytest.approx(each_s, rel=0.1)
    assert seconds[Cause.PEER_WAIT] < 0.1 * seconds[Cause.COMMUNICATE]
