"""What is submitted, by Kubernetes' own schemas (strict) and by the models of JobSet's API."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_runs import job_of
from kubernetes_packages import needs_kubernetes
from penstock.launch.engines.kubernetes import Kubernetes

pytestmark = needs_kubernetes
VERSION = "1.37"
KUBERNETES = "cluster.kubernetes"


def some(*settings_):
    """Return any selection of overrides."""
    return st.lists(st.sampled_from(settings_), unique_by=lambda one: one.partition("=")[0])


OVERRIDES = some(
    "cluster.nodes=1",
    "cluster.nodes=64",
    "guard.spares=2",
    "guard.grace=0.5 s",
    "guard.grace=10 min",
    "cluster.accelerators=2",
    "name=9.A_name",
    f'{KUBERNETES}.resources=["rdma/ib=8", "memory=512Gi", "cpu=1500m"]',
    f'{KUBERNETES}.resources=["nvidia.com/gpu=0"]',
    f'{KUBERNETES}.tolerations=["nvidia.com/gpu=present:NoSchedule", "spot", "a.b/c:NoExecute"]',
    f'{KUBERNETES}.node_selector=["pool=h100", "yes=on"]',
    f'{KUBERNETES}.secrets=["bucket", "more.secrets"]',
    f'{KUBERNETES}.pull_secrets=["registry"]',
    f"{KUBERNETES}.service_account=trainer",
    f"{KUBERNETES}.priority=high",
    f"{KUBERNETES}.queue=team-a",
    f"{KUBERNETES}.claim=shared",
    f"{KUBERNETES}.namespace=lab",
    f"{KUBERNETES}.shared_memory=1000000",
)


def submitted(overrides):
    config, job_set = yaml.safe_load_all(Kubernetes().text(job_of("kubernetes", *overrides)))
    return config, job_set


def core_objects(overrides):
    """Return the objects of core kinds, and the Job that a JobSet controller would make."""
    config, job_set = submitted(overrides)
    (jobs,) = job_set["spec"]["replicatedJobs"]
    name = job_set["metadata"]["name"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"{name}-node-0"}}
    return [config, job | jobs["template"]]


@settings(max_examples=60)
@given(OVERRIDES)
def test_core_kinds_are_valid_by_the_strict_schemas(overrides):
    import kubernetes_validate

    for one in core_objects(overrides):
        kubernetes_validate.validate(one, VERSION, strict=True)


def test_the_schemas_refuse_what_is_wrong():
    """The check above is one: a misspelt field and a wrong type do not pass it."""
    import kubernetes_validate

    _, job = core_objects([])
    pod = job["spec"]["template"]["spec"]
    pod["restartPolice"] = pod.pop("restartPolicy")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSION, strict=True)
    _, job = core_objects([])
    job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = "45"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSION, strict=True)


@settings(max_examples=60)
@given(OVERRIDES)
def test_the_models_of_jobset_lose_no_key(overrides):
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

    _, job_set = submitted(overrides)
    assert JobsetV1alpha2JobSet.from_dict(job_set).to_dict() == job_set


def test_the_models_lose_a_key_that_jobset_does_not_have():
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

    _, job_set = submitted([])
    job_set["spec"]["failurePolicies"] = {}
    assert JobsetV1alpha2JobSet.from_dict(job_set).to_dict() != job_set
