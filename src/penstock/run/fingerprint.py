"""What decides the numbers of a run, as one hash: equal fingerprints train equal weights.

Where a run lives, on which machines, how it is spread and guarded does not count: every layout
computes the same thing. What was left open counts as what was chosen for it, so that a later
version with another rule is noticed; a preset counts as its shape, for the same reason.
"""

import json
from dataclasses import asdict
from typing import Any

from blake3 import blake3

from penstock.catalog.shapes import ModelShape
from penstock.run.file import Run


def canonical(run: Run) -> str:
    """JSON with sorted keys and no spaces: the same run gives the same bytes everywhere."""
    return json.dumps(
        _numbers(run), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def fingerprint(run: Run) -> str:
    """64 hexadecimal digits."""
    return blake3(canonical(run).encode()).hexdigest()


def _numbers(run: Run) -> dict[str, Any]:
    shape = run.model.base()
    model = run.model.model_dump(include={"from_", "module", "adapter"}, by_alias=True)
    return {
        "model": model | {"shape": _parts(shape) if shape else None},
        "data": run.data.model_dump(exclude={"sequence", "on_bad_shard", "cache", "cache_bytes"})
        | {"sequence": run.sequence},
        "train": run.train.model_dump(exclude={"batch_tokens", "learning_rate"})
        | {"batch_tokens": run.batch_tokens, "learning_rate": run.learning_rate},
        "holdout": run.evaluate.holdout,
    }


def _parts(shape: ModelShape) -> dict[str, Any]:
    """The shape without parts that came later and are as they always were: old runs go on."""
    return {
        name: value for name, value in asdict(shape).items() if (name, value) != ("gated", True)
    }
