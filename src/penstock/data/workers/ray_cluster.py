"""Connection to a Ray cluster, and the checks of its nodes before a build uses them."""

import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from penstock.data.store.objects import Store, is_url
from penstock.data.workers.installed import PENSTOCK, difference, versions
from penstock.errors import PenstockError
from penstock.extras import extra
from penstock.secret import redact

RAY = "ray"
_SCHEME = f"{RAY}://"
_NAMESPACE = "penstock"
_CONNECT_S = 5.0  # to open a connection
_ANSWER_S = 120.0  # for a node to start a process and answer


@dataclass(frozen=True)
class Needed:
    """A file that every node must be able to read."""

    where: str  # path or URL
    size: int  # bytes; -1: any
    advice: str  # what to do if a node cannot


def cluster_address(on: str) -> str:
    """Return the address of the cluster that `--on` means; refuse what is no address."""
    if on == RAY:
        return os.environ.get("RAY_ADDRESS") or "auto"
    if re.fullmatch(r"ray://[^/\s]+:\d+", on):
        return on
    raise PenstockError(
        f"--on {on!r}: not a cluster. Write ray (the cluster of RAY_ADDRESS, or the one on "
        "this machine), or the address of a Ray client server, such as ray://10.0.0.1:10001"
    )


def import_ray() -> ModuleType:
    return extra(RAY, "Building on Ray", RAY)


def connect(address: str) -> ModuleType:
    """Connect this process to the cluster; return the module `ray`."""
    ray = import_ray()
    _refuse_closed(address)
    # Ray sets a handler of its own, which would end a build without a word.
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if main else None
    try:
        ray.init(
            address=address,
            namespace=_NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise PenstockError(_refusal(address, error)) from None
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
    return ray


def _refuse_closed(address: str) -> None:
    """Refuse an address at which nothing listens; Ray itself would try for a minute."""
    found = re.fullmatch(r"(?:ray://)?\[?([^/\s]+?)\]?:(\d+)", address)
    if found is None:
        return
    try:
        socket.create_connection((found[1], int(found[2])), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise PenstockError(_no_cluster(address, str(error))) from None


def _no_cluster(address: str, why: str) -> str:
    if address == "auto":
        return (
            "--on ray: RAY_ADDRESS is not set, and no Ray cluster runs on this machine. Start one "
            "(`ray start --head`), or name one, such as --on ray://10.0.0.1:10001"
        )
    return (
        f"No Ray cluster answers at {redact(address)}: {why}. Check host and port (`ray status` on "
        "its head node; the client server of ray:// listens at 10001) and that it runs"
    )


def _refusal(address: str, error: Exception) -> str:
    told = " ".join(str(error).split())
    if "Version mismatch" in told:
        found = re.search(
            r"started with: Ray: (\S+) Python: (\S+) This process .* started with: "
            r"Ray: (\S+) Python: (\S+)",
            told,
        )
        if found:
            there, here = f"Ray {found[1]} on Python {found[2]}", f"Ray {found[3]} on {found[4]}"
            return (
                f"The Ray cluster at {redact(address)} has {there}; this process has {here}. "
                f"Install the same here: pip install ray=={found[1]}, on Python {found[2]}"
            )
    return _no_cluster(address, redact(told[:300]))


def alive_nodes(ray: ModuleType) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def check_nodes(ray: ModuleType, needed: Sequence[Needed]) -> None:
    """Refuse a cluster if a node has other versions or cannot read what it needs."""
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look = ray.remote(num_cpus=0, max_retries=2)(look_around)
    asked = {}
    for node in alive_nodes(ray):
        here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        one = look.options(scheduling_strategy=here).remote([(n.where, n.size) for n in needed])
        asked[node["NodeID"]] = node["NodeManagerAddress"], one
    for name, (address, answer) in asked.items():
        try:
            theirs, problems = ray.get(answer, timeout=_ANSWER_S)
        except GetTimeoutError:
            raise PenstockError(
                f"Node {address} of the Ray cluster did not answer in {_ANSWER_S:.0f} s. Look "
                "at it with `ray status`, or take it out of the cluster"
            ) from None
        except RayError as error:
            if name not in {node["NodeID"] for node in alive_nodes(ray)}:
                continue  # it has died, which the cluster did not know yet
            raise PenstockError(_unusable(address, error)) from None
        if told := difference(versions(), theirs):
            raise PenstockError(version_message(address, told))
        for need, problem in zip(needed, problems, strict=True):
            if problem:
                raise PenstockError(
                    f"Node {address} of the Ray cluster cannot read {redact(need.where)}: "
                    f"{problem}. {need.advice}"
                )


def version_message(address: str, told: str) -> str:
    return (
        f"Node {address} of the Ray cluster differs from this process: {told}. The dataset could "
        "come out different. Install the same versions on all nodes, Penstock with "
        "'penstock[data,ray]', and start Ray there again"
    )


def _unusable(address: str, error: Exception) -> str:
    told = str(error)
    if "No module named 'penstock" in told:
        return (
            f"Node {address} of the Ray cluster has no Penstock. Install the version of this "
            f"process there, {versions()[PENSTOCK]}, with 'penstock[data,ray]'"
        )
    last = [line for line in told.splitlines() if line.strip()][-1:]
    return f"Node {address} of the Ray cluster cannot run tasks: {redact(''.join(last))[:300]}"


def look_around(files: Iterable[tuple[str, int]]) -> tuple[dict[str, str], list[str]]:
    """Return the versions of this node and, for each file, why it cannot be read, or nothing."""
    return versions(), [_problem(where, size) for where, size in files]


def _problem(where: str, size: int) -> str:
    try:
        if is_url(where):
            folder, _, name = where.rpartition("/")
            found = Store(folder).head(name).size
        else:
            with open(where, "rb") as file:
                found = os.fstat(file.fileno()).st_size
    except OSError as error:
        return error.strerror or str(error)
    except PenstockError as error:  # a package is missing
        return str(error)
    return f"it has {found} bytes there and {size} here" if size not in (-1, found) else ""
