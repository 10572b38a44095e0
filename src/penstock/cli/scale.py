"""The output of `penstock plan` for `--scale`, `--deadline`, `--budget` and `--caps`: many
machines, one run.
"""

from collections.abc import Iterable
from pathlib import Path

from penstock.cli import show
from penstock.errors import PenstockError
from penstock.plan.hardware.cluster import ResolvedMachine
from penstock.plan.hardware.scale import counts
from penstock.plan.scaling import caps, nodes, picture, table
from penstock.plan.scaling.sweep import sweep
from penstock.run.schema.quantity import option_s
from penstock.run.schema.run import Run


def scale(run: Run, found: ResolvedMachine, text: str, svg: Path | None, json: bool) -> None:
    """Print the run over the counts that `text` means, as a table and perhaps a picture."""
    asked = counts(text)
    printed = show.is_stdout(svg, "--svg", json)
    if svg and not svg.parent.is_dir():
        raise PenstockError(f"{svg}: there is no folder {svg.parent}; make it, or name another")
    with show.err.status("planning") as status:

        def progress(count: int, done: int) -> None:
            status.update(f"planning {count:,} accelerators, {done} of {len(asked)} counts done")

        swept = sweep(run, found.machine, asked, progress, found.warnings)
    if svg:
        show.write_page(svg, picture.svg(swept), "--svg")
    if printed:
        return
    if json:
        show.print_json(swept.to_json())
        return
    _say(table.lines(swept))
    if svg:
        _say([f"picture: {svg}"])


def power_caps(run: Run, found: ResolvedMachine, json: bool) -> None:
    """Print the run under power limits from the TDP downwards."""
    with show.err.status("planning under power limits"):
        swept = caps.sweep_caps(run, found.machine)
    if json:
        show.print_json(swept.to_json())
        return
    _say(caps.lines(swept))


def best_nodes(
    run: Run, found: ResolvedMachine, deadline: str | None, budget_usd: float | None, json: bool
) -> None:
    """Print the number of nodes for a deadline, or for a budget."""
    if (deadline is None) == (budget_usd is None):
        raise PenstockError("plan: give one of --deadline and --budget, not both")
    with show.err.status("planning") as status:

        def progress(count: int, done: int) -> None:
            status.update(f"planning {count:,} accelerators, {done} counts done")

        if deadline is not None:
            by_s = option_s(deadline, "--deadline")
            assert by_s is not None
            answer = nodes.nodes_for_deadline(run, found.machine, by_s, progress)
        else:
            assert budget_usd is not None
            answer = nodes.nodes_for_budget(run, found.machine, budget_usd, progress)
    if json:
        show.print_json(answer.to_json() | {"warnings": list(found.warnings)})
        return
    _say([*table.answer_lines(answer), *(f"note: {text}" for text in found.warnings)])


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        show.out.print(line, markup=False, soft_wrap=True)
