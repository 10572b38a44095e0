"""An outlet that logs a run to an MLflow tracking server, through MLflow's own client.

MLflow gives its runs ids of its own, so a resumed run is found by the tag `penstock.id`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from penstock.errors import PenstockError
from penstock.watch.outlets import webhook
from penstock.watch.outlets.alerts import Alert
from penstock.watch.outlets.tracker import (
    LoggedValues,
    TrackedRun,
    flat_config,
    require_package,
    say_where,
)
from penstock.watch.outlets.waiting import ServiceWait

EXPERIMENT = "penstock"  # unless the run file or MLFLOW_EXPERIMENT_NAME names another
ID, STATUS = "penstock.id", "penstock.status"
METRICS_IN_A_CALL = 1000  # limits of MLflow's API
PARAMS_IN_A_CALL = 100
VALUE_CHARACTERS = 5000


def check(written: str, env: Mapping[str, str] = os.environ) -> None:
    """Raise PenstockError for mistakes that the client would report later in a log."""
    address_experiment(written, env)
    require_package("mlflow", written)


def address_experiment(written: str, env: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Return the tracking address and the experiment; `log.mlflow` is one, a variable the other."""
    if "://" in written or written.startswith("$"):
        address = webhook.address(written, "log.mlflow")
        return address, env.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    address = env.get("MLFLOW_TRACKING_URI", "")
    if not address:
        raise PenstockError(
            f"log.mlflow = {written}: the experiment has no server, because MLFLOW_TRACKING_URI "
            'is not set; export it before `penstock train`, or write the address, "http://…"'
        )
    return address, written


@dataclass
class MlflowLog:
    """A run in MLflow."""

    written: str  # log.mlflow
    say: Callable[[str], None]
    wait: ServiceWait = field(default_factory=ServiceWait)
    unsent: str = ""
    name: str = "mlflow"
    client: Any = None
    id: str = ""  # of MLflow's run

    def begin(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient

        address, experiment = address_experiment(self.written)
        self.client = self.wait.timed(MlflowClient(tracking_uri=address))
        found = self.client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else self.client.create_experiment(experiment)
        known = self.client.search_runs([number], f"tags.`{ID}` = '{run.id}'", max_results=1)
        if known:
            self.id = known[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
            self._log_config(run, known[0].data.params)
        else:
            made = self.client.create_run(number, run_name=run.name, tags={ID: run.id})
            self.id = made.info.run_id
            self._log_config(run, {})
        say_where(self.say, self.name, f"{address}, experiment {experiment}, run {self.id}")

    def _log_config(self, run: TrackedRun, known: dict[str, str]) -> None:
        """Log the config as params. MLflow lets none change: a changed one becomes a tag."""
        from mlflow.entities import Param, RunTag

        config = {k: v[:VALUE_CHARACTERS] for k, v in flat_config(run.config).items()}
        params = [Param(name, value) for name, value in config.items() if name not in known]
        tags = [RunTag(f"changed.{k}", v) for k, v in config.items() if known.get(k, v) != v]
        for part in range(0, len(params), PARAMS_IN_A_CALL):
            self.client.log_batch(self.id, params=params[part : part + PARAMS_IN_A_CALL])
        if tags:
            self.client.log_batch(self.id, tags=tags[:PARAMS_IN_A_CALL])

    def rewind(self, step: int) -> None:
        """Do nothing: MLflow keeps both values of a step, and shows the newer as the latest."""

    def log(self, rows: Sequence[LoggedValues]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, round(1000 * row.t), row.step)
            for row in rows
            for name, value in row.values.items()
        ]
        for part in range(0, len(metrics), METRICS_IN_A_CALL):
            self.client.log_batch(self.id, metrics=metrics[part : part + METRICS_IN_A_CALL])

    def alert(self, alert: Alert) -> None:
        """Set a tag for the event: MLflow has no list of events."""
        when = datetime.fromtimestamp(alert.t, UTC).strftime("%Y-%m-%d %H.%M.%S")
        words = f"step {alert.step}: {alert.words}"[:VALUE_CHARACTERS]
        self.client.set_tag(self.id, f"event {when} {alert.event}", words)

    def summarize(self, values: dict[str, float | str]) -> None:
        self.client.set_tag(self.id, STATUS, str(values["status"]))

    def end(self, result: str, well: bool) -> None:
        self.client.set_tag(self.id, STATUS, result)
        ended = "FINISHED" if well else "KILLED" if result == "killed" else "FAILED"
        self.client.set_terminated(self.id, status=ended)
