"""The scratch run of a drill: the user's run file, cut down to some seconds, in its own folder."""

from pathlib import Path

from penstock.drill.faults import ScratchScale
from penstock.run import toml
from penstock.run.save import to_table
from penstock.run.schema.run import Run

TIMEOUT_S = 60.0  # a collective in a run of this size that takes longer has failed
EVALUATED = 4  # samples of an evaluation


def write_run_file(run: Run, folder: Path, name: str, scale: ScratchScale, ranks: int) -> Path:
    """Write the run file of one drill and return its path."""
    table = to_table(run) | {"name": name, "dir": str(folder.absolute())}
    for section in ("budget", "log"):
        table.pop(section, None)
    train = table["train"]
    for length in ("tokens", "epochs"):
        train.pop(length, None)
    train["steps"] = scale.steps
    # One more than there are ranks: their parts differ in size, and some have filler.
    train["batch_tokens"] = min(run.batch_samples, ranks + 1) * run.sample_tokens
    if table.pop("sites", None):  # a drill must not meet the real sites
        train["sync"] = {}
    if run.train.misfit(scale.steps):
        train |= {"warmup": "5%", "decay": "20%"}
    for field in [field for field in table["evaluate"] if field.startswith("tasks")]:
        del table["evaluate"][field]  # their scores say nothing of a run that is this short
    table["evaluate"].pop("patience", None)  # a drill is held against a run of the same length
    table["evaluate"] |= {"every": _steps(scale.evaluate), "tokens": EVALUATED * run.sample_tokens}
    table["guard"] |= {
        "checkpoint": _steps(scale.durable),
        "fast": _steps(scale.fast),
        "timeout": f"{min(run.guard.timeout, TIMEOUT_S):g} s",
    }
    if run.cluster.nodes == 1:
        table["guard"].pop("durable", None)  # what is there belongs to the real run
    path = folder / f"{name}.toml"
    path.write_text("\n".join(toml.format_document(table)) + "\n")
    return path


def _steps(count: int) -> str:
    return f"{count} step{'s' if count > 1 else ''}"
