"""The user's own loss (`train.loss`): one number per token, summed here.

The function gets the logits and targets of some tokens and returns a loss for each of them. Summing
and dividing by the global token count stay with Penstock. So the loss of a step does not depend on
how the batch was cut into microbatches and ranks.

Shape suffixes: n tokens, v vocab.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from penstock.errors import OwnCodeError, PenstockError
from penstock.model.loss import LossRule
from penstock.run.schema.code import UserCode

TokenLoss = Callable[[Tensor, Tensor], Tensor]  # (logits_nv, targets_n) -> losses_n


def checked_loss(own: Callable[..., object], code: UserCode) -> TokenLoss:
    """Wrap the user's loss so that its result is checked and its errors are reported as theirs.

    It gets logits in fp32 or wider, and must return one floating-point loss per token.
    """

    def losses(logits_nv: Tensor, targets_n: Tensor) -> Tensor:
        wide_nv = logits_nv.to(torch.promote_types(logits_nv.dtype, torch.float32))
        try:
            found = own(wide_nv, targets_n)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise OwnCodeError(f"{code.words}: it raised {code.describe_error(error)}") from error
        if not isinstance(found, Tensor):
            got = "nothing" if found is None else f"a {type(found).__name__}"
            fix = "is a `return` missing?" if found is None else "return a tensor"
            raise PenstockError(
                f"{code.words}: it gave {got}; it must return one loss per token, a tensor "
                f"{list(targets_n.shape)}: {fix}"
            )
        if found.shape != targets_n.shape:
            shape = list(found.shape)
            raise PenstockError(
                f"{code.words}: it gave {shape} for logits {list(logits_nv.shape)} and targets "
                f"{list(targets_n.shape)}; it must return one loss per token, "
                f'{list(targets_n.shape)}: write reduction="none" where you average'
            )
        if not found.is_floating_point():
            raise PenstockError(f"{code.words}: it gave {found.dtype}; it must return floats")
        if wide_nv.requires_grad and torch.is_grad_enabled() and not found.requires_grad:
            raise PenstockError(
                f"{code.words}: its losses do not depend on the logits, so that no gradient "
                "reaches the parameters; compute them with torch operations, without .detach(), "
                ".item(), torch.no_grad() or torch.tensor(…) on the way"
            )
        return found

    return losses


def loss_rule(own: TokenLoss) -> LossRule:
    """Return the loss as a rule of `summed_cross_entropy`, which works in chunks: the logits of all
    tokens never exist at once.
    """

    def rule(logits_nv: Tensor, targets_n: Tensor, counted_n: Tensor | None) -> Tensor:
        with torch.enable_grad():
            leaf_nv = logits_nv.detach().clone().requires_grad_()
            losses_n = own(leaf_nv, targets_n)
            if counted_n is not None:
                losses_n = losses_n * counted_n
            (gradient_nv,) = torch.autograd.grad(losses_n.sum(), leaf_nv)
        logits_nv.copy_(gradient_nv)
        return losses_n.detach()

    return rule
