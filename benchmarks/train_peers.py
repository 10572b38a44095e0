"""The peers of `train_speed.py`: other trainers' models and settings, on the same shapes and data.

Sources are read from a folder that is not part of the project: torchtitan 0.2.2 unpacked from its
wheel, and nanoGPT's `model.py` as `nanogpt_model.py`. transformers comes from the machine.
"""

import sys
import types
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from penstock.catalog.shapes import ModelShape

Step = Callable[[Tensor], Tensor]  # tokens [b, s + 1] to the loss


def titan(shape: ModelShape, sequence: int, sources: Path) -> Step:
    """Its llama3 model; blocks and loss compiled, autocast, fused AdamW: its one-GPU settings."""
    model_code = _titan_code(sources)
    args = sys.modules["torchtitan.models.llama3.model.args"].TransformerModelArgs(
        dim=shape.hidden,
        n_layers=shape.layers,
        n_heads=shape.heads,
        n_kv_heads=shape.kv_heads,
        vocab_size=shape.vocab,
        # Its inner width is 2/3 × 4 × dim × multiplier, rounded up to a multiple.
        ffn_dim_multiplier=shape.ffn / int(8 * shape.hidden / 3),
        multiple_of=16,
        rope_theta=shape.rope_theta,
        max_seq_len=sequence,
    )
    with torch.device("meta"):
        model = model_code.Transformer(args)
    model.to_empty(device="cuda")
    with torch.no_grad():
        model.init_weights(buffer_device=torch.device("cuda"))
    assert model.layers["0"].feed_forward.w1.out_features == shape.ffn
    for name, block in model.layers.named_children():
        model.layers.register_module(name, torch.compile(block, backend="inductor", fullgraph=True))

    @torch.compile(backend="inductor")
    def cross_entropy(pred: Tensor, labels: Tensor) -> Tensor:
        flat = pred.flatten(0, 1).float()
        return nn.functional.cross_entropy(flat, labels.flatten(0, 1), reduction="sum")

    def loss(tokens: Tensor) -> Tensor:
        return cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]) / tokens[:, 1:].numel()

    return _autocast(model, loss)


def transformers(shape: ModelShape, sequence: int, sources: Path) -> Step:
    """Its Llama with SDPA, compiled whole."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=sequence,
        tie_word_embeddings=False,
        use_cache=False,
        attn_implementation="sdpa",
    )
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    run = torch.compile(model)
    return _autocast(
        model, lambda tokens: run(input_ids=tokens[:, :-1], labels=tokens[:, :-1]).loss
    )


def nanogpt(shape: ModelShape, sequence: int, sources: Path) -> Step:
    """GPT-2's block (GELU, LayerNorm, learned positions), tied: the nearest it has to the shape."""
    sys.path.insert(0, str(sources))
    from nanogpt_model import GPT, GPTConfig

    config = GPTConfig(
        sequence, shape.vocab, shape.layers, shape.heads, shape.hidden, dropout=0.0, bias=False
    )
    model = GPT(config).cuda()
    run = torch.compile(model)
    return _autocast(model, lambda tokens: run(tokens[:, :-1], tokens[:, 1:].contiguous())[1])


PEERS = {"torchtitan": titan, "transformers": transformers, "nanoGPT": nanogpt}


def _autocast(model: nn.Module, loss_of: Step) -> Step:
    """fp32 weights, bf16 matmuls by autocast, clipping, fused AdamW."""
    params = list(model.parameters())
    update = torch.optim.AdamW(params, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step(tokens: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
        update.step()
        update.zero_grad()
        return loss.detach()

    return step


def _titan_code(sources: Path) -> types.ModuleType:
    """Its model file, without what its packages import beside it (data sets, checkpoints, …)."""
    for name in ("", ".components", ".models", ".models.llama3", ".models.llama3.model"):
        package = types.ModuleType(f"torchtitan{name}")
        package.__path__ = [str(sources / "torchtitan" / name.strip(".").replace(".", "/"))]
        sys.modules[package.__name__] = package
    for name, held in {
        "components.tokenizer": {"BaseTokenizer": object},
        "config": {"JobConfig": object},
        "protocols": {},
        "protocols.model": {"BaseModelArgs": object, "AttentionMasksType": object},
        "protocols.train_spec": {"ModelProtocol": _Protocol},
        "models.utils": {
            "trunc_normal_": nn.init.trunc_normal_,
            "get_dense_model_nparams_and_flops": None,
        },
        "tools": {},
        "tools.logging": {"logger": None},
    }.items():
        module = types.ModuleType(f"torchtitan.{name}")
        vars(module).update(held)
        sys.modules[module.__name__] = module
    import importlib

    return importlib.import_module("torchtitan.models.llama3.model.model")


class _Protocol(nn.Module):
    def __init__(self, args: object) -> None:
        super().__init__()
