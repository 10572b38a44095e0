"""The rule for spot and on-demand on recorded spot traces, beside the best policy in hindsight.

    python benchmarks/rent.py TRACES.csv [--ratio 3] [--restart-s 720] [--hours 24] [--starts 6]

TRACES: CSV with `start_s`, `end_s`, `available`; rows with equal `kind`, `nodes`, `collection`,
`zone` and `resource` are one trace. A job of 24 h (a third of a shorter trace) starts at up to six
moments of each trace; its deadline is 1.15, 1.5 and 2 times its length on-demand with one restart.
A restart takes 12 minutes and on-demand costs 3 times spot. Both see ticks of 6 minutes; spot
counts in a tick if all instances were there all the time. The rule knows nothing of a trace
beforehand. Each cell: the rule over hindsight (spot until the last moment, on-demand alone).
"""

import argparse
import csv
from collections import defaultdict

from penstock.policy.spot import RentTerms, can_leave_on_demand, choose_capacity
from penstock.simulate.rent.play import cheapest, play

TICK_S = 360.0
STRETCH = (1.15, 1.5, 2.0)
KEY = ("kind", "nodes", "collection", "zone", "resource")


def ticks_of(rows):
    """Return for each tick whether all instances were there."""
    most = max(int(row["available"]) for row in rows)
    there = [True] * int(float(rows[-1]["end_s"]) // TICK_S)
    for row in rows:
        if int(row["available"]) < most:
            first = int(float(row["start_s"]) // TICK_S)
            last = int(-(-float(row["end_s"]) // TICK_S))
            there[first:last] = [False] * len(there[first:last])
    return there


def greedy(state, terms):
    """Use spot alone until on-demand has to begin: the plain rule, for comparison."""
    if not can_leave_on_demand(state, terms):
        return "on-demand"
    return "spot" if state.spot else "wait"


def main(path, ratio, restart_s, hours, number):
    """Print the table and its means."""
    traces = defaultdict(list)
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            traces[tuple(row[name] for name in KEY)].append(row)
    terms = RentTerms(restart_s, TICK_S, ratio)
    restart = round(restart_s / TICK_S)
    print(f"{'trace':52} {'there':>6} " + "".join(f"{f'× {s}':>22}" for s in STRETCH))
    sums = {s: [0.0, 0.0, 0.0, 0.0, 0, 0, 0] for s in STRETCH}
    for key, rows in traces.items():
        there = ticks_of(rows)
        work = min(int(hours * 3600 / TICK_S), len(there) // 3)
        cells = []
        for stretch in STRETCH:
            deadline = round((work + restart) * stretch)
            last = len(there) - deadline
            starts = sorted({last * i // (number - 1) for i in range(number)})
            own = best = plain = alone = 0.0
            for start in starts:
                part = there[start : start + deadline]
                ours = play(part, work, deadline, terms, choose_capacity)
                other = play(part, work, deadline, terms, greedy)
                hindsight = cheapest(part, work, deadline, terms)
                own += ours.cost(ratio)
                plain += other.cost(ratio)
                best += hindsight
                alone += (work + restart) * ratio
                sums[stretch][5] += not ours.done
                sums[stretch][6] += not other.done
                sums[stretch][4] += 1
            for i, value in enumerate((own, plain, best, alone)):
                sums[stretch][i] += value / best
            cells.append(f"{own / best:8.3f} ({plain / best:.3f}, {alone / best:.2f})")
        share = sum(there) / len(there)
        print(f"{' '.join(key):52} {share:6.2f} " + "".join(f"{c:>22}" for c in cells))
    n = len(traces)
    for stretch, (own, plain, _, alone, jobs, late, late_plain) in sums.items():
        print(
            f"deadline × {stretch}: {n} traces, {jobs} jobs; cost over hindsight, mean of traces: "
            f"{own / n:.3f} (spot until the last moment {plain / n:.3f}, "
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
