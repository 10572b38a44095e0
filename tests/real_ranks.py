"""Real ranks for tests: processes that can join a world, forked from a server that has torch.

A module of its own, found by its name: what the processes run must be importable there.
"""

import faulthandler
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from penstock.launch.supervisor import fork_client

LEAVE_S = 60.0
CONTEXT = multiprocessing.get_context("forkserver")
# Imported once by the server, so that a process starts in no time.
CONTEXT.set_forkserver_preload([*fork_client.MODULES, "torch.distributed.pipelining"])


def _rank(rank: int, ranks: int, port: int, out: Any, job: Callable[..., Any], args: tuple) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PENSTOCK_ATTEMPT": "test",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    import torch

    faulthandler.enable()  # a crash in native code shows where Python was, in every thread
    torch.set_num_threads(1)
    try:
        out.put((rank, job(*args), ""))
    except Exception:
        out.put((rank, None, traceback.format_exc()))
    out.close()
    out.join_thread()
    sys.stdout.flush()
    os._exit(0)


def leave() -> None:
    """Leave the world together with all its ranks, so that they can join another.

    No rank closes its sockets while a peer may still be in a collective: a rank was seen to crash
    in `malloc`, in a thread of Gloo. torch also caches the meshes of a world that is gone, and
    takes those of the next for equal.
    """
    import torch.distributed as dist
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    store, ranks = dist.distributed_c10d._get_default_store(), dist.get_world_size()
    store.add("leaving", 1)
    latest = time.monotonic() + LEAVE_S
    while store.add("leaving", 0) < ranks:
        assert time.monotonic() < latest, "a rank did not leave the world"
        time.sleep(0.002)
    _clear_sharding_prop_cache()
    dist.destroy_process_group()


def run(count: int, job: Callable[..., Any], *args: Any, timeout_s: float = 240.0) -> list[Any]:
    """The results of `job(*args)` on each of `count` ranks; the first error fails the test."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    out = CONTEXT.Queue()
    processes = [
        CONTEXT.Process(target=_rank, args=(rank, count, store.port, out, job, args))
        for rank in range(count)
    ]
    for process in processes:
        process.start()
    answers: list[tuple[int, Any, str]] = []
    try:
        # The others may wait for one that has failed: nobody waits for them.
        while len(answers) < count and not any(error for _, _, error in answers):
            answers.append(out.get(timeout=timeout_s))
    finally:
        exits = [process.exitcode for process in processes]  # None: still there
        for process in processes:
            process.kill()
            process.join()
    errors = [error for _, _, error in answers if error]
    # A peer that crashed is the cause; the rank that lost its connection only noticed it.
    crashed = {rank: code for rank, code in enumerate(exits) if code}
    assert not errors, f"ranks that died first, with exit codes: {crashed}\n{errors[0]}"
    return [answer for _, answer, _ in sorted(answers, key=lambda a: a[0])]
