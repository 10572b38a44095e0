"""The attempts of a run as its ranks' pulses tell them, each with the blows that ended it."""

import re
from itertools import takewhile
from pathlib import Path

from penstock.drill.clock import Beat, Life
from penstock.drill.struck import OFFSET_S, Struck
from penstock.guard.detect.pulse import PHASES, TRACE
from penstock.ledger.journal.read import Event

_TRACE = re.compile(r"pulse-a(\d+)-r(\d+)")


def lives(folder: Path, supervised: list[Event], struck: list[Struck], ranks: int) -> list[Life]:
    """In order. An attempt ends with the first blow that it did not live through."""
    traces: dict[int, dict[int, list[Beat]]] = {}
    for path in sorted(folder.glob("pulse-a*-r*")):
        match = _TRACE.fullmatch(path.name)
        assert match, path
        own = traces.setdefault(int(match[1]), {rank: [] for rank in range(ranks)})
        own[int(match[2])] = _beats(path.read_bytes())
    faulted = {event.attempt: event for event in supervised if event.kind == "fault"}
    made = []
    for number, beats in sorted(traces.items()):
        lost = losses(number, supervised, struck)
        blows = [one.t for one in struck if one.attempt == number and one.lethal]
        if not blows and number in faulted:  # it refused what an earlier blow had left
            blows = [faulted[number].t - OFFSET_S]
        ended = number not in faulted and (lost or _ended(beats))
        died = None if ended else min(blows, default=None)
        made.append(Life(beats, died, _opens(number, supervised), number not in faulted, lost))
    return made


def losses(attempt: int, supervised: list[Event], struck: list[Struck]) -> dict[int, list[float]]:
    """By rank, the blows after which an attempt went on without it (`mode = "live"`)."""
    found: dict[int, list[float]] = {}
    for event in supervised:
        match event.payload.get("ranks") if event.kind == "lost" else None:
            case [int(first), int(last)] if event.attempt == attempt:
                hit = range(first, last + 1)
                own = [one.t for one in struck if one.lethal and one.rank in hit]
                before = [t for t in own if t <= event.t - OFFSET_S]
                for rank in hit if before else ():
                    found.setdefault(rank, []).append(max(before))
    return found


def _beats(raw: bytes) -> list[Beat]:
    """Where a phase was entered; further signs of life in it are no news here."""
    whole = len(raw) // TRACE.size * TRACE.size  # a killed rank may leave half of one
    beats: list[Beat] = []
    for step, phase, t in TRACE.iter_unpack(raw[:whole]):
        name = PHASES[phase]
        if name == "start" or not beats or (beats[-1].step, beats[-1].phase) != (step, name):
            beats.append(Beat(step, name, t))
    return beats


def _ended(beats: dict[int, list[Beat]]) -> bool:
    return all(not own or own[-1].phase == "end" for own in beats.values())


def _opens(attempt: int, supervised: list[Event]) -> bool:
    """Whether it is the first launch of its invocation."""
    before = takewhile(lambda e: not (e.kind == "launch" and e.attempt == attempt), supervised)
    kinds = [event.kind for event in before if event.kind in ("launch", "invocation")]
    return not kinds or kinds[-1] == "invocation"
