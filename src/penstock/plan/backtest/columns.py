"""The columns of tables of steps and of memory: the meaning of each, and checks of their cells.

One list serves the command's help, the docs and the check, so that they cannot disagree.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from penstock.errors import PenstockError
from penstock.plan.backtest.rows import MeasuredRow, RowSkipped, number

Table = Literal["both", "throughput", "memory", "power", "runs"]


@dataclass(frozen=True)
class TableColumn:
    name: str
    about: str
    table: Table = "both"
    numeric: bool = True
    needed: bool = False


def _word(name: str, about: str, table: Table = "both", needed: bool = False) -> TableColumn:
    return TableColumn(name, about, table, numeric=False, needed=needed)


COLUMNS = (
    _word("source", "who measured; errors are averaged by source"),
    _word("model_name", "the model, in words", needed=True),
    TableColumn("params_b", "parameters, in billions"),
    TableColumn("layers", "number of layers", needed=True),
    TableColumn("hidden", "width of the model", needed=True),
    TableColumn("ffn_hidden", "width inside the feed-forward part"),
    TableColumn("heads", "attention heads", needed=True),
    TableColumn("kv_heads", "key and value heads; blank: as many as heads"),
    TableColumn("vocab", "size of the vocabulary; blank: 32000"),
    TableColumn("experts", "routed experts; blank: a dense model"),
    TableColumn("topk", "experts that a token goes to"),
    TableColumn("moe_ffn_hidden", "width inside one expert"),
    TableColumn("shared_experts", "experts that every token goes to; blank: 0"),
    TableColumn("dense_layers", "layers without experts; blank: 0"),
    TableColumn("seq_len", "tokens of one sequence", needed=True),
    TableColumn("global_batch_seqs", "sequences of one optimizer step, all in all"),
    TableColumn("microbatch", "sequences of one forward pass"),
    _word("gpu", "the accelerator, by a name of the catalog", needed=True),
    TableColumn("gpu_mem_gib", "GiB of one accelerator; blank: the catalog's", "memory"),
    TableColumn("num_gpus", "number of accelerators", needed=True),
    TableColumn("gpus_per_node", "accelerators in one node; blank: the catalog's", "throughput"),
    TableColumn(
        "inter_node_gbps_per_gpu",
        "Gbit/s out of the node; blank: the catalog's",
        "throughput",
    ),
    TableColumn("tp", "tensor-parallel ways; blank: 1"),
    TableColumn("pp", "pipeline stages; blank: 1"),
    TableColumn("cp", "context-parallel ways; blank: 1"),
    TableColumn("dp", "data-parallel ways; blank: what is left"),
    TableColumn("ep", "ways the experts are spread; blank: 1"),
    TableColumn("etp", "ways each expert is split; blank: 1", "memory"),
    _word("sharding", "zero0 to zero3, fsdp; blank: the framework's own"),
    _word("interleave", "model pieces on one pipeline stage; blank: 1"),
    _word("recompute", "none, selective or full; blank: none"),
    _word("precision", "bf16, fp16, fp32, fp8, mxfp8, nvfp4; blank: bf16"),
    _word("framework", "NeMo, Megatron-LM, torchtitan, penstock, …"),
    _word("kind", "lora: only an adapter is trained"),
    _word("notes", "compile, async TP, a2a overlap, token drop count"),
    TableColumn("step_time_s", "measured: seconds of one optimizer step", "throughput"),
    TableColumn("tokens_per_s_per_gpu", "measured, where step_time_s is blank", "throughput"),
    TableColumn("peak_mem_gib", "measured: peak of one accelerator, GiB", "memory", needed=True),
    TableColumn("reserved_gib", "measured, where peak_mem_gib is blank", "memory"),
    _word("mem_metric", "what was read: allocated, reserved or nvidia-smi", "memory"),
    _word("component", "what the figure holds; blank: total", "memory"),
    _word("oom", "1: the run ran out of memory; 0: it ran", "memory"),
)


def listing() -> list[tuple[str, list[TableColumn]]]:
    """List the columns under a heading each: those of both tables first."""
    headings: dict[Table, str] = {
        "both": "Columns of throughput and memory tables (* needed):",
        "throughput": "Throughput tables also have (one of the last two needed):",
        "memory": "Memory tables also have:",
    }
    return [(text, [c for c in COLUMNS if c.table == table]) for table, text in headings.items()]


def check_cells(path: Path, rows: Iterable[MeasuredRow]) -> None:
    """Refuse a cell that should hold a number and does not: the row would mean something else."""
    for row in rows:
        for column in COLUMNS:
            if column.numeric and not _countable(row, column.name):
                raise PenstockError(
                    f"{path}, row {row.number} (the first is 0), column {column.name}: "
                    f"'{row.cells[column.name]}' is not a number of zero or more; write digits, "
                    "or leave the cell blank"
                )


def _countable(row: MeasuredRow, name: str) -> bool:
    try:
        value = number(row.cells, name)
    except RowSkipped:
        return False
    return value is None or (math.isfinite(value) and value >= 0)
