"""The checks before a run starts on hosts by ssh: all hosts at once, one message for each fault."""

import contextlib
import json
import secrets
from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

from penstock import __version__
from penstock.data.store.objects import is_url
from penstock.errors import RunFailed, system_error
from penstock.launch.ssh.hosts import (
    Ssh,
    SshAnswer,
    SshHost,
    Unreachable,
    each,
    is_missing_command,
    nodes_of,
)
from penstock.launch.ssh.node import MODULE
from penstock.plan.life.recovery import CHECKPOINT_BYTES
from penstock.run.schema.run import Run

ANSWER_S = 120.0
LEAST_PYTHON = (3, 11)
LEAST_FREE_BYTES = 1 << 30
SETUP = (
    "`penstock train --setup` makes a venv there and installs what Penstock has here; or name "
    "another Python in cluster.ssh.python"
)


def section_refusals(run: Run) -> list[str]:
    """Return what is wrong with `[cluster.ssh]` by itself; reaches no host."""
    hosts = run.cluster.ssh.hosts
    if not hosts:
        return ['cluster.ssh.hosts: missing; write hosts = ["name", "user@name"]']
    nodes_of(run.cluster.ssh)
    nodes, spares = run.cluster.nodes, run.guard.spares
    if nodes + spares > len(hosts):
        wanted = f"cluster.nodes = {nodes}" + (f" and guard.spares = {spares}" if spares else "")
        return [
            f"{wanted}: cluster.ssh.hosts has {len(hosts)}; add hosts, or write nodes = "
            f"{max(1, len(hosts) - spares)}"
        ]
    if nodes == 1 < len(hosts):
        return [
            f"cluster.nodes = 1: cluster.ssh.hosts has {len(hosts)}; write nodes = {len(hosts)}, "
            "or fewer, and the others wait until one is lost"
        ]
    return []


def host_refusals(
    ssh: Ssh,
    nodes: Mapping[str, SshHost],
    run: Run,
    folder: str,
    run_folder: str,
    own_folder: Path,
    env: Mapping[str, str],
) -> list[str]:
    """Return what stands against a start on the hosts, a line each.

    They work in `folder`, and this machine in `own_folder`.
    """
    looks = each(nodes, lambda node: look(ssh, nodes[node], folder))
    wrong = [line for node in nodes for line in look_refusals(node, looks[node], ssh, run)]
    if wrong:
        return wrong
    wrong = differing(looks, "torch")
    if wrong:
        return wrong
    order = {"store": run.guard.durable, "run_folder": run_folder, "env": dict(env)}
    ready = each(nodes, lambda node: _ready(ssh, nodes[node], {**order, "node": node}))
    wrong = [line for node in nodes for line in _ready_refusals(node, ready[node], run)]
    return wrong or _sharing_refusals(ssh, nodes, run, folder, own_folder)


def look(ssh: Ssh, host: SshHost, folder: str) -> dict[str, Any] | str:
    """Look at a host by a script that needs nothing but Python; return why not where it fails."""
    script = files("penstock.launch.ssh").joinpath("look.py").read_text()
    try:
        answer = ssh.run(host, ssh.python("-", folder), script)
    except Unreachable as error:
        return str(error)
    if answer.code == 0:
        try:
            return dict(json.loads(answer.out.splitlines()[-1]))
        except (ValueError, IndexError):
            return _odd(host, answer)
    if is_missing_command(answer):
        return (
            f'cluster.ssh.python = "{ssh.section.python}": {host.written} has no such command '
            f"({_last(answer)}); install Python {_dotted(LEAST_PYTHON)} or later there, or name "
            "the one it has"
        )
    return _odd(host, answer)


def look_refusals(node: str, found: dict[str, Any] | str, ssh: Ssh, run: Run) -> list[str]:
    """Return what a first look at a host says against a start there."""
    if isinstance(found, str):
        return [found]
    python = ssh.section.python
    wrong = []
    if found["system"] != "Linux":
        return [f"{node}: it runs {found['system']}; hosts of the ssh launcher must run Linux"]
    if tuple(map(int, found["python"].split(".")[:2])) < LEAST_PYTHON:
        return [
            f'cluster.ssh.python = "{python}": {node} has Python {found["python"]}; Penstock needs '
            f"{_dotted(LEAST_PYTHON)} or later: name another there"
        ]
    if found["penstock"] is None:
        wrong.append(f"{node}: {found['executable']} has no Penstock; {SETUP}")
    elif found["penstock"] != __version__:
        wrong.append(
            f"{node}: it has Penstock {found['penstock']}, and this machine {__version__}; install "
            f"the same on both: {SETUP}"
        )
    if found["torch"] is None:
        wrong.append(f"{node}: {found['executable']} has no torch; {SETUP}")
    if run.cluster.nodes > 1 and found["cryptography"] is None:
        wrong.append(
            f"{node}: {found['executable']} has no cryptography, which several hosts need; "
            f"pip install 'penstock[hosts]' there, or {SETUP}"
        )
    if not found["writable"]:
        wrong.append(
            f"{node}: {found['nearest']} cannot be written, and the run works in "
            f"{found['folder']}; make it writable, or name another folder in cluster.ssh.folder"
        )
    needed = needed_bytes(run)
    if found["free_bytes"] < needed:
        wrong.append(
            f"{node}: {found['free_bytes'] / 2**30:.1f} GiB are free in {found['nearest']}, and "
            f"the run may need {needed / 2**30:.1f} GiB for its checkpoints; make room, or name "
            "another folder in cluster.ssh.folder"
        )
    return wrong


def needed_bytes(run: Run) -> float:
    """Return the space that the checkpoints of a run may take on the disk of a host."""
    shape = None if run.model.module else run.model.base()
    params = shape.params() if shape and shape.vocab else 0
    return max(LEAST_FREE_BYTES, params * CHECKPOINT_BYTES * (run.guard.keep + 1))


def differing(looks: Mapping[str, Any], what: str) -> list[str]:
    """Return a line for each host whose version of something is not that of most hosts."""
    versions = {node: found[what] for node, found in looks.items()}
    usual = Counter(versions.values()).most_common(1)[0][0]
    return [
        f"{node}: it has {what} {version}, and most hosts have {usual}; install {usual} there"
        for node, version in versions.items()
        if version != usual
    ]


def ask(
    ssh: Ssh, host: SshHost, verb: str, order: Mapping[str, Any], timeout_s: float = ANSWER_S
) -> dict[str, Any]:
    """Ask the host's side of the engine; raises RunFailed where it gives no answer."""
    answer = ssh.run(host, ssh.python("-m", MODULE, verb), json.dumps(order), timeout_s)
    try:
        return dict(json.loads(answer.out.splitlines()[-1]))
    except (ValueError, IndexError):
        raise RunFailed(_odd(host, answer)) from None


def _ready(ssh: Ssh, host: SshHost, order: Mapping[str, Any]) -> dict[str, Any] | str:
    try:
        return ask(ssh, host, "ready", order)
    except (Unreachable, RunFailed) as error:
        return str(error)


def _ready_refusals(node: str, found: dict[str, Any] | str, run: Run) -> list[str]:
    if isinstance(found, str):
        return [found]
    wrong = [
        f'name = "{run.name}": this run is under way on {node} (job {job}); `penstock stop '
        f"{run.name}` ends it, or give the new one another name"
        for job in found["running"]
    ]
    if found["store"]:
        wrong.append(
            f"guard.durable: from {node}, {found['store']}; correct the address, or set its "
            "credentials (AWS_ACCESS_KEY_ID, …) on this machine, which hands them on"
        )
    return wrong


def _sharing_refusals(
    ssh: Ssh, nodes: Mapping[str, SshHost], run: Run, folder: str, own_folder: Path
) -> list[str]:
    """Return which hosts do not see the folder where the run's hosts and this machine meet.

    A host that meets nobody there would train the whole run alone.
    """
    durable = run.guard.durable
    bucket = durable is not None and is_url(durable)
    if bucket and run.cluster.nodes > 1:
        return []
    place = run.dir if bucket or durable is None else durable
    name = f".penstock-{secrets.token_hex(8)}"
    own = Path(own_folder, Path(place).expanduser()) / name
    theirs = str(PurePosixPath(folder, place) / name)
    there = own.parent.exists()
    try:
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text("")
        seen = each(nodes, lambda node: ask(ssh, nodes[node], "sees", {"path": theirs}))
    except OSError as error:
        return [system_error(error)]
    finally:
        own.unlink(missing_ok=True)
        if not there:
            with contextlib.suppress(OSError):  # somebody else uses it by now
                own.parent.rmdir()
    apart = [node for node in nodes if not seen[node]["there"]]
    if not apart:
        return []
    do = "does" if len(apart) == 1 else "do"
    what = f"{', '.join(apart)} {do} not share the folder {own.parent} with this machine"
    if run.cluster.nodes == 1:
        return [
            f'dir = "{run.dir}": {what}, so the run could not be followed; name a folder on a disk '
            "that they share, or run `penstock train` on the host itself"
        ]
    field = f'guard.durable = "{durable}"' if durable else "guard.durable: missing"
    return [
        f"{field}; {what}, and hosts of a run must meet; write durable = "
        '"s3://bucket/runs", or a folder on a disk that all of them share'
    ]


def _odd(host: SshHost, answer: SshAnswer) -> str:
    return f"{host.written}: Python there gave no answer: {_last(answer)}"


def _last(answer: SshAnswer) -> str:
    lines = [line.strip() for line in answer.err.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {answer.code}"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
