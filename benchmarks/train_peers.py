"""The peers of `train_speed.py`: other trainers' models and settings, on the same shapes and data.

Sources are read from a folder that is not part of the project: torchtitan 0.2.2 unpacked from its
wheel, and nanoGPT's `model.py` as `nanogpt_model.py`. transformers comes from the machine; peft and
liger_kernel from it or from PYTHONPATH.

Every peer takes a shape, the length of a sequence and the folder, and what `peer_options` of
`train_speed.py` names: `narrow` keeps weights and moments in bf16, `micro` splits the batch.
"""

import sys
import types
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from penstock.catalog.shapes import ModelShape

Step = Callable[[Tensor], Tensor]  # tokens [b, s + 1] to the loss


def titan(shape: ModelShape, sequence: int, sources: Path, narrow: bool = False) -> Step:
    """Its llama3 model; blocks and loss compiled, autocast, fused AdamW: its one-GPU settings.

    With experts, each block has its mixture instead of its feed-forward, compiled by its rules.
    """
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
        for block in model.layers.values() if shape.moe else ():
            block.feed_forward = _titan_mixture(shape)
    model.to_empty(device="cuda")
    with torch.no_grad():
        if shape.moe:
            for block in model.layers.values():
                block.feed_forward.init_weights(0.02, torch.device("cuda"))
                block.feed_forward.init_weights = lambda std: None
        model.init_weights(buffer_device=torch.device("cuda"))
    if narrow:
        model.bfloat16()
        for block in model.layers.values() if shape.moe else ():
            for name in ("expert_bias", "tokens_per_expert"):
                setattr(block.feed_forward, name, getattr(block.feed_forward, name).float())
        model.freqs_cis = model._precompute_freqs_cis().cuda()
    if shape.moe:
        _compile_titan_mixtures(model)
    else:
        assert model.layers["0"].feed_forward.w1.out_features == shape.ffn
        for name, block in model.layers.named_children():
            compiled = torch.compile(block, backend="inductor", fullgraph=True)
            model.layers.register_module(name, compiled)

    @torch.compile(backend="inductor")
    def cross_entropy(pred: Tensor, labels: Tensor) -> Tensor:
        flat = pred.flatten(0, 1).float()
        return nn.functional.cross_entropy(flat, labels.flatten(0, 1), reduction="sum")

    def loss(tokens: Tensor) -> Tensor:
        return cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]) / tokens[:, 1:].numel()

    return _autocast(model, loss)


def transformers(
    shape: ModelShape,
    sequence: int,
    sources: Path,
    narrow: bool = False,
    compiled: bool = True,
    recompute: bool = False,
) -> Step:
    """Its Llama, or Mixtral with grouped matmuls, with SDPA, compiled whole."""
    model = _transformers_model(shape, sequence, narrow)
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    run = torch.compile(model) if compiled else model
    return _autocast(
        model, lambda tokens: run(input_ids=tokens[:, :-1], labels=tokens[:, :-1]).loss
    )


def liger(
    shape: ModelShape, sequence: int, sources: Path, recompute: bool = False, compiled: bool = False
) -> Step:
    """transformers with Liger's kernels, whose loss never holds all logits."""
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    apply_liger_kernel_to_llama()
    return transformers(shape, sequence, sources, compiled=compiled, recompute=recompute)


def peft(
    shape: ModelShape,
    sequence: int,
    sources: Path,
    narrow: bool = True,
    micro: int = 0,
    compiled: bool = True,
    recompute: bool = False,
) -> Step:
    """LoRA of rank 16 on all linears, with Liger's kernels: what fine-tuning tools run.

    Adapters are in bf16, as the frozen weights: its default, fp32 under autocast, is slower.
    """
    from liger_kernel.transformers import apply_liger_kernel_to_llama
    from peft import LoraConfig, get_peft_model

    apply_liger_kernel_to_llama()
    model = _transformers_model(shape, sequence, narrow)
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, lora, autocast_adapter_dtype=False)
    run = torch.compile(model) if compiled else model
    params = [param for param in model.parameters() if param.requires_grad]
    update = torch.optim.AdamW(params, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step(tokens: Tensor) -> Tensor:
        parts = tokens.split(micro or len(tokens))
        losses = []
        for part in parts:
            loss = run(input_ids=part[:, :-1], labels=part[:, :-1]).loss / len(parts)
            loss.backward()
            losses.append(loss.detach())
        nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
        update.step()
        update.zero_grad()
        return torch.stack(losses).sum()

    return step


def _transformers_model(shape: ModelShape, sequence: int, narrow: bool) -> nn.Module:
    from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig

    told = {
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.expert_ffn if shape.moe else shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": sequence,
        "tie_word_embeddings": shape.tied,
        "use_cache": False,
    }
    if shape.moe:
        experts = {"num_local_experts": shape.experts, "num_experts_per_tok": shape.experts_active}
        config = MixtralConfig(**told, **experts)
        config._experts_implementation = "grouped_mm"
    else:
        config = LlamaConfig(**told)
    config._attn_implementation = "sdpa"
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16 if narrow else torch.float32
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


PEERS: dict[str, Callable[..., Step]] = {
    "torchtitan": titan,
    "transformers": transformers,
    "nanoGPT": nanogpt,
    "liger": liger,
    "peft": peft,
}


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


def _titan_mixture(shape: ModelShape) -> nn.Module:
    import importlib

    moe = importlib.import_module("torchtitan.models.moe.moe")
    args = moe.MoEArgs(
        num_experts=shape.experts,
        num_shared_experts=0,
        score_func="softmax",
        route_norm=True,
        score_before_experts=False,
        top_k=shape.experts_active,
    )
    return moe.MoE(args, shape.hidden, shape.expert_ffn)


def _compile_titan_mixtures(model: nn.Module) -> None:
    """As its `apply_compile` does for layers with experts."""
    moe_code = sys.modules["torchtitan.models.moe.moe"]
    torch._dynamo.config.capture_scalar_outputs = True
    for block in model.layers.values():
        for name, part in list(block.named_children()):
            if not isinstance(part, moe_code.MoE):
                setattr(block, name, torch.compile(part, fullgraph=True))
                continue
            for inner, inner_part in list(part.named_children()):
                if inner != "experts":
                    setattr(part, inner, torch.compile(inner_part, fullgraph=True))
    moe_code._run_experts_grouped_mm = torch.compile(
        moe_code._run_experts_grouped_mm, fullgraph=True
    )


def _titan_code(sources: Path) -> types.ModuleType:
    """Its model file, without what its packages import beside it (data sets, checkpoints, …)."""
    packages = ("", ".components", ".models", ".models.llama3", ".models.llama3.model")
    for name in (*packages, ".models.moe"):
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
        "tools.utils": {"_round_up": lambda x, y: -(-x // y) * y},
    }.items():
        module = types.ModuleType(f"torchtitan.{name}")
        vars(module).update(held)
        sys.modules[module.__name__] = module
    import importlib

    return importlib.import_module("torchtitan.models.llama3.model.model")


class _Protocol(nn.Module):
    def __init__(self, args: object) -> None:
        super().__init__()
