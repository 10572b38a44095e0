"""Whether the servers of a run's outlets answer, asked before the run starts.

The run does not wait for an outlet and does not end with one, so that this is a warning. It comes
at the start, where someone is looking.
"""

import socket
from urllib.parse import urlsplit

from penstock.run.schema.run import Run
from penstock.secret import masked
from penstock.watch.outlets import mlflow_log, webhook

PATIENCE_S = 2.0


def unreachable(run: Run) -> list[str]:
    """Return a line for each outlet whose server does not answer."""
    found, log = list[tuple[str, str]](), run.log
    if log.webhook:
        found.append(("webhook", webhook.address(log.webhook)))
    if log.mlflow:
        found.append(("mlflow", mlflow_log.address_experiment(log.mlflow)[0]))
    return [
        f"log.{name}: {masked(url)} does not answer ({why}); the run goes on without it, and "
        "sends what it has if it answers in time"
        for name, url in found
        if (why := _refusal(url))
    ]


def _refusal(url: str) -> str:
    """Return why no connection can be made; empty if one can."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return ""  # a folder or a database: its client looks
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), PATIENCE_S).close()
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return ""
