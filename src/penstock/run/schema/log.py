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


def true_or_folder(value: object) -> bool | str:
    """Check a folder, or `true` for one in the run folder."""
    if isinstance(value, bool):
        return value
    try:
        where = text(value)
    except ValueError as error:
        raise ValueError(f"{error}; or write true for a folder in the run folder") from None
    if "://" in where:
        raise ValueError("a URL; write a folder, or true for one in the run folder")
    return where


def server_or_experiment(value: object) -> str:
    """Check the address of a tracking server, or the name of an experiment."""
    where = text(value)
    return address(where) if "://" in where or where.startswith("$") else where


TrueOrFolder = Annotated[
    bool | str,
    PlainValidator(true_or_folder),
    WithJsonSchema({"title": "true or folder", "type": ["boolean", "string"]}),
]
ServerOrExperiment = Annotated[
    str,
    PlainValidator(server_or_experiment),
    WithJsonSchema({"title": "address or text", "type": "string"}),
]
OUTLETS = ("webhook", "wandb", "tensorboard", "mlflow", "trackio")  # fields of `[log]`


class LogSection(Section):
    """Outlets: other places that show a run."""

    wandb: Text | None = Field(
        None,
        description="Weights & Biases: `project` or `entity/project`. Needs `penstock[wandb]`.",
    )
    tensorboard: TrueOrFolder | None = Field(
        None,
        description="Event files for TensorBoard: `true` for `RUN/tensorboard`, or a folder that "
        "runs share. Needs `penstock[tensorboard]`.",
    )
    mlflow: ServerOrExperiment | None = Field(
        None,
        description="MLflow: address of a tracking server, `$NAME` of the variable that holds it, "
        "or the name of an experiment on the server of `MLFLOW_TRACKING_URI`. "
        "Needs `penstock[mlflow]`.",
    )
    trackio: Text | None = Field(
        None,
        description="Trackio: project in its local store. Needs `penstock[trackio]`.",
    )
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

    @property
    def outlets(self) -> tuple[str, ...]:
        """Names of the outlets that the run has."""
        return tuple(name for name in OUTLETS if getattr(self, name))
