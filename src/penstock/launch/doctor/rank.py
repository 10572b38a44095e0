"""One accelerator's process of an examination: `python -m penstock.launch.doctor.rank NAME`.

It imports torch while the node does other checks, and then answers the orders of its agent.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from penstock.launch.doctor.lines import Answer, Order, serve
from penstock.meter.orphan import die_with

WARM_UP, TIMES = 3, 5


class RankChecks:
    """The checks of one accelerator, alone and together with the others."""

    def __init__(self, name: str) -> None:
        import torch

        self.name = name
        self.torch: Any = torch
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(kind, int(name)) if kind == "cuda" else torch.device("cpu")
        self._store: Any = None
        self._path = ""

    def about(self, order: Order) -> Answer:
        """Return what torch sees."""
        cuda = self.device.type == "cuda"
        name = self.torch.cuda.get_device_name(self.device) if cuda else ""
        nccl = ".".join(map(str, self.torch.cuda.nccl.version())) if cuda else ""
        return {"kind": self.device.type, "name": name, "nccl": nccl}

    def accelerator(self, order: Order) -> Answer:
        """Check products and memory of this accelerator."""
        from penstock.launch.doctor import accelerator

        return {
            "matmul": accelerator.known_answer(self.device, int(self.name)),
            "memory": accelerator.memory_pattern(self.device),
        }

    def open_store(self, order: Order) -> Answer:
        """Open the store where all ranks meet."""
        from penstock.meter.rendezvous import loopback_store

        self._store = loopback_store()
        return {"port": self._store.port}

    def join(self, order: Order) -> Answer:
        """Take a place among all ranks, and prepare the small problem."""
        from penstock.launch.doctor import equality

        os.environ |= order["env"]
        if tunnel := order["tunnel"]:
            from penstock.launch.hosts.network import collectives

            socket = Path(tunnel["socket"])
            kind, own = self.device.type, int(tunnel["own"])
            os.environ |= collectives(kind, socket, own, tunnel["address"])
        folder = Path(order["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        self._path = equality.prepare(folder, self.device.type)
        return {}

    def alone(self, order: Order) -> Answer:
        """Train the small problem in this one process."""
        from penstock.launch.doctor import equality
        from penstock.plan.job.layout import Layout

        layout = Layout(microbatch=int(order["microbatch"]))
        found = equality.train_a_little(self._path, layout, self.device.type, 0)
        equality.leave(1)
        return dict(found)

    def layout(self, order: Order) -> Answer:
        """Train the small problem in a layout, together with the other ranks."""
        from penstock.launch.doctor import equality
        from penstock.plan.job.layout import Layout

        layout = Layout(**order["layout"])
        found = equality.train_a_little(self._path, layout, self.device.type, order["attempt"])
        equality.leave(layout.ranks)
        return dict(found)

    def all_reduce(self, order: Order) -> Answer:
        """Sum over all ranks: is the sum right, and how long does it take."""
        import torch.distributed as dist

        from penstock.launch.doctor import equality
        from penstock.plan.job.layout import Layout
        from penstock.train.world.world import join

        os.environ["PENSTOCK_ATTEMPT"] = order["attempt"]
        ranks, size = int(order["ranks"]), int(order["bytes"])
        world = join(Layout(replicate=ranks), self.device.type, equality.TIMEOUT_S)
        values = self.torch.empty(size // 4, device=world.device)
        seconds, right = [], True
        for _ in range(WARM_UP + TIMES):
            values.fill_(world.rank + 1)
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(values)
            if world.cuda:
                self.torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
            right = right and bool((values == ranks * (ranks + 1) / 2).all())
        equality.leave(ranks)
        spent = min(seconds[WARM_UP:])
        return {"right": right, "bytes_per_s": 2 * (ranks - 1) / ranks * size / spent}


def main() -> None:
    die_with(int(os.environ["PENSTOCK_PARENT"]))
    name = sys.argv[1]
    checks = RankChecks(name)
    handlers = {
        "about": checks.about,
        "accelerator": checks.accelerator,
        "open_store": checks.open_store,
        "join": checks.join,
        "alone": checks.alone,
        "layout": checks.layout,
        "all_reduce": checks.all_reduce,
    }
    serve(name, handlers)
    sys.stderr.flush()
    os._exit(0)  # threads of a world that broke may never end


if __name__ == "__main__":
    main()
