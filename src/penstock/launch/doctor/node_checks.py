"""Readings of one node: software, disks, data and the store of a run. Nothing here needs torch.

Each function returns facts; `judge.py` compares those of all nodes and says what they mean.
"""

import contextlib
import os
import platform
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from penstock import __version__
from penstock.data.build.open import open_built
from penstock.data.format.manifest import Manifest
from penstock.data.read.dataset import Dataset
from penstock.data.store.objects import is_url
from penstock.errors import PenstockError, system_error
from penstock.guard.tiers.free_space import free_bytes
from penstock.home import home
from penstock.launch.prepare.store_check import store_problem
from penstock.plan.built import find_built
from penstock.run.folder import memory_root
from penstock.run.schema.run import Run

VERIFY_S = 10.0  # of the files of a dataset; large ones are checked in part
Facts = dict[str, Any]


def software() -> Facts:
    """Return the versions that must be equal on all nodes; "" where there is none."""
    return {
        "python": platform.python_version(),
        "penstock": __version__,
        "torch": _version("torch"),
        "nccl": _version("nvidia-nccl-cu13") or _version("nvidia-nccl-cu12"),
        "driver": _driver(),
        "cryptography": _version("cryptography"),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _driver() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return ""


def disks(run: Run | None) -> Facts:
    """Return the free bytes where a run writes, and whether it can; a path that is missing counts
    as the nearest folder above it.
    """
    places: dict[str, Path] = {"home": home(), "temporary": Path(tempfile.gettempdir())}
    if run is not None:
        places["run"] = run.folder
        if run.guard.durable and not is_url(run.guard.durable):
            places["durable"] = Path(run.guard.durable).expanduser()
    with contextlib.suppress(OSError):
        if root := memory_root():
            places["memory"] = root
    return {name: _disk(path) for name, path in places.items()}


def _disk(path: Path) -> Facts:
    there = path.absolute()
    while not there.is_dir() and there != there.parent:
        there = there.parent
    facts: Facts = {"path": str(path.absolute()), "free_bytes": 0, "problem": ""}
    try:
        facts["free_bytes"] = free_bytes(there)
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"penstock")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        facts["problem"] = system_error(error)
    return facts


def data(run: Run, verify: bool) -> Facts:
    """Return which datasets of the run are here, by id, and what is wrong with their files."""
    found: list[Facts] = []
    for spec, _ in run.data.parts:
        one: Facts = {"dataset": spec, "id": "", "missing": "", "problems": []}
        found.append(one)
        try:
            built = find_built(run, spec, launch=True)
            if isinstance(built, str):
                one["missing"] = built
                continue
            one["id"] = _id(built.manifest)
            dataset = open_built(built.folder) if built.folder else Dataset.open(spec)
            if verify:
                one["problems"] = dataset.verify(limit_s=VERIFY_S)
            dataset.close()
        except (PenstockError, OSError) as error:
            words = str(error) if isinstance(error, PenstockError) else system_error(error)
            one["problems"] = [words]
    return {"datasets": found}


def _id(manifest: Manifest) -> str:
    return f"{manifest.name}@{manifest.version}"


def store(run: Run) -> Facts:
    """Return what keeps this node from the durable store of the run; "" where nothing does."""
    durable = run.guard.durable
    return {"problem": store_problem(durable) if durable and is_url(durable) else ""}
