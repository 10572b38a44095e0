"""What a drill does to a run from outside. A deed gives the command, and waits where it has to."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable

from penstock.drill import damage, disk
from penstock.drill.outage import ENDPOINT, Door
from penstock.drill.scene import Scene
from penstock.drill.shift import Shift

Deed = Callable[[Scene], None]
DAY_S = 86_400.0
OUTAGE_S = 5.0  # a store that is away for less than two minutes is waited for
SLOW_S = (0.02, 0.01)  # stopped, and going: a rank with a third of its time


def kill_supervisor(scene: Scene) -> None:
    scene.start()
    held = scene.held()
    scene.strike("kill of the supervisor", held, lethal=True)
    os.kill(scene.process.pid, signal.SIGKILL)
    scene.end()
    scene.until(lambda: not scene.folder.running(), "the killed supervisor still has the lock")
    scene.start()


def preempt(scene: Scene) -> None:
    """A notice, and time to save; then the machine is there again."""
    scene.start()
    held = scene.held()
    scene.strike("SIGTERM to the supervisor", held)
    scene.process.send_signal(signal.SIGTERM)
    scene.until(lambda: scene.event("asked_to_stop") is not None, "nobody heard the notice")
    scene.release()
    scene.end()
    scene.start()


def slow_rank(scene: Scene) -> None:
    """Stopped and let go in turn for most of the run, which waits near its end until it is told."""
    scene.start()
    held = scene.held()
    scene.strike("slowed to a third", held)
    scene.release()
    stopped_s, going_s = SLOW_S
    while not scene.sprung(1) and not scene.over():
        with contextlib.suppress(ProcessLookupError):  # the run may end meanwhile
            os.kill(held.pid, signal.SIGSTOP)
            time.sleep(stopped_s)
            os.kill(held.pid, signal.SIGCONT)
        time.sleep(going_s)
    scene.until(lambda: scene.event("straggler") is not None or scene.over(), "nobody told of it")
    scene.release(1)


def on_checkpoint(harm: damage.Harm, memory: bool) -> Deed:
    """Damage, then a SIGKILL: what is damaged is met when the ranks load."""

    def deed(scene: Scene) -> None:
        scene.start()
        held = scene.held()
        scene.until(lambda: damage.settled(scene.folder), "what was copied was not saved")
        if memory:
            damage.newest_in_memory(scene.folder, harm)
        else:
            damage.newest_on_disk(scene.folder, harm)
            damage.forget_memory(scene.folder)
        scene.kill(held)

    return deed


def memory_gone(scene: Scene) -> None:
    scene.start()
    held = scene.held()
    scene.until(lambda: damage.settled(scene.folder), "what was copied was not saved")
    damage.forget_memory(scene.folder)
    scene.kill(held)


def memory_wiped(scene: Scene) -> None:
    """As some systems do when a user logs out."""
    scene.start()
    scene.strike("shared memory deleted", scene.held())
    shutil.rmtree(scene.folder.scratch)
    scene.release()


def on_data(harm: damage.Harm) -> Deed:
    """Damage and a SIGKILL; the run says what is wrong and stops; once it is mended it goes on."""

    def deed(scene: Scene) -> None:
        scene.start()
        held = scene.held()
        assert scene.copy is not None, "the catalogue says that it needs one"
        mend = damage.shards(scene.copy, harm)
        scene.kill(held)
        scene.end()
        mend()
        scene.start()

    return deed


def on_disk(spoil: Callable[[disk.Small], None], all_of_it: bool) -> Deed:
    """A disk fails the run for a while; training goes on, and so do saves afterwards."""

    def deed(scene: Scene) -> None:
        small = scene.on_small_disk(all_of_it)
        scene.start()
        scene.strike(f"{spoil.__name__} the disk", scene.held())
        spoil(small)
        scene.release()
        scene.held(1)  # a save has been due meanwhile
        small.mend()
        scene.release(1)

    return deed


def store_outage(scene: Scene) -> None:
    """The object store is away while a save is due: training goes on, and the save is late."""
    door = Door(os.environ[ENDPOINT])
    scene.after.append(door.close)
    scene.env[ENDPOINT] = door.url
    scene.start()
    scene.strike("the object store out of reach", scene.held())
    door.shut()
    scene.release()
    scene.held(1)
    time.sleep(OUTAGE_S)
    door.open()
    scene.release(1)


def clock_jump(scene: Scene) -> None:
    """The time of day jumps while ranks work, and again while they restart."""
    shift = Shift(scene.folder.control)
    scene.env |= shift.env()
    scene.start()
    held = scene.held()
    shift.to(DAY_S)
    scene.kill(held)
    scene.until(
        lambda: scene.attempt() > held.attempt or scene.over(),
        "the ranks did not start again",
    )
    shift.to(-365 * DAY_S)


DEEDS: dict[str, Deed] = {
    "kill_supervisor": kill_supervisor,
    "preempt": preempt,
    "slow_rank": slow_rank,
    "checkpoint_flip": on_checkpoint(damage.flip, memory=False),
    "checkpoint_cut": on_checkpoint(damage.cut, memory=False),
    "checkpoint_gone": on_checkpoint(damage.delete, memory=False),
    "memory_flip": on_checkpoint(damage.flip, memory=True),
    "memory_gone": memory_gone,
    "memory_wiped": memory_wiped,
    "shard_flip": on_data(damage.flip),
    "shard_cut": on_data(damage.cut),
    "shard_gone": on_data(damage.delete),
    "disk_full": on_disk(disk.Small.fill, all_of_it=True),
    "disk_read_only": on_disk(disk.Small.freeze, all_of_it=False),
    "store_outage": store_outage,
    "clock_jump": clock_jump,
}
