"""Summary of a probed machine on one screen."""

from collections.abc import Iterator

from penstock.run.clusters.file import ClusterFile
from penstock.run.schema.machine_fields import Points


def probe_lines(file: ClusterFile) -> Iterator[str]:
    """Yield lines for people; the file must have `[probe]`."""
    probe, chip = file.probe, file.accelerator
    assert probe is not None
    ranks = _some(probe.ranks, "rank")
    if probe.kind == "cpu":
        ranks += f" of {_some(probe.threads, 'thread')}"
    yield f"machine   {chip.name}, {ranks}{' measured together' if probe.ranks > 1 else ''}"
    yield f"software  {', '.join(_software(file))}"
    for kind, rows in (("bf16", probe.matmul_s.bf16), ("fp32", probe.matmul_s.fp32)):
        yield f"matmul    {kind} {_matmul(rows)}"
    if probe.matmul_s.fp8:
        yield f"matmul    fp8 {_matmul(probe.matmul_s.fp8)}"
    size = f"{(chip.memory or 0) / 2**30:.0f} GiB a rank"
    yield f"memory    {_si(chip.memory_bandwidth or 0)}B/s, {size}"
    for tier in file.tier:
        hop = f"{tier.latency * 1e6:.0f} µs a hop"
        yield f"network   {tier.name}: {_si(tier.bandwidth)}B/s, {hop}, {tier.size} ranks"
    yield f"storage   home: {_rates(probe.home_write, probe.home_read)}"
    yield f"          here: {_rates(probe.here_write, probe.here_read)}"
    yield f"save      a 1B model with its optimizer (12 GB) in {12e9 / probe.here_write:,.0f} s"
    yield f"power     {_power(probe.idle_w, probe.loaded_w)}"
    yield f"took      {probe.took_s:.0f} s"


def _si(number: float) -> str:
    """Return three digits and a prefix, ready for the unit: "2.43 G"."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number:.3g} "


def _some(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"


def _software(file: ClusterFile) -> Iterator[str]:
    probe = file.probe
    assert probe is not None
    yield f"penstock {probe.penstock}"
    yield f"torch {probe.torch}"
    if probe.cuda:
        yield f"CUDA {probe.cuda}"
    yield f"Python {probe.python}"


def _matmul(rows: Points) -> str:
    rates = [(2 * m * k * n / seconds, m, k, n) for m, k, n, seconds in rows]
    (best, *large), (least, *small) = max(rates), min(rates)
    return f"{_si(best)}FLOP/s at {_sides(large)}; {_si(least)}FLOP/s at {_sides(small)}"


def _sides(sides: list[float]) -> str:
    return " × ".join(f"{side:.0f}" for side in sides)


def _rates(write: float, read: float) -> str:
    return f"writes {_si(write)}B/s to disk, reads {_si(read)}B/s"


def _power(idle_w: float | None, loaded_w: float | None) -> str:
    if idle_w is None and loaded_w is None:
        return "no counter that can be read here"
    shown = (
        f"{watts:.0f} W {when}" for watts, when in ((idle_w, "idle"), (loaded_w, "loaded")) if watts
    )
    return ", ".join(shown)
