"""`penstock simulate` against published fleets, and its speed: each claim of docs/simulate.md.

    python benchmarks/simulate.py [fleets|effective|scale|speed] ...

With AIRESIM=FOLDER (a checkout of karthikp-ubc/airesim, and simpy installed) `speed` also times its
own default case beside ours.
"""

import os
import resource
import sys
import time
from dataclasses import replace

from penstock.catalog import failures
from penstock.run.load import load_table
from penstock.run.schema.run import Run
from penstock.simulate.fleets import fleet_named
from penstock.simulate.given import changed
from penstock.simulate.result import Simulation
from penstock.simulate.simulate import Question, simulate, stated_failures

# A fleet that published no size counts as this one.
NODES, DAYS = 1000, 30.0
# What each published count is of: all interruptions, or hardware alone.
COUNTS_ALL = ("Llama 3 405B run",)


def run_on(nodes: int, preset: str = "llama-70b", batch: int | None = None, **guard: object) -> Run:
    """Return a run of a usual shape on so many H100 nodes, with the spares of a large cluster."""
    sequences = batch or max(1024, 4 * nodes)
    spares = guard.pop("spares", max(2, nodes // 25))
    return load_table(
        {
            "name": "fleet",
            "model": {"preset": preset},
            "data": {"sequence": 8192},
            "train": {"tokens": "10T", "batch_tokens": sequences * 8192, "precision": "bf16"},
            "cluster": {"use": "H100", "nodes": nodes},
            "guard": {"spares": spares, **guard},
        },
        [],
    )


def lived(run: Run, days: float, rates: tuple[str, ...] = (), **asked: object) -> Simulation:
    return simulate(
        run,
        replace(Question(days=days), **asked),  # type: ignore[arg-type]
        changed(stated_failures(run), [f"failures.{rate}" for rate in rates]),
    )


def fleets() -> None:
    """Leave one fleet out: do the others' rates cover its interruptions?"""
    print("fleet                   nodes  days  published      P5     P50     P95   width")
    covered, widest = 0, 0.0
    for row in failures.measured("per_1000_node_days"):
        nodes = row.accelerators // 8 if row.accelerators else NODES
        days = row.days or DAYS
        count = row.events or row.value * nodes * days / 1000
        preset = "llama-405b" if nodes > 1000 else "llama-8b"
        done = lived(run_on(nodes, preset), days, without=(row.name,))
        found = done.interruptions
        if row.name not in COUNTS_ALL:
            hardware = done.counts.sum(axis=1) - done.counts[:, _software()]
            found = type(found).of(hardware)
        width = found.p95 / found.p5
        covered += found.p5 <= count <= found.p95
        widest = max(widest, width)
        print(
            f"{row.name:22}{nodes:7,}{days:6.0f}{count:11,.0f}{found.p5:8,.0f}{found.p50:8,.0f}"
            f"{found.p95:8,.0f}{width:7.1f}x"
        )
    print(f"covered: {covered} of 7; the widest band is {widest:.1f}x")


def _software() -> int:
    from penstock.plan.life.causes import CAUSES

    return CAUSES.index("software")


def effective() -> None:
    """Effective time from published rates and stall times."""
    rate = fleet_named("Meta RSC-1").value
    rsc = f"node_mtbf={1000 / rate:.2f} days"
    rows = (
        (
            "Llama 3, 54 days on 16,384",
            "> 90",
            run_on(2048, "llama-405b"),
            54,
            (),
            "Llama 3 405B run",
        ),
        (
            "100,000 GPUs, 10 min stall",
            "44 ± 5",
            _hundred("restart"),
            30,
            (rsc, "stall=10 min"),
            None,
        ),
        (
            "100,000 GPUs, replicas, 3 min",
            "80 ± 5",
            _hundred("live"),
            30,
            (rsc, "stall=3 min"),
            None,
        ),
        ("ByteRobust, 90 days on 9,600", "97 ± 1.5", run_on(1200), 90, (), None),
    )
    print("case                            published   P5     P50     P95   interruptions a day")
    for name, published, run, days, rates, fleet in rows:
        done = lived(run, days, rates, fleet=fleet, lives=100)
        found = done.effective
        print(
            f"{name:32}{published:>9}{100 * found.p5:7.1f}{100 * found.p50:8.1f}"
            f"{100 * found.p95:8.1f}{done.interruptions.p50 / days:12.1f}"
        )


def _hundred(mode: str) -> Run:
    return run_on(12500, "llama-405b", 16384, mode=mode, spares=1000)


def scale() -> None:
    """Mean time to interruption of Meta's RSC jobs by size: per node alone, and by the model."""
    rate = fleet_named("Meta RSC-1").value
    print("accelerators   published h   per node alone h   simulated h")
    by_size = {1024: 7.9, 16384: 1.8}
    for count, published in by_size.items():
        nodes = count // 8
        run = run_on(nodes, "llama-70b" if nodes < 1000 else "llama-405b")
        done = lived(
            run, 60, (f"node_mtbf={1000 / rate:.2f} days", "software_mtbf=9.4 h"), lives=100
        )
        mean = done.wall_s.sum() / 3600 / done.counts.sum()
        print(f"{count:12,}{published:14.1f}{24000 / rate / nodes:19.1f}{mean:14.1f}")


def speed() -> None:
    """Time lives of 100,000 and 1,000,000 accelerators over 90 days."""
    print("accelerators  days  lives  interruptions a life   CPU s   us/event   peak MiB")
    for nodes, lives, mode in (
        (12500, 200, "restart"),
        (12500, 200, "live"),
        (125000, 20, "restart"),
    ):
        run = run_on(
            nodes, "llama-405b", 16384 if nodes < 20000 else 65536, mode=mode, spares=nodes // 25
        )
        begun = time.process_time()
        done = lived(run, 90, lives=lives)
        took = time.process_time() - begun
        events = done.counts.sum()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{nodes * 8:12,}{90:6}{lives:7}{events / lives:22,.0f}{took:8.1f}"
            f"{1e6 * took / events:11.1f}{peak:11.0f}   {mode}",
            flush=True,
        )
    _airesim()


def _airesim() -> None:
    where = os.environ.get("AIRESIM")
    if not where:
        print("AIReSim is not on PyPI; AIRESIM=FOLDER with a checkout times it here too")
        return
    sys.path.insert(0, where)
    from airesim.params import Params  # type: ignore[import-not-found]
    from airesim.simulator import Simulator  # type: ignore[import-not-found]

    params = Params()
    begun = time.process_time()
    Simulator(params).run()
    print(f"AIReSim, one life of its own default case: {time.process_time() - begun:.1f} CPU s")
    begun = time.process_time()
    lived(run_on(params.job_size), params.job_length / 1440, ("node_mtbf=100 days",), lives=10)
    print(f"ours on as many nodes and days, a life: {(time.process_time() - begun) / 10:.2f} CPU s")
    print(
        {
            name: getattr(params, name)
            for name in ("job_size", "job_length")
            if hasattr(params, name)
        }
    )


if __name__ == "__main__":
    parts = {"fleets": fleets, "effective": effective, "scale": scale, "speed": speed}
    for name in sys.argv[1:] or parts:
        print(f"\n== {name}")
        parts[name]()
