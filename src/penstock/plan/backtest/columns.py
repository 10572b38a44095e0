"""The columns of tables of steps and of memory: what each one means, and that its cells can be.

One list serves the command's help, the docs and the check, so that they cannot disagree.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from penstock.errors import PenstockError
from penstock.plan.backtest.rows import Row, Skip, number

Table = Literal["both", "throughput", "memory", "power"]


@dataclass(frozen=True)
class Column:
    name: str
    about: str
    table: Table = "both"
    numeric: bool = True
    needed: bool = False


def _word(name: str, about: str, table: Table = "both", needed: bool = False) -> Column:
    return Column(name, about, table, numeric=False, needed=needed)


COLUMNS = (
    _word("source", "who measured; errors are averaged by source"),
    _word("model_name", "the model, in words", needed=True),
    Column("params_b", "parameters, in billions"),
    Column("layers", "number of layers", needed=True),
    Column("hidden", "width of the model", needed=True),
    Column("ffn_hidden", "width inside the feed-forward part"),
    Column("heads", "attention heads", needed=True),
    Column("kv_heads", "key and value heads; blank: as many as heads"),
    Column("vocab", "size of the vocabulary; blank: 32000"),
    Column("experts", "routed experts; blank: a dense model"),
    Column("topk", "experts that a token goes to"),
    Column("moe_ffn_hidden", "width inside one expert"),
    Column("seq_len", "tokens of one sequence", needed=True),
    Column("global_batch_seqs", "sequences of one optimizer step, all in all"),
    Column("microbatch", "sequences of one forward pass"),
    _word("gpu", "the accelerator, by a name of the catalog", needed=True),
    Column("gpu_mem_gib", "GiB of one accelerator; blank: the catalog's", "memory"),
    Column("num_gpus", "number of accelerators", needed=True),
    Column("gpus_per_node", "accelerators in one node; blank: the catalog's", "throughput"),
    Column(
        "inter_node_gbps_per_gpu",
        "Gbit/s out of the node; blank: the catalog's",
        "throughput",
    ),
    Column("tp", "tensor-parallel ways; blank: 1"),
    Column("pp", "pipeline stages; blank: 1"),
    Column("cp", "context-parallel ways; blank: 1"),
    Column("dp", "data-parallel ways; blank: what is left"),
    Column("ep", "ways the experts are spread; blank: 1"),
    Column("etp", "ways each expert is split; blank: 1", "memory"),
    _word("sharding", "zero0 to zero3, fsdp; blank: the framework's own"),
    _word("interleave", "model pieces on one pipeline stage; blank: 1"),
    _word("recompute", "none, selective or full; blank: none"),
    _word("precision", "bf16, fp16, fp32, fp8, mxfp8, nvfp4; blank: bf16"),
    _word("framework", "NeMo, Megatron-LM, torchtitan, penstock, …"),
    _word("kind", "lora: only an adapter is trained"),
    _word("notes", "compile, async TP, a2a overlap, token drop count"),
    Column("step_time_s", "measured: seconds of one optimizer step", "throughput"),
    Column("tokens_per_s_per_gpu", "measured, where step_time_s is blank", "throughput"),
    Column("peak_mem_gib", "measured: peak of one accelerator, GiB", "memory", needed=True),
    Column("reserved_gib", "measured, where peak_mem_gib is blank", "memory"),
    _word("mem_metric", "what was read: allocated, reserved or nvidia-smi", "memory"),
    _word("component", "what the figure holds; blank: total", "memory"),
    _word("oom", "1: the run ran out of memory; 0: it ran", "memory"),
)


def listing() -> list[tuple[str, list[Column]]]:
    """The columns under a heading each: those of both tables first."""
    headings: dict[Table, str] = {
        "both": "Columns of throughput and memory tables (* needed):",
        "throughput": "Throughput tables also have (one of the last two needed):",
        "memory": "Memory tables also have:",
    }
    return [(text, [c for c in COLUMNS if c.table == table]) for table, text in headings.items()]


def check_cells(path: Path, rows: Iterable[Row]) -> None:
    """A cell that should hold a number does: otherwise the row would mean something else."""
    for row in rows:
        for column in COLUMNS:
            if column.numeric and not _countable(row, column.name):
                raise PenstockError(
                    f"{path}, row {row.number} (the first is 0), column {column.name}: "
                    f"'{row.cells[column.name]}' is not a number of zero or more; write digits, "
                    "or leave the cell blank"
                )


def _countable(row: Row, name: str) -> bool:
    try:
        value = number(row.cells, name)
    except Skip:
        return False
    return value is None or (math.isfinite(value) and value >= 0)
