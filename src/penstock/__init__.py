"""Penstock: one run file in, a trained model and its ledger out.

    import penstock

    run = penstock.load("run.toml", {"train.tokens": "2M"})
    print(penstock.plan(run).tokens_per_s)
    report = penstock.train(run, on_event=print)

docs/python.md shows all of it. The command line calls the same functions.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from penstock.errors import PenstockError, RunFailed

__version__ = "0.1.0"

if TYPE_CHECKING:
    from torch import Tensor

    from penstock.plan.plan import Plan as Plan
    from penstock.run.folder import RunFolder
    from penstock.run.schema.run import Run as Run
    from penstock.simulate.compare.compare import ClusterComparison as ClusterComparison
    from penstock.simulate.rent.rank import Ranking as Ranking
    from penstock.simulate.result import Simulation as Simulation
    from penstock.train.export.model import ExportResult as Exported
    from penstock.train.tasks.several import Evaluated as Evaluated
    from penstock.watch.outlets.callbacks import Checkpoint as Checkpoint
    from penstock.watch.outlets.callbacks import Evaluation as Evaluation
    from penstock.watch.outlets.callbacks import Event as Event
    from penstock.watch.outlets.callbacks import Fault as Fault
    from penstock.watch.outlets.callbacks import Finished as Finished
    from penstock.watch.outlets.callbacks import Launching as Launching
    from penstock.watch.outlets.callbacks import Restart as Restart
    from penstock.watch.outlets.callbacks import Step as Step
    from penstock.watch.outlets.callbacks import StepRewards as StepRewards
    from penstock.watch.outlets.callbacks import Stop as Stop
    from penstock.watch.outlets.callbacks import TaskEvaluation as TaskEvaluation
    from penstock.watch.report.result import Report as Report

    # A run, or the path of its run file or of its folder, or its name under `runs/`.
    AnyRun = Run | str | PathLike[str]

# The modules of the types above. `__getattr__` imports them on first use, so that `import penstock`
# is fast.
_TYPES = {
    "Plan": "penstock.plan.plan",
    "Run": "penstock.run.schema.run",
    "Evaluated": "penstock.train.tasks.several",
    "Exported": "penstock.train.export.model",
    "Report": "penstock.watch.report.result",
    "ClusterComparison": "penstock.simulate.compare.compare",
    "Ranking": "penstock.simulate.rent.rank",
    "Simulation": "penstock.simulate.result",
} | dict.fromkeys(
    (
        "Checkpoint",
        "Evaluation",
        "Event",
        "Fault",
        "Finished",
        "Launching",
        "Restart",
        "Step",
        "StepRewards",
        "Stop",
        "TaskEvaluation",
    ),
    "penstock.watch.outlets.callbacks",
)
__all__ = [
    "PenstockError",
    "RunFailed",
    "check",
    "compare",
    "evaluate",
    "export",
    "generate",
    "load",
    "plan",
    "rent",
    "report",
    "simulate",
    "train",
    *_TYPES,
]

# `plan`, `simulate` and `train` are functions here and packages on disk. Importing a package binds
# it to its name in this module, so the (empty) packages are imported first and the functions below
# replace them. `from penstock.plan.make import make` still finds the package in `sys.modules`.
import_module("penstock.plan")
import_module("penstock.simulate")
import_module("penstock.train")

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _name_arguments(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Rewrite error messages to name the arguments of a function, not command line options."""

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except PenstockError as error:
            from penstock.arguments import in_python

            error.args = tuple(in_python(a) if isinstance(a, str) else a for a in error.args)
            raise

    return call


@_name_arguments
def load(
    source: "str | PathLike[str] | Mapping[str, Any] | Run",
    /,
    *overrides: str | Mapping[str, Any],
    **fields: Any,
) -> "Run":
    """Read a run from a run file, from a dict with the same fields, or from another run.

    Overrides replace fields of the source: "train.tokens=2B", {"train.tokens": "2B"}, {"train":
    {"tokens": "2B"}} or `train={"tokens": "2B"}`. None restores the default of a field.
    """
    from pathlib import Path

    from penstock.run.load import load, load_table
    from penstock.run.save import to_table
    from penstock.run.schema.run import Run

    changes = [*overrides, *([fields] if fields else [])]
    if isinstance(source, Run):
        return load_table(to_table(source), changes)
    if isinstance(source, Mapping):
        return load_table(source, changes)
    if not isinstance(source, str | PathLike):
        raise PenstockError(
            f"load({source!r}): cannot load a {type(source).__name__}; pass the path of a run "
            "file, a dict or a Run"
        )
    return load(Path(source), changes)


@_name_arguments
def check(run: "AnyRun") -> None:
    """Check a run as `penstock check` does; raise `PenstockError` if it has mistakes."""
    from penstock.launch.verify import verify
    from penstock.watch.outlets import process as outlets

    loaded = _run(run)
    outlets.check(loaded)
    if error := verify(loaded).refused:
        raise error


@_name_arguments
def plan(run: "AnyRun") -> "Plan":
    """Predict the memory, speed, time and cost of a run on its cluster. Starts nothing."""
    from penstock.plan.hardware.cluster import machine_for
    from penstock.plan.make import make
    from penstock.run.load import with_model_config

    ready = with_model_config(_run(run))
    target = machine_for(ready)
    return make(ready, target.machine, target.warnings)


@_name_arguments
def simulate(
    run: "AnyRun",
    *,
    lives: int = 200,
    days: float | None = None,
    by: str | None = None,
    failures: Mapping[str, Any] | None = None,
    fleet: str | None = None,
    without: "Sequence[str]" = (),
    calibrate: "Sequence[str]" = (),
    seed: int = 0,
) -> "Simulation":
    """Simulate a run many times in discrete events: failures, spares, repairs. Starts nothing.

    `days` replace its length; `by` ("14 days") asks for the chance to finish within that time.
    `failures` are fields of `[failures]` in a cluster file. `fleet` names a published fleet,
    `without` leaves some out, and `calibrate` names runs of this cluster whose journals narrow the
    rates.
    """
    from penstock.run.load import with_model_config
    from penstock.run.schema.quantity import option_s
    from penstock.simulate import given
    from penstock.simulate.calibrate import read_journals
    from penstock.simulate.simulate import Question, stated_failures
    from penstock.simulate.simulate import simulate as live

    ready = with_model_config(_run(run))
    asked = Question(
        lives,
        seed,
        days,
        option_s(by, "--by"),
        fleet,
        tuple(without),
        read_journals(calibrate) if calibrate else None,
    )
    return live(ready, asked, given.changed(stated_failures(ready), failures or {}))


@_name_arguments
def rent(
    run: "AnyRun",
    *,
    offers: "str | PathLike[str] | None" = None,
    deadline: str | None = None,
    accelerators: int | None = None,
    nodes: int | None = None,
    trace: "str | PathLike[str] | None" = None,
    lives: int = 50,
    failures: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> "Ranking":
    """Rank offers of accelerators by what a useful token costs. Rents nothing.

    `offers` is a CSV file, by default the catalog's prices. `deadline` ("30 h") adds the chance to
    be late. `accelerators` or `nodes` fix the size; else four sizes that suit the run are tried.
    `trace` is a CSV file that says when spot is there. `failures` are fields of `[failures]` in a
    cluster file.
    """
    from pathlib import Path

    from penstock.plan.not_here import known_shape
    from penstock.run.schema.quantity import option_s
    from penstock.simulate import given
    from penstock.simulate.rent.offers import of_catalog, read_offers
    from penstock.simulate.rent.rank import REPLACING, Wanted, rank
    from penstock.simulate.traces import read_trace

    by_s = option_s(deadline, "--deadline")
    nodes_over_time = None if trace is None else read_trace(Path(trace))
    wanted = Wanted(by_s, accelerators, nodes, lives, seed, nodes_over_time)
    listed = of_catalog() if offers is None else read_offers(Path(offers))
    return rank(known_shape(_run(run))[0], listed, wanted, given.changed(REPLACING, failures or {}))


@_name_arguments
def compare(
    run: "AnyRun",
    clusters: "str | Sequence[str]",
    *,
    deadline: str | None = None,
    start: str | None = None,
    lives: int = 50,
    failures: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> "ClusterComparison":
    """Compare clusters for a run: finish, USD, energy, carbon, risk, the choice. Starts nothing.

    `clusters` are cluster files, names of the catalog or numbers of them ("16 x RTX 5090").
    `deadline` ("30 days", or a date) adds the chance to miss it; `start` is a date, by default
    today. `failures` are fields of `[failures]` in a cluster file.
    """
    from penstock.plan.not_here import known_shape
    from penstock.simulate.compare.asked import question
    from penstock.simulate.compare.compare import compare as side_by_side

    names = clusters.split(",") if isinstance(clusters, str) else list(clusters)
    asked = question(start, deadline, lives, seed)
    return side_by_side(known_shape(_run(run))[0], names, asked, failures or {})


@_name_arguments
def train(
    run: "AnyRun",
    *,
    on_event: "Callable[[Event], object] | None" = None,
    loss: "Callable[[Tensor, Tensor], Tensor] | None" = None,
    fork: str | None = None,
    fresh: bool = False,
) -> "Report":
    """Train a run on this machine, or resume it if it exists, and return its report.

    `on_event` is called with every `Event`, in its own thread; it may raise `Stop`. `loss` replaces
    the cross-entropy, as `train.loss` in the run file does. Raises `RunFailed` if the run fails.
    """
    from penstock.launch.prepare.own_code import with_loss
    from penstock.watch.outlets import process as outlets
    from penstock.watch.outlets.callbacks import Callbacks
    from penstock.watch.report.result import Report

    ready = _run(run) if loss is None else with_loss(_run(run), loss)
    outlets.check(ready)
    from penstock.launch.start import start  # torch: after what can be refused without it

    callbacks = Callbacks(on_event)
    try:
        folder = start(ready, fork=fork, fresh=fresh, listener=callbacks)
    finally:
        callbacks.close()
    return Report.of(folder)


@_name_arguments
def report(run: "AnyRun") -> "Report":
    """Read the report of a run that exists: running, finished or crashed."""
    from penstock.watch.report.result import Report

    return Report.of(_folder(run))


@_name_arguments
def generate(
    run: "AnyRun",
    text: str = "",
    *,
    tokens: int = 100,
    temperature: float = 0.8,
    seed: int = 0,
    chat: bool = False,
    best: bool = False,
) -> str:
    """Continue `text` with the newest or the best checkpoint; `chat` answers it instead."""
    folder = _folder(run)
    from penstock.train.export.generate import generate_text

    written = generate_text(folder, text, tokens, temperature, seed, chat, best)
    if written.note:
        warnings.warn(written.note, stacklevel=3)
    return written.text


@_name_arguments
def export(
    run: "AnyRun",
    out: "str | PathLike[str] | None" = None,
    *,
    step: int | None = None,
    best: bool = False,
    dtype: str | None = None,
    merged: bool = False,
    force: bool = False,
) -> "Exported":
    """Export a checkpoint as Hugging Face safetensors, config and tokenizer.

    An adapter is exported in PEFT's format unless `merged`. The checkpoint is the newest one, that
    of `step`, or the `best` one. Without `dtype`, weights have the type of the model that the run
    started from, else bf16; an adapter by itself is fp32. `force` replaces an earlier export.
    """
    from pathlib import Path

    folder = _folder(run)
    from penstock.train.export.model import export

    where = None if out is None else Path(out)
    return export(folder, where, step, dtype, merged, best, force)


@_name_arguments
def evaluate(
    models: "AnyRun | Sequence[AnyRun]",
    tasks: Sequence[str] = (),
    *,
    tasks_dir: "str | PathLike[str] | None" = None,
    limit: int | None = None,
    batch: int | None = None,
    checkpoint: "int | str | Sequence[int | str]" = "newest",
    dtype: str | None = None,
    chat: bool = False,
    samples: bool = False,
) -> "list[Evaluated]":
    """Run benchmark tasks of lm-evaluation-harness on runs, or on folders of models.

    `checkpoint` is a step, "newest" or "best", or several. The result has an entry for each model
    and checkpoint. With `samples` it holds every request with its answer.
    """
    from penstock.run.schema.run import Run
    from penstock.train.tasks.several import EvaluateOptions, evaluate_models

    several = [models] if isinstance(models, str | PathLike | Run) else list(models)
    wanted = [checkpoint] if isinstance(checkpoint, int | str) else list(checkpoint)
    options = EvaluateOptions(
        tasks=(tasks,) if isinstance(tasks, str) else tuple(tasks),
        tasks_dir=None if tasks_dir is None else str(tasks_dir),
        limit=limit,
        batch=batch,
        checkpoints=tuple(map(str, wanted)),
        dtype=dtype,
        chat=chat,
        samples=samples,
    )
    targets = [str(one.folder) if isinstance(one, Run) else str(one) for one in several]
    done = evaluate_models(targets, options)
    for note in [one.note for one in done if one.note]:
        warnings.warn(note, stacklevel=3)
    return done


def _run(run: "AnyRun") -> "Run":
    from penstock.run.schema.run import Run

    return run if isinstance(run, Run) else load(run)


def _folder(run: "AnyRun") -> "RunFolder":
    from penstock.run.folder import RunFolder, find_run
    from penstock.run.schema.run import Run

    return RunFolder(run.folder) if isinstance(run, Run) else find_run(str(run))


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _TYPES:
            raise AttributeError(f"module 'penstock' has no attribute {name!r}")
        return getattr(import_module(_TYPES[name]), name)
