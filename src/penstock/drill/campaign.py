"""Seeded campaigns: one to three random faults in one run, the same for the same seed."""

import random

from penstock.drill.faults import Blow, Fault, Scale

# Phases of every step, and those that only some steps have: a blow there is for the first that
# comes, since a copy is left out while the one before it is still being written.
EVERY_STEP = ("fetch", "forward", "reduce", "vote", "voted", "update", "updated")
SOME_STEPS = ("stage", "write", "publish", "evaluate")
STARTING = ("join", "build", "load", "warm_up")
MOST = 3
SOON_MS = 40.0


def campaign(seed: int, scale: Scale, ranks: int) -> Fault:
    """What happens is drawn: how many blows, and of each the kind, rank, phase and step."""
    draw = random.Random(seed)
    blows: list[Blow] = []
    for number in range(draw.choice((1, 1, 1, 2, 2, MOST))):
        blows.append(_blow(draw, scale, ranks, then=number > 0))
    told = ("hang", "fault") if any(blow.action == "stop" for blow in blows) else ("fault",)
    what = ", then ".join(_words(blow) for blow in blows)
    return Fault(f"seed-{seed}", what, told, tuple(blows))


def _blow(draw: random.Random, scale: Scale, ranks: int, then: bool) -> Blow:
    action = draw.choices(("kill", "kill_soon", "stop", "raise"), (6, 6, 1, 1))[0]
    ms = round(draw.random() * SOON_MS, 1) if action == "kill_soon" else 0.0
    rank = draw.randrange(ranks)
    group = draw.choices((EVERY_STEP, SOME_STEPS, STARTING), (6, 2, 1))[0]
    phase = draw.choice(group)
    rank = 0 if phase == "publish" else rank  # the one that does it
    if group is EVERY_STEP and not then:
        # A later blow takes the step that comes: nobody knows how far the run is by then.
        return Blow(action, phase, draw.randrange(2, scale.steps - 1), rank, ms, then=then)
    return Blow(action, phase, "any", rank, ms, then=then)


def _words(blow: Blow) -> str:
    step = f" of step {blow.at}" if isinstance(blow.at, int) else ""
    later = f" {blow.ms:g} ms later" if blow.ms else ""
    return f"{blow.action} rank {blow.rank} in {blow.phase}{step}{later}"
