"""`penstock checkpoint`: what a run has saved, whether it is whole, other forms, other runs'."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from penstock import output
from penstock.cli.runs import Root, RunName
from penstock.cli.show import Json, err, out, print_json, print_table, refuse_stdout
from penstock.errors import PenstockError, RunFailed
from penstock.files import refuse_existing
from penstock.guard.checkpoints import TIERS, list_checkpoints, read_index, select
from penstock.guard.checkpoints import verify as verified
from penstock.guard.format.manifest import MANIFEST
from penstock.guard.tiers.journal_facts import no_checkpoint_message
from penstock.run.folder import find_run
from penstock.secret import redact
from penstock.watch.report.checkpoint_tables import details, table, tensors

checkpoint = typer.Typer(
    no_args_is_help=True, help="Look at, check, convert and adopt checkpoints."
)
Tier = Annotated[str | None, typer.Option(help=f"Only in this tier: {', '.join(TIERS)}.")]
Quietly = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


@checkpoint.command("list")
def list_(run: RunName, root: Root = "runs", json: Json = False) -> None:
    """List every checkpoint in every tier, from manifests and sizes."""
    folder = find_run(run, root)
    found, unreachable = list_checkpoints(folder)
    if json:
        told = [one.to_json() for one in found]
        print_json({"checkpoints": told, "unreachable": unreachable})
        return
    _say_unreachable(unreachable)
    if not found:
        out.print(no_checkpoint_message(folder), markup=False, soft_wrap=True)
        return
    print_table(table(found, folder.path))
    for one in found:
        for problem in one.problems:
            out.print(f"{one.name}: {problem}", style="red", markup=False, soft_wrap=True)


@checkpoint.command()
def verify(
    run: RunName,
    step: Annotated[int | None, typer.Option(help="Only of this step.")] = None,
    tier: Tier = None,
    quiet: Quietly = False,
    root: Root = "runs",
    json: Json = False,
) -> None:
    """Read every byte of every checkpoint; exits with 1 where one is damaged."""
    found, unreachable = list_checkpoints(find_run(run, root))
    chosen = select(found, step, tier, unreachable)
    told: list[dict[str, Any]] = []
    for one in chosen:
        with _progress(one.name, one.bytes, quiet or json) as advance:
            problems = verified(one, advance)
        gone = problems is None
        told.append(one.to_json() | {"problems": problems or [], "gone": gone})
        if not json:
            said = "replaced by the run meanwhile" if gone else "; ".join(problems or ["whole"])
            out.print(f"{one.name}: {said}", markup=False, soft_wrap=True)
    damaged = [one for one in told if one["problems"]]
    if json:
        print_json({"checkpoints": told, "unreachable": unreachable})
    if damaged or unreachable:
        _say_unreachable(unreachable)
        raise RunFailed(
            f"{len(damaged)} of {len(told)} checkpoints are damaged"
            + (f", and {len(unreachable)} places did not answer" if unreachable else "")
            + ". A run goes on from the newest whole one and puts damaged ones aside"
        )


@checkpoint.command()
def show(
    run: RunName,
    step: Annotated[
        int | None, typer.Argument(metavar="[STEP]", help="The newest if not given.")
    ] = None,
    tier: Tier = None,
    root: Root = "runs",
    json: Json = False,
) -> None:
    """Show one checkpoint: the state of the run, and every tensor with its shape."""
    found, unreachable = list_checkpoints(find_run(run, root))
    _say_unreachable(unreachable)
    one = select(found, step, tier, unreachable)[0]
    if one.problems:
        raise RunFailed(f"{one.name} is damaged: {'; '.join(one.problems)}")
    index, scalars = read_index(one), one.files.scalars()
    if json:
        print_json(one.to_json() | {"scalars": scalars, "tensors": tensors(index)})
    else:
        out.print(details(one, scalars, index))


@checkpoint.command()
def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run; or the folder of a checkpoint, or of another program's."
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="NAME.safetensors, NAME.pt, or a folder with --ranks."),
    ],
    step: Annotated[int | None, typer.Option(help="Of this step; the newest if not given.")] = None,
    moments: Annotated[
        bool, typer.Option("--moments", help="The optimizer's state too, not the weights alone.")
    ] = False,
    ranks: Annotated[
        int | None,
        typer.Option(min=1, help="A checkpoint again, in as many files as so many ranks write."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Replace a file that is there; write into a folder that has files."
        ),
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Unpickle what another program wrote.")
    ] = False,
    quiet: Quietly = False,
    root: Root = "runs",
    json: Json = False,
) -> None:
    """Write a checkpoint as safetensors, as a torch file, or as the files of other ranks."""
    output.outlive()
    refuse_stdout(target, "OUT", "name a file or a folder")
    kind = _kind(target, ranks, moments)
    refuse_existing(target, force, "write into it" if kind == "ranks" else "replace it")
    from penstock.guard.convert.source import (
        open_checkpoint,
    )  # torch, after what can be refused without

    with open_checkpoint(source, step, root, trust) as found:
        for problem in found.passed_over:
            err.print(f"passed over: {problem}", markup=False, soft_wrap=True)
        with _progress(str(target), found.bytes(moments or kind == "ranks"), quiet or json) as told:
            size = found.write(kind, target, moments, ranks or 1, told, force)
    if json:
        print_json({"out": str(target), "kind": kind, "bytes": size, "from": found.name})
    else:
        out.print(f"{found.name} → {target}, {size:,} bytes", markup=False, soft_wrap=True)


@checkpoint.command()
def adopt(
    run: RunName,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The folder of a checkpoint.")],
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Put checkpoints of the run aside that are not older."),
    ] = False,
    root: Root = "runs",
    json: Json = False,
) -> None:
    """Make a run go on from a checkpoint that another run made."""
    output.outlive()
    folder = find_run(run, root)
    if not (path / MANIFEST).is_file():
        raise PenstockError(f"{path}: not the folder of a checkpoint, it has no {MANIFEST}")
    from penstock.launch.prepare.adopt import (
        adopt as adopted,
    )  # torch, after what can be refused without

    made = adopted(folder, path, replace)
    if json:
        print_json({"run": folder.name, **vars(made)})
        return
    aside = f"; put aside: {', '.join(map(str, made.replaced))}" if made.replaced else ""
    out.print(
        f"'{folder.name}' goes on from step {made.step} of '{made.name}'{aside}",
        markup=False,
        soft_wrap=True,
    )


def _kind(target: Path, ranks: int | None, moments: bool) -> str:
    if ranks is not None:
        if moments:
            raise PenstockError("--ranks: the optimizer's state always goes along; drop --moments")
        return "ranks"
    if target.suffix in (".safetensors", ".pt"):
        return target.suffix[1:]
    raise PenstockError(
        f"{target}: name a file that ends in .safetensors or .pt, or give --ranks with a folder"
    )


@contextmanager
def _progress(what: str, size: int, quiet: bool) -> Iterator[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(True))
    with Progress(
        *columns, TransferSpeedColumn(), console=err, disable=quiet, transient=True
    ) as bars:
        task = bars.add_task(what, total=size)
        yield lambda count: bars.advance(task, count)


def _say_unreachable(unreachable: list[str]) -> None:
    for problem in unreachable:
        sys.stderr.write(redact(f"not reached: {problem}\n"))
