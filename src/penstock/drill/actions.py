"""Actions that a drill takes from outside. Each starts the run and disturbs it."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable

from penstock.drill import damage
from penstock.drill.clock_shift import ClockShift
from penstock.drill.drill_run import DrillRun
from penstock.drill.small_disk import SmallDisk
from penstock.drill.store_proxy import ENDPOINT, StoreProxy
from penstock.ledger.journal.events import StopSignal, StragglerChanged

OutsideAction = Callable[[DrillRun], None]
DAY_S = 86_400.0
OUTAGE_S = 5.0  # a store that is away for less than two minutes is waited for
SLOW_S = (0.02, 0.01)  # stopped, and going: a rank with a third of its time


def kill_supervisor(drill_run: DrillRun) -> None:
    drill_run.start()
    held = drill_run.wait_for_held_rank()
    drill_run.record_injection("kill of the supervisor", held, lethal=True)
    os.kill(drill_run.process.pid, signal.SIGKILL)
    drill_run.end()
    drill_run.wait_until(
        lambda: not drill_run.folder.running(), "the killed supervisor still has the lock"
    )
    drill_run.start()


def preempt(drill_run: DrillRun) -> None:
    """Send a preemption notice and let the run save; then start it again."""
    drill_run.start()
    held = drill_run.wait_for_held_rank()
    drill_run.record_injection("SIGTERM to the supervisor", held)
    drill_run.process.send_signal(signal.SIGTERM)
    drill_run.wait_until(lambda: bool(drill_run.events(StopSignal)), "nobody heard the notice")
    drill_run.release()
    drill_run.end()
    drill_run.start()


def slow_rank(drill_run: DrillRun) -> None:
    """Stop and continue a rank in turn until the run reports a straggler."""
    drill_run.start()
    held = drill_run.wait_for_held_rank()
    drill_run.record_injection("slowed to a third", held)
    drill_run.release()
    stopped_s, going_s = SLOW_S
    while not drill_run.triggered(1) and not drill_run.ended():
        with contextlib.suppress(ProcessLookupError):  # the run may end meanwhile
            os.kill(held.pid, signal.SIGSTOP)
            time.sleep(stopped_s)
            os.kill(held.pid, signal.SIGCONT)
        time.sleep(going_s)
    drill_run.wait_until(
        lambda: bool(drill_run.events(StragglerChanged)) or drill_run.ended(),
        "no straggler was reported",
    )
    drill_run.release(1)


def on_checkpoint(harm: damage.Harm, memory: bool) -> OutsideAction:
    """Return an action that damages a checkpoint and kills a rank: the ranks load it next."""

    def action(drill_run: DrillRun) -> None:
        drill_run.start()
        held = drill_run.wait_for_held_rank()
        drill_run.wait_until(
            lambda: damage.settled(drill_run.folder), "what was copied was not saved"
        )
        if memory:
            damage.newest_in_memory(drill_run.folder, harm)
        else:
            damage.newest_on_disk(drill_run.folder, harm)
            damage.forget_memory(drill_run.folder)
        drill_run.kill(held)

    return action


def memory_gone(drill_run: DrillRun) -> None:
    drill_run.start()
    held = drill_run.wait_for_held_rank()
    drill_run.wait_until(lambda: damage.settled(drill_run.folder), "what was copied was not saved")
    damage.forget_memory(drill_run.folder)
    drill_run.kill(held)


def memory_wiped(drill_run: DrillRun) -> None:
    """Delete the run's shared memory, as some systems do when a user logs out."""
    drill_run.start()
    drill_run.record_injection("shared memory deleted", drill_run.wait_for_held_rank())
    shutil.rmtree(drill_run.folder.scratch)
    drill_run.release()


def on_data(harm: damage.Harm) -> OutsideAction:
    """Return an action that damages a shard and kills a rank; the run stops, and goes on when the
    shard is repaired."""

    def action(drill_run: DrillRun) -> None:
        drill_run.start()
        held = drill_run.wait_for_held_rank()
        assert drill_run.copy is not None, "the catalogue says that it needs one"
        mend = damage.shards(drill_run.copy, harm)
        drill_run.kill(held)
        drill_run.end()
        mend()
        drill_run.start()

    return action


def on_disk(spoil: Callable[[SmallDisk], None], all_of_it: bool) -> OutsideAction:
    """Return an action that breaks a disk while a save is due; training and later saves go on."""

    def action(drill_run: DrillRun) -> None:
        small = drill_run.on_small_disk(all_of_it)
        drill_run.start()
        drill_run.record_injection(f"{spoil.__name__} the disk", drill_run.wait_for_held_rank())
        spoil(small)
        drill_run.release()
        drill_run.wait_for_held_rank(1)  # a save has been due meanwhile
        small.mend()
        drill_run.release(1)

    return action


def store_outage(drill_run: DrillRun) -> None:
    """Make the object store unreachable while a save is due: training goes on, the save is late."""
    door = StoreProxy(os.environ[ENDPOINT])
    drill_run.cleanups.append(door.close)
    drill_run.env[ENDPOINT] = door.url
    drill_run.start()
    drill_run.record_injection("the object store out of reach", drill_run.wait_for_held_rank())
    door.shut()
    drill_run.release()
    drill_run.wait_for_held_rank(1)
    time.sleep(OUTAGE_S)
    door.open()
    drill_run.release(1)


def clock_jump(drill_run: DrillRun) -> None:
    """Let the time of day jump while ranks work, and again while they restart."""
    shift = ClockShift(drill_run.folder.control)
    drill_run.env |= shift.env()
    drill_run.start()
    held = drill_run.wait_for_held_rank()
    shift.to(DAY_S)
    drill_run.kill(held)
    drill_run.wait_until(
        lambda: drill_run.attempt() > held.attempt or drill_run.ended(),
        "the ranks did not start again",
    )
    shift.to(-365 * DAY_S)


ACTIONS: dict[str, OutsideAction] = {
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
    "disk_full": on_disk(SmallDisk.fill, all_of_it=True),
    "disk_read_only": on_disk(SmallDisk.freeze, all_of_it=False),
    "store_outage": store_outage,
    "clock_jump": clock_jump,
}
