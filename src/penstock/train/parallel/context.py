"""Context parallel: the ranks of "context" share every sequence.

Late tokens see more than early ones. So a sequence is cut into twice as many pieces as there are
ranks, and rank r of C takes the pieces r and 2C-1-r: all ranks have the same work. Everything but
attention works on the rank's own tokens. Attention gathers the keys and values of all ranks; their
gradients come back as a sum. Queries are not sent: with grouped heads they are larger.

The gathered keys are in the order of the ranks, not of the sequence. A mask over them says what
each of this rank's tokens may see.

Shape suffixes as in `model/decoder.py`; p pieces, o this rank's tokens, k keys of all ranks.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from penstock.catalog.shapes import ModelShape
from penstock.model.decoder import Decoder
from penstock.model.layers import Mask, attend, document_positions, rotary_cos_sin
from penstock.train.parallel.microbatch import Microbatch
from penstock.train.parallel.sequences import gather_sequence
from penstock.train.world.world import World


def apply_context_parallel(decoder: Decoder, world: World) -> None:
    """Make the decoder work on this rank's tokens of a sequence, in place."""
    mesh = world.mesh["context"]
    decoder.positions_and_mask = partial(positions_and_mask, mesh)
    for layer in decoder.layers.values():
        layer.attention.attend = partial(attend_gathered, mesh)


def positions_by_rank(sequence: int, ways: int, device: torch.device | None = None) -> Tensor:
    """Return the positions in a sequence of all ranks' tokens, rank after rank."""
    rank_c = torch.arange(ways, device=device)
    piece_p = torch.stack((rank_c, 2 * ways - 1 - rank_c), 1).flatten()
    each = sequence // (2 * ways)
    return (piece_p.unsqueeze(1) * each + torch.arange(each, device=device)).flatten()


def local_chunk(x_k: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return this rank's part of a tensor that is ordered by rank."""
    return x_k.chunk(mesh.size())[mesh.get_local_rank()]


def sequence_slicer(world: World) -> Callable[[Microbatch], Microbatch]:
    """Return a function that cuts this rank's tokens out of a microbatch. Document starts stay
    whole: all ranks need them.
    """
    mesh = world.mesh["context"]

    def of(micro: Microbatch) -> Microbatch:
        inputs_bs, counted_bs = micro.inputs_bs, micro.counted_bs
        at_o = local_chunk(
            positions_by_rank(inputs_bs.shape[1], mesh.size(), inputs_bs.device), mesh
        )
        return replace(
            micro,
            inputs_bs=inputs_bs[:, at_o],
            targets_bs=micro.targets_bs[:, at_o],
            counted_bs=None if counted_bs is None else counted_bs[:, at_o],
        )

    return of


def sequence_joiner(world: World) -> Callable[[Tensor], Tensor]:
    """Return a function that gathers the tokens of all ranks in the order of the sequence."""
    mesh = world.mesh["context"]

    def of(x_bov: Tensor) -> Tensor:
        x_bkv = DTensor.from_local(x_bov, mesh, [Shard(1)], run_check=False).full_tensor()
        return x_bkv[:, positions_by_rank(x_bkv.shape[1], mesh.size(), x_bkv.device).argsort()]

    return of


def positions_and_mask(
    mesh: DeviceMesh,
    sequence: int,
    starts_bs: Tensor | None,
    shape: ModelShape,
    device: torch.device,
) -> tuple[Tensor, Mask]:
    """Return the rotation and the mask of this rank's `sequence` tokens, as the function of this
    name in `model/layers.py` does for all; `starts_bs` covers the tokens of all ranks.
    """
    at_k = positions_by_rank(sequence * mesh.size(), mesh.size(), device)
    at_o = local_chunk(at_k, mesh)
    window = shape.window if shape.window < len(at_k) else 0
    cos_sin = rotary_cos_sin(
        at_o if starts_bs is None else document_positions(starts_bs)[:, at_o], shape
    )
    document_bs = None if starts_bs is None else starts_bs.cumsum(1, dtype=torch.int32)
    if device.type == "cuda":
        from penstock.train.parallel.context_blocks import (
            context_block_mask,
        )  # slow to import, no use on a CPU

        return cos_sin, context_block_mask(at_o, at_k, document_bs, window)
    return cos_sin, visible_keys(at_o, at_k, document_bs, window)


def visible_keys(at_o: Tensor, at_k: Tensor, document_bs: Tensor | None, window: int = 0) -> Tensor:
    """Return which keys each token of this rank may see: not later, same document, in `window`."""
    earlier_ok = at_o.unsqueeze(1) >= at_k
    if window:
        earlier_ok &= at_o.unsqueeze(1) - at_k < window
    if document_bs is None:
        return earlier_ok.unsqueeze(0)
    same_bok = document_bs[:, at_o].unsqueeze(2) == document_bs[:, at_k].unsqueeze(1)
    return same_bok & earlier_ok


def attend_gathered(
    mesh: DeviceMesh,
    q_bohe: Tensor,
    k_boke: Tensor,
    v_boke: Tensor,
    mask: Mask,
    scale: float | None = None,
    sinks_h: Tensor | None = None,
) -> Tensor:
    """Compute attention of this rank's queries to the keys of all ranks; keys and values are
    gathered together.
    """
    widths = k_boke.shape[-1], v_boke.shape[-1]
    if widths[0] == widths[1]:
        keys, values = gather_sequence(torch.cat((k_boke, v_boke), 2), mesh).chunk(2, 2)
    else:  # latent attention, which has as many heads of one as of the other
        keys, values = gather_sequence(torch.cat((k_boke, v_boke), 3), mesh).split(widths, 3)
    return attend(q_bohe, keys, values, mask, scale, sinks_h)
