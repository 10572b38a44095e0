"""The state of a JobSet in words: objects as the API sends them, and events of their pods."""

from penstock.launch.engines.engine import JobPhase
from penstock.launch.engines.kubernetes_state import LONGEST_WORDS, describe


def job_set(*conditions, replicas=2, suspend=False, labels=None):
    return {
        "metadata": {"name": "a-run", "labels": labels or {}},
        "spec": {"suspend": suspend, "replicatedJobs": [{"name": "node", "replicas": replicas}]},
        "status": {
            "conditions": [
                {"type": kind, "status": status, "message": message}
                for kind, status, message in conditions
            ]
        },
    }


def pod(name, phase, machine=None, conditions=(), container=None):
    status = {"phase": phase, "conditions": list(conditions)}
    if container:
        status["containerStatuses"] = [{"name": "penstock", "state": container}]
    spec = {"nodeName": machine} if machine else {}
    return {"metadata": {"name": name}, "spec": spec, "status": status}


def no_events(kind, name):
    return []


UNSCHEDULED = {
    "type": "PodScheduled",
    "status": "False",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
}


def test_a_pod_without_a_machine_says_what_is_missing():
    state = describe(job_set(), [pod("p", "Pending", conditions=[UNSCHEDULED])], no_events)
    assert state.phase is JobPhase.QUEUED
    assert state.words == (
        "p waits for a machine: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    )


def test_an_image_that_cannot_be_pulled_is_the_reason():
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": 'pulling "x:1" failed'}}
    state = describe(job_set(), [pod("p", "Pending", "m1", container=waiting)], no_events)
    assert state.phase is JobPhase.QUEUED
    assert state.words == 'p: ImagePullBackOff: pulling "x:1" failed'


def test_a_volume_that_cannot_be_mounted_is_told_by_the_last_warning():
    def events(kind, name):
        assert (kind, name) == ("Pod", "p")
        return [
            {"type": "Normal", "reason": "Scheduled", "message": "assigned"},
            {"type": "Warning", "reason": "FailedMount", "message": "claim shared not found"},
        ]

    creating = {"waiting": {"reason": "ContainerCreating"}}
    state = describe(job_set(), [pod("p", "Pending", "m1", container=creating)], events)
    assert state.words == "FailedMount: claim shared not found"


def test_kueue_holds_the_set_back():
    held = job_set(suspend=True, labels={"kueue.x-k8s.io/queue-name": "team-a"})
    state = describe(held, [], no_events)
    assert (state.phase, state.words) == (JobPhase.QUEUED, "waits in queue team-a")


def test_a_run_with_some_of_its_nodes_runs_and_says_why_others_do_not():
    pods = [pod("p1", "Running", "m1"), pod("p2", "Pending", conditions=[UNSCHEDULED])]
    state = describe(job_set(), pods, no_events)
    assert state.phase is JobPhase.RUNNING
    assert state.words.startswith("1 of 2 nodes run; p2 waits for a machine: 0/3 nodes")
    assert state.nodes == ("m1",)


def test_a_set_that_is_done_has_ended():
    done = job_set(("Completed", "True", "all jobs completed"))
    state = describe(done, [pod("p1", "Succeeded", "m1")], no_events)
    assert (state.phase, state.words) == (JobPhase.ENDED, "ended: done")


def test_a_set_that_failed_tells_what_its_pod_printed_last():
    last = {"terminated": {"exitCode": 2, "message": "starting\nerror: Dataset 'x' is not there\n"}}
    failed = job_set(("Failed", "True", "jobset failed due to one or more job failures"))
    pods = [pod("p1", "Succeeded", "m1"), pod("p2", "Failed", "m2", container=last)]
    state = describe(failed, pods, no_events)
    assert state.phase is JobPhase.ENDED
    assert state.words == (
        "ended: failed: jobset failed due to one or more job failures. p2 exited with 2: error: "
        "Dataset 'x' is not there"
    )


def test_a_condition_that_is_not_true_ends_nothing():
    state = describe(job_set(("Failed", "False", "")), [pod("p", "Running", "m")], no_events)
    assert state.phase is JobPhase.RUNNING


def test_words_are_one_line_of_bounded_length():
    long = UNSCHEDULED | {"message": "no\n" * 1000}
    state = describe(job_set(), [pod("p", "Pending", conditions=[long])], no_events)
    assert "\n" not in state.words
    assert len(state.words) == LONGEST_WORDS
