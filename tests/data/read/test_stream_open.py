"""A run goes on with the data that it began with, whatever became of its sources."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import made_plans as made
from made_sets import made_set
from penstock.data.build.copy import copy_dataset
from penstock.data.build.open import open_or_build
from penstock.data.read.open import open_planned, plan_entry
from penstock.errors import PenstockError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.txt").write_text("".join(f"Sentence {n}. " for n in range(300)))
    return tmp_path / "home" / "datasets"


def run(dataset: str, **more: object):
    return made.run(data={"dataset": dataset, "sequence": 16, **more})


def test_raw_files_that_changed_are_not_read_again(home, tmp_path):
    first = open_or_build(run("raw"))
    plan = {"dataset": plan_entry(first)}
    (tmp_path / "raw" / "b.txt").write_text("More of it, and other words.")
    (again,) = open_planned(run("raw"), plan["dataset"])
    assert again.id == first[0].id
    (new,) = open_or_build(run("raw"))
    assert new.id != again.id
    shutil.rmtree(tmp_path / "raw")
    assert open_planned(run("raw"), plan["dataset"])[0].id == again.id


def test_a_deleted_dataset_is_named_with_a_fix(home):
    first = open_or_build(run("raw"))
    plan = {"dataset": plan_entry(first)}
    shutil.rmtree(first[0].folder)
    with pytest.raises(PenstockError) as caught:
        open_planned(run("raw"), plan["dataset"])
    message = str(caught.value)
    assert f"reads {first[0].id}, which is not at {home / first[0].id} any more" in message
    assert f"copy {first[0].id} there again, or build it again from raw as it was" in message
    assert "--fresh" in message
    # Building it again from the same files is going on.
    open_or_build(run("raw"))
    assert open_planned(run("raw"), plan["dataset"])[0].id == first[0].id


def test_a_folder_is_found_from_any_place_and_no_other_version_is_used(home, tmp_path, monkeypatch):
    sets = [made_set(tmp_path, np.arange(n) % 300, [0], name="own") for n in (500, 600)]
    named = sets[0].folder.name
    plan = {"dataset": plan_entry(open_or_build(run(named)))}
    monkeypatch.chdir("/")
    assert open_planned(run(named), plan["dataset"])[0].id == sets[0].id
    shutil.rmtree(sets[0].folder)
    with pytest.raises(PenstockError, match=f"{named}, which is not at {tmp_path}/{named} any"):
        open_planned(run(named), plan["dataset"])
    sets[1].folder.rename(sets[0].folder)
    with pytest.raises(PenstockError, match=f"at .* there is {sets[1].id} now. Put {named} back"):
        open_planned(run(named), plan["dataset"])


def test_a_url_with_another_version_is_refused(home, tmp_path):
    first = made_set(tmp_path / "sets", np.arange(500) % 300, [0], name="far")
    url = copy_dataset(first, (tmp_path / "bucket").as_uri())
    plan = {"dataset": plan_entry(open_or_build(run(url)))}
    assert open_planned(run(url), plan["dataset"])[0].id == first.id
    other = made_set(tmp_path / "sets", np.arange(700) % 300, [0], name="far")
    there = tmp_path / "bucket" / first.id
    shutil.rmtree(there)
    shutil.copytree(other.folder, there)
    with pytest.raises(PenstockError, match=f"reads {first.id}, and at {url} there is {other.id}"):
        open_planned(run(url), plan["dataset"])


def test_the_cache_of_one_run_is_not_that_of_the_next(home, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "usual"))
    monkeypatch.delenv("PENSTOCK_CACHE_BYTES", raising=False)
    url = copy_dataset(
        made_set(tmp_path / "sets", np.arange(500) % 300, [0], name="far"),
        (tmp_path / "bucket").as_uri(),
    )
    own = run(url, cache=str(tmp_path / "own"), cache_bytes="3 MiB")
    (first,) = open_or_build(own)
    (second,) = open_or_build(run(url))
    assert first._files.access.cache.folder == tmp_path / "own"
    assert first._files.access.cache.space.max_bytes == 3 << 20
    assert second._files.access.cache.folder == tmp_path / "usual"
    assert second._files.access.cache.space.max_bytes != 3 << 20
    assert os.environ["PENSTOCK_CACHE"] == str(tmp_path / "usual")
    assert "PENSTOCK_CACHE_BYTES" not in os.environ
    (again,) = open_planned(own, plan_entry([first]))
    assert again._files.access.cache.folder == tmp_path / "own"
