"""`penstock watch [RUN…]`: the runs in a browser, live."""

import gc
import sys
import webbrowser
from typing import Annotated

import typer

from penstock import output
from penstock.cli.runs import Root
from penstock.cli.show import Json, out, print_json
from penstock.errors import RunFailed
from penstock.run.folder import find_run
from penstock.watch.facts.run_view import RunView
from penstock.watch.terminal.page_process import has_screen
from penstock.watch.web.chart_sections import Section
from penstock.watch.web.run_cache import RunCache
from penstock.watch.web.sections import page_sections
from penstock.watch.web.server import HERE, PORT, open_server


def watch(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN…]", help="Names, folders or run files; default: all runs."),
    ] = None,
    root: Root = "runs",
    port: Annotated[
        int | None,
        typer.Option(help=f"Default: {PORT}, or the next free one.", min=0, max=65535),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but this machine's own needs a token.")
    ] = HERE,
    token: Annotated[
        str | None,
        typer.Option(
            help="Access token, 8 characters or more. Generated when the page is reachable from "
            "other machines."
        ),
    ] = None,
    browser: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open a browser; default: where there is a screen."),
    ] = None,
    json: Json = False,
) -> None:
    """Show runs in the browser, live; several at once are compared."""
    output.outlive()
    chosen = [find_run(name, root) for name in runs or []]
    if json:
        folders = chosen or list(RunCache(root).runs().values())
        found = {folder.name: page_sections(RunView(folder)) for folder in folders}
        print_json(found)
        _refuse_unreadable(found)
        return
    # Lines of a long journal are read once and kept: the garbage collector need not scan them.
    gc.set_threshold(200_000, 50, 50)
    cache = RunCache(root, chosen)
    server = open_server(cache, host, port, token)
    cache.read_ahead()
    address = server.address(*(cache.runs() if chosen else ()))
    sys.stdout.write(f"{address}\n")  # not redacted: the user needs its token
    out.print("Ctrl-C ends it; the runs go on", style="dim")
    sys.stdout.flush()  # a parent process waits for the address
    if browser or (browser is None and sys.stdout.isatty() and has_screen()):
        webbrowser.open(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.closing.set()
        server.server_close()


def _refuse_unreadable(found: dict[str, dict[str, Section]]) -> None:
    """Fail where a part of a run cannot be read: an empty section would look like no steps."""
    told = {
        name: [str(part["problem"]) for part in parts.values() if "problem" in part]
        for name, parts in found.items()
    }
    lines = [f"run '{name}' cannot be read: {said[0]}" for name, said in told.items() if said]
    if lines:
        raise RunFailed("\n".join(lines))
