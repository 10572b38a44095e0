"""The same hardware with another number of accelerators, and which numbers to look at."""

import re
from dataclasses import replace

from penstock.errors import PenstockError
from penstock.plan.hardware.machine import INSIDE, WAN, Machine, NetworkTier, of_catalog

# More than any machine that was ever built; a slip of the finger is told before hours of search.
MOST = 2**20
EXAMPLE = 'write "8..131072" (powers of two between the ends) or "8,16,64"'


def counts(text: str) -> list[int]:
    """Parse `8..131072` or `8,16,64` to numbers of accelerators, smallest first, each once."""
    found: set[int] = set()
    for part in text.split(","):
        low, dots, high = part.partition("..")
        first = _number(low, text)
        last = _number(high, text) if dots else first
        if last < first:
            raise PenstockError(
                f'scale "{text}": {part.strip()} goes down; write {last}..{first} instead'
            )
        powers = (2**n for n in range(last.bit_length()))
        found |= {first, last, *(power for power in powers if first < power < last)}
    return sorted(found)


def _number(part: str, text: str) -> int:
    if not re.fullmatch(r"\s*[0-9][0-9_]*\s*", part):
        found = f"'{part.strip()}' is not a number of accelerators" if part.strip() else "a gap"
        raise PenstockError(f'scale "{text}": {found}; {EXAMPLE}')
    number = int(part)
    if not 1 <= number <= MOST:
        raise PenstockError(f'scale "{text}": {number:,} is not between 1 and {MOST:,}; {EXAMPLE}')
    return number


def scaled(machine: Machine, count: int, network: str | None = None) -> Machine:
    """Return `machine` with `count` accelerators; some of the last node may be left out.

    `network` is the catalog's name of the node or accelerator, for the network beyond what the
    machine has; its own accelerator when not given. A lone accelerator says nothing about its node,
    so that is the catalog's too.
    """
    if count < 1:
        raise PenstockError(f"{machine.name}: {count} accelerators; a machine has at least one")
    if count == machine.accelerators:
        return machine
    if count > machine.accelerators and not grows(machine):
        raise PenstockError(
            f"{machine.name}: {count:,} accelerators, but it has {machine.accelerators:,}, and the "
            f"catalog knows no network between nodes of {machine.accelerator}; ask for at most "
            f"{machine.accelerators:,}, or name an accelerator (cluster.use=H100) or a cluster "
            "file with a [[tier]] beyond the node"
        )
    name = network or machine.accelerator
    whole = machine.per_node
    if machine.accelerators == 1 and machine.fact:
        whole = of_catalog(name, count).per_node
    per_node = min(count, whole)
    return replace(
        machine,
        name=f"{count:,} × {machine.accelerator}",
        per_node=per_node,
        nodes=-(-count // per_node),
        tiers=_tiers(machine, count, per_node, name),
    )


def grows(machine: Machine) -> bool:
    """Tell whether the network beyond the machine's own accelerators is known."""
    return machine.tiers[-1].name not in INSIDE or (
        machine.kind != "cpu" and machine.fact is not None
    )


def over_sites(machine: Machine) -> Machine:
    """Return the machine with the network between its sites as the last tier.

    The connection of a site is shared by all of its accelerators, and the sites are equal. A
    cluster file that says nothing of it, or has such a [[tier]] itself, stays as it is.
    """
    if machine.sites == 1 or not machine.site_bytes_per_s or machine.tiers[-1].name == WAN:
        return machine
    here = -(-machine.nodes // machine.sites) * machine.per_node
    if here >= machine.accelerators:
        return machine
    each = machine.site_bytes_per_s / here
    wan = NetworkTier(WAN, machine.accelerators, each, machine.site_hop_s)
    return replace(machine, tiers=(*_cut(machine.tiers, here), wan))


def _tiers(machine: Machine, count: int, per_node: int, name: str) -> tuple[NetworkTier, ...]:
    own = machine.tiers
    if machine.fact:
        # The catalog's network grows as the catalog says: a domain may span nodes.
        usual = of_catalog(name, machine.accelerators, machine.per_node).tiers
        if own == usual:
            return of_catalog(name, count, per_node).tiers
    if count > own[-1].size:
        if own[-1].name not in INSIDE:
            own = (*own[:-1], replace(own[-1], size=count))
        else:
            far = of_catalog(name, count, per_node).tiers[-1]
            # A file's own domain may be larger than the catalog's: then it is left later.
            own = (*own, far) if far.name not in INSIDE else (*own[:-1], far)
    return _cut(own, count)


def _cut(tiers: tuple[NetworkTier, ...], count: int) -> tuple[NetworkTier, ...]:
    """Return the tiers that `count` accelerators reach."""
    needed = 1 + sum(tier.size < count for tier in tiers)
    kept = tiers[:needed]
    return (*kept[:-1], replace(kept[-1], size=min(count, kept[-1].size)))
