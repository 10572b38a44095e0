"""Judges a run of the campaign: equal weights and each sample once, or a refusal in words."""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.drill import audit

ERROR = "error: "
REFUSALS = (1, 2)  # exit codes
LEAST_WORDS = 4  # of a message that a person can act on
_BROKEN = re.compile(r"^RuntimeError: .*Connection (?:reset|closed) by peer", re.MULTILINE)
_STACK = "Traceback (most recent call last):"
_ENDED = re.compile(r"^\S", re.MULTILINE)  # the line with the error stands at the margin
_RECORD = re.compile(r"step-\d{8}|run\.toml|plan\.json|identity|slot-\d|\.events")
ATTEMPTS = 1000  # more than one invocation makes


@dataclass(frozen=True)
class Ended:
    """How an invocation of `penstock train` ended."""

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Finished:
    """What a finished run has to show."""

    status: str
    weights_hash: str | None  # as the run reports it
    step: int  # of the newest checkpoint on disk
    damage: tuple[str, ...]  # of that checkpoint, every hash verified
    state: Mapping[str, str]  # hashes of the files there that hold weights and optimizer


def traceback_in(texts: Mapping[str, str], struck: Collection[str] = ()) -> list[str]:
    """Name the outputs that hold one.

    A rank writes the stack of its end to its own log. In the log folder of a `struck` attempt that
    may be the end of its connection to a rank that was killed, or a stack that was cut off when
    the rank itself was killed, and nothing else.
    """
    found = []
    for name, text in texts.items():
        stacks = text.split(_STACK)[1:]
        if str(Path(name).parent) in struck:
            stacks = [one for one in stacks if not _BROKEN.search(one)]
            if stacks and text.endswith(stacks[-1]) and not _ENDED.search(stacks[-1]):
                stacks.pop()  # it was killed while it wrote
        if stacks:
            found.append(f"a traceback in {name}")
    return found


def wrong_refusal(ended: Ended, tampered: bool) -> list[str]:
    """What is wrong with an invocation that ended before its last step, on its own."""
    found = traceback_in({"stdout": ended.stdout, "stderr": ended.stderr})
    if not tampered:
        found.append("it ended although nobody had touched its records")
    if ended.code not in REFUSALS:
        found.append(f"exit code {ended.code}, which is no refusal")
    messages = re.split(rf"^{ERROR}", ended.stderr, flags=re.MULTILINE)[1:]
    if len(messages) != 1:
        found.append(f"{len(messages)} messages, not one")
    elif len(messages[0].split()) < LEAST_WORDS:
        found.append(f"not a message in words: {messages[0]!r}")
    return found


def still_there(did: str, stderr: str) -> bool:
    """Whether a refusal names a record that was tampered with earlier, as told in `did`.

    A run may go on from a copy in memory while a checkpoint on disk stays torn, and need it later.
    """
    return bool(set(_RECORD.findall(did)) & set(_RECORD.findall(stderr)))


def numbered(lines: Iterable[audit.UsedSamples], invocation: int) -> list[audit.UsedSamples]:
    """Number attempts through all invocations.

    The run numbers them by its journal, and begins again where a power cut or a hand took that.
    """
    return [replace(one, attempt=ATTEMPTS * invocation + one.attempt) for one in lines]


def counted(lines: Iterable[audit.UsedSamples], steps: int, batch: int) -> audit.SampleCounts:
    """Count the samples behind the final weights: for each step, the last time it was made."""
    order = sorted(lines, key=lambda one: (one.attempt, one.rank))
    return audit.count_samples(audit.final_uses(order), steps, batch)


def wrong_end(found: Finished, calm: Finished, samples: audit.SampleCounts) -> list[str]:
    """What is wrong with a run that says it is done."""
    wrong = []
    if found.status != "done":
        wrong.append(f"its status is {found.status!r}")
    if not found.weights_hash or found.weights_hash != calm.weights_hash:
        wrong.append(f"weights {found.weights_hash}, undisturbed {calm.weights_hash}")
    if found.step != calm.step:
        wrong.append(f"the newest checkpoint is of step {found.step}, not {calm.step}")
    wrong += [f"the last checkpoint: {problem}" for problem in found.damage]
    if not found.state or found.state != calm.state:
        wrong.append(f"state on disk {json.dumps(found.state)}, undisturbed {dict(calm.state)}")
    if samples != audit.SampleCounts(0, 0):
        wrong.append(f"{samples.lost} samples lost, {samples.doubled} doubled")
    return wrong
