"""Ways to train that take less memory: what each would need, for a model that does not fit."""

from collections.abc import Callable, Iterator

from penstock.plan.job.job import Job
from penstock.plan.search.search import leanest, trainable_space
from penstock.run.schema.adapter import AdapterSection
from penstock.run.schema.run import Run

_NARROW = ("bf16", "fp8")


def lighter(run: Run, job_of: Callable[[Run], Job], ranks: int) -> str:
    """Say what lighter ways of training would take on each accelerator; empty if there are none.

    Each is the layout that needs the least, predicted by the memory model.
    """
    told = []
    for words, other in _ways(run):
        job = job_of(other)
        found = leanest(job, ranks, trainable_space(other))
        if found is None:
            continue
        held = found.memory
        gib = held.peak_bytes / 2**30
        told.append(f"{words} takes {gib:,.1f} GiB ({'fits' if held.fits else 'too much'})")
    room = job_of(run).machine.memory_bytes / 2**30
    return f"Of {room:,.0f} GiB each: {'; '.join(told)}" if told else ""


def _ways(run: Run) -> Iterator[tuple[str, Run]]:
    """Yield changes of the run file, in words, with the run that they give."""
    train, model = run.train, run.model
    if train.precision in _NARROW and model.adapter is None:
        narrow = {"states": "bf16", "weights": "bf16"}
        if train.states != "bf16" or train.weights != "bf16":
            changed = train.model_copy(update=narrow)
            words = 'train.states = "bf16" with train.weights = "bf16"'
            yield words, run.model_copy(update={"train": changed})
    start = "" if model.from_ else "fine-tuning (model.from) with "
    if model.adapter is None:
        yield _adapted(run, "lora", start)
    if model.adapter is None or model.adapter.kind == "lora":
        yield _adapted(run, "qlora", start)


def _adapted(run: Run, kind: str, start: str) -> tuple[str, Run]:
    section = run.model.adapter or AdapterSection()
    model = run.model.model_copy(update={"adapter": section.model_copy(update={"kind": kind})})
    name = {"lora": "LoRA", "qlora": "QLoRA"}[kind]
    words = f'{start}{name} ([model.adapter] kind = "{kind}")'
    return words, run.model_copy(update={"model": model})
