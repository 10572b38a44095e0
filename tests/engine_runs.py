"""Runs that an engine accepts, for tests of what it submits and refuses."""

from pathlib import Path

from penstock.launch.engines.engine import JobSpec
from penstock.run.load import load_table

ENGINES = {
    "kubernetes": {
        "image": "registry.example/penstock:1",
    },
    "sky": {
        "accelerators": "H100:8",
        "infra": "aws/us-east-1",
        "setup": ["pip install penstock.whl"],
    },
}


def job_of(engine: str, *overrides: str) -> JobSpec:
    """Return a job that the engine accepts, with overrides; `null` leaves a field out."""
    table = {
        "name": "a-run",
        "model": {"preset": "llama-3m"},
        "cluster": {"launcher": engine, "use": "H100", engine: dict(ENGINES[engine])},
        "guard": {"durable": "s3://bucket/runs"},
    }
    changed = [one for one in overrides if not one.endswith("=null")]
    for one in set(overrides) - set(changed):
        *above, name = one.removesuffix("=null").split(".")
        inner = table
        for section in above:
            inner = inner[section]
        inner.pop(name)
    return JobSpec(
        load_table(table, changed), Path("runs/a-run/submitted.toml"), Path.cwd(), "a-token"
    )
