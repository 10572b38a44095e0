"""An outlet that logs a run to Weights & Biases, through its own client.

A run that is resumed, also after a crash or on another host, continues the same W&B run: the id is
made from the run's name and the time of its first start. `WANDB_MODE=offline` writes files under
`RUN/wandb/`, for `wandb sync` later.
"""

import netrc
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import PenstockError
from penstock.watch.outlets.alerts import PROBLEMS, Alert
from penstock.watch.outlets.tracker import LoggedValues, TrackedRun, require_package, say_where

HOST = "https://api.wandb.ai"


def check(written: str, env: Mapping[str, str] = os.environ) -> None:
    """Raise PenstockError for mistakes that the client would report later in a log."""
    entity_project(written)
    require_package("wandb", written)
    mode = env.get("WANDB_MODE", "online")
    if mode == "online" and not _has_key(env):
        raise PenstockError(
            f"log.wandb = {written}: no API key was found; `wandb login`, set WANDB_API_KEY, or "
            "write files for later with WANDB_MODE=offline"
        )


def entity_project(written: str) -> tuple[str | None, str]:
    """Split `log.wandb` into (None, "project") or ("entity", "project")."""
    entity, _, project = written.rpartition("/")
    if not re.fullmatch(r"[^/\\#?%:]{1,128}", project) or "/" in entity:
        raise PenstockError(
            f"log.wandb = {written}: no name of a project; write `project` or `entity/project`, "
            "without \\ # ? % :"
        )
    return entity or None, project


def _has_key(env: Mapping[str, str]) -> bool:
    if env.get("WANDB_API_KEY") or env.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(env.get("WANDB_BASE_URL") or HOST).hostname or ""
    try:
        return netrc.netrc(env.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


@dataclass
class WandbLog:
    """A run in Weights & Biases."""

    written: str  # log.wandb
    say: Callable[[str], None]
    name: str = "wandb"
    run: Any = None  # the client's

    def begin(self, run: TrackedRun) -> None:
        import wandb

        entity, project = entity_project(self.written)
        self.run = wandb.init(
            entity=entity,
            project=project,
            id=run.id,
            name=run.name,
            resume="allow",
            dir=str(run.folder),
            config=run.config,
            settings=wandb.Settings(
                console="off",  # nothing of ours is a log of the run
                silent=True,
                save_code=False,
                disable_code=True,
                disable_git=True,
                x_disable_stats=True,  # Penstock measures, once for a node
            ),
        )
        # Steps can be repeated, and W&B's own counter cannot go back: so the step is a value.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")
        where = getattr(self.run, "url", None) or f"{self.run.dir} (offline)"
        say_where(self.say, self.name, where)

    def rewind(self, step: int) -> None:
        """Do nothing: W&B keeps both values of a step."""

    def log(self, rows: Sequence[LoggedValues]) -> None:
        for row in rows:
            self.run.log({"step": row.step} | row.values)

    def alert(self, alert: Alert) -> None:
        if alert.event in PROBLEMS:  # W&B alerts about an end itself
            title = f"{self.run.name}: {alert.event}"
            level = "INFO" if alert.event == "recovered" else "ERROR"
            self.run.alert(title=title, text=alert.words, level=level, wait_duration=0)

    def summarize(self, values: dict[str, float | str]) -> None:
        self.run.summary.update(values)

    def end(self, result: str, well: bool) -> None:
        self.run.summary["status"] = result
        self.run.finish(exit_code=0 if well else 1)
