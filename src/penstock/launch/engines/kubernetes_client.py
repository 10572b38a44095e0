"""Calls to a Kubernetes cluster through its official client, an extra: `penstock[kubernetes]`.

Objects are plain tables, as the API sends them. An error of the API is a `KubernetesError` in one
sentence.
"""

import importlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.errors import PenstockError, RunFailed
from penstock.launch.engines.jobset import API, PLURAL, VERSION

TIMEOUT_S = (5, 30)  # to connect, and between two bytes
BY_HAND = (
    "or submit it by hand: `penstock train RUN --dry-run > run.yaml`, then `kubectl apply -f "
    "run.yaml` where a cluster is configured"
)
Table = dict[str, Any]


class NoCluster(PenstockError):
    """There is no client, or no cluster that it knows."""


class KubernetesError(RunFailed):
    """An answer of the API that is no success; status 0 if there was none."""

    def __init__(self, what: str, status: int = 0) -> None:
        super().__init__(what)
        self.status = status


class Cluster:
    """One namespace of a cluster."""

    def __init__(self, context: str | None, namespace: str) -> None:
        self._client = _open_client(context)
        self._library = importlib.import_module("kubernetes.client")
        self.context, self.namespace = context, namespace
        self._core = self._library.CoreV1Api(self._client)
        self._objects = self._library.CustomObjectsApi(self._client)

    def get(self, kind: str, name: str) -> Table | None:
        """Return an object of the core kinds, such as "secret"; None if there is none."""
        read = getattr(self._core, f"read_namespaced_{kind}")
        return self._or_none(lambda: read(name, self.namespace, _request_timeout=TIMEOUT_S))

    def get_job_set(self, name: str) -> Table | None:
        return self._or_none(
            lambda: self._objects.get_namespaced_custom_object(
                API, VERSION, self.namespace, PLURAL, name, _request_timeout=TIMEOUT_S
            )
        )

    def get_namespace(self) -> Table | None:
        return self._or_none(
            lambda: self._core.read_namespace(self.namespace, _request_timeout=TIMEOUT_S)
        )

    def get_priority_class(self, name: str) -> Table | None:
        scheduling = self._library.SchedulingV1Api(self._client)
        return self._or_none(
            lambda: scheduling.read_priority_class(name, _request_timeout=TIMEOUT_S)
        )

    def get_queue(self, name: str) -> Table | None:
        """Return a LocalQueue of Kueue, in the version that the cluster prefers."""
        with self._words():
            groups = self._library.ApisApi(self._client).get_api_versions(
                _request_timeout=TIMEOUT_S
            )
        versions = {group.name: group.preferred_version.version for group in groups.groups}
        if (kueue := "kueue.x-k8s.io") not in versions:
            return None
        return self._or_none(
            lambda: self._objects.get_namespaced_custom_object(
                kueue, versions[kueue], self.namespace, "localqueues", name
            )
        )

    def has_job_sets(self) -> bool:
        """Return whether the cluster knows JobSet."""
        found = self._or_none(
            lambda: self._objects.list_namespaced_custom_object(
                API, VERSION, self.namespace, PLURAL, limit=1, _request_timeout=TIMEOUT_S
            )
        )
        return found is not None

    def pods(self, label: str) -> list[Table]:
        with self._words():
            found = self._core.list_namespaced_pod(
                self.namespace, label_selector=label, _request_timeout=TIMEOUT_S
            )
        return [self._table(pod) for pod in found.items]

    def events(self, kind: str, name: str) -> list[Table]:
        """Return the events of an object, the oldest first."""
        about = f"involvedObject.kind={kind},involvedObject.name={name}"
        with self._words():
            found = self._core.list_namespaced_event(
                self.namespace, field_selector=about, _request_timeout=TIMEOUT_S
            )
        tables = [self._table(event) for event in found.items]
        return sorted(tables, key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime")))

    def create(self, body: Table) -> None:
        """Create a ConfigMap, or replace the one of that name; create a JobSet."""
        if body["kind"] == "JobSet":
            with self._words():
                self._objects.create_namespaced_custom_object(
                    API, VERSION, self.namespace, PLURAL, body, _request_timeout=TIMEOUT_S
                )
            return
        name = body["metadata"]["name"]
        there = self.get("config_map", name) is not None
        with self._words():
            if there:
                self._core.replace_namespaced_config_map(
                    name, self.namespace, body, _request_timeout=TIMEOUT_S
                )
            else:
                self._core.create_namespaced_config_map(
                    self.namespace, body, _request_timeout=TIMEOUT_S
                )

    def delete_job_set(self, name: str) -> None:
        """Delete a JobSet; it stays until its Jobs and pods are gone."""
        self._or_none(
            lambda: self._objects.delete_namespaced_custom_object(
                API,
                VERSION,
                self.namespace,
                PLURAL,
                name,
                propagation_policy="Foreground",
                _request_timeout=TIMEOUT_S,
            )
        )

    def delete_config_map(self, name: str) -> None:
        self._or_none(
            lambda: self._core.delete_namespaced_config_map(
                name, self.namespace, _request_timeout=TIMEOUT_S
            )
        )

    def _or_none(self, call: Callable[[], Any]) -> Table | None:
        try:
            with self._words():
                return self._table(call())
        except KubernetesError as error:
            if error.status == 404:
                return None
            raise

    def _table(self, found: Any) -> Table:
        table: Table = self._client.sanitize_for_serialization(found)
        return table

    @contextmanager
    def _words(self) -> Iterator[None]:
        """Turn errors of the client into words."""
        from urllib3.exceptions import HTTPError

        try:
            yield
        except self._library.ApiException as error:
            raise KubernetesError(f"Kubernetes says: {_message(error)}", error.status) from None
        except (HTTPError, OSError) as error:
            host = self._client.configuration.host
            raise KubernetesError(
                f"Kubernetes does not answer at {host}: {str(error)[:200]}; check the network, and "
                "the context by `kubectl config get-contexts`"
            ) from None


def _message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"


def _open_client(context: str | None) -> Any:
    try:
        library = importlib.import_module("kubernetes")
    except ImportError:
        raise NoCluster(
            'cluster.launcher = "kubernetes": the client is not installed; `pip install '
            f"'penstock[kubernetes]'`, {BY_HAND}"
        ) from None
    settings, client = library.config, library.client
    retries = client.Configuration()
    retries.retries = 1  # else it tries for minutes
    try:
        # The client reads the variable only once, when it is imported.
        file = os.environ.get("KUBECONFIG") or None
        settings.load_kube_config(file, context, client_configuration=retries)
        return client.ApiClient(retries)
    except (settings.ConfigException, OSError) as error:
        first = str(error)
    if context is None:
        try:
            settings.load_incluster_config(client_configuration=retries)
            return client.ApiClient(retries)
        except settings.ConfigException:
            pass
    named = f'cluster.kubernetes.context = "{context}"' if context else "kubeconfig"
    raise NoCluster(
        f"{named}: no cluster is configured: {first}; set KUBECONFIG, or see `kubectl config "
        f"get-contexts`; {BY_HAND}"
    )
