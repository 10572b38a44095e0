"""The screens of `penstock plan`: ten lines for a person, and the rest with `--detail`."""

from collections.abc import Iterable, Iterator

from penstock.ledger.causes import Cause
from penstock.plan.hours.screen import hours_line
from penstock.plan.plan import Plan
from penstock.plan.power.limits import amount
from penstock.plan.search.sensitivity import RESOURCES, LayoutOption
from penstock.style import (
    ENERGIES,
    MASSES,
    MONEY,
    TIMES,
    format_count,
    format_predicted,
    format_predicted_range,
    round_to_two_figures,
)


def lines(plan: Plan) -> list[str]:
    """Return the ten lines, one of hours where they have a price, then what the plan could not
    know.
    """
    rows = {
        "fits": _fits(plan),
        "layout": f"{plan.job.layout}, on {_machine(plan)}",
        "speed": _speed(plan),
        "MFU": _mfu(plan),
        "time": _time(plan),
        "cost": _cost(plan),
        "energy": _energy(plan),
        "effective": _effective(plan),
        "bottleneck": plan.bottleneck,
        "next": plan.next,
    }
    if plan.hours:
        rows["hours"] = hours_line(plan.hours)
    if plan.sync and plan.sync.outer:
        rows["replicas"] = plan.sync.line()
    ten = [f"{name:<12}{text}" for name, text in rows.items()]
    return [*ten, *(f"{'note':<12}{text}" for text in plan.warnings)]


def detail(plan: Plan) -> list[str]:
    """Return memory, step and ledger by part, sensitivities and layouts."""
    step, ledger = plan.step, plan.bill.ledger
    return [
        *_section("between replicas", _replicas(plan)),
        *_table(f"memory of the fullest accelerator{_stage(plan)}", _sizes(plan)),
        *_table(
            f"one step, {format_predicted(step.step_s, TIMES)}",
            (
                (n, format_predicted(s, TIMES), s / step.step_s)
                for n, s in _sorted(step.parts.items())
            ),
        ),
        *_table(
            f"the whole run, {format_predicted(plan.life.wall_s, TIMES)}",
            (
                (str(cause), format_predicted(share * plan.life.wall_s, TIMES), share)
                for cause in Cause
                if (share := ledger.share(cause) or 0.0) > 0
            ),
        ),
        *_section("site", _site(plan)),
        *_section(
            "10 % more of it gives",
            (f"{RESOURCES[n]:<28}{g:4.1f} % more tokens/s" for n, g in _sorted(_gains(plan))),
        ),
        *_section("layouts that fit, fastest first", map(_option, plan.options)),
        *_section("layouts rejected", map(_option, plan.rejected)),
    ]


def _replicas(plan: Plan) -> Iterator[str]:
    """Yield what replicas exchange: bytes by tier, seconds of a round, the link, the loss."""
    sync = plan.sync
    if sync is None:
        return
    yield sync.line()
    for tier, sent in sync.by_tier.items():
        yield f"{tier:<16}{format_count(sent)}B a step and replica"
    link = sync.link
    yield (
        f"{'link':<16}{format_count(link.bytes_per_s)}B/s, "
        f"{format_predicted(link.hop_s, TIMES)} a hop: {link.source}"
    )
    if (round_ := sync.outer) is not None:
        for name, seconds in (
            ("encode", round_.encode_s),
            ("transfer", round_.transfer_s),
            ("of it hidden", round_.hidden_s),
            ("agree", round_.agree_s),
            ("decode", round_.decode_s),
            ("apply", round_.apply_s),
        ):
            yield f"{name:<16}{format_predicted(seconds, TIMES)} a round"
    yield f"{'loss':<16}{sync.loss.words()}: {sync.loss.why}"


def _fits(plan: Plan) -> str:
    memory = plan.memory
    room = f"{memory.peak_bytes / 2**30:.1f} of {memory.capacity_bytes / 2**30:.1f} GiB"
    if not memory.fits:
        most = ""
        if memory.peak_bytes <= memory.capacity_bytes:
            most = f", and with the model's error {memory.peak_bytes * memory.high / 2**30:.1f}"
        return f"no: the fullest accelerator would need {room}{most}"
    left = f"{100 * memory.margin:.0f} % left"
    return f"yes, {room} on the fullest accelerator, {left}"


def _machine(plan: Plan) -> str:
    machine = plan.job.machine
    what = f"{plan.life.accelerators} × {machine.accelerator}"
    return what if machine.accelerator in machine.name else f"{what} ({machine.name})"


def _speed(plan: Plan) -> str:
    low, high = plan.span("tokens_per_s") or (plan.tokens_per_s, plan.tokens_per_s)
    return (
        f"{format_count(plan.tokens_per_s)} tokens/s ({format_count(low)}–{format_count(high)}), "
        f"{format_predicted(plan.step.step_s, TIMES)} a step of "
        f"{format_count(plan.step.tokens)} tokens"
    )


def _mfu(plan: Plan) -> str:
    if plan.mfu is None:
        return f"not known: {plan.mfu_of}"
    return f"{100 * plan.mfu:.0f} % of the {plan.mfu_of}"


def _time(plan: Plan) -> str:
    seconds, (low, high) = plan.life.wall_s, plan.span("days") or (plan.life.days,) * 2
    text = format_predicted_range(seconds, low * 86400, high * 86400, TIMES)
    return f"{text} for {format_count(plan.life.steps * plan.step.tokens)} tokens"


def _cost(plan: Plan) -> str:
    spread = plan.span("usd")
    if plan.bill.usd is None or spread is None:
        return "not known: no price is given"
    return f"{format_predicted_range(plan.bill.usd, *spread, MONEY)}: {plan.bill.price}"


def _energy(plan: Plan) -> str:
    kwh, spread = plan.bill.energy_kwh, plan.span("energy_kwh")
    if kwh is None or spread is None:
        return "not known: the power of the accelerator is not given"
    text = format_predicted_range(kwh, *spread, ENERGIES)
    if plan.job.machine.pue is None:
        text += " without cooling"
    carbon, emitted = plan.bill.co2e_kg, plan.span("co2e_kg")
    if carbon and emitted:
        text += f", {format_predicted_range(carbon, *emitted, MASSES)} CO2e"
    if plan.bill.embodied:
        text += f"; apart from it {format_predicted(plan.bill.embodied.kg, MASSES)} of making them"
    return text


def _effective(plan: Plan) -> str:
    life = plan.life
    times = life.interruptions
    failures = (
        "no failure is likely" if times < 0.1 else f"about {round_to_two_figures(times)} failures"
    )
    often = (
        f"a save every {format_predicted(life.interval_s, TIMES)}"
        if life.saves > 1
        else "saved at the end"
    )
    paused_s = plan.hours.schedule.paused_s if plan.hours else 0.0
    pauses = f", {100 * paused_s / life.wall_s:.0f} % pauses" if paused_s else ""
    return f"{100 * life.effective:.0f} % of the time is training{pauses}; {failures}, {often}"


def _site(plan: Plan) -> Iterator[str]:
    """Say what the machines take of their site, the swings of the load, and each limit."""
    use = plan.site
    if use is None:
        return
    sites = f" at each of {use.sites} sites" if use.sites > 1 else ""
    rated = f", by nameplates {amount(use.rated_w, 'W')}" if use.rated_w else ""
    yield f"{amount(use.busy_w, 'W')} at work{sites}{rated}"
    yield (
        f"{use.racks:,} {'rack' if use.racks == 1 else 'racks'} of {use.per_rack} accelerators, "
        f"{amount(use.rack_w, 'W')} of heat in each"
    )
    yield (
        f"the load swings by up to {amount(use.swing_w, 'W')} every "
        f"{format_predicted(plan.step.step_s, TIMES)}, when ranks wait together, and falls by "
        f"{amount(use.drop_w, 'W')} when the run stops"
    )
    for limit in plan.limits.site:
        used = f"{100 * limit.use:.0f} % used" if limit.fits else "exceeded"
        yield f"{limit.name}: {limit.needs}, {limit.has}: {used}"
    yield f"binds: {plan.limits.binds}: {plan.limits.binds.words}"


def _stage(plan: Plan) -> str:
    stages = plan.job.layout.pipeline
    return f", on stage {plan.memory.stage + 1} of {stages}" if stages > 1 else ""


def _sizes(plan: Plan) -> Iterator[tuple[str, str, float]]:
    memory = plan.memory
    for part, size in _sorted(memory.parts.items()):
        yield part, f"{size / 2**30:.2f} GiB", size / memory.capacity_bytes
    for name, size in (
        ("allocated", memory.allocated_bytes),
        ("reserved", memory.reserved_bytes),
        ("used", memory.peak_bytes),
    ):
        yield name, f"{size / 2**30:.2f} GiB", size / memory.capacity_bytes


def _gains(plan: Plan) -> Iterable[tuple[str, float]]:
    return plan.sensitivity.items()


def _sorted(items: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    return sorted((item for item in items if item[1] > 0), key=lambda item: -item[1])


def _table(title: str, rows: Iterable[tuple[str, str, float]]) -> Iterator[str]:
    """Format the rows that are at least a thousandth of the whole."""
    return _section(
        title,
        (
            f"{name:<16}{text:>12}{100 * share:7.1f} %"
            for name, text, share in rows
            if share >= 0.001
        ),
    )


def _section(title: str, rows: Iterable[str]) -> Iterator[str]:
    found = list(rows)
    if found:
        yield title
        yield from (f"  {row}" for row in found)


def _option(option: LayoutOption) -> str:
    size = f"{option.memory.peak_bytes / 2**30:.1f} GiB"
    most = "" if option.memory.fits else "at most "
    speed = f"{most}{format_count(option.tokens_per_s)} tokens/s"
    return f"{option.layout}: {speed}, {size}{f': {option.reason}' if option.reason else ''}"
