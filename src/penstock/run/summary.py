"""Summary of a run in a few lines, for `penstock check`."""

from typing import Any

from penstock import secret
from penstock.catalog.shapes import ModelShape
from penstock.run.fingerprint import fingerprint
from penstock.run.save import to_table
from penstock.run.schema.quantity import Every, show_count, show_duration, show_share
from penstock.run.schema.run import Run
from penstock.run.schema.sites import SitesSection
from penstock.style import format_count


def run_facts(run: Run) -> dict[str, Any]:
    """Return the run and derived values, for programs; None for what depends on the dataset."""
    shape = run.model.base()
    return {
        "fingerprint": fingerprint(run),
        "folder": secret.redact(str(run.folder)),
        "parameters": shape.params() if shape and shape.vocab else None,
        "sequence": run.sequence,
        "batch_tokens": run.batch_tokens,
        "steps": None if run.train.epochs else run.steps(),
        "learning_rate": run.learning_rate,
        "run": secret.visible_table(to_table(run)),
    }


def run_lines(run: Run) -> list[str]:
    """Return about eight lines, for people."""
    noun = "pairs of sequences" if run.train.on_pairs else "sequences"
    rows = {
        "run": f"{run.name}, in {run.folder}",
        "model": _model(run),
        "data": f"{_data(run)}, {noun} of {run.sequence} tokens",
        "train": _length(run),
        **({"objective": _objective(run)} if run.train.on_pairs else {}),
        "rate": _rate(run),
        "precision": run.train.precision + (", deterministic" if run.train.deterministic else ""),
        "evaluate": _evaluate(run),
        **({"tasks": _tasks(run)} if run.evaluate.tasks else {}),
        "layout": _layout(run),
        **({"sites": _sites(run.sites)} if run.sites else {}),
        "checkpoint": _checkpoint(run),
        **({"sends to": ", ".join(run.log.outlets)} if run.log.outlets else {}),
    }
    return [secret.redact(f"{name:<11}{text}") for name, text in rows.items()]


def _model(run: Run) -> str:
    shape = run.model.base()
    if shape is None:
        return run.model.module or f"from {run.model.from_}"
    named = f"{run.model.preset}, " if run.model.preset else ""
    named = f"from {run.model.from_}, " if run.model.from_ else named
    return f"{named}{_params(shape)}, {shape.layers} layers of {shape.hidden}{_adapter(run, shape)}"


def _adapter(run: Run, shape: ModelShape) -> str:
    adapter = run.model.adapter
    if adapter is None:
        return ""
    trained = format_count(adapter.trained(shape))
    return f"; {adapter.kind} of rank {adapter.rank}, {trained} trained"


def _params(shape: ModelShape) -> str:
    if not shape.vocab:
        return f"{format_count(shape.params())} parameters before the dataset's vocabulary"
    active = f", {format_count(shape.params(active=True))} active" if shape.moe else ""
    return f"{format_count(shape.params())} parameters{active}"


def _data(run: Run) -> str:
    if not run.data.mix:
        return run.data.dataset
    return " + ".join(f"{part.dataset} × {part.weight:g}" for part in run.data.mix)


def _length(run: Run) -> str:
    noun = "pair" if run.train.on_pairs else "sequence"
    samples = f"1 {noun}" if run.batch_samples == 1 else f"{run.batch_samples} {noun}s"
    batch = f"batch of {show_count(run.batch_tokens)} tokens ({samples})"
    if run.train.epochs:
        return f"{run.train.epochs:g} {'epoch' if run.train.epochs == 1 else 'epochs'}, {batch}"
    steps = run.steps()
    tokens = run.train.tokens or steps * run.batch_tokens
    return f"{format_count(tokens)} tokens = {steps:,} steps × {batch}"


def _objective(run: Run) -> str:
    how = "no reference"
    if run.train.has_reference:
        whose = "the model without its adapter"
        how = f"reference: {whose if run.model.adapter else 'computed before the first step'}"
    return f"{run.train.objective} on pairs, {run.train.preference.words()}; {how}"


def _rate(run: Run) -> str:
    train = run.train
    decay = f", decay {train.decay}" if train.schedule == "wsd" else ""
    shape = f"{train.schedule}, warmup {train.warmup}{decay}"
    peak = f"{train.optimizer}, peak {run.learning_rate:.3g}"
    return f"{peak}, {shape}, at the end {show_share(train.final)} of the peak"


def _evaluate(run: Run) -> str:
    if run.evaluate.every == "never" or not run.evaluate.holdout:
        return "never"
    return f"every {run.evaluate.every}, on a holdout of {show_share(run.evaluate.holdout)}"


def _tasks(run: Run) -> str:
    section = run.evaluate
    every = "at the end" if section.tasks_every == "never" else f"every {section.tasks_every}"
    limit = f", {section.tasks_limit} documents of each" if section.tasks_limit else ""
    return f"{', '.join(section.tasks)}, {every}{limit}"


def _layout(run: Run) -> str:
    if run.layout is None:
        return "chosen at start"
    given = run.layout.model_dump(exclude_defaults=True)
    return ", ".join(f"{name} {value}" for name, value in given.items()) or "chosen at start"


def _sites(sites: SitesSection) -> str:
    needs = f"a round needs {sites.needed} and waits {show_duration(sites.grace)}"
    return f"{sites.name}, of {sites.count} that meet in {sites.bucket}; {needs}"


def _checkpoint(run: Run) -> str:
    often = run.guard.checkpoint
    when = f"every {often}" if isinstance(often, Every) else often
    return f"{when}, the newest {run.guard.keep} kept"
