"""Commands of Slurm, without what an outer job or a profile would say to them."""

import os
import subprocess

from penstock.launch.engines.slurm_state import SlurmJob, parse_squeue

PATIENCE_S = 60.0  # of one command


class SlurmFailed(OSError):
    """A command of Slurm that failed, with what it said."""


def clean_environment() -> dict[str, str]:
    """Return this environment without what an outer job, or a profile, says to Slurm's commands.

    Only where Slurm's configuration is, is kept.
    """
    kept = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER")
    return {
        name: value
        for name, value in os.environ.items()
        if name in kept or not name.startswith(("SLURM_", "SBATCH_", "SQUEUE_", "PMI_", "PMIX_"))
    }


def slurm_command(*words: str, stdin: str | None = None) -> str:
    """Run a command of Slurm and return what it printed."""
    try:
        done = subprocess.run(
            words,
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            env=clean_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
        )
    except FileNotFoundError:
        raise SlurmFailed(f"no {words[0]} on this machine") from None
    except subprocess.TimeoutExpired:
        raise SlurmFailed(f"{words[0]} did not answer in {PATIENCE_S:g} s") from None
    if done.returncode:
        said = [line for line in done.stderr.strip().splitlines() if line]
        raise SlurmFailed(said[-1] if said else f"{words[0]} ended with {done.returncode}")
    return done.stdout


def queue(number: str) -> list[SlurmJob]:
    """Return the jobs of a number that are queued or running; several for an array."""
    try:
        return parse_squeue(slurm_command("squeue", "-h", "-j", number, "-o", SlurmJob.FORMAT))
    except SlurmFailed as error:
        if "Invalid job id" in str(error):
            return []
        raise
