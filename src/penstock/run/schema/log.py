"""`[log]`: where else a run is shown."""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, PlainValidator, WithJsonSchema

from penstock.run.schema.quantity import Every
from penstock.run.schema.section import EveryOrNever, Section, Text, text


def address(value: object) -> str:
    """Check an http(s) address, or `$NAME`: the environment variable that holds it."""
    where = text(value)
    if where.startswith("$"):
        if re.fullmatch(r"\$[A-Za-z_][A-Za-z0-9_]*", where):
            return where
        raise ValueError('no name of a variable; write for example "$SLACK_WEBHOOK"')
    try:
        parts = urlsplit(where)
        right = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:
        right = False
    if not right or not where.isascii() or " " in where:
        raise ValueError('no address; write "https://…" or "$NAME" of a variable that holds it')
    return where


Address = Annotated[
    str,
    PlainValidator(address),
    WithJsonSchema({"title": "address", "type": "string", "pattern": r"^(https?://\S+|\$\w+)$"}),
]


class LogSection(Section):
    """Outlets: other places that show a run."""

    wandb: Text | None = Field(
        None,
        description="Weights & Biases: `project` or `entity/project`. Needs `penstock[wandb]`.",
    )
    tensorboard: Text | None = Field(None, description="Folder for TensorBoard.")
    mlflow: Text | None = Field(None, description="MLflow tracking address.")
    webhook: Address | None = Field(
        None,
        description="Address that gets a JSON message at a crash, a stall, a recovery and the end; "
        "`$NAME`: the variable that holds it.",
    )
    trace: EveryOrNever = Field(
        Every(steps=500),
        description="Steps or time between traces of a step, which say what is inside `compute`; "
        "the first comes after 20 steps.",
    )
