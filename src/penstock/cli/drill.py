"""`penstock drill RUN`: real faults on a small copy of the run; nothing may be lost."""

import json as json_lines
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock import output
from penstock.cli.show import Json, err, out
from penstock.errors import PenstockError, RunFailed
from penstock.secret import redact_all


def drill(
    run_file: Annotated[
        str | None, typer.Argument(metavar="RUN", help="The run file.", show_default=False)
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Fields to change: guard.mode=live", show_default=False),
    ] = None,
    faults: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these faults; else all of them.")
    ] = None,
    campaigns: Annotated[
        int, typer.Option(min=0, help="Run so many drills with one to three random faults each.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the first random drill; then + 1.")] = 0,
    listed: Annotated[bool, typer.Option("--list", help="List the faults and leave.")] = False,
    steps: Annotated[int, typer.Option(min=12, max=10_000, help="Length of a scratch run.")] = 24,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the scratch runs.")] = False,
    json: Json = False,
) -> None:
    """Try real faults on a small copy of the run, and judge each against the undisturbed one."""
    output.outlive()
    from penstock.drill.catalog import FAULTS, chosen

    if listed:
        for fault in FAULTS.values():
            out.print(f"{fault.name:<20} {fault.what}", markup=False)
        return
    if run_file is None:
        raise PenstockError("`penstock drill` needs a run file; `--list` shows the faults alone")
    if faults is not None and campaigns:
        raise PenstockError("--faults and --campaigns: give one of them")

    from penstock.drill.campaign import random_fault
    from penstock.drill.faults import ScratchScale
    from penstock.drill.needs import too_short
    from penstock.drill.session import RECORD, DrillSession
    from penstock.drill.table import COLUMNS, cells, line
    from penstock.run.load import load

    # SIGTERM ends the runs of a drill too, and unmounts its disks.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run = load(run_file, overrides or [])
    root = Path(run.dir).expanduser() / ".drills" / run.name
    picked = chosen(faults)
    short = {fault.name: why for fault in picked if (why := too_short(fault, ScratchScale(steps)))}
    if faults and short:
        told = "; ".join(f"{name} {why}" for name, why in short.items())
        raise PenstockError(f"--steps {steps}: {told}")
    session = DrillSession(
        run, root, ScratchScale(steps), keep, report=lambda what: err.print(f"… {what}")
    )
    session.open()
    if campaigns:
        numbers = range(seed, seed + campaigns)
        picked = [random_fault(number, session.scale, session.ranks) for number in numbers]
    if not json:
        _print(line(COLUMNS))
    failed = []
    for fault in picked:
        verdict = session.drill(fault)
        if json:
            sys.stdout.write(json_lines.dumps(redact_all(verdict.to_json())) + "\n")
            sys.stdout.flush()
        else:
            said = "" if verdict.skipped else "ok" if verdict.passed else "FAILED"
            _print(line(cells(verdict.to_json()), said), "" if verdict.passed else "red")
            for why in verdict.why:
                _print(f"    {why}", "red")
        if not verdict.passed:
            failed.append(fault.name)
    if failed:
        raise RunFailed(
            f"{len(failed)} of {len(picked)} drills failed: {', '.join(failed)}. What they left is "
            f"in {root}, the record in {root / RECORD}"
        )


def _print(text: str, style: str = "") -> None:
    out.print(text, markup=False, style=style, soft_wrap=True)
