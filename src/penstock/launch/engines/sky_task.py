"""The SkyPilot task of a run, and what is refused before a machine is rented."""

import hashlib
import re
import shlex
from collections.abc import Iterator

from penstock.data.store.objects import is_url
from penstock.errors import PenstockError
from penstock.launch.engines.carry import (
    RUN_FILE,
    CarriedRun,
    carry,
    refused_places,
    refused_secrets,
)
from penstock.launch.engines.kubernetes_fields import object_name
from penstock.launch.engines.yaml_text import Value
from penstock.launch.prepare.nodes import devices_of_nodes
from penstock.run.schema.run import Run

CPU = "cpu"
"""Value of `cluster.sky.accelerators` for machines without."""
FOLDER = "~/penstock-run-$SKYPILOT_NODE_RANK"
"""Folder of a node. The nodes of a job share their home where the cloud is a Slurm."""

_ACCELERATOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(:[1-9][0-9]*)?")
_INFRA = re.compile(r"[a-z0-9*]+(/[^/\s]+)*", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Bucket by its scheme: the cloud whose machines may have a role for it, and what others need.
_CREDENTIALS = {
    "s3": ("aws", ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
    "gs": ("gcp", ("GOOGLE_SERVICE_ACCOUNT_KEY",)),
    "az": ("azure", ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY")),
}


def task(run: Run, carried: CarriedRun, env: dict[str, str]) -> dict[str, Value]:
    """Return the task; `env` are variables of every node."""
    section = run.cluster.sky
    resources: dict[str, Value] = {
        "use_spot": section.spot,
        "disk_size": section.disk,
        # Preempted machines are always replaced; this bounds restarts after errors of the run.
        "job_recovery": {"max_restarts_on_errors": run.guard.restarts},
    }
    if section.infra:
        resources["infra"] = section.infra
    if section.accelerators and section.accelerators != CPU:
        resources["accelerators"] = section.accelerators
    if section.image:
        resources["image_id"] = section.image
    given: dict[str, Value] = dict(env)
    found: dict[str, Value] = {
        "name": object_name(run.name),
        "num_nodes": run.cluster.nodes,
        "resources": resources,
        "envs": given,
    }
    if section.secrets:
        found["secrets"] = dict.fromkeys(section.secrets)  # values come from `--secret NAME`
    if section.setup:
        found["setup"] = "\n".join(section.setup) + "\n"
    found["run"] = _script(carried)
    return found


def launch_command(run: Run, file: str) -> list[str]:
    """Return the command that submits a task; values of secrets stay in the environment."""
    secrets = [word for name in run.cluster.sky.secrets for word in ("--secret", name)]
    return ["sky", "jobs", "launch", "--yes", "--detach-run", *secrets, file]


def static_problems(run: Run) -> Iterator[str]:
    """Say what is wrong with a run for rented machines, a line each."""
    section = run.cluster.sky
    yield from _machine_problems(run)
    yield from _bucket_problems(run)
    yield from refused_places(run, None, "")
    yield from refused_secrets(run, "cluster.sky.secrets")
    for name in section.secrets:
        if not _VARIABLE.fullmatch(name):
            yield (
                f'cluster.sky.secrets: "{name.partition("=")[0]}…" is no name of a variable; '
                "write its name alone, and export its value"
            )
    if run.guard.spares:
        yield (
            f"guard.spares = {run.guard.spares}: SkyPilot replaces all machines of a job together, "
            "so that spares would only cost money; write 0"
        )
    try:
        carry(run)
    except PenstockError as error:
        yield str(error)


def _machine_problems(run: Run) -> Iterator[str]:
    section = run.cluster.sky
    if not section.accelerators:
        yield (
            'cluster.sky.accelerators: missing; write what to rent for a node, such as "H100:8" '
            f'(`sky show-gpus`), or "{CPU}" for machines without'
        )
    elif not _ACCELERATOR.fullmatch(section.accelerators):
        yield (
            f'cluster.sky.accelerators = "{section.accelerators}": no accelerator; write '
            '"NAME:COUNT", such as "H100:8"'
        )
    else:
        yield from _plan_problems(run, section.accelerators)
    if section.infra and not _INFRA.fullmatch(section.infra):
        yield (
            f'cluster.sky.infra = "{section.infra}": no place; write "CLOUD", "CLOUD/REGION" or '
            '"CLOUD/REGION/ZONE"'
        )
    if section.spot and (section.infra or "").partition("/")[0].lower() == "slurm":
        yield (
            f'cluster.sky.spot = true: SkyPilot has no spot machines on "{section.infra}", and the '
            "job would fail before it starts; write spot = false"
        )
    if not section.setup and not section.image:
        yield (
            "cluster.sky.setup: missing, and a new machine has no Penstock; write the lines that "
            'install it, or cluster.sky.image = "docker:REGISTRY/penstock:TAG"'
        )


def _plan_problems(run: Run, rented: str) -> Iterator[str]:
    """Say where the plan is for other machines than those that are rented."""
    try:
        devices = devices_of_nodes(run)
        ranks = devices.ranks(run.cluster.accelerators)
    except PenstockError as error:
        yield str(error)
        return
    kind, _, count = rented.partition(":")
    if (devices.kind == "cuda") != (kind != CPU):
        yield (
            f'cluster.sky.accelerators = "{rented}": cluster.use = "{run.cluster.use}" plans with '
            f"{devices}; write the same machine there, such as cluster.use = "
            f'"{"here" if kind == CPU else kind}"'
        )
    elif kind != CPU and int(count or 1) != ranks:
        yield (
            f'cluster.sky.accelerators = "{rented}": a node is planned with {ranks}; write '
            f"cluster.accelerators = {count or 1}, or rent {ranks}"
        )


def _bucket_problems(run: Run) -> Iterator[str]:
    durable, section = run.guard.durable, run.cluster.sky
    if durable is None:
        yield (
            "guard.durable: missing, and rented machines take their disks along; write durable = "
            '"s3://BUCKET/runs"'
        )
        return
    scheme = durable.partition("://")[0]
    if not is_url(durable) or scheme not in _CREDENTIALS:
        yield (
            f'guard.durable = "{durable}": a folder of this machine, which rented ones do not see; '
            'write "s3://BUCKET/runs"'
        )
        return
    cloud, names = _CREDENTIALS[scheme]
    elsewhere = (section.infra or "*").partition("/")[0].lower() != cloud
    if elsewhere and not section.secrets:
        listed = ", ".join(f'"{name}"' for name in names)
        where = f'machines of "{section.infra}"' if section.infra else "machines of any cloud"
        yield (
            f"cluster.sky.secrets: empty, and {where} have no rights on {scheme}:// buckets; write "
            f'secrets = [{listed}], or cluster.sky.infra = "{cloud}" with a role that has them'
        )


def _script(carried: CarriedRun) -> str:
    """Return the lines that a node runs: they write the run's files, so that nothing else has to
    be uploaded, and start the run there.

    The name of a node is new for every machine: one that takes the place of a lost one must not
    inherit its faults.
    """
    lines = [f"mkdir -p {FOLDER} && cd {FOLDER} || exit 1"]
    for path, text in carried.files.items():
        end = f"END_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        if "/" in path:
            lines.append(f"mkdir -p {shlex.quote(path.rpartition('/')[0])}")
        body = text if text.endswith("\n") or not text else f"{text}\n"
        lines += [f"cat > {shlex.quote(path)} <<'{end}'", *body.split("\n")[:-1], end]
        if body != text:  # equal to the byte: a run remembers the hash of its code
            lines.append(f"truncate -s -1 {shlex.quote(path)}")
    boot = "$(cut -c1-8 /proc/sys/kernel/random/boot_id)"
    lines.append(f'export PENSTOCK_NODE="node-$SKYPILOT_NODE_RANK-{boot}"')
    lines.append(f"exec penstock train {RUN_FILE}")
    return "\n".join(lines) + "\n"
