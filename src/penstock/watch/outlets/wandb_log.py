"""An outlet that logs a run to Weights & Biases, through its own client.

A run that is resumed, also after a crash or on another host, continues the same W&B run: the id is
made from the run's name and the time of its first start. `WANDB_MODE=offline` writes files under
`RUN/wandb/`, for `wandb sync` later.
"""

import hashlib
import importlib.util
import netrc
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from penstock import secret
from penstock.errors import PenstockError
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import SUPERVISOR
from penstock.policy.restart import WELL
from penstock.run.save import to_table
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.outlets.alerts import Alert
from penstock.watch.style.text import finite

HOST = "https://api.wandb.ai"
KEPT_STEPS = 50_000  # how far back a step that is made again is known
FIELDS = ("loss", "tokens", "grad_norm", "learning_rate")


def check(written: str, env: Mapping[str, str] = os.environ) -> None:
    """Raise PenstockError for mistakes that the client would report later in a log."""
    entity_project(written)
    if importlib.util.find_spec("wandb") is None:
        raise PenstockError(
            f"log.wandb = {written}: the package wandb is not installed; "
            "`pip install 'penstock[wandb]'`, or remove the field"
        )
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


def run_id(view: RunView) -> str:
    """Return an id: the same for every launch of a run, another for a new run of the same name."""
    first = [e.t for e in read_events(view.folder.journal / SUPERVISOR) if e.kind == "invocation"]
    born = f"{first[0]:.6f}" if first else ""
    return hashlib.sha256(f"{view.folder.name}\n{born}".encode()).hexdigest()[:12]


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
    _logged: dict[int, float] = field(default_factory=dict)  # step → loss, of what was sent
    _validated: int = -1
    _scored: int = -1  # step of the last benchmark tasks
    _step: int = 0

    def begin(self, view: RunView) -> None:
        import wandb

        entity, project = entity_project(self.written)
        self.run = wandb.init(
            entity=entity,
            project=project,
            id=run_id(view),
            name=view.folder.name,
            resume="allow",
            dir=str(view.folder.path),
            config={**secret.visible_table(to_table(view.run)), "plan": _plan_values(view)},
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
        self.say(f"wandb: {where}")

    def send_points(self, points: np.ndarray) -> None:
        """Send steps, but not those that were repeated with the same loss."""
        for point in points:
            step, loss = int(point["step"]), float(point["loss"])
            if self._logged.get(step) != loss:
                self._logged[step] = loss
                if len(self._logged) > KEPT_STEPS:
                    del self._logged[next(iter(self._logged))]
                values = {f"train/{name}": finite(point[name]) for name in FIELDS}
                self.run.log({"step": step} | {k: v for k, v in values.items() if v is not None})
            self._step = step

    def send_summary(self, view: RunView) -> None:
        for step, loss in view.validation:
            if step > self._validated:
                self._validated = step
                self.run.log({"step": step, "validation/loss": loss})
        for found in view.task_scores:
            if found.during and found.step is not None and found.step > self._scored:
                self._scored = found.step
                scores = {f"tasks/{one.name}": one.value for one in found.scores}
                told = {name: value for name, value in scores.items() if value is not None}
                self.run.log({"step": found.step} | told)
        ledger = view.account.ledger
        values: dict[str, float | None] = {
            "speed/tokens_per_s": view.tokens_per_s,
            "speed/mfu": view.mfu,
            "speed/step_s": view.step_s,
            "share/useful": ledger.useful,
            "share/effective": ledger.effective,
            **{f"rank_s/{cause}": seconds for cause, seconds in ledger.seconds.items()},
        }
        if costs := RunFacts(view).costs:
            values |= {"energy/kwh": costs.kwh, "cost/usd": costs.usd, "cost/gco2e": costs.gco2e}
        known = {name: value for name, value in values.items() if value is not None}
        self.run.log({"step": self._step} | known)
        self.run.summary.update(known | {"status": view.status, "steps": view.step})

    def send_alert(self, alert: Alert) -> None:
        if alert.event in ("crash", "stall", "recovered"):  # W&B alerts about an end itself
            title = f"{self.run.name}: {alert.event}"
            level = "INFO" if alert.event == "recovered" else "ERROR"
            self.run.alert(title=title, text=alert.words, level=level, wait_duration=0)

    def close(self, result: str) -> None:
        self.run.summary["status"] = result
        self.run.finish(exit_code=0 if result in WELL else 1)


def _plan_values(view: RunView) -> dict[str, Any]:
    launch = view.launch
    return {
        "machine": launch.machine or None,
        "layout": launch.layout or None,
        "ranks": launch.ranks or None,
        "params": launch.params,
        "dataset": launch.dataset,
        "step_s": launch.predicted.get("step_s"),
    }
