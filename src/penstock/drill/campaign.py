"""Random faults: one to three injections in one run, the same for the same seed."""

import random

from penstock.drill.faults import DrillFault, Injection, ScratchScale

# Phases of every step, and phases that only some steps have. An injection there takes the first
# step that comes, since a copy is left out while the one before it is still being written.
EVERY_STEP = ("fetch", "forward", "reduce", "vote", "voted", "update", "updated")
SOME_STEPS = ("stage", "write", "publish", "evaluate")
STARTING = ("join", "build", "load", "warm_up")
MOST = 3
SOON_MS = 40.0


def random_fault(seed: int, scale: ScratchScale, ranks: int) -> DrillFault:
    """Draw a fault: how many injections, and the action, rank, phase and step of each."""
    draw = random.Random(seed)
    injections: list[Injection] = []
    for number in range(draw.choice((1, 1, 1, 2, 2, MOST))):
        injections.append(_draw_injection(draw, scale, ranks, then=number > 0))
    reported_by = (
        ("hang", "fault")
        if any(injection.action == "stop" for injection in injections)
        else ("fault",)
    )
    what = ", then ".join(_words(injection) for injection in injections)
    return DrillFault(f"seed-{seed}", what, reported_by, tuple(injections))


def _draw_injection(draw: random.Random, scale: ScratchScale, ranks: int, then: bool) -> Injection:
    action = draw.choices(("kill", "kill_soon", "stop", "raise"), (6, 6, 1, 1))[0]
    ms = round(draw.random() * SOON_MS, 1) if action == "kill_soon" else 0.0
    rank = draw.randrange(ranks)
    group = draw.choices((EVERY_STEP, SOME_STEPS, STARTING), (6, 2, 1))[0]
    phase = draw.choice(group)
    rank = 0 if phase == "publish" else rank  # the one that does it
    if group is EVERY_STEP and not then:
        # A later injection takes the step that comes: nobody knows how far the run is by then.
        return Injection(action, phase, draw.randrange(2, scale.steps - 1), rank, ms, then=then)
    return Injection(action, phase, "any", rank, ms, then=then)


def _words(injection: Injection) -> str:
    step = f" of step {injection.at}" if isinstance(injection.at, int) else ""
    later = f" {injection.ms:g} ms later" if injection.ms else ""
    return f"{injection.action} rank {injection.rank} in {injection.phase}{step}{later}"
