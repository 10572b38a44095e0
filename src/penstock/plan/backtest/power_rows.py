"""Rows of metered nodes: the data that checks the power model.

Submitters spell their columns in their own ways, so each is known by several names. A blank is
filled with what is usual and written down in `assumed`; a row that cannot be filled is skipped with
its reason. What the meter said is read apart and never reaches the prediction.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.catalog import accelerators, nodes
from penstock.catalog.accelerators import Accelerator
from penstock.errors import PenstockError
from penstock.plan.backtest import row_file
from penstock.plan.backtest.power_columns import COLUMNS, column_of
from penstock.plan.backtest.rows import RowSkipped, accelerator_named, number, whole
from penstock.plan.power import power
from penstock.plan.power.host import host_power

BLANK = {"", "-", "–", "n/a", "na", "none", "null", "nan", "?"}
METERED = ("mean_node_w", "mean_node_kw", "node_w_per_gpu")
IN_A_NODE = 8  # accelerators, where the catalog has no node with them


@dataclass(frozen=True)
class MeteredRow:
    """One line of the file. The metered value is kept apart from the description."""

    number: int  # 0-based, in the file
    source: str
    node_w: float | None  # what the meter said
    config: "NodeConfig | None"
    skipped: str = ""  # the reason, when there is no configuration


@dataclass(frozen=True)
class NodeConfig:
    """The facts that a prediction may know."""

    accelerator: Accelerator
    tdp_w: float  # or the limit it was set to
    per_node: int
    nodes: int
    cooling: str  # "air", "liquid", "immersion", "unknown"
    supplies: float  # what they deliver of what they draw; 1 behind them
    benchmark: str  # as the row calls it
    batch: float | None  # samples of one step, over all accelerators
    run_s: float | None
    busy: float | None  # share of the time that accelerators compute, where the row says
    assumed: tuple[str, ...] = ()  # what the row does not say

    @property
    def accelerators(self) -> int:
        return self.per_node * self.nodes


def is_power(lines: list[dict[str, str]]) -> bool:
    """Tell whether a table is one of metered power: it has a column with the watts of a node."""
    return any(column_of(name) in METERED for name in lines[0])


def read(path: Path) -> list[MeteredRow]:
    lines = [_named(line) for line in row_file.lines(path)]
    if "gpu" not in lines[0]:
        raise PenstockError(
            f"{path} has no column gpu; `penstock backtest --help` lists the columns of all tables"
        )
    for i, cells in enumerate(lines):
        _check(path, i, cells)
    return [_row(i, cells) for i, cells in enumerate(lines)]


def _named(line: Mapping[str, str]) -> dict[str, str]:
    """Return the cells by our names; the first column that has a value wins."""
    cells: dict[str, str] = {}
    for name, cell in line.items():
        own = column_of(name)
        if own and not cells.get(own):
            cells[own] = "" if cell.casefold() in BLANK else cell
    return cells


def _check(path: Path, i: int, cells: Mapping[str, str]) -> None:
    """Refuse a cell that should hold a number and does not: the row would mean something else."""
    for column in COLUMNS:
        if column.numeric:
            try:
                number(cells, column.name)
            except RowSkipped:
                raise PenstockError(
                    f"{path}, row {i} (the first is 0), column {column.name}: "
                    f"'{cells[column.name]}' is not a number of zero or more; write digits, or "
                    "leave the cell blank"
                ) from None


def _row(i: int, cells: Mapping[str, str]) -> MeteredRow:
    submitter = " ".join(part for key in ("submitter", "round") if (part := cells.get(key)))
    source = submitter or cells.get("source", "") or "unnamed"
    try:
        config = _config(cells)
    except (RowSkipped, PenstockError) as why:
        return MeteredRow(i, source, None, None, str(why))
    watts = _metered(cells, config)
    if not watts:
        return MeteredRow(i, source, None, None, "mean_node_w is blank")
    return MeteredRow(i, source, watts, config)


def _metered(cells: Mapping[str, str], config: NodeConfig) -> float | None:
    """Return the mean watts of one node, by whichever column has them."""
    if watts := number(cells, "mean_node_w"):
        return watts
    if kilowatts := number(cells, "mean_node_kw"):
        return kilowatts * 1e3
    share = number(cells, "node_w_per_gpu")
    return share * config.per_node if share else None


def _config(cells: Mapping[str, str]) -> NodeConfig:
    assumed: list[str] = []
    gpu = cells.get("gpu", "")
    if not gpu:
        raise RowSkipped("gpu is blank")
    if counted := re.match(r"(\d+)\s*[x×]\s*(?=\D)", gpu):  # "8x H100"
        gpu = gpu[counted.end() :]
        cells = {"gpus_per_node": counted[1], **{k: v for k, v in cells.items() if v}}
    chip = accelerators.find(accelerator_named(gpu))
    capped = re.search(r"(\d+)\s*W\b", gpu)
    tdp_w = number(cells, "power_limit_w") or (float(capped[1]) if capped else chip.tdp_w)
    if not tdp_w:
        raise RowSkipped(f"the TDP of {chip.name} is not published; write power_limit_w")
    per_node, count = _counts(cells, chip, assumed)
    return NodeConfig(
        accelerator=chip,
        tdp_w=tdp_w,
        per_node=per_node,
        nodes=count,
        cooling=_cooling(cells, chip, assumed),
        supplies=_supplies(cells, assumed),
        benchmark=cells.get("benchmark", ""),
        batch=number(cells, "global_batch") or None,
        run_s=_run_s(cells),
        busy=_share(cells, "busy"),
        assumed=tuple(assumed),
    )


def _counts(cells: Mapping[str, str], chip: Accelerator, assumed: list[str]) -> tuple[int, int]:
    """Return the accelerators of a node, and the nodes."""
    total, count = whole(cells, "gpus"), whole(cells, "nodes")
    per_node = whole(cells, "gpus_per_node")
    usual = _usual_per_node(chip.name)
    if not per_node and total and count:
        # Too few for so many nodes can only be those of one node: boards have four or eight.
        of_one = total % count > 0 or total // count < host_power(chip).whole <= total
        per_node = total if of_one else total // count
        if of_one:
            assumed.append(f"{total} accelerators in each node")
    elif not per_node:
        per_node = min(total, usual) if total else usual
        assumed.append(f"{per_node} accelerators in a node")
    if not count:
        count = max(1, total // per_node)
        if count > 1 or not total:
            assumed.append(f"{count} nodes" if count > 1 else "one node")
    return per_node, count


def _usual_per_node(chip: str) -> int:
    sold = [n for n in nodes.TABLE if n.setting != "cloud" and n.accelerator == chip]
    return sold[0].accelerators if sold else IN_A_NODE


def _cooling(cells: Mapping[str, str], chip: Accelerator, assumed: list[str]) -> str:
    stated = power.cooling_class(cells.get("cooling", ""))
    if stated:
        return stated
    found = power.cooling_class(" ".join(cells.get(key, "") for key in ("system", "note")))
    if found:
        assumed.append(f"cooled by {found}")
        return found
    # Racks that are one scale-up domain are sold with cold plates only.
    if chip.domain > IN_A_NODE and chip.vendor == "NVIDIA":
        assumed.append("cooled by liquid")
        return "liquid"
    assumed.append("cooling unknown: half of the fans of an air-cooled node")
    return "unknown"


def _supplies(cells: Mapping[str, str], assumed: list[str]) -> float:
    if "dc" in re.findall(r"[a-z]+", cells.get("meter", "").casefold()):
        return 1.0
    stated = _share(cells, "psu_conversion_eff")
    if stated and stated > 0.5:
        return stated
    assumed.append(f"supplies of {power.SUPPLIES:.0%}")
    return power.SUPPLIES


def _run_s(cells: Mapping[str, str]) -> float | None:
    minutes = number(cells, "run_min")
    return number(cells, "mean_run_s") or (minutes * 60 if minutes else None)


def _share(cells: Mapping[str, str], name: str) -> float | None:
    """Return a share, also where it is written in percent."""
    value = number(cells, name)
    if value is None or value <= 0:
        return None
    share = value if value <= 1 else value / 100
    return share if share <= 1 else None
