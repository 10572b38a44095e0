"""An outlet that logs a run to Weights & Biases, through its own client.

A run that is resumed, also after a crash or on another host, continues the same W&B run: the id is
made from the run's name and the time of its first start. `WANDB_MODE=offline` writes files under
`RUN/wandb/`, for `wandb sync` later.
"""

import netrc
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import PenstockError
from penstock.watch.outlets.alerts import PROBLEMS, Alert
from penstock.watch.outlets.reach import answers
from penstock.watch.outlets.tracker import LoggedValues, TrackedRun, require_package, say_where
from penstock.watch.outlets.waiting import LONGEST_S, ServiceWait

HOST = "https://api.wandb.ai"
ASK_S = 2.0  # between questions whether the service is there


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
    host = urlsplit(_address(env)).hostname or ""
    try:
        return netrc.netrc(env.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _address(env: Mapping[str, str] = os.environ) -> str:
    return env.get("WANDB_BASE_URL") or HOST


@dataclass
class WandbLog:
    """A run in Weights & Biases."""

    written: str  # log.wandb
    say: Callable[[str], None]
    name: str = "wandb"
    wait: ServiceWait = field(default_factory=ServiceWait)
    run: Any = None  # the client's

    @property
    def unsent(self) -> str:
        if self.run is None:
            return ""
        return f"wandb sync --include-online {Path(self.run.dir).parent}"  # its `files` are below

    def begin(self, run: TrackedRun) -> None:
        import wandb

        entity, project = entity_project(self.written)
        with self._waiting():
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
        with self._waiting():
            self.run.finish(exit_code=0 if well else 1)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Wait for the service while the body runs, and ask it meanwhile whether it is there.

        The client uploads in a process of its own and does not tell how far it is.
        """
        over = threading.Event()
        offline = os.environ.get("WANDB_MODE") == "offline"
        with nullcontext() if offline else self.wait.for_answer():
            asking = threading.Thread(target=self._ask, args=(over,), daemon=True)
            if not offline:
                asking.start()
            try:
                yield
            finally:
                over.set()

    def _ask(self, over: threading.Event) -> None:
        until = time.monotonic() + LONGEST_S
        while not over.wait(ASK_S) and time.monotonic() < until:
            if answers(_address()):
                self.wait.heard()
