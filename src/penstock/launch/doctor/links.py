"""The links between all nodes: pairs are measured in rounds, in which no node is in two pairs."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.launch.doctor.finding import Finding, bad, good
from penstock.launch.doctor.fleet import Fleet
from penstock.launch.doctor.lines import ERROR, Answer
from penstock.launch.doctor.link_node import STALLED_S, new_token
from penstock.run.clusters.file import ClusterFile, TierSection

MOST_ROUNDS = 15  # a round takes a second; every node then meets fifteen others
FOR_S = {"full": 0.3, "short": 0.1}
SLOW, SLOW_AMONG_PEERS = 0.5, 0.4  # of what the file says, of what the other links do
LATE, LATE_S = 10.0, 5e-3  # times what the others take, and at least this much more
AGAIN, PAUSE_S = 4, 0.5  # a slow link is measured again before it is called slow

Pair = tuple[str, str]


@dataclass(frozen=True)
class MeasuredLink:
    """The measured rate and latency between two nodes; `problem` says why there is no link."""

    pair: Pair
    problem: str = ""
    bytes_per_s: float = 0.0  # of the slower direction
    latency_s: float = 0.0

    @property
    def names(self) -> str:
        return f"{self.pair[0]} and {self.pair[1]}"


def rounds(nodes: Sequence[str], most: int = MOST_ROUNDS) -> Iterator[list[Pair]]:
    """Yield rounds of disjoint pairs, until each two nodes have met or there were enough rounds."""
    ring: list[str | None] = list(nodes)
    if len(ring) % 2:
        ring.append(None)
    for _ in range(min(most, len(ring) - 1)):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        yield [(one, other) for one, other in pairs if one is not None and other is not None]
        ring = [ring[0], ring[-1], *ring[1:-1]]


def measure_links(fleet: Fleet, form: str, stated: float = 0.0) -> list[MeasuredLink]:
    """Measure every pair of nodes in both directions, and those again that seem slower than the
    others or than what is `stated`. The best reading of each direction counts.
    """
    token, for_s = new_token(), FOR_S[form]
    ports = fleet.ask({"do": "listen", "token": token})
    found: dict[Pair, MeasuredLink] = {}
    pairs = [pair for together in rounds(fleet.nodes) for pair in together]
    for together in rounds(fleet.nodes):
        _measure_both(fleet, together, ports, token, for_s, found)
    for number in range(AGAIN):
        links = [_both(pair, found) for pair in pairs]
        least = SLOW * max(_usual([link.bytes_per_s for link in links]), stated)
        slow = [link.pair for link in links if link.bytes_per_s < least]
        if slow and number:
            time.sleep(PAUSE_S)  # what disturbed the last try may be over
        # One at a time: nothing else is on the wire, and nothing else wants the processor.
        for pair in slow:
            _measure_both(fleet, [pair], ports, token, for_s * (number + 1), found)
    return [_both(pair, found) for pair in pairs]


def _measure_both(
    fleet: Fleet,
    pairs: Sequence[Pair],
    ports: Mapping[str, Answer],
    token: str,
    for_s: float,
    found: dict[Pair, MeasuredLink],
) -> None:
    """Measure pairs there and back; keep the better of two readings of the same direction."""
    for directed in (pairs, [(other, one) for one, other in pairs]):
        for pair, link in _measure(fleet, directed, ports, token, for_s).items():
            before = found.get(pair)
            if before is None or before.problem or link.bytes_per_s > before.bytes_per_s:
                found[pair] = link


def _measure(
    fleet: Fleet, pairs: Sequence[Pair], ports: Mapping[str, Answer], token: str, for_s: float
) -> dict[Pair, MeasuredLink]:
    orders, silent = {}, {}
    for pair in pairs:
        where = ports[pair[1]]
        if ERROR in where:
            silent[pair] = MeasuredLink(pair, where[ERROR])
            continue
        orders[pair[0]] = {"do": "measure", "token": token, "for_s": for_s, **where}
    answers = fleet.ask_each(orders, 4 * STALLED_S)
    made = {pair: _link(pair, answers[pair[0]]) for pair in pairs if pair[0] in answers}
    return silent | made


def _link(pair: Pair, answer: Answer) -> MeasuredLink:
    if problem := answer.get(ERROR) or answer["problem"]:
        return MeasuredLink(pair, str(problem))
    return MeasuredLink(pair, "", answer["bytes_per_s"], answer["latency_s"])


def _both(pair: Pair, found: Mapping[Pair, MeasuredLink]) -> MeasuredLink:
    """Return a link as its worse direction has it."""
    there, back = found[pair], found[pair[1], pair[0]]
    problem = there.problem or back.problem
    slower = 0.0 if problem else min(there.bytes_per_s, back.bytes_per_s)
    return MeasuredLink(pair, problem, slower, min(there.latency_s, back.latency_s))


def _usual(values: Sequence[float]) -> float:
    """Return what a good link does: the middle of the best third.

    One slow node of three has two of the three links: their median would be its own.
    """
    best = sorted(values, reverse=True)[: -(-len(values) // 3)]
    return statistics.median(best) if best else 0.0


def tier_between_nodes(file: ClusterFile | None) -> TierSection | None:
    """Return the smallest tier of the file that reaches from one node to another."""
    if file is None:
        return None
    per_node = file.node.accelerators or 1
    return next((tier for tier in file.tier if tier.size > per_node), None)


def stated_rate(file: ClusterFile | None, by_nccl: bool) -> float:
    """Return what the file says that a node can send to another, in bytes per second; 0: nothing.

    A tier's bandwidth is that of one accelerator.
    """
    tier = None if by_nccl else tier_between_nodes(file)
    return tier.bandwidth * _per_node(file) / tier.oversubscription if tier else 0.0


def judge_links(
    links: Sequence[MeasuredLink], file: ClusterFile | None, by_nccl: bool, nodes: int
) -> list[Finding]:
    """Say which nodes or links are cut off or slow.

    Where collectives use NCCL, the file's tier is what NCCL does, and TCP is compared only among
    the links themselves.
    """
    found = _name_cut_nodes({link.pair: link for link in links if link.problem}, nodes)
    working = [link for link in links if not link.problem]
    if not working:
        return found
    usual = _usual([link.bytes_per_s for link in working])
    stated = stated_rate(file, by_nccl)
    slow = {link.pair: link for link in working if link.bytes_per_s < SLOW_AMONG_PEERS * usual}
    slow |= {link.pair: link for link in working if link.bytes_per_s < SLOW * stated}
    late_s = 1 / _usual([1 / link.latency_s for link in working])
    late = {
        link.pair: link
        for link in working
        if link.latency_s > LATE * late_s and link.latency_s > late_s + LATE_S
    }
    against = f"the cluster file says {_rate(stated)}" if stated else f"others do {_rate(usual)}"
    found += _name_nodes(slow, nodes, lambda link: _rate(link.bytes_per_s), against)
    usually = f"others take {_time(late_s)}"
    found += _name_nodes(late, nodes, lambda link: _time(link.latency_s), usually)
    if not found:
        slowest = min(working, key=lambda link: link.bytes_per_s)
        latest = max(working, key=lambda link: link.latency_s)
        words = f"{len(working)} measured; the slowest does {_rate(slowest.bytes_per_s)}, "
        found.append(good("links", words + f"the longest takes {_time(latest.latency_s)}"))
    return found


def _name_cut_nodes(links: dict[Pair, MeasuredLink], nodes: int) -> list[Finding]:
    """Name nodes, those with most cut links first, until all others reach each other; of two nodes
    alone, both.
    """
    found, left = [], dict(links)
    fix = (
        "let every TCP port through between the nodes, or name the network that connects them in "
        "cluster.interface"
    )
    while left:
        counts = Counter(node for pair in left for node in pair)
        node, count = max(counts.items(), key=lambda one: (one[1], one[0]))
        cut = [link for pair, link in left.items() if node in pair]
        if nodes == 2:
            words = f"no connection between them: {cut[0].problem}"
            found.append(bad("links", cut[0].pair, words, fix))
        else:
            others = [one for link in cut for one in link.pair if one != node]
            to = others[0] if count == 1 else f"{count} of the others, such as {others[0]}"
            words = f"no connection to {to}: {cut[0].problem}"
            found.append(bad("links", (node,), words, fix))
        left = {pair: link for pair, link in left.items() if node not in pair}
    return found


def _name_nodes(
    links: dict[Pair, MeasuredLink], nodes: int, shown: Callable[[MeasuredLink], str], against: str
) -> list[Finding]:
    """Name the nodes that most of the slow links have in common, else the two ends of a link."""
    found, left = [], dict(links)
    while left:
        counts = Counter(node for pair in left for node in pair)
        node, count = counts.most_common(1)[0]
        if count > 1 or nodes == 1:
            own = [link for pair, link in left.items() if node in pair]
            worst = min(own, key=lambda link: link.bytes_per_s)
            words = f"its links are slow: {shown(worst)}, and {against}"
            fix = "look at its cable, its port and `ethtool`, or leave it out"
            found.append(bad("links", (node,), words, fix))
            left = {pair: link for pair, link in left.items() if node not in pair}
        else:
            link = next(iter(left.values()))
            words = f"the link between them is slow: {shown(link)}, and {against}"
            # Nothing tells whose fault it is, and a run without both loses more than the link.
            fix = "look at the switch between them and at `ethtool` on both"
            found.append(bad("links", link.pair, words, fix, spoils=False))
            del left[link.pair]
    return found


def _per_node(file: ClusterFile | None) -> int:
    return (file.node.accelerators if file else None) or 1


def _rate(bytes_per_s: float) -> str:
    if bytes_per_s >= 1e9:
        return f"{bytes_per_s / 1e9:.3g} GB/s"
    return f"{bytes_per_s / 1e6:.3g} MB/s"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"
