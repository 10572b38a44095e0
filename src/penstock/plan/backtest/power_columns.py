"""The columns of a power table, and the other names that submitters give them."""

import re
from functools import cache

from penstock.plan.backtest.columns import TableColumn

# Only the name, the help line, `numeric` and `needed` of `TableColumn` count here.
COLUMNS = (
    TableColumn("source", "who measured; errors are averaged by source", "power", numeric=False),
    TableColumn("submitter", "with `round`, stands for the source", "power", numeric=False),
    TableColumn("round", "of the benchmark, such as v4.0", "power", numeric=False),
    TableColumn("system", "may name the cooling", "power", numeric=False),
    TableColumn("note", "may name the cooling", "power", numeric=False),
    TableColumn(
        "gpu", "the accelerator, by a name of the catalog", "power", numeric=False, needed=True
    ),
    TableColumn("gpus", "accelerators, all in all", "power"),
    TableColumn("nodes", "number of nodes; blank: from the accelerators", "power"),
    TableColumn("gpus_per_node", "accelerators in one node; blank: from the two above", "power"),
    TableColumn("power_limit_w", "of one accelerator, W; blank: its TDP", "power"),
    TableColumn("cooling", "air, liquid or immersion; blank: the usual", "power", numeric=False),
    TableColumn(
        "meter", "AC at the plug, DC behind the supplies; blank: AC", "power", numeric=False
    ),
    TableColumn("psu_conversion_eff", "of the supplies; blank: 0.96", "power"),
    TableColumn("benchmark", "what ran: llama2_70b_lora, bert, …", "power", numeric=False),
    TableColumn("global_batch", "samples of one step, over all accelerators", "power"),
    TableColumn("mean_run_s", "length of the run, s", "power"),
    TableColumn("run_min", "the same in minutes, where mean_run_s is blank", "power"),
    TableColumn("busy", "share of the time that accelerators compute; blank: estimated", "power"),
    TableColumn("mean_node_w", "measured: mean draw of one node, W", "power"),
    TableColumn("mean_node_kw", "the same in kW, where mean_node_w is blank", "power"),
    TableColumn("node_w_per_gpu", "the same per accelerator, W, where both are blank", "power"),
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
    """Return our name for a column, or None when it means nothing here."""
    # Not without underscores: `run_s` is a time and `runs` a count.
    return _known().get(re.sub(r"\W+", "_", name.strip().casefold()).strip("_"))
