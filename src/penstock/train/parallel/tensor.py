"""Tensor parallel: the ranks of "tensor" share the matrices of every layer, and the sequence.

Between blocks a rank keeps its own part of the sequence (sequence parallel). A block begins by
gathering the sequence, works with this rank's part of its matrices and ends in a sum over the
ranks of which each keeps its part of the sequence:

    q, k, v, gate, up        cut by outputs: each rank has some heads, some of the inner width
    kv                       of latent attention, the same; q_down and kv_down are whole, as routers
    out, down                cut by inputs: what comes out is a part of the sum
    embed, head              cut by words; the cross-entropy of the parts needs two numbers a token
    bias of out              whole, and each rank adds its share of it to its part of the sum
    norms, router            whole on every rank, which sees some of the tokens or of the heads, so
                             that its gradient is a part of the sum
    adapters                 one of the two matrices is cut as the frozen one is, the other is whole

Parameters are DTensors, so that FSDP2 shards what is left of them and checkpoints know which part
of the whole they are. The modules see plain tensors: DTensor's operators take more time on the host
than small layers take on the device.

Shape suffixes as in `model/decoder.py`; n tokens, r ranks.
"""

from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)

from penstock.model.decoder import Decoder
from penstock.model.experts import Experts
from penstock.model.loss import summed_cross_entropy
from penstock.model.moe import MoE
from penstock.train.parallel.sequences import gather_sequence, reduce_scatter_sequence
from penstock.train.world.world import World

BY_OUTPUTS = {"weight": Shard(0), "bias": Shard(0), "adapter_b": Shard(0)}
BY_INPUTS = {"weight": Shard(1), "adapter_a": Shard(1)}
CUTS = dict.fromkeys(("q", "k", "v", "kv", "gate", "up", "embed", "head"), BY_OUTPUTS)
CUTS |= dict.fromkeys(("out", "down"), BY_INPUTS)
CUTS["attention"] = {"sinks": Shard(0)}  # one for each head
ROWS = 2048  # tokens whose logits are in full precision at once


def apply_tensor_parallel(decoder: Decoder, world: World) -> None:
    """Split the decoder, or a stage of it, in place."""
    mesh = world.mesh["tensor"]
    for name, module in decoder.named_modules():
        if not isinstance(
            module, Experts
        ):  # whole experts are spread, see `train/parallel/expert.py`
            shard_parameters(module, CUTS.get(name.rpartition(".")[2], {}), mesh)
    for layer in decoder.layers.values():
        ffn = layer.ffn.shared if isinstance(layer.ffn, MoE) else layer.ffn
        for block in (layer.attention, ffn):
            if block is not None:
                block.register_forward_pre_hook(partial(_gather_input, mesh))
                block.register_forward_hook(partial(_reduce_output, mesh))
    if decoder.first:
        assert decoder.embed is not None
        decoder.embed.forward = partial(embed_tokens, decoder.embed, mesh)  # type: ignore[method-assign]
    else:
        inner, ways = decoder.positions_and_mask, mesh.size()
        decoder.positions_and_mask = lambda sequence, *rest: inner(sequence * ways, *rest)
    decoder.loss = partial(vocab_parallel_loss, mesh, decoder.shape.vocab)
    decoder.logits = partial(gather_logits, mesh, decoder.shape.vocab)


def shard_parameters(module: nn.Module, cuts: dict[str, Shard], mesh: DeviceMesh) -> None:
    """Turn the module's own parameters into DTensors; its forward will see this rank's part."""
    own = list(module.named_parameters(recurse=False))
    for name, param in own:
        placement: Placement = cuts.get(name, Replicate())
        # No rank sends anything: the weights are not there yet, or the same on all of them.
        part = distribute_tensor(param.detach(), mesh, [placement], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(part, param.requires_grad))
    if own:
        summed = cuts is BY_INPUTS and any(name == "bias" for name, _ in own)
        ways = mesh.size() if summed else 1
        module.__class__ = _with_local_parameters(type(module), ways)  # type: ignore[arg-type]


class LocalParameters:
    """A mixin before a module's class: the module sees its parameters as plain local tensors."""

    def __getattr__(self, name: str) -> Any:
        return local_with_gradient(super().__getattr__(name))  # type: ignore[misc]


class DividedBias(LocalParameters):
    """The same, of a module whose outputs are summed over ranks: each adds a share of the bias."""

    ways: int

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        return value / self.ways if name == "bias" else value


@cache
def _with_local_parameters(kind: type[nn.Module], ways: int = 1) -> type[nn.Module]:
    """Return the class with local parameters; `ways` above 1: ranks that share its bias."""
    if ways == 1:
        return type(kind.__name__, (LocalParameters, kind), {})
    return type(kind.__name__, (DividedBias, kind), {"ways": ways})


def local_with_gradient(value: Any) -> Any:
    """Return this rank's part of a DTensor. If all ranks hold it, each has part of its gradient.

    A tensor over two mesh dimensions is a shard of FSDP2, which handles it; forward never sees one.
    """
    if not isinstance(value, DTensor) or value.device_mesh.ndim > 1:
        return value
    grads = [Partial() if isinstance(p, Replicate) else p for p in value.placements]
    return value.to_local(grad_placements=grads)


def _gather_input(mesh: DeviceMesh, block: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return gather_sequence(args[0], mesh), *args[1:]


def _reduce_output(
    mesh: DeviceMesh, block: nn.Module, args: tuple[Any, ...], out_bsd: Tensor
) -> Tensor:
    return reduce_scatter_sequence(out_bsd, mesh)


def local_vocab_rows(
    words: Tensor, held: int, vocab: int, mesh: DeviceMesh
) -> tuple[Tensor, Tensor]:
    """Return the rows of this rank's part of the table, and which words are in it."""
    row = words - -(-vocab // mesh.size()) * mesh.get_local_rank()
    mine = (row >= 0) & (row < held)
    return row.where(mine, 0), mine


def embed_tokens(embed: nn.Embedding, mesh: DeviceMesh, tokens_bs: Tensor) -> Tensor:
    """Look tokens up. Each rank has some words of the table; the sum has them all."""
    table_vd = embed.weight
    row_bs, mine_bs = local_vocab_rows(tokens_bs, len(table_vd), embed.num_embeddings, mesh)
    return reduce_scatter_sequence(F.embedding(row_bs, table_vd) * mine_bs.unsqueeze(-1), mesh)


def gather_logits(mesh: DeviceMesh, vocab: int, x_bsd: Tensor, part_vd: Tensor) -> Tensor:
    """Return all logits on every rank, for sampling."""
    part_bsv = F.linear(gather_sequence(x_bsd, mesh), part_vd)
    batch, sequence = part_bsv.shape[:2]
    return DTensor.from_local(
        part_bsv,
        mesh,
        [Shard(2)],
        run_check=False,
        shape=torch.Size((batch, sequence, vocab)),
        stride=(sequence * vocab, vocab, 1),
    ).full_tensor()


def vocab_parallel_loss(
    mesh: DeviceMesh,
    vocab: int,
    x_bsd: Tensor,
    part_vd: Tensor,
    targets_bs: Tensor,
    counted_bs: Tensor | None = None,
) -> Tensor:
    """Return the summed loss, the same on every rank. Each has the logits of its own words only."""
    rule, words = partial(vocab_parallel_gradients_, mesh, vocab), -(-vocab // mesh.size())
    return summed_cross_entropy(
        gather_sequence(x_bsd, mesh), part_vd, targets_bs, counted_bs, rule, words
    )


def vocab_parallel_gradients_(
    mesh: DeviceMesh, vocab: int, logits_nv: Tensor, targets_n: Tensor, counted_n: Tensor | None
) -> Tensor:
    """Do what `model.loss.to_gradients_` does, with the logits of some words on each rank.

    For each token the ranks exchange the log of their sum, and the target's logit if they have it.
    It takes some rows at a time, so that their copy in full precision stays small.
    """
    row_n, mine_n = local_vocab_rows(targets_n, logits_nv.shape[1], vocab, mesh)
    weight_n = torch.ones_like(mine_n) if counted_n is None else counted_n
    parts = list(zip(*(x.split(ROWS) for x in (logits_nv, row_n, mine_n, weight_n)), strict=True))
    told_2n = torch.cat(
        [_log_sum_and_target(logits, row, mine) for logits, row, mine, _ in parts], 1
    )
    told_r2n = DTensor.from_local(told_2n.unsqueeze(0), mesh, [Shard(0)]).full_tensor()
    log_sum_n = told_r2n[:, 0].logsumexp(0)
    for (logits, row, mine, weight), log_sum in zip(parts, log_sum_n.split(ROWS), strict=True):
        gradient = (_at_least_fp32(logits) - log_sum.unsqueeze(1)).exp_()
        gradient.scatter_add_(1, row.unsqueeze(1), -mine.unsqueeze(1).to(gradient.dtype))
        logits.copy_(gradient.mul_(weight.unsqueeze(1)))
    return (log_sum_n - told_r2n[:, 1].sum(0)) * weight_n


def _log_sum_and_target(logits_nv: Tensor, row_n: Tensor, mine_n: Tensor) -> Tensor:
    """Return the log of the sum of exponents, and the target's logit or 0, of each token."""
    wide_nv = _at_least_fp32(logits_nv)
    hit_n = wide_nv.gather(1, row_n.unsqueeze(1)).squeeze(1)
    return torch.stack((wide_nv.logsumexp(1), hit_n.where(mine_n, 0)))


def _at_least_fp32(logits_nv: Tensor) -> Tensor:
    return logits_nv.to(torch.promote_types(logits_nv.dtype, torch.float32))
