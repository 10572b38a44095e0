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


def table(found: list[ListedCheckpoint], folder: Path) -> Table:
    """List checkpoints; those inside the run's `folder` have short names."""
    made = Table(
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
    for one in found:
        style = "red" if one.problems or one.aside else ""
        made.add_row(
            f"{one.step:,}",
            one.tier,
            format_bytes(one.bytes),
            "–" if one.age_s is None else format_duration(one.age_s),
            made_by(one.layout),
            format_loss(one.validation_loss),
            Text(one.state, style=style),
            Text(_short(one, folder)),
        )
    return made


def _short(one: ListedCheckpoint, folder: Path) -> str:
    if one.tier == "memory":
        return Path(one.files.where).name
    return one.files.where.removeprefix(f"{folder}/checkpoints/")


def made_by(layout: dict[str, Any]) -> str:
    if not layout:
        return "–"
    try:
        made = Layout(**layout)
    except TypeError:  # of a version that had other dimensions
        return "–"
    ways = [f"{name} {ways}" for name in DIMENSIONS if (ways := layout.get(name, 1)) > 1]
    return ": ".join([plural(made.ranks, "rank"), ", ".join(ways)] if ways else ["1 rank"])


def details(one: ListedCheckpoint, scalars: dict[str, Any], index: Index) -> RenderableType:
    """Show one checkpoint: the state of the run, and every tensor."""
    grid = Table.grid(padding=(0, 2))
    for name, value in about(one, scalars, index).items():
        if not isinstance(value, dict):
            grid.add_row(Text(name, style="dim"), Text(str(value)))
    tensor_name = Column("tensor", overflow="fold")
    made = Table(tensor_name, "type", Column("shape", justify="right"), "size", "files", box=None)
    for tensor, entry in sorted(index.tensors.items()):
        files = {chunk.file for chunk in entry.chunks}
        made.add_row(
            Text(tensor),
            entry.dtype,
            shape_of(entry),
            format_bytes(size_of(entry)),
            str(len(files)),
        )
    return Group(grid, Text(), made)


def about(one: ListedCheckpoint, scalars: dict[str, Any], index: Index) -> dict[str, Any]:
    """Return what a checkpoint says of the run, without the names of its tensors."""
    weights = [e for name, e in index.tensors.items() if name.startswith("model/")]
    told = {name: v for name, v in scalars.items() if name not in ("weights", "sentinels", "best")}
    told["stream"] = scalars.get("stream", {}).get("dataset")
    told["consumed"] = scalars.get("stream", {}).get("consumed")
    told["layout"] = made_by(scalars.get("layout", {}))
    left_out = scalars.get("sentinels", {}).get("skips", [])
    return {
        "where": one.files.where,
        "tier": one.tier,
        "state": one.state,
        "size": format_bytes(one.bytes),
        "parameters": f"{sum(e.elements for e in weights):,} in {plural(len(weights), 'tensor')}",
        **told,
        "batches left out": ", ".join(map(str, left_out)) or "none",
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
