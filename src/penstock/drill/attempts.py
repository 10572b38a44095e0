"""The attempts of a run, read from its ranks' pulse traces and from the injected faults."""

import re
from itertools import takewhile
from pathlib import Path

from penstock.drill.clock import AttemptBeats, PhaseBeat
from penstock.drill.faults import OFFSET_S, InjectedFault
from penstock.guard.detect.pulse import PHASES, TRACE
from penstock.ledger.journal.read import JournalLine

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
    faulted = {event.attempt: event for event in supervised if event.kind == "fault"}
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
    for event in supervised:
        match event.payload.get("ranks") if event.kind == "lost" else None:
            case [int(first), int(last)] if event.attempt == attempt:
                hit = range(first, last + 1)
                own = [one.t for one in injected if one.lethal and one.rank in hit]
                before = [t for t in own if t <= event.t - OFFSET_S]
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
    before = takewhile(lambda e: not (e.kind == "launch" and e.attempt == attempt), supervised)
    kinds = [event.kind for event in before if event.kind in ("launch", "invocation")]
    return not kinds or kinds[-1] == "invocation"
