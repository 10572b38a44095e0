"""A causal language model of transformers as the model of a run, called as our decoder is.

The module is built without memory for its weights, so that it can be cut between ranks first. Its
buffers (rotary frequencies and the like) are computed at once: no file has them.

Shape suffixes: b batch, s sequence, d hidden, v vocab, n tokens.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.errors import PenstockError
from penstock.model.loss import summed_cross_entropy
from penstock.model.user_loss import TokenLoss

NEAR = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the largest value; 16 bits: 0.05


class TransformersModel(nn.Module):
    """A module of transformers that takes tokens and gives logits, or a summed loss.

    This class is put in front of the module's own (`build_module`), so that parameters keep the
    names that transformers gives them.
    """

    def prepare_training(self, renamings: list[Any]) -> None:
        """Set what training needs beside the module's own attributes."""
        self.stored_renamings = renamings  # from names in files to names in the module
        self.chunked_loss: Callable[..., Tensor] = summed_cross_entropy
        self.token_loss: TokenLoss | None = None  # the user's own, where the loss needs logits
        self.token_losses = False  # the loss of each token is returned, not their sum
        self.plain_head = False  # logits are hidden states × head, and nothing more

    def forward(
        self,
        x_bs: Tensor,
        starts_bs: Tensor | None = None,
        targets_bs: Tensor | None = None,
        counted_bs: Tensor | None = None,
    ) -> Tensor:
        """Compute logits or the summed loss. `starts_bs` marks where documents begin: each is then
        read as if it were alone.
        """
        if self.plain_head:
            x_bsd, head_vd = self.last_hidden(x_bs, starts_bs), self.output_head.weight
            if targets_bs is None:
                return F.linear(x_bsd, head_vd)
            return self.chunked_loss(x_bsd, head_vd, targets_bs, counted_bs)
        logits_bsv = self.own_logits(x_bs, starts_bs)
        if targets_bs is None:
            return logits_bsv
        return self._loss_of_logits(logits_bsv, targets_bs, counted_bs)

    def last_hidden(self, x_bs: Tensor, starts_bs: Tensor | None) -> Tensor:
        """Return the hidden states before the head."""
        given = self.base_model(x_bs, use_cache=False, **self._documents(starts_bs))
        return given.last_hidden_state

    def own_logits(self, x_bs: Tensor, starts_bs: Tensor | None) -> Tensor:
        """Return the logits as the module itself computes them."""
        return super().forward(x_bs, use_cache=False, **self._documents(starts_bs)).logits

    # Names of our own that no module of transformers has: it would be hidden by them.
    @property
    def output_head(self) -> nn.Module:
        return self.get_output_embeddings()

    def _documents(self, starts_bs: Tensor | None) -> dict[str, Tensor]:
        if starts_bs is None:
            return {}
        dtype = self.get_input_embeddings().weight.dtype
        return {
            "position_ids": positions_in_documents(starts_bs),
            "attention_mask": document_mask(starts_bs, dtype),
        }

    def _loss_of_logits(
        self, logits_bsv: Tensor, targets_bs: Tensor, counted_bs: Tensor | None
    ) -> Tensor:
        logits_nv, targets_n = logits_bsv.flatten(0, 1), targets_bs.flatten()
        wide_nv = logits_nv.to(torch.promote_types(logits_nv.dtype, torch.float32))
        if self.token_loss is not None:
            losses_n = self.token_loss(wide_nv, targets_n)
        else:
            losses_n = F.cross_entropy(wide_nv, targets_n, reduction="none")
        losses_n = losses_n if counted_bs is None else losses_n * counted_bs.flatten()
        return losses_n.view(targets_bs.shape) if self.token_losses else losses_n.sum()


def positions_in_documents(starts_bs: Tensor) -> Tensor:
    """Return the position of every token in its document."""
    at_s = torch.arange(starts_bs.shape[1], device=starts_bs.device)
    begin_bs = torch.where(starts_bs.bool(), at_s, torch.zeros_like(at_s)).cummax(1).values
    return at_s - begin_bs


def document_mask(starts_bs: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to the scores [b, 1, s, s]: 0 where a token sees another, which is
    before it and in the same document, and the lowest number elsewhere.
    """
    document_bs = starts_bs.long().cumsum(1)
    same_bss = document_bs.unsqueeze(2) == document_bs.unsqueeze(1)
    hidden_bss = ~same_bss.tril()
    zero_bss = torch.zeros(same_bss.shape, dtype=dtype, device=starts_bs.device)
    return zero_bss.masked_fill_(hidden_bss, torch.finfo(dtype).min).unsqueeze(1)


def build_module(folder: Path, dtype: torch.dtype) -> nn.Module:
    """Build the module of a folder's config: parameters of `dtype` without memory, buffers filled.

    Code that came with the model is never run.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise PenstockError(f"transformers cannot be imported: {error}") from None
    try:
        config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
        with _parameters_on_meta():
            model = _build(AutoModelForCausalLM, config)
    except PenstockError:
        raise
    except Exception as error:  # whatever a config makes transformers raise
        what = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise PenstockError(
            f"{folder / 'config.json'}: transformers cannot build this model ({what})"
        ) from error
    for param in model.parameters():
        if param.is_floating_point():
            param.data = param.data.to(dtype)
    renamings = _renamings(model)  # looked up by the class, which changes now
    model.__class__ = type(f"Trained{type(model).__name__}", (TransformersModel, type(model)), {})
    model.prepare_training(renamings)
    return model


def _build(auto: Any, config: Any) -> nn.Module:
    """Build with torch's own attention where the architecture has it, else with its plain one."""
    for how in ("sdpa", "eager"):
        try:
            return auto.from_config(config, attn_implementation=how, trust_remote_code=False)
        except ValueError as error:
            if how == "eager" or "scaled_dot_product_attention" not in str(error):
                raise
    raise AssertionError


def _renamings(model: nn.Module) -> list[Any]:
    """Return how transformers renames tensors when it loads this architecture's files.

    Tensors that it also joins or cuts (experts that are stored one by one) are left out: they do
    not fit, and are refused by name.
    """
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightRenaming
    except ImportError:  # transformers 4 renames nothing
        return []
    found = get_model_conversion_mapping(model)
    return [one for one in found if isinstance(one, WeightRenaming)]


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Give every parameter that is registered no memory; buffers are not touched."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(module, name, param)
        if param is not None and not param.is_meta:
            empty = torch.empty_like(param, device="meta")
            module._parameters[name] = nn.Parameter(empty, param.requires_grad)

    nn.Module.register_parameter = on_meta
    try:
        yield
    finally:
        nn.Module.register_parameter = register


def allocate(model: nn.Module, device: torch.device) -> None:
    """Give the parameters memory on the device and move the buffers there; tied ones stay tied."""
    names: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, param in module._parameters.items():
            if param is not None:
                names.setdefault(id(param), []).append((module, name))
    model._apply(lambda t: torch.empty_like(t, device=device) if t.is_meta else t.to(device))
    for (first, own), *others in names.values():
        for module, name in others:
            module._parameters[name] = first._parameters[own]


@torch.no_grad()
def find_plain_head(model: TransformersModel, device: torch.device) -> None:
    """Measure whether logits are just hidden states × head; then the loss is computed in chunks.

    Some architectures scale or bound their logits, or have a bias. All ranks that share the weights
    must call this.
    """
    head = model.output_head
    if not isinstance(head, nn.Linear) or head.bias is not None or model.base_model is model:
        return
    model.eval()
    tokens_bs = torch.arange(8, device=device).unsqueeze(0) % model.config.vocab_size
    own = model(tokens_bs)
    model.plain_head = True
    model.plain_head = torch.equal(own, model(tokens_bs))
    model.train()


@torch.no_grad()
def refuse_seen_documents(model: TransformersModel, device: torch.device) -> None:
    """Measure that two documents of one sample give what each gives alone; refuse the model if not.

    All ranks that share the weights must call this.
    """
    name = model.config.model_type
    tokens_bs = torch.arange(1, 25, device=device).unsqueeze(0) * 7 % model.config.vocab_size
    starts_bs = torch.zeros_like(tokens_bs, dtype=torch.bool)
    starts_bs[0, [0, 9]] = True
    model.eval()
    try:
        packed = model(tokens_bs, starts_bs)
        alone = torch.cat((model(tokens_bs[:, :9]), model(tokens_bs[:, 9:])), 1)
    except (TypeError, ValueError, RuntimeError) as error:
        what = f"its forward pass refuses positions or a mask ({str(error)[:200]})"
    else:
        scale, apart = alone.abs().max().item(), (packed - alone).abs().max().item()
        what = f"logits of a document change by {apart:.2g} with another one before it"
        if apart <= NEAR.get(alone.dtype, 0.05) * scale:
            what = ""
    model.train()
    if what:
        raise PenstockError(
            f'data.across_documents = false: "{name}" cannot keep the documents of a sample apart: '
            f"{what}; write true, or take another model"
        )
