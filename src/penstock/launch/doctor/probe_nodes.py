"""`penstock probe --on CLUSTER`: probe every node of a cluster, and the links between them.

The cluster file describes one node, so it gets the readings of the slowest: ranks wait for each
other, and a run is as fast as that one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.errors import PenstockError, RunFailed
from penstock.launch.doctor.fleet import Target, open_fleet
from penstock.launch.doctor.lines import ERROR
from penstock.launch.doctor.links import MeasuredLink, measure_links
from penstock.run.clusters.apply import ENGINE_SECTIONS
from penstock.run.clusters.file import ClusterFile

PROBE_S = 240.0
BETWEEN = "nodes"  # name of the tier that reaches from node to node
UNLIKE = 1.25  # the fastest node over the slowest, from where on a note is made

Progress = Callable[[str, int, int], None]


def probe_nodes(
    before: ClusterFile, quick: bool, progress: Progress
) -> tuple[ClusterFile, list[str]]:
    """Probe all nodes; return the new file, with the launcher's settings kept, and notes."""
    target = Target.of_file(before)
    if target.launcher == "local":
        raise PenstockError(
            'launcher = "local": --on probes the nodes behind a launcher; write launcher = "ssh" '
            'and [ssh] hosts, or launcher = "slurm". `penstock probe` alone measures this machine'
        )
    progress("reaching", 0, 3)
    with open_fleet(target) as fleet:
        if fleet.failed:
            lines = [f"{node}: {why}" for node, why in fleet.failed.items()]
            raise RunFailed("\n".join([*lines, "the probe needs every node of the file"]))
        progress("nodes", 1, 3)
        answers = fleet.ask({"do": "probe", "quick": quick}, timeout_s=PROBE_S)
        wrong = [f"{node}: {a[ERROR]}" for node, a in answers.items() if ERROR in a]
        if wrong:
            raise RunFailed("\n".join(wrong))
        files = {node: ClusterFile.model_validate(a["file"]) for node, a in answers.items()}
        progress("links", 2, 3)
        links = measure_links(fleet, "full") if len(files) > 1 else []
    return merged(before, files, links)


def merged(
    before: ClusterFile, files: Mapping[str, ClusterFile], links: Sequence[MeasuredLink]
) -> tuple[ClusterFile, list[str]]:
    """Make one cluster file of the probes of all nodes."""
    speeds = {node: _speed(file) for node, file in files.items()}
    slowest = min(speeds, key=lambda node: speeds[node])
    one, notes = files[slowest], _notes(files, speeds)
    per_node = one.node.accelerators or 1
    tiers = [tier.model_dump() for tier in one.tier]
    if broken := [link for link in links if link.problem]:
        raise RunFailed("\n".join(f"{link.names}: {link.problem}" for link in broken))
    if links:
        tiers.append(
            {
                "name": BETWEEN,
                "size": per_node * len(files),
                # The share of one accelerator, if all accelerators of a node send at once.
                "bandwidth": f"{min(one.bytes_per_s for one in links) / per_node / 1e9:.4g} GB/s",
                "latency": float(f"{max(one.latency_s for one in links):.4g}"),
            }
        )
    kept: dict[str, Any] = {
        name: getattr(before, name).model_dump(exclude_defaults=True)
        for name in (*ENGINE_SECTIONS, "site", "price", "failures")
    }
    table = one.model_dump(exclude_none=True, exclude_defaults=True) | {
        "name": before.name,
        "launcher": before.launcher,
        "nodes": len(files),
        "tier": tiers,
        **{name: part for name, part in kept.items() if part},
    }
    return ClusterFile.model_validate(table), notes


def _speed(file: ClusterFile) -> float:
    rates = file.accelerator.matmul
    return float(rates.bf16 or rates.fp32 or 0.0)


def _notes(files: Mapping[str, ClusterFile], speeds: Mapping[str, float]) -> list[str]:
    notes = []
    slow, fast = min(speeds, key=lambda n: speeds[n]), max(speeds, key=lambda n: speeds[n])
    if speeds[fast] > UNLIKE * speeds[slow]:
        notes.append(
            f"{slow} multiplies at {speeds[slow] / speeds[fast]:.0%} of the speed of {fast}; the "
            "file describes the slowest, since the others wait for it"
        )
    for what, read in (
        ("accelerator", lambda file: file.accelerator.name),
        ("number of accelerators", lambda file: file.node.accelerators),
    ):
        kinds = {node: read(file) for node, file in files.items()}
        if len(set(kinds.values())) > 1:
            shown = ", ".join(f"{node}: {kind}" for node, kind in kinds.items())
            notes.append(f"the nodes differ in their {what} ({shown})")
    return notes
