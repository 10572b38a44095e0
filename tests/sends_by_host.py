"""For tests with several ranks on one GPU: gloo sends and receives from host memory alone."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass
class Arriving:
    """A transfer of `host`; what has arrived goes on to the tensor it is for."""

    work: Any
    host: Tensor
    tensor: Tensor | None

    def wait(self) -> None:
        self.work.wait()
        if self.tensor is not None:
            self.tensor.data.copy_(self.host)


def install() -> None:
    """In this process, for good: all batches of sends and receives take this way."""

    def batch(ops: list[dist.P2POp]) -> list[Arriving]:
        works = []
        for op in ops:
            if op.op is dist.isend:
                host = op.tensor.detach().cpu().contiguous()
                work = dist.isend(host, group=op.group, tag=op.tag, group_dst=op.group_peer)
                works.append(Arriving(work, host, None))
            else:
                host = torch.empty_like(op.tensor, device="cpu", requires_grad=False)
                work = dist.irecv(host, group=op.group, tag=op.tag, group_src=op.group_peer)
                works.append(Arriving(work, host, op.tensor))
        return works

    dist.batch_isend_irecv = batch
