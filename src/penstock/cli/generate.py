"""`penstock generate RUN "text"`: text written by the model."""

from typing import Annotated

import typer

from penstock.cli.runs import Root, RunName
from penstock.cli.show import Json, print_json
from penstock.run.folder import find_run


def generate(
    run: RunName,
    text: Annotated[str, typer.Argument(help="What the model goes on from.")] = "",
    tokens: Annotated[int, typer.Option(help="How many tokens to write.", min=1)] = 100,
    temperature: Annotated[
        float, typer.Option(help="0 always takes the likeliest.", min=0.0)
    ] = 0.8,
    seed: Annotated[
        int, typer.Option(help="Another seed, another text.", min=0, max=2**63 - 1)
    ] = 0,
    chat: Annotated[
        bool, typer.Option("--chat", help="The text is a user's turn; write the answer.")
    ] = False,
    best: Annotated[
        bool, typer.Option("--best", help="Of the checkpoint with the lowest validation loss.")
    ] = False,
    root: Root = "runs",
    json: Json = False,
) -> None:
    """Generate text with the newest checkpoint of a run."""
    import sys

    folder = find_run(run, root)
    from penstock.train.export.generate import generate_text

    written = generate_text(folder, text, tokens, temperature, seed, chat, best)
    if written.note:
        sys.stderr.write(f"note: {written.note}\n")
    if json:
        told = {"run": folder.name, "step": written.step, "prompt": text, "text": written.text}
        print_json(told, documents=True)
    else:
        sys.stdout.write(("" if chat else text) + written.text + "\n")
