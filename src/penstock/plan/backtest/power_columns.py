"""The columns of a power table, and the other names that submitters give them."""

import re
from functools import cache

from penstock.plan.backtest.columns import Column

# Of `Column`, only the name, the line of help, `numeric` and `needed` count here.
COLUMNS = (
    Column("source", "who measured; errors are averaged by source", "power", numeric=False),
    Column("submitter", "with `round`, stands for the source", "power", numeric=False),
    Column("round", "of the benchmark, such as v4.0", "power", numeric=False),
    Column("system", "may name the cooling", "power", numeric=False),
    Column("note", "may name the cooling", "power", numeric=False),
    Column("gpu", "the accelerator, by a name of the catalog", "power", numeric=False, needed=True),
    Column("gpus", "accelerators, all in all", "power"),
    Column("nodes", "number of nodes; blank: from the accelerators", "power"),
    Column("gpus_per_node", "accelerators in one node; blank: from the two above", "power"),
    Column("power_limit_w", "of one accelerator, W; blank: its TDP", "power"),
    Column("cooling", "air, liquid or immersion; blank: the usual", "power", numeric=False),
    Column("meter", "AC at the plug, DC behind the supplies; blank: AC", "power", numeric=False),
    Column("psu_conversion_eff", "of the supplies; blank: 0.96", "power"),
    Column("benchmark", "what ran: llama2_70b_lora, bert, …", "power", numeric=False),
    Column("global_batch", "samples of one step, over all accelerators", "power"),
    Column("mean_run_s", "length of the run, s", "power"),
    Column("run_min", "the same in minutes, where mean_run_s is blank", "power"),
    Column("busy", "share of the time that accelerators compute; blank: estimated", "power"),
    Column("mean_node_w", "measured: mean draw of one node, W", "power"),
    Column("mean_node_kw", "the same in kW, where mean_node_w is blank", "power"),
    Column("node_w_per_gpu", "the same per accelerator, W, where both are blank", "power"),
)
OTHER_NAMES = {
    "gpu": "accelerator gpu_name gpu_model accelerator_name accelerator_model_name device",
    "gpus": "num_gpus n_gpus gpu_count accelerators num_accelerators total_gpus total_accelerators",
    "nodes": "num_nodes n_nodes node_count number_of_nodes",
    "gpus_per_node": "accelerators_per_node gpu_per_node",
    "power_limit_w": "tdp_w gpu_tdp_w power_cap_w gpu_power_limit_w",
    "cooling": "cooling_type",
    "meter": "measurement measurement_type meter_type metered_at",
    "psu_conversion_eff": "psu_efficiency psu_eff conversion_eff conversion_efficiency",
    "benchmark": "workload task model model_name",
    "global_batch": "global_batch_size batch batch_size",
    "mean_run_s": "run_s duration_s time_s runtime_s run_time_s time_to_train_s mean_time_s",
    "run_min": "mean_run_min duration_min time_min runtime_min time_to_train_min",
    "busy": "busy_share",
    "mean_node_w": "node_w node_power_w mean_node_power_w avg_node_w avg_node_power_w "
    "average_node_w average_node_power_w mean_power_w avg_power_w",
    "mean_node_kw": "node_kw node_power_kw avg_node_kw avg_node_power_kw mean_power_kw",
    "submitter": "organization vendor",
    "note": "notes hw_notes",
}


@cache
def _known() -> dict[str, str]:
    others = {n: name for name, names in OTHER_NAMES.items() for n in names.split()}
    return others | {column.name: column.name for column in COLUMNS}


def column_of(name: str) -> str | None:
    """Our name for a column, or None when it means nothing here."""
    # Not without underscores: `run_s` is a time and `runs` a count.
    return _known().get(re.sub(r"\W+", "_", name.strip().casefold()).strip("_"))
