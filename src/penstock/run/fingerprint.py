"""Fingerprint of a run: a hash of everything that decides its numbers.

Equal fingerprints train equal weights. Folder, machines, layout and guard do not count: every
layout computes the same thing, but for the number of replicas that take local steps. A field that
was left open counts by the value that was chosen for it, so that a later version with another rule
is noticed. A preset counts by its shape, for the same reason.
"""

import json
from dataclasses import asdict
from typing import Any

from blake3 import blake3

from penstock.run.schema.code import loss_code, module_code
from penstock.run.schema.preference import PreferenceSection
from penstock.run.schema.run import Run
from penstock.run.schema.train import LENGTHS, SyncSection
from penstock.untrusted import hash_json

# Fields that were added later, with their old fixed values: left out at these values, so that older
# runs keep their fingerprints.
_SHAPE_CAME_LATER = {
    "gated": True,
    "window": 0,
    "full_layers": (),
    "rotary_width": 0,
    "rope_pairs": False,
    "window_theta": 0.0,
    "norm_offset": False,
    "norms": "before",
    "score_width": 0,
    "out_bias": False,
    "sinks": False,
    "expert_bias": False,
    "embed_scaled": False,
    "activation": "silu",
    "qk_norm_whole": False,
    "rope_scaling": None,
    "router": "softmax",
    "router_normalised": True,
    "routed_scale": 1.0,
    "expert_groups": 0,
    "groups_active": 0,
    "architecture": "",
}
_ROPE_CAME_LATER = {"mscale": 0.0, "mscale_all": 0.0, "truncated": True}
_TRAIN_CAME_LATER = {
    "muon_momentum": 0.95,
    "weights": "fp32",
    "states": "fp32",
    "balance_rate": None,
    "loss": None,
    "objective": "next_token",
    "preference": PreferenceSection().model_dump(exclude_none=True),
}


_SYNC_CAME_LATER = SyncSection().model_dump(include={"outer_rate", "outer_momentum", "stream"})


def canonical(run: Run) -> str:
    """Return JSON with sorted keys and no spaces: the same run gives the same bytes everywhere."""
    return json.dumps(
        _numbers(run), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def fingerprint(run: Run) -> str:
    """Return the fingerprint: 64 hexadecimal digits."""
    return blake3(canonical(run).encode()).hexdigest()


def settings_fingerprint(run: Run) -> str:
    """Return a fingerprint without the length: 64 hexadecimal digits.

    A checkpoint stores it, and only a run with the same one may load the checkpoint.
    """
    numbers = _numbers(run)
    for length in LENGTHS:
        numbers["train"].pop(length, None)
    return hash_json(numbers)


def _numbers(run: Run) -> dict[str, Any]:
    shape = run.model.base()
    model = run.model.model_dump(include={"from_", "module", "adapter"}, by_alias=True)
    chosen: dict[str, Any] = {"batch_tokens": run.batch_tokens, "learning_rate": run.learning_rate}
    if shape and shape.moe:
        chosen["balance_rate"] = run.balance_rate
    if code := loss_code(run.train.loss):
        chosen["loss"] = code.identity
    if code := module_code(run.model.module):
        model["module"] = code.identity
    train = run.train.model_dump(exclude={"compile"})
    # Without fields of other objectives: some came later.
    train["preference"] = run.train.preference.model_dump(exclude_none=True)
    train = _without(_TRAIN_CAME_LATER, train) | chosen
    train["sync"] = _without(_SYNC_CAME_LATER, train["sync"])
    if run.sites:
        train["sync"]["sites"] = run.sites.count
    elif run.train.sync.apart and run.layout:  # replicas that step apart are part of the numbers
        train["sync"]["replicas"] = run.layout.replicate
    parts = _without(_SHAPE_CAME_LATER, asdict(shape)) if shape else None
    if parts:
        del parts["counted"]  # known only where the weights are
        if "rope_scaling" in parts:
            parts["rope_scaling"] = _without(_ROPE_CAME_LATER, parts["rope_scaling"])
    return {
        "model": model | {"shape": parts},
        "data": run.data.model_dump(exclude={"sequence", "on_bad_shard", "cache", "cache_bytes"})
        | {"sequence": run.sequence},
        "train": train,
        "holdout": run.evaluate.holdout,
    }


def _without(came_later: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in found.items() if k not in came_later or v != came_later[k]}
