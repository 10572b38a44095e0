"""Sampling of tokens from a model: the plain way, one forward per token."""

from collections.abc import Callable

import torch
from torch import Tensor


@torch.no_grad()
def sample_continuation(
    logits: Callable[[Tensor], Tensor],
    prompt: list[int],
    count: int,
    window: int,
    seed: int,
    temperature: float = 0.8,
    top: int = 40,
    stop_at: int | None = None,
    device: torch.device | None = None,
    multiple: int = 1,
) -> list[int]:
    """Return `count` sampled tokens after the prompt; `logits` maps tokens [b, s] to [b, s, v].

    All ranks of a model that is laid out over several must call it, and get the same tokens. If
    they share the sequence, its length must be a `multiple`, as `window` is.

    Random numbers come from one seeded generator on the CPU, so that ranks agree without
    communication.
    """
    draw = torch.Generator().manual_seed(seed)
    tokens = list(prompt)
    # One width for all forwards: on a GPU every new shape loads kernels anew. Attention is
    # causal: the filling, to the right of the tokens, does not change them.
    width = min(window, -(-(len(tokens) + count) // multiple) * multiple)
    for _ in range(count):
        seen = tokens[-width:]
        inputs_bs = torch.tensor([seen + [0] * (width - len(seen))], device=device)
        logits_v = logits(inputs_bs)[0, len(seen) - 1].float().cpu()
        best, ids = logits_v.topk(min(top, len(logits_v)))
        if temperature == 0:
            choice = 0
        else:
            choice = int(torch.multinomial((best / temperature).softmax(0), 1, generator=draw))
        token = int(ids[choice])
        if token == stop_at:
            break
        tokens.append(token)
    return tokens[len(prompt) :]
