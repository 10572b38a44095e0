"""The state of a JobSet in words: done, running on which machines, or why it waits."""

from collections.abc import Callable

from penstock.launch.engines.engine import JobPhase, JobState
from penstock.launch.engines.kubernetes_client import Table

LONGEST_WORDS = 300
_ENDED = {"Completed": "ended: done", "Failed": "ended: failed"}  # conditions of a JobSet


def ended_words(job_set: Table) -> str | None:
    """Return how a JobSet ended, in words; None while it has not."""
    for condition in job_set.get("status", {}).get("conditions", []):
        if condition["status"] == "True" and (words := _ENDED.get(condition["type"])):
            done = condition["type"] == "Completed"
            return words if done else f"{words}: {condition.get('message', '')}".rstrip(": ")
    return None


def describe(
    job_set: Table, pods: list[Table], events: Callable[[str, str], list[Table]]
) -> JobState:
    name = job_set["metadata"]["name"]
    machines = tuple(
        sorted({pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")})
    )
    if (words := ended_words(job_set)) is not None:
        failed = words.startswith(_ENDED["Failed"])
        said = next(filter(None, map(_last_words, pods)), "") if failed else ""
        words = _short(f"{words}. {said}" if said else words)
        return JobState(JobPhase.ENDED, words, machines, well=not failed)
    hosts = sum(one.get("replicas", 1) for one in job_set["spec"]["replicatedJobs"])
    running = [pod for pod in pods if pod.get("status", {}).get("phase") == "Running"]
    waiting = [pod for pod in pods if pod.get("status", {}).get("phase") in (None, "Pending")]
    why = next(filter(None, (_why_pending(pod, events) for pod in waiting)), "")
    if running:
        words = f"{len(running)} of {hosts} nodes run"
        return JobState(JobPhase.RUNNING, _short(f"{words}; {why}" if why else words), machines)
    if not pods and job_set["spec"].get("suspend"):
        queue = job_set["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name")
        why = f"waits in queue {queue}" if queue else "is suspended"
    elif not pods:
        why = _last_event(events("JobSet", name)) or "waits for its pods"
    return JobState(JobPhase.QUEUED, _short(why or "its pods start"), machines)


def _why_pending(pod: Table, events: Callable[[str, str], list[Table]]) -> str:
    """Return why a pod does not run: its scheduler, its image, or its last warning."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    for container in status.get("containerStatuses", []):
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{name}: {waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{name} waits for a machine: {condition.get('message', '')}".rstrip(": ")
    return _last_event(events("Pod", name))


def _last_event(events: list[Table]) -> str:
    """Return the last warning."""
    warnings = [one for one in events if one.get("type") == "Warning"]
    return f"{warnings[-1]['reason']}: {warnings[-1].get('message', '')}" if warnings else ""


def _last_words(pod: Table) -> str:
    """Return what a failed pod printed last."""
    for container in pod.get("status", {}).get("containerStatuses", []):
        ended = container.get("state", {}).get("terminated") or {}
        if ended.get("exitCode"):
            lines = [line for line in str(ended.get("message", "")).splitlines() if line.strip()]
            last = lines[-1] if lines else str(ended.get("reason", ""))
            return f"{pod['metadata']['name']} exited with {ended['exitCode']}: {last}".rstrip(": ")
    return ""


def _short(words: str) -> str:
    words = " ".join(words.split())
    return words if len(words) <= LONGEST_WORDS else f"{words[: LONGEST_WORDS - 1]}…"
