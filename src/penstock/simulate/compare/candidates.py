"""The clusters that are compared: files, names of the catalog, "16 x RTX 5090", or "here"."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.catalog.table import fold
from penstock.errors import PenstockError
from penstock.found import expanded_path
from penstock.plan.cost.cost import named_in_catalog, price_of
from penstock.plan.hardware.cluster import ResolvedMachine, machine_for
from penstock.plan.hardware.machine import MOST_CARDS, is_card, node_named, of_catalog
from penstock.run.clusters.file import FailuresSection
from penstock.run.clusters.load import load_cluster
from penstock.run.load import load_table
from penstock.run.save import to_table
from penstock.run.schema.run import Run
from penstock.simulate.rent.rank import REPLACING
from penstock.simulate.simulate import stated_failures

MOST = 20  # clusters in one comparison
RENTED = ("on-demand", "reserved", "spot")
_COUNTED = re.compile(r"([0-9]{1,6})\s*[x×*]\s*(\S.*)", re.I)


@dataclass(frozen=True)
class Candidate:
    """One cluster, and the run as it would be there."""

    label: str
    run: Run
    found: ResolvedMachine
    failures: FailuresSection

    @property
    def term(self) -> str:
        """Return how it is paid for: "" where nobody said. A catalog's machine is rented."""
        price = self.found.machine.price
        if price is not None:
            return price.term
        return "on-demand" if named_in_catalog(self.run) else ""


def candidates(
    run: Run, names: Sequence[str], refused: Sequence[str] = ()
) -> tuple[Candidate, ...]:
    """Find the clusters; a name that is no cluster, or the same one twice, is refused."""
    asked = [name.strip() for name in names]
    if not any(asked):
        raise PenstockError(
            "--clusters: none given; name cluster files, catalog names or both: "
            'h100.toml,"16 x RTX 5090"'
        )
    if "" in asked:
        raise PenstockError(f"--clusters {','.join(asked)}: an empty name; write A,B,C")
    if len(asked) > MOST:
        raise PenstockError(f"--clusters: {len(asked)} clusters; compare at most {MOST} at once")
    seen: dict[str, str] = {}
    for name in asked:
        same = _identity(name)
        if same in seen:
            raise PenstockError(
                f"--clusters: {name} is named twice ({seen[same]}); name each cluster once"
            )
        seen[same] = name
    found = [_candidate(run, name) for name in asked]
    labels = [one.label for one in found]
    return tuple(
        one if labels.count(one.label) == 1 else _renamed(one, name)
        for one, name in zip(found, asked, strict=True)
    )


def _identity(name: str) -> str:
    if name.endswith(".toml"):
        return os.path.realpath(expanded_path(name))  # of a link to itself too, which is no file
    counted = _COUNTED.fullmatch(name)
    return f"{int(counted[1])} {fold(counted[2])}" if counted else fold(name)


def _renamed(one: Candidate, name: str) -> Candidate:
    """Return a candidate called by its path: two files may give the same name."""
    return Candidate(name, one.run, one.found, one.failures)


def _candidate(run: Run, name: str) -> Candidate:
    try:
        cluster = _section(name)
        own = _with_cluster(run, cluster)
        found = machine_for(own)
        price_of(own, found.machine)  # a price that cannot be worked out is the file's mistake
        failures = stated_failures(own)
    except PenstockError as error:
        said = str(error).removeprefix(f"{name}: ")
        raise PenstockError(f'--clusters "{name}": {said}') from None
    label = found.machine.name
    one = Candidate(label, own, found, failures)
    if one.term in RENTED and failures.repair is None:
        # A provider replaces a lost node.
        one = Candidate(label, own, found, failures.model_copy(update={"repair": REPLACING.repair}))
    return one


def _section(name: str) -> dict[str, Any]:
    """Return `[cluster]` of a run on this cluster."""
    if name == "here":
        return {"use": name}
    if name.endswith(".toml"):
        file = load_cluster(expanded_path(name))
        return {"use": name, "nodes": file.nodes}
    counted = _COUNTED.fullmatch(name)
    if not counted:
        return {"use": name}
    count, use = int(counted[1]), counted[2]
    machine = of_catalog(use, 10**6)
    per_node, chip = machine.per_node, machine.fact
    if node_named(use) is None and chip is not None and is_card(chip):
        per_node = MOST_CARDS
    if count < 1:
        raise PenstockError("no accelerators; write 1 or more")
    if count <= per_node:
        return {"use": use, "accelerators": count}
    if count % per_node:
        raise PenstockError(
            f"{count} accelerators fill no whole nodes of {per_node}; write "
            f"{count - count % per_node} or {count - count % per_node + per_node}, or a cluster "
            "file"
        )
    return {"use": use, "accelerators": per_node, "nodes": count // per_node}


def _with_cluster(run: Run, cluster: dict[str, Any]) -> Run:
    """Return the run on another cluster: without what was chosen for its own."""
    table = to_table(run)
    for name in ("layout", "cluster", "budget"):
        table.pop(name, None)
    if not cluster["use"].endswith(".toml") or _rented(cluster["use"]):
        table.get("guard", {}).pop("spares", None)  # a provider replaces nodes
    return load_table({**table, "cluster": cluster})


def _rented(path: str) -> bool:
    price = load_cluster(expanded_path(path)).price
    return bool(price.model_fields_set) and price.term in RENTED
