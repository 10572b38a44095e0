"""A check before a run starts that the servers of its outlets answer.

The run does not wait for an outlet and does not end with one, so that this is a warning. It comes
at the start, where someone is looking.
"""

import http.client
import socket
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from penstock.run.schema.run import Run
from penstock.secret import masked
from penstock.watch.outlets import mlflow_log, webhook

PATIENCE_S = 2.0
ANSWER_S = 10.0  # for a page of a service that is slow


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


def answers(url: str) -> bool:
    """Return whether a service answers a request, whatever the answer, unless it is an error."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S):
            return True
    except urllib.error.HTTPError as error:
        with error:
            return error.code < 500
    except (OSError, http.client.HTTPException, ValueError):
        return False


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
