"""Findings from the readings of all nodes: values that differ, and resources that are too small."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from penstock import __version__
from penstock.launch.doctor.finding import Finding, bad, good, note
from penstock.launch.doctor.lines import ERROR
from penstock.launch.ssh.checks import needed_bytes
from penstock.run.schema.run import Run

CLOCK_S = 1.0  # by which clocks may differ, beyond what the reading itself leaves open
HOME_BYTES, TEMPORARY_BYTES, MEMORY_BYTES = 256 << 20, 64 << 20, 256 << 20
SLOW = 0.5  # of the speed of the other accelerators
Facts = Mapping[str, Mapping[str, Any]]  # by node


def judge_failed(failed: Mapping[str, str]) -> list[Finding]:
    """Name the nodes that could not be examined at all."""
    fix = "mend it, or take it out of the list of hosts"
    return [
        bad("reach", (node,), f"cannot be examined: {why}", fix) for node, why in failed.items()
    ]


def judge_errors(check: str, answers: Facts) -> list[Finding]:
    """Name the nodes whose check broke off."""
    return [
        bad(check, (node,), f"the check broke off: {answer[ERROR]}", "look at its system log")
        for node, answer in answers.items()
        if ERROR in answer
    ]


def judge_software(answers: Facts) -> list[Finding]:
    """Name the nodes whose versions differ from this machine's Penstock, or from most nodes."""
    found = []
    for what in ("penstock", "torch", "python", "driver", "nccl", "cryptography"):
        versions = {node: _comparable(what, str(one[what])) for node, one in answers.items()}
        usual = __version__ if what == "penstock" else _most_common(versions.values())
        for node, version in versions.items():
            if version != usual:
                whose = "this machine" if what == "penstock" else "most nodes"
                words = f"it has {_named(what, version)}, and {whose} {_named(what, usual)}"
                fix = f"install the same {what} on every node"
                found.append(bad("versions", (node,), words, fix))
    if not found and answers:
        one = next(iter(answers.values()))
        shown = [f"{w} {one[w]}" for w in ("penstock", "torch", "python", "driver") if one[w]]
        found.append(good("versions", f"{', '.join(shown)} on {_count(answers)}"))
    return found


def _comparable(what: str, version: str) -> str:
    return ".".join(version.split(".")[:2]) if what == "python" else version


def _named(what: str, version: str) -> str:
    return f"{what} {version}" if version else f"no {what}"


def judge_clocks(offsets: Mapping[str, tuple[float, float]]) -> list[Finding]:
    """Name the nodes whose clock is off; an offset comes with what its reading leaves open.

    This machine's clock counts as one more, with offset 0: it decides between two nodes.
    """
    if not offsets:
        return []
    usual = statistics.median_low([0.0, *(offset for offset, _ in offsets.values())])
    found = [
        bad(
            "clocks",
            (node,),
            f"its clock is {_off(offset - usual)}",
            "set it by NTP: `chronyc makestep`, or `timedatectl set-ntp true`",
        )
        for node, (offset, open_s) in offsets.items()
        if abs(offset - usual) - open_s > CLOCK_S
    ]
    if not found:
        worst = max(abs(offset - usual) + open_s for offset, open_s in offsets.values())
        found.append(good("clocks", f"within {worst:.3f} s on {_count(offsets)}"))
    return found


def _off(seconds: float) -> str:
    return f"{abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'} the others"


def judge_disks(answers: Facts, run: Run | None) -> list[Finding]:
    """Name the nodes that cannot write where a run writes, or not enough."""
    enough = {
        "home": HOME_BYTES,
        "temporary": TEMPORARY_BYTES,
        "memory": MEMORY_BYTES,
        "run": needed_bytes(run) if run else 0,
        "durable": needed_bytes(run) if run else 0,
    }
    what = {
        "home": "the home of Penstock",
        "temporary": "the folder for temporary files",
        "memory": "shared memory",
        "run": "the run folder",
        "durable": "guard.durable",
    }
    found = []
    for node, places in answers.items():
        for place, facts in places.items():
            where = f"{what[place]}, {facts['path']}"
            if facts["problem"]:
                words = f"{where}, cannot be written: {facts['problem']}"
                found.append(bad("disk", (node,), words, "make it writable, or name another"))
            elif facts["free_bytes"] < enough[place]:
                words = f"{where}, has {_gib(facts['free_bytes'])} free, and a run may need "
                found.append(bad("disk", (node,), words + _gib(enough[place]), "make room there"))
    if not found and answers:
        least = {
            place: min(facts[place]["free_bytes"] for facts in answers.values() if place in facts)
            for place in ("run", "home", "memory")
            if any(place in facts for facts in answers.values())
        }
        shown = ", ".join(f"{what[place]} {_gib(free)}" for place, free in least.items())
        found.append(good("disk", f"free at least: {shown}"))
    return found


def judge_data(answers: Facts, store: Facts) -> list[Finding]:
    """Name the nodes whose dataset is damaged or another one, or which cannot use the store."""
    found = []
    for node, answer in answers.items():
        for one in answer["datasets"]:
            for problem in one["problems"][:3]:
                fix = "copy it from a good node, or build it again there"
                found.append(bad("data", (node,), f"dataset {one['dataset']}: {problem}", fix))
            if one["missing"]:
                words = f"dataset {one['dataset']} is not there yet: {one['missing']}"
                found.append(note("data", words, (node,), "copy it there before a long run"))
    ids = {
        node: tuple(one["id"] for one in answer["datasets"] if one["id"])
        for node, answer in answers.items()
    }
    known = {node: own for node, own in ids.items() if own}
    usual = _most_common(known.values())
    for node, own in known.items():
        if own != usual:
            words = f"it has dataset {', '.join(own)}, and most nodes {', '.join(usual)}"
            found.append(bad("data", (node,), words, "copy the same version to every node"))
    for node, answer in store.items():
        if answer["problem"]:
            fix = "set its credentials there, or correct guard.durable"
            found.append(bad("store", (node,), f"guard.durable: {answer['problem']}", fix))
    if not any(one.level == "bad" for one in found) and known:
        found.append(good("data", f"{', '.join(usual)} on {_count(known)}"))
    return found


def judge_accelerators(answers: Facts) -> list[Finding]:
    """Name the accelerators that multiply wrong, forget bits, or are slow."""
    found: list[Finding] = []
    rates: dict[tuple[str, str], float] = {}
    for node, ranks in answers.items():
        for rank, facts in ranks.items():
            which = f"accelerator {rank}"
            if ERROR in facts:
                words = f"{which}: the check broke off: {facts[ERROR]}"
                found.append(bad("accelerators", (node,), words, "look at `dmesg` there"))
                continue
            found += _wrong(node, which, facts)
            rates[node, rank] = facts["matmul"]["flops"]
    usual = statistics.median(rates.values()) if rates else 0.0
    cuda = any(f.get("kind") == "cuda" for ranks in answers.values() for f in ranks.values())
    for (node, rank), rate in rates.items():
        if cuda and rate < SLOW * usual:  # cores are shared with others: their speed says little
            words = (
                f"accelerator {rank} does {rate / 1e12:.3g} TFLOP/s, and most {usual / 1e12:.3g}"
            )
            fix = "look at its clocks and temperature: `nvidia-smi -q -d PERFORMANCE`"
            found.append(bad("accelerators", (node,), words, fix))
    if not found and rates:
        found.append(good("accelerators", f"{len(rates)} multiply right and keep their bits"))
    return found


def _wrong(node: str, which: str, facts: Mapping[str, Any]) -> Iterable[Finding]:
    fix = "take it out of service: it computes garbage"
    for precision, count in facts["matmul"]["wrong"].items():
        words = f"{which}: {count} wrong of {facts['matmul']['side'] ** 2} sums in {precision}"
        yield bad("accelerators", (node,), words, fix)
    if facts["memory"]["wrong"]:
        words = f"{which}: {facts['memory']['wrong']} words of its memory did not keep their bits"
        yield bad("accelerators", (node,), words, fix)


def _most_common(values: Iterable[Any]) -> Any:
    counts = Counter(values).most_common(1)
    return counts[0][0] if counts else ()


def _count(nodes: Mapping[str, Any]) -> str:
    return f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
