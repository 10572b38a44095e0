"""Identity of a run: a random word that tells it from every other run with its name.

It is made when the run is created. The run folder and every durable store have a copy, and every
manifest and seal contains it. A damaged or missing copy is written again from another one.
"""

import contextlib
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from blake3 import blake3

from penstock.guard.tiers.stores import CheckpointStore

IDENTITY = "identity"
UNKNOWN = "unknown"  # of no run: no copy in memory has it
_FORM = re.compile(rb"([0-9a-f]{32})(?: ([0-9a-f]{8}))?\s*")
_ASIDE = 100  # bad copies that are kept


def encode_identity(identity: str) -> bytes:
    """Return the identity as written: with a checksum, since any hexadecimal digit looks right."""
    return f"{identity} {_checksum(identity)}\n".encode()


def decode_identity(content: bytes) -> str:
    """Parse a written identity; raises ValueError for anything else.

    Earlier versions wrote no checksum.
    """
    found = _FORM.fullmatch(content)
    if found is None:
        raise ValueError("not an identity")
    identity = found[1].decode()
    if found[2] is not None and found[2].decode() != _checksum(identity):
        raise ValueError("content does not match its checksum")
    return identity


def _checksum(identity: str) -> str:
    return blake3(identity.encode()).hexdigest()[:8]


@dataclass
class IdentityCopies:
    """The stores that hold a run's identity; the first one decides."""

    stores: Sequence[CheckpointStore]
    # Returns the identity in whole manifests, for when no store has a copy.
    remembered: Callable[[], str | None] = lambda: None
    notes: list[str] = field(default_factory=list)  # what was wrong with a copy

    def read(self) -> str:
        """Return the identity without writing anything."""
        found, _, _ = self._looked()
        return found or UNKNOWN

    def read_or_create(self) -> str:
        """Return the identity; create it if there is none, and write it to every store."""
        found, lacking, bad = self._looked()
        for store, content in bad:
            with contextlib.suppress(OSError):
                _put_aside(store, content)
        made = found or uuid.uuid4().hex
        for store in lacking:
            # Where it cannot be written nothing is of this run, and nothing will be.
            with contextlib.suppress(OSError):
                store.create(IDENTITY, encode_identity(made))
        for store, _ in bad:
            with contextlib.suppress(OSError):
                store.write(IDENTITY, encode_identity(made))
        if found is None and lacking:
            with contextlib.suppress(OSError, ValueError):
                return decode_identity(
                    lacking[0].read(IDENTITY)
                )  # somebody else may have been first
        return made

    def _looked(
        self,
    ) -> tuple[str | None, list[CheckpointStore], list[tuple[CheckpointStore, bytes]]]:
        """Return the identity, the stores without one, and the stores with a damaged one."""
        found: list[tuple[str, CheckpointStore]] = []
        lacking: list[CheckpointStore] = []
        bad: list[tuple[CheckpointStore, bytes]] = []
        for store in self.stores:
            content = b""
            try:
                content = store.read(IDENTITY)
                found.append((decode_identity(content), store))
            except FileNotFoundError:
                lacking.append(store)
            except OSError:
                continue
            except ValueError as error:
                bad.append((store, content))
                self.notes.append(f"{store.where}/{IDENTITY}: {error}; it is written again")
        for one, store in found[1:]:
            if one != found[0][0]:
                self.notes.append(
                    f"{store.where} was begun by another run of this name ({one[:8]})"
                )
        return found[0][0] if found else self.remembered(), lacking, bad


def _put_aside(store: CheckpointStore, content: bytes) -> None:
    """Keep the damaged copy next to the good one, for people to inspect."""
    any(store.create(f"{IDENTITY}.bad-{number}", content) for number in range(1, _ASIDE))


def run_identity(store: CheckpointStore, world: Any) -> str:
    """Return the identity of the run that saves in a store; all ranks together."""
    return world.broadcast(IdentityCopies([store]).read_or_create() if world.rank == 0 else None)
