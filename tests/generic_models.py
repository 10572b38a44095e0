"""Tiny models of architectures that are not native, with random weights, made by transformers."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

VOCAB = 304
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
_GPT = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
_GPT |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
# Chosen to differ from a Llama and from each other.
TRAINED: dict[str, dict[str, Any]] = {
    "gpt_neox": {**_SIZES, "rotary_pct": 0.25},  # parallel residual, fused query_key_value, biases
    "starcoder2": {**_GROUPED, "sliding_window": None},  # tied head, layer norms with bias
    "cohere": {**_GROUPED, "logit_scale": 0.25},  # tied head whose logits are scaled
}
OTHERS: dict[str, dict[str, Any]] = {
    "stablelm": {**_GROUPED, "partial_rotary_factor": 0.5},
    "granite": {**_GROUPED, "logits_scaling": 4.0},
    "gpt2": _GPT,  # learned positions, no nn.Linear
    "opt": {**_SIZES, "ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.0},
    "bloom": {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4},  # ALiBi
    "falcon": {**_SIZES, "alibi": False, "new_decoder_architecture": False, "multi_query": True},
    "mamba": {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
}


def made(name: str) -> nn.Module:
    """Make a model of an architecture; its weights are drawn wide, so that all parts count."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = AutoConfig.for_model(name, **{**TRAINED, **OTHERS}[name], **ids)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for param in model.parameters():
            if param.dim() > 1:
                param.normal_(0.0, 0.15)
    return model


def saved(name: str, folder: Path) -> nn.Module:
    """Make a model and save it as a folder."""
    model = made(name)
    model.save_pretrained(folder)
    return model
