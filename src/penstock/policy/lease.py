"""The lease that decides which host leads a run of several hosts.

A lease has a number. The holder of the highest number leads for as long as it sends beats. Hosts
never compare their clocks: each measures durations on its own clock. The holder counts from
*before* it sent its last successful beat. The others count from *after* they first saw that beat to
*before* they last read it. So their `DEAD_S` always ends later than the holder's `FENCED_S`, and
the holder has the time between the two to end its ranks. That takes it a fraction of a second: the
fork server reads the fence four times a second. A run without a leader stands still for `DEAD_S`,
so it is no longer than that and clocks need. False alarms depend on `FENCED_S` alone.

A holder that was judged dead may come back before the next number is taken. So a host that has
taken a number reads the old beat once more. If it has not changed, every later beat of the old
holder will find the new record. If it has, the new holder waits until the old one is fenced.
"""

from dataclasses import dataclass

BEAT_S = 2.0  # between two beats
FENCED_S = 6.0  # a holder stops leading this long after its last successful beat began
DEAD_S = 8.0  # others judge a holder dead when its beat has not changed for this long
CLOCKS_APART = 0.1  # how much faster one host's clock may run than another's


@dataclass(frozen=True)
class LeaseView:
    """The lease as one host has seen it."""

    number: int = 0  # of the newest record; 0 when there is none
    beat: str = ""  # what its holder last wrote
    since_s: float = 0.0  # when this host first saw that


def observe(
    watch: LeaseView, number: int, beat: str, released: bool, began_s: float, now_s: float
) -> tuple[LeaseView, int | None]:
    """Update the view with a new reading; return it with the number that may be taken, if any.

    The beat was read between `began_s` and `now_s`. A host can stop for long in between, and what
    it read is then as old as `began_s`.
    """
    if number == 0:
        return LeaseView(0, "", now_s), 1
    if (number, beat) != (watch.number, watch.beat):
        watch = LeaseView(number, beat, now_s)
    if released or began_s - watch.since_s >= DEAD_S:
        return watch, number + 1
    return watch, None


def wait_s(judged: str | None, beat: str | None) -> float:
    """Return how long a host waits after it took a number before it leads.

    `judged` is the beat by which the holder before it was taken for dead, None where there was no
    holder; `beat` is what the same holder's beat is now, None where that cannot be read.
    """
    return 0.0 if judged is None or judged == beat else FENCED_S * (1 + CLOCKS_APART)


def lead_without_beat_s(left_s: float, over: bool, there: int, hosts: int) -> float:
    """Return how long a holder may go on leading `there` of the `hosts` of a run, itself included.

    With all of them at its side nobody is left who would take its lease, and it need not be able to
    renew it: those that follow know from it that it lives. A host that is lost ends that, on both
    sides of the cut.
    """
    if over:
        return 0.0
    return FENCED_S if there >= hosts and left_s < FENCED_S else left_s


def left_s(began_s: float, now_s: float) -> float:
    """Return how long a holder may still lead whose last good beat was sent at `began_s`."""
    return FENCED_S - (now_s - began_s)
