"""The attempts of a run, read from its ranks' pulse traces and from the injected faults."""

import re
from itertools import takewhile
from pathlib import Path

from penstock.drill.clock import AttemptBeats, PhaseBeat
from penstock.drill.faults import OFFSET_S, InjectedFault
from penstock.guard.detect.pulse import PHASES, TRACE
from penstock.ledger.journal.events import (
    AttemptFailed,
    AttemptLaunched,
    InvocationStarted,
    ReplicaGone,
)
from penstock.ledger.journal.read import JournalLine, lines_of

_TRACE = re.compile(r"pulse-a(\d+)-r(\d+)")


def read_attempts(
    folder: Path, supervised: list[JournalLine], injected: list[InjectedFault], ranks: int
) -> list[AttemptBeats]:
    """Return the attempts in order. An attempt ends with the first lethal fault."""
    traces: dict[int, dict[int, list[PhaseBeat]]] = {}
    for path in sorted(folder.glob("pulse-a*-r*")):
        match = _TRACE.fullmatch(path.name)
        assert match, path
        own = traces.setdefault(int(match[1]), {rank: [] for rank in range(ranks)})
        own[int(match[2])] = _beats(path.read_bytes())
    faulted = {line.attempt: line for line in lines_of(supervised, AttemptFailed)}
    made = []
    for number, beats in sorted(traces.items()):
        lost = losses(number, supervised, injected)
        fault_times = [one.t for one in injected if one.attempt == number and one.lethal]
        if not fault_times and number in faulted:  # it refused what an earlier fault had left
            fault_times = [faulted[number].t - OFFSET_S]
        ended = number not in faulted and (lost or _ended(beats))
        died = None if ended else min(fault_times, default=None)
        made.append(
            AttemptBeats(beats, died, _opens(number, supervised), number not in faulted, lost)
        )
    return made


def losses(
    attempt: int, supervised: list[JournalLine], injected: list[InjectedFault]
) -> dict[int, list[float]]:
    """Return, by rank, the faults after which an attempt went on without it (live mode)."""
    found: dict[int, list[float]] = {}
    for line in lines_of(supervised, ReplicaGone):
        match line.event.ranks:
            case [int(first), int(last)] if line.attempt == attempt:
                hit = range(first, last + 1)
                own = [fault.t for fault in injected if fault.lethal and fault.rank in hit]
                before = [t for t in own if t <= line.t - OFFSET_S]
                for rank in hit if before else ():
                    found.setdefault(rank, []).append(max(before))
    return found


def _beats(raw: bytes) -> list[PhaseBeat]:
    """Return the beats that enter a phase; further beats in it are left out."""
    whole = len(raw) // TRACE.size * TRACE.size  # a killed rank may leave half of one
    beats: list[PhaseBeat] = []
    for step, phase, t in TRACE.iter_unpack(raw[:whole]):
        name = PHASES[phase]
        if name == "start" or not beats or (beats[-1].step, beats[-1].phase) != (step, name):
            beats.append(PhaseBeat(step, name, t))
    return beats


def _ended(beats: dict[int, list[PhaseBeat]]) -> bool:
    return all(not own or own[-1].phase == "end" for own in beats.values())


def _opens(attempt: int, supervised: list[JournalLine]) -> bool:
    """Return whether an attempt is the first launch of its invocation."""
    launches = lines_of(supervised, AttemptLaunched, InvocationStarted)
    before = list(takewhile(lambda line: not _launches(line, attempt), launches))
    return not before or isinstance(before[-1].event, InvocationStarted)


def _launches(line: JournalLine, attempt: int) -> bool:
    return isinstance(line.event, AttemptLaunched) and line.attempt == attempt
