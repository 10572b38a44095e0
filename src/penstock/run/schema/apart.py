"""Rules for replicas that take local steps (`train.sync.local_steps` above 1)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.run.schema.run import Run

FIELD = "train.sync.local_steps"


def apart_problems(run: "Run") -> Iterator[tuple[str, str]]:
    """Yield the fields that do not go with local steps: field, what is wrong and how to fix it."""
    if not run.train.sync.apart:
        return
    replicas = run.layout.replicate if run.layout else None
    if run.sites:
        replicas = run.sites.count
    if replicas is None:
        what = "the number of replicas decides the result, so it is not chosen for you"
        yield FIELD, f"{what}; write layout.replicate = 2 or more"
    elif replicas < 2:
        yield FIELD, "layout.replicate = 1 has nobody to agree with; write 2 or more, or 1 here"
    elif run.batch_samples < replicas:
        least, noun = replicas * run.sample_tokens, "sites" if run.sites else "replicas"
        what = f"{run.batch_samples} samples of {run.sample_tokens} tokens for {replicas} {noun}"
        yield "train.batch_tokens", f"{what}, which all need one in every step; write {least}"
    if run.guard.mode == "live":
        what = f"replicas agree in every step there, and {FIELD} is {run.train.sync.local_steps}"
        yield "guard.mode", f'{what}; write "restart"'
    if run.train.weights == "bf16":
        what = f"a difference of 16-bit weights after {FIELD} is mostly rounding"
        yield "train.weights", f'{what}; write "fp32"'
    shape = run.model.base()
    if shape and shape.moe and run.balance_rate:
        what = "experts are balanced over all replicas in every step"
        yield FIELD, f"{what}; write 1, or train.balance_rate = 0"
    if run.train.sync.stream > 1 and run.layout and run.layout.pipeline > 1:
        what = "stages of a pipeline would exchange the same weights at different times"
        yield "train.sync.stream", f"{what}; write 1, or layout.pipeline = 1"
    if run.cluster.nodes > 1 and run.layout and run.layout.pipeline > 1 and not run.sites:
        what = "the stages of a pipeline are spread over the nodes, and so is every replica"
        yield FIELD, f"{what}; write layout.pipeline = 1"
