"""A few seeds of the campaign, that its disk loses what it must, and that its judge judges.

`make drill-hostile TIMES=100` runs all of them.
"""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hostile import campaign
from hostile.campaign import Failed, Play, Scene
from hostile.cut_disk import MOUNTS, CutDisk
from penstock.guard.format.manifest import MANIFEST
from penstock.guard.format.published import hash_file, published_checkpoints

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("mount", MOUNTS)
def test_a_power_cut_loses_what_was_not_synced_and_keeps_what_was(
    mount: str, tmp_path: Path
) -> None:
    disk = CutDisk(tmp_path / "image", tmp_path / "disk", MOUNTS[mount])
    disk.make()
    try:
        kept, lost = disk.at / "kept", disk.at / "lost"
        kept.write_bytes(b"synced")
        disk.sync()
        with kept.open("ab") as file:
            file.write(b", and then this")
        lost.write_bytes(b"never synced")
        kept.with_name("moved").mkdir()
        assert (kept.read_bytes(), lost.exists()) == (b"synced, and then this", True)
        disk.cut()
        with pytest.raises(OSError, match="Input/output error"):
            lost.with_name("later").write_bytes(b"a dead disk takes nothing")
        disk.mend()
        assert kept.read_bytes() == b"synced"
        assert sorted(path.name for path in disk.at.iterdir()) == ["kept", "lost+found"]
    finally:
        disk.remove()


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with campaign.prepared() as made:
        yield made


@pytest.mark.parametrize("seed", range(4))
def test_a_seed_ends_as_the_undisturbed_run(seed: int, scene: Scene, tmp_path: Path) -> None:
    told = campaign.play(scene, seed, tmp_path)
    print(f"\n{seed}: {'; '.join(map(str, told.rounds))}")
    assert told.failures == []
    assert told.rounds
    assert all(one.outcome for one in told.rounds)


def killed_at(scene: Scene, step: int) -> Play:
    """A run that is down after a step, with nothing in memory."""
    play = Play(scene, 0)
    scene.anew("ordered")
    scene.start()
    play.wait("step", step)
    assert campaign.strike(scene, "all killed, memory wiped")
    play.down()
    return play


def test_a_forged_checkpoint_makes_other_weights_and_the_judge_says_so(scene: Scene) -> None:
    """Checkpoints are hashed, not signed: this is what the judge must never let through."""
    play = killed_at(scene, 60)
    for found in published_checkpoints(scene.folder.checkpoints):
        about = found.read_manifest()
        name = next(name for name in about.files if name.endswith(".distcp"))
        path = found.path / name
        content = bytearray(path.read_bytes())
        for at in range(len(content) // 4, len(content) // 2):
            content[at] ^= 1  # one alone may be rounded away again
        path.write_bytes(content)
        files = about.files | {name: {**about.files[name], "blake3": hash_file(path)}}
        (found.path / MANIFEST).write_bytes(replace(about, files=files).to_bytes())
    shutil.rmtree(scene.folder.journal)  # it knows the hashes of the true ones
    scene.start()
    with pytest.raises(Failed, match=r"state on disk|weights [0-9a-f]+, undisturbed"):
        play.finish()


def test_a_run_cut_off_at_its_launch_refuses_a_checkpoint_of_another_run(scene: Scene) -> None:
    """The other run has the same settings: its weights would be equal, its samples not its own."""
    play = Play(scene, 0)
    scene.anew("writeback")
    scene.start()
    play.wait("launch", 0)
    assert campaign.strike(scene, "power cut")
    play.down()
    foreign = published_checkpoints(scene.foreign["identity"].checkpoints)[-1]
    placed = scene.folder.checkpoints / foreign.path.name
    shutil.copytree(foreign.path, placed)
    scene.start()
    ended = scene.until_end()
    assert ended.code == 1
    assert f"{placed.name}: a checkpoint of another run" in ended.stderr
    shutil.rmtree(placed)
    scene.start()
    play.finish()


def test_a_refusal_that_nobody_provoked_is_a_failure(scene: Scene) -> None:
    play = killed_at(scene, 30)
    shutil.rmtree(scene.folder.checkpoints)  # and the campaign does not know
    scene.start()
    with pytest.raises(Failed, match="although nobody had touched its records"):
        play.finish()


def test_samples_that_are_not_on_record_are_a_failure(scene: Scene) -> None:
    play = killed_at(scene, 30)
    scene.lines = [one for one in scene.lines if one.step != 20]
    scene.start()
    with pytest.raises(Failed, match="8 samples lost, 0 doubled"):
        play.finish()
