"""A cluster that cannot build the dataset is refused before anything is read, with the reason."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_ray_build import wait_until

import penstock
from ray_lab import BUCKET, RayLab

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
FOURTH = 4


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.txt").write_text("Some text.")
    path = tmp_path / "local.toml"
    path.write_text('[[source]]\npath = "raw"\n[clean]\npreset = "code"\n')
    return path


@contextmanager
def fourth_node(lab: RayLab, env: dict[str, str] | None = None, hide: str = "") -> Iterator[None]:
    lab.start_node(FOURTH, env, hide)
    try:
        yield
    finally:
        lab.kill_node(FOURTH)
        wait_until(lambda: lab.alive() == 3)


def refusal(lab: RayLab, *words: str, **more: str) -> str:
    status, told = lab.run("data", "build", *words, **more)  # type: ignore[arg-type]
    assert status == 2, told
    lines = [line for line in told.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, told
    assert "Traceback" not in told
    return lines[0]


def test_sources_that_a_node_does_not_have(lab: RayLab, recipe: Path) -> None:
    with fourth_node(lab, hide=str(recipe.parent / "raw")):
        told = refusal(lab, str(recipe), "--on", "ray")
    assert f"Node {lab.address(FOURTH)} of the Ray cluster cannot read" in told
    assert "raw/a.txt: No such file or directory" in told
    assert "put them into an object store or a folder that all nodes share" in told


def test_a_home_that_a_node_does_not_have(lab: RayLab, recipe: Path) -> None:
    home = lab.folder / "driver"
    home.mkdir(exist_ok=True)
    with fourth_node(lab, hide=str(home)):
        told = refusal(lab, str(recipe), "--on", "ray")
    assert "No such file or directory. Every node writes there: give --to s3://" in told
    assert not list((home / "datasets").glob(".seen-*"))


def test_another_penstock(lab: RayLab, recipe: Path, tmp_path: Path) -> None:
    shutil.copytree(Path(penstock.__file__).parent, tmp_path / "other" / "penstock")
    with (tmp_path / "other" / "penstock" / "data" / "build" / "clean.py").open("a") as code:
        code.write("# changed\n")
    with fourth_node(lab, {"PYTHONPATH": str(tmp_path / "other")}):
        told = refusal(lab, str(recipe), "--on", "ray")
    assert f"Node {lab.address(FOURTH)} of the Ray cluster differs from this process" in told
    # The word before it is also the access key of the S3 server, so messages hide it.
    assert f" {penstock.__version__} (source " in told


def test_no_penstock(lab: RayLab, recipe: Path, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing" / "penstock"
    nothing.mkdir(parents=True)
    (nothing / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'penstock'\")"
    )
    with fourth_node(lab, {"PYTHONPATH": str(nothing.parent)}):
        told = refusal(lab, str(recipe), "--on", "ray")
    assert f"Node {lab.address(FOURTH)} of the Ray cluster has no Penstock" in told


@pytest.mark.parametrize("client", [False, True])
def test_another_ray(lab: RayLab, recipe: Path, client: bool) -> None:
    """The number alone is changed, in the driver: Ray's own comparison refuses it."""
    on = f"ray://{lab.address(1)}:10001" if client else "ray"
    told = refusal(lab, str(recipe), "--on", on, python="import ray; ray.__version__ = '2.1.0'")
    assert "this process has Ray 2.1.0" in told
    assert "Install the same here: pip install ray==" in told


def test_a_bucket_that_a_node_may_not_read(lab: RayLab, recipe: Path) -> None:
    """The driver has the credentials and a node has others."""
    with fourth_node(lab, {"AWS_SECRET_ACCESS_KEY": "another"}):
        told = refusal(lab, str(recipe), "--on", "ray", "--to", f"{BUCKET}/sets")
    assert f"Node {lab.address(FOURTH)} of the Ray cluster cannot read {BUCKET}/sets/.seen-" in told


def test_a_bucket_that_does_not_exist(lab: RayLab, recipe: Path) -> None:
    told = refusal(lab, str(recipe), "--on", "ray", "--to", "s3://nowhere/sets")
    assert "s3://nowhere/sets" in told
