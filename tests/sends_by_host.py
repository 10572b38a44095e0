"""For tests with several ranks on one GPU, which only gloo allows: all exchanges by host memory.

gloo itself can send and receive from nowhere else, and with torch 2.11 no layout came to an end
that gathers or scatters tensors of a GPU over it (all-gather, reduce-scatter); all-reduces do. What
FSDP2 and DTensor call is replaced, under its names in torch 2.11 and in torch 2.13.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor

SCATTERS = ("reduce_scatter_tensor", "reduce_scatter_single")
INTO = ("all_gather_into_tensor", "all_gather_single", *SCATTERS)
GIVING = ("all_gather_tensor", "all_gather_single", *SCATTERS)


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


class Done:
    """A transfer that has ended."""

    def wait(self) -> None:
        pass


def install() -> None:
    """In this process, for good."""
    dist.batch_isend_irecv = _batch
    for module, names, way in ((dist, INTO, _into), (functional, GIVING, _giving)):
        for name in names:
            if hasattr(module, name):
                setattr(module, name, way(getattr(module, name)))


def _batch(ops: list[dist.P2POp]) -> list[Arriving]:
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


def _into(real: Callable[..., Any]) -> Callable[..., Done | None]:
    """For those that fill a tensor; FSDP2 calls some with names and some without."""

    def way(*two: Tensor, async_op: bool = False, **named: Any) -> Done | None:
        out, given = two or (named.pop("output"), named.pop("input"))
        host = torch.empty_like(out, device="cpu")
        real(host, given.detach().cpu(), **named)
        out.copy_(host)
        return Done() if async_op else None

    return way


def _giving(real: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def way(given: Tensor, *how: Any, **named: Any) -> Tensor:
        found = real(given.detach().cpu(), *how, **named)
        return functional.wait_tensor(found).to(given.device)

    return way
