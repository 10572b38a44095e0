"""How published models were trained: what a backtest of whole runs does not find in their hours.

The fields are columns of a table that `penstock backtest` reads, in its words; "" is not published.
A row of the user's own table wins over these.
"""

from dataclasses import dataclass, fields

from penstock.catalog.fact import Fact
from penstock.catalog.table import Table, fold


@dataclass(frozen=True, kw_only=True)
class PublishedTraining(Fact):
    """The model, the steps and the layout of one published run."""

    model_name: str  # a preset where there is one; else the widths follow
    layers: str = ""
    hidden: str = ""
    ffn_hidden: str = ""
    heads: str = ""
    kv_heads: str = ""
    vocab: str = ""
    experts: str = ""
    topk: str = ""
    moe_ffn_hidden: str = ""
    shared_experts: str = ""
    dense_layers: str = ""
    num_gpus: str = ""
    seq_len: str = ""  # tokens
    global_batch_seqs: str = ""
    microbatch: str = ""
    tp: str = ""
    pp: str = ""
    cp: str = ""
    ep: str = ""
    sharding: str = ""
    interleave: str = ""
    recompute: str = ""
    precision: str = ""
    framework: str = ""
    inter_node_gbps_per_gpu: str = ""
    words: str = ""  # as `notes` of a row: what changes the speed

    def cells(self) -> dict[str, str]:
        """Return what was published, by the columns of a backtest table."""
        own = {f.name for f in fields(Fact)}
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in own}
        found["notes"] = found.pop("words")
        return {column: cell for column, cell in found.items() if cell}


TABLE = Table.of_csv("trainings", PublishedTraining)
all, find, names = TABLE.all, TABLE.find, TABLE.names


def of_model(name: str) -> PublishedTraining | None:
    """Return the training of the model of this name, whatever its spaces and capitals."""
    asked = fold(name)
    return next((one for one in TABLE if asked in map(fold, one.known_as())), None)
