"""Tables of checkpoints, and of the tensors of one."""

from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from penstock.guard.checkpoints import ListedCheckpoint
from penstock.guard.format.index import Index, TensorEntry
from penstock.plan.job.layout import Layout
from penstock.style import format_bytes, format_duration, format_loss, plural

DIMENSIONS = ("replicate", "shard", "tensor", "pipeline", "context", "expert")


def table(checkpoints: list[ListedCheckpoint], folder: Path) -> Table:
    """List checkpoints; those inside the run's `folder` have short names."""
    rows = Table(
        Column("step", justify="right"),
        "tier",
        Column("size", justify="right"),
        Column("age", justify="right"),
        "made by",
        Column("validation", justify="right"),
        "state",
        "where",
        box=None,
    )
    for checkpoint in checkpoints:
        style = "red" if checkpoint.problems or checkpoint.aside else ""
        rows.add_row(
            f"{checkpoint.step:,}",
            checkpoint.tier,
            format_bytes(checkpoint.bytes),
            "–" if checkpoint.age_s is None else format_duration(checkpoint.age_s),
            made_by(checkpoint.layout),
            format_loss(checkpoint.validation_loss),
            Text(checkpoint.state, style=style),
            Text(_short(checkpoint, folder)),
        )
    return rows


def _short(checkpoint: ListedCheckpoint, folder: Path) -> str:
    if checkpoint.tier == "memory":
        return Path(checkpoint.files.where).name
    return checkpoint.files.where.removeprefix(f"{folder}/checkpoints/")


def made_by(layout: dict[str, Any]) -> str:
    if not layout:
        return "–"
    try:
        known = Layout(**layout)
    except TypeError:  # of a version that had other dimensions
        return "–"
    ways = [f"{name} {ways}" for name in DIMENSIONS if (ways := layout.get(name, 1)) > 1]
    return ": ".join([plural(known.ranks, "rank"), ", ".join(ways)] if ways else ["1 rank"])


def details(checkpoint: ListedCheckpoint, scalars: dict[str, Any], index: Index) -> RenderableType:
    """Show one checkpoint: the state of the run, and every tensor."""
    grid = Table.grid(padding=(0, 2))
    for name, value in about(checkpoint, scalars, index).items():
        if not isinstance(value, dict):
            grid.add_row(Text(name, style="dim"), Text(str(value)))
    tensor_name = Column("tensor", overflow="fold")
    shape = Column("shape", justify="right")
    tensors_table = Table(tensor_name, "type", shape, "size", "files", box=None)
    for tensor, entry in sorted(index.tensors.items()):
        files = {chunk.file for chunk in entry.chunks}
        tensors_table.add_row(
            Text(tensor),
            entry.dtype,
            shape_of(entry),
            format_bytes(size_of(entry)),
            str(len(files)),
        )
    return Group(grid, Text(), tensors_table)


def about(checkpoint: ListedCheckpoint, scalars: dict[str, Any], index: Index) -> dict[str, Any]:
    """Return what a checkpoint says of the run, without the names of its tensors."""
    weights = [e for name, e in index.tensors.items() if name.startswith("model/")]
    left_out = ("weights", "sentinels", "best")
    values = {name: value for name, value in scalars.items() if name not in left_out}
    values["stream"] = scalars.get("stream", {}).get("dataset")
    values["consumed"] = scalars.get("stream", {}).get("consumed")
    values["layout"] = made_by(scalars.get("layout", {}))
    skipped = scalars.get("sentinels", {}).get("skips", [])
    return {
        "where": checkpoint.files.where,
        "tier": checkpoint.tier,
        "state": checkpoint.state,
        "size": format_bytes(checkpoint.bytes),
        "parameters": f"{sum(e.elements for e in weights):,} in {plural(len(weights), 'tensor')}",
        **values,
        "batches left out": ", ".join(map(str, skipped)) or "none",
    }


def tensors(index: Index) -> dict[str, dict[str, Any]]:
    return {
        name: {"dtype": e.dtype, "shape": list(e.shape), "chunks": len(e.chunks)}
        for name, e in sorted(index.tensors.items())
    }


def shape_of(entry: TensorEntry) -> str:
    return " × ".join(map(str, entry.shape)) or "a number"


_BITS = {"float64": 64, "int64": 64, "float32": 32, "int32": 32, "float16": 16, "bfloat16": 16}


def size_of(entry: TensorEntry) -> int:
    return entry.elements * _BITS.get(entry.dtype, 8) // 8
