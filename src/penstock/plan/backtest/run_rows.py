"""Rows of whole published runs: accelerator-hours and energy, and the job that they were spent on.

A row says little more than the model, its tokens and the accelerators. The rest comes from other
columns of the row where it has them, then from how that model was trained (`catalog/trainings.py`),
then from what is usual; what was usual is written down in `assumed`. Hours and energy are read
apart and never reach the job.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.catalog import accelerators, trainings
from penstock.errors import PenstockError
from penstock.plan.backtest import named_shapes, row_file, rows
from penstock.plan.backtest.columns import TableColumn
from penstock.plan.backtest.rows import RowSkipped, number, whole
from penstock.plan.job.job import Job
from penstock.plan.step.operators import HOPPER_YEAR


def _of_runs(name: str, about: str, numeric: bool = True, needed: bool = False) -> TableColumn:
    return TableColumn(name, about, "runs", numeric, needed)


COLUMNS = (
    _of_runs("model", "the model, in words, or model_name", numeric=False, needed=True),
    _of_runs("gpu", "the accelerator, by a name of the catalog", numeric=False, needed=True),
    _of_runs("tokens_b", "tokens of the whole run, in billions", needed=True),
    _of_runs("params_b", "parameters, in billions, where the name is no known model"),
    _of_runs("active_params_b", "of a mixture of experts: parameters that a token uses"),
    _of_runs("num_gpus", "accelerators; blank: as published for the model, or 16Ki tokens each"),
    _of_runs("gpu_hours", "published: accelerator-hours, all in all"),
    _of_runs("wallclock_days", "published, where gpu_hours is blank: days on num_gpus"),
    _of_runs("energy_mwh", "published: energy"),
    _of_runs("energy_basis", "what was metered: GPU only, × PUE, hours × TDP", numeric=False),
    _of_runs("pue", "of the site, where the energy has it in it"),
    _of_runs("quality", "A to D, or A-time/C-energy; A makes the headline", numeric=False),
)
MEASURED_IN = ("gpu_hours", "energy_mwh")
BLANK = {"", "-", "–", "n/a", "na", "none", "?"}
# Columns of a table of steps that a row of a whole run may have too.
OF_STEPS = frozenset(
    {
        *("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab", "params_b"),
        *("experts", "topk", "moe_ffn_hidden", "shared_experts", "dense_layers"),
        *("seq_len", "global_batch_seqs", "microbatch", "gpu", "num_gpus", "gpus_per_node"),
        *("inter_node_gbps_per_gpu", "tp", "pp", "cp", "dp", "ep", "etp", "sharding"),
        *("interleave", "recompute", "precision", "framework", "notes"),
    }
)
LAYOUT = ("tp", "pp", "cp", "dp", "ep", "sharding")
OF_LAYOUT = ("ZeRO", "microbatch", "recompute")  # begin the words of what was assumed of it
# What published runs chose where a row does not say (LLaMA, OPT, Pythia, OLMo, SmolLM3, Llama 3):
# tokens of a step by billions of parameters, and of a step on one accelerator: usual and least.
USUAL_BATCH = ((6.0, 2**21), (300.0, 2**22), (float("inf"), 2**24))
USUAL_SHARE, LEAST_SHARE = 2**14, 2**11
# From this size on, in billions, a program that nobody named is taken to split the model.
SPLIT_FROM_B = 20.0
OLD_SEQUENCE, USUAL_SEQUENCE = 2048, 4096  # on accelerators before and since Hopper


@dataclass(frozen=True)
class WholeRunRow:
    """One line of the file, and the job that it describes."""

    number: int  # 0-based, in the file
    cells: Mapping[str, str]
    job: Job | None
    tokens: float | None  # of the whole run
    stated: frozenset[str]  # what somebody published of the layout
    skipped: str  # the reason, when there is no job
    assumed: tuple[str, ...] = ()

    @property
    def model(self) -> str:
        return self.cells.get("model") or self.cells.get("model_name", "")

    @property
    def source(self) -> str:
        return self.cells.get("source", "") or "unnamed"

    @property
    def hours(self) -> float | None:
        """Return the published accelerator-hours."""
        if hours := number(self.cells, "gpu_hours"):
            return hours
        days, count = number(self.cells, "wallclock_days"), whole(self.cells, "num_gpus")
        return days * 24 * count if days and count else None

    def grade(self, of: str) -> str:
        """Return the letter of the row's `time` or `energy`; a table without grades is its owner's.

        "A-time/C-energy" has one of each, "A" is of both.
        """
        stated = self.cells.get("quality", "")
        for part in stated.split("/"):
            found = re.match(rf"\s*([A-Z])(?:-{of}\b|(?!-))", part)
            if found:
                return found[1]
        return "" if stated else "A"


def is_runs(lines: list[dict[str, str]]) -> bool:
    """Tell whether a table is one of whole runs: it has tokens, and hours or energy."""
    columns = set(lines[0])
    return "tokens_b" in columns and bool(columns & set(MEASURED_IN))


def read(path: Path) -> list[WholeRunRow]:
    lines = [
        {name: "" if cell.casefold() in BLANK else cell for name, cell in line.items()}
        for line in row_file.lines(path)
    ]
    missing = {"gpu"} - set(lines[0])
    if not set(lines[0]) & {"model", "model_name"}:
        missing |= {"model"}
    if missing:
        raise PenstockError(
            f"{path} has no column {', '.join(sorted(missing))}; `penstock backtest --help` lists "
            "the columns of all tables"
        )
    for i, cells in enumerate(lines):
        _check(path, i, cells)
    return [_row(i, cells) for i, cells in enumerate(lines)]


def _check(path: Path, i: int, cells: Mapping[str, str]) -> None:
    """Refuse a cell that should hold a number and does not: the row would mean something else."""
    for column in (column.name for column in COLUMNS if column.numeric):
        try:
            number(cells, column)
        except RowSkipped:
            raise PenstockError(
                f"{path}, row {i} (the first is 0), column {column}: '{cells[column]}' is not a "
                "number of zero or more; write digits, or leave the cell blank"
            ) from None


def _row(i: int, cells: dict[str, str]) -> WholeRunRow:
    assumed: list[str] = []
    tokens = number(cells, "tokens_b")
    try:
        full, stated = _completed(cells, assumed)
        job = rows.job_of(full, assumed)
    except PenstockError as why:
        return WholeRunRow(i, cells, None, None, frozenset(), str(why))
    except RowSkipped as why:
        return WholeRunRow(i, cells, None, None, frozenset(), str(why))
    # Blanks of the layout are searched, not assumed.
    searched = not stated & set(LAYOUT)
    # What a known model's name says is not assumed.
    left = (line for line in assumed if not line.endswith(f"({named_shapes.BY_NAME})"))
    open_ = (line for line in left if not (searched and line.startswith(OF_LAYOUT)))
    return WholeRunRow(
        i, cells, job, tokens * 1e9 if tokens else None, stated, "", tuple(dict.fromkeys(open_))
    )


def _completed(
    cells: Mapping[str, str], assumed: list[str]
) -> tuple[dict[str, str], frozenset[str]]:
    """Return the row as one of a table of steps, and which columns of the layout were published."""
    name = cells.get("model") or cells.get("model_name", "")
    known = trainings.of_model(name)
    own = {k: v for k, v in cells.items() if k in OF_STEPS and v}
    own.pop("notes", None)  # of a whole run they are prose: they may name what was tried and left
    full = {"model_name": name, **(known.cells() if known else {}), **own}
    if known is None and not number(cells, "params_b") and not full.get("hidden"):
        _refuse_nameless(name)
    if number(cells, "active_params_b") and not full.get("experts"):
        _refuse_unknown_experts(full)
    chip = accelerators.find(rows.accelerator_named(_only_one(full.get("gpu", ""))))
    recent = chip.year >= HOPPER_YEAR

    def fill(column: str, value: int | str) -> None:
        if not full.get(column):
            full[column] = str(value)
            assumed.append(f"{column} {value}")

    if not full.get("precision"):
        fill("precision", "bf16" if chip.bf16_tflops else "fp16")
    fill("seq_len", USUAL_SEQUENCE if recent else OLD_SEQUENCE)
    size = number(full, "params_b") or named_shapes.size_in(name) / 1e9
    fill("framework", "megatron" if size >= SPLIT_FROM_B else "fsdp")
    tokens = next(tokens for most, tokens in USUAL_BATCH if size < most)
    sequence = whole(full, "seq_len")
    tokens = max(tokens, LEAST_SHARE * whole(full, "num_gpus"))
    fill("global_batch_seqs", max(1, tokens // sequence))
    fill("num_gpus", max(8, whole(full, "global_batch_seqs") * sequence // USUAL_SHARE))
    return full, frozenset(name for name in (*LAYOUT, "recompute") if full.get(name))


def _only_one(gpu: str) -> str:
    if "+" in gpu:
        raise RowSkipped(f"gpu '{gpu}' is more than one kind of accelerator")
    return gpu


def _refuse_nameless(name: str) -> None:
    if named_shapes.named(name) is None and not named_shapes.size_in(name):
        raise RowSkipped(
            f"nothing tells the shape of '{name}': neither its name nor params_b nor layers, "
            "hidden and heads"
        )


def _refuse_unknown_experts(full: Mapping[str, str]) -> None:
    shape = named_shapes.named(full["model_name"])
    if shape is None or not shape.moe:
        raise RowSkipped(
            f"'{full['model_name']}' has experts whose shape is not known; write experts, topk and "
            "moe_ffn_hidden"
        )
