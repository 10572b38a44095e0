"""The rule for spot and on-demand on recorded spot traces, beside the best policy in hindsight.

    python benchmarks/rent.py TRACES.csv [--ratio 3] [--restart-s 720] [--hours 24] [--starts 6]

TRACES: CSV with `start_s`, `end_s`, `available`; rows with equal `kind`, `nodes`, `collection`,
`zone` and `resource` are one trace. A job of 24 h (a third of a shorter trace) starts at up to six
moments of each trace; its deadline is 1.15, 1.5 and 2 times its length on-demand with one restart.
A restart takes 12 minutes and on-demand costs 3 times spot. Both play from change to change; spot
counts while all instances are there. The rule knows nothing of a trace beforehand. Each cell: the
rule over hindsight (spot until the last moment, on-demand alone).
"""

import argparse
import csv
from collections import defaultdict

from penstock.policy.spot import RentTerms, can_leave_on_demand, choose_capacity
from penstock.simulate.rent.hindsight import cheapest
from penstock.simulate.rent.play import play
from penstock.simulate.rent.spans import of_trace
from penstock.simulate.traces import Trace

STRETCH = (1.15, 1.5, 2.0)
KEY = ("kind", "nodes", "collection", "zone", "resource")


def read(path):
    """Return each trace by its name."""
    rows = defaultdict(list)
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            rows[" ".join(row[name] for name in KEY)].append(row)
    return {
        name: Trace(
            tuple(float(row["start_s"]) for row in found),
            tuple(int(row["available"]) for row in found),
            float(found[-1]["end_s"]),
        )
        for name, found in rows.items()
    }


def greedy(state, terms):
    """Use spot alone until on-demand has to begin: the plain rule, for comparison."""
    if not can_leave_on_demand(state, terms):
        return "on-demand"
    return "spot" if state.spot else "wait"


def jobs(trace, terms, hours, number, stretch):
    """Yield the spans, the work and the deadline of each job of one trace."""
    work_s = min(hours * 3600, trace.length_s / 3)
    by_s = (work_s + terms.restart_s) * stretch
    last_s = trace.length_s - by_s
    for start_s in sorted({last_s * i / (number - 1) for i in range(number)}):
        yield list(of_trace(trace, max(trace.nodes), start_s, by_s)), work_s, by_s


def main(path, ratio, restart_s, hours, number):
    """Print the table and its means."""
    traces = read(path)
    terms = RentTerms(restart_s, ratio)
    print(f"{'trace':52} {'there':>6} " + "".join(f"{f'× {s}':>22}" for s in STRETCH))
    sums = {s: [0.0, 0.0, 0.0, 0.0, 0, 0, 0] for s in STRETCH}
    for name, trace in traces.items():
        cells = []
        for stretch in STRETCH:
            own = best = plain = alone = 0.0
            for spans, work_s, by_s in jobs(trace, terms, hours, number, stretch):
                ours = play(spans, work_s, by_s, terms, choose_capacity)
                other = play(spans, work_s, by_s, terms, greedy)
                own += ours.cost(ratio)
                plain += other.cost(ratio)
                best += cheapest(spans, work_s, by_s, terms)
                alone += (work_s + restart_s) * ratio
                sums[stretch][5] += not (ours.done and ours.end_s <= by_s)
                sums[stretch][6] += not (other.done and other.end_s <= by_s)
                sums[stretch][4] += 1
            for i, value in enumerate((own, plain, best, alone)):
                sums[stretch][i] += value / best
            cells.append(f"{own / best:8.3f} ({plain / best:.3f}, {alone / best:.2f})")
        there = list(of_trace(trace, max(trace.nodes), 0.0, trace.length_s))
        share = sum(end_s - begin_s for begin_s, end_s in there) / trace.length_s
        print(f"{name:52} {share:6.2f} " + "".join(f"{c:>22}" for c in cells))
    n = len(traces)
    for stretch, (own, plain, _, alone, number, late, late_plain) in sums.items():
        print(
            f"deadline × {stretch}: {n} traces, {number} jobs; cost over hindsight, mean of "
            f"traces: {own / n:.3f} (spot until the last moment {plain / n:.3f}, "
            f"on-demand {alone / n:.2f}); late: {late} ({late_plain})"
        )


if __name__ == "__main__":
    asked = argparse.ArgumentParser()
    asked.add_argument("traces")
    asked.add_argument("--ratio", type=float, default=3.0)
    asked.add_argument("--restart-s", type=float, default=720.0)
    asked.add_argument("--hours", type=float, default=24.0)
    asked.add_argument("--starts", type=int, default=6)
    given = asked.parse_args()
    main(given.traces, given.ratio, given.restart_s, given.hours, given.starts)
