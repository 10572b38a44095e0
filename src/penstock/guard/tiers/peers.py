"""Copies of the fast tier on other hosts: sent when a slot is sealed, fetched when one is missing.

Every host serves its own memory over HTTP (`launch/hosts/memory_server.py`). A rank sends its files
to the next host, which stores them where its own would be; so the slots of two hosts together are
whole on either. Seals are sent last and removed first, as on the host itself. A sender proves that
it knows the run's secret, which never travels: a proof is made for one request and its body, at one
time, and is good once.
"""

import contextlib
import hmac
import http.client
import os
import re
import secrets
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from blake3 import blake3

from penstock.guard.format.index import INDEX
from penstock.guard.tiers.slots import Seal, read_seal, seal_path, slot_folders
from penstock.untrusted import parse_record

ANSWER_S = 60.0  # without a byte
PROOF_S = 900.0  # how far the clocks of two hosts may be apart
_HEADERS = ("Penstock-Digest", "Penstock-Time", "Penstock-Nonce", "Penstock-Proof")
_CHUNK_BYTES = 1 << 20
_SLOT = re.compile(r"fast-\d+/[0-9a-f]{16}/slot-\d")
SHELVES, OWN, SECRET = "PENSTOCK_SHELVES", "PENSTOCK_SHELF", "PENSTOCK_SHELF_SECRET"


@dataclass(frozen=True)
class PeerSeal:
    """A seal on some host: its content, and its slot relative to the host's memory folder."""

    slot: str
    seal: Seal

    @property
    def files(self) -> list[str]:
        """The files of the slot, the seal itself last."""
        return [*self.seal.files, seal_path(Path(), self.seal.rank).name]


@dataclass(frozen=True)
class Peers:
    """The hosts of this attempt."""

    shelves: Sequence[str]  # "address:port" of every host of the attempt
    own: int  # which of them is here
    secret: str

    def send(self, memory: Path, slot: Path, names: Sequence[str]) -> None:
        """Send a rank's files of a sealed slot to the next host."""
        shelf = self.shelves[(self.own + 1) % len(self.shelves)]
        under = slot.relative_to(memory)
        seal = next(path.name for path in slot.glob("seal-r*.json") if _is_of(path, names))
        self._ask(shelf, "DELETE", f"{under}/{seal}")
        for name in (INDEX, *names, seal):
            with (slot / name).open("rb") as file:
                size = str(os.fstat(file.fileno()).st_size)
                self._ask(shelf, "PUT", f"{under}/{name}", file, {"Content-Length": size})

    def fetch(self, memory: Path) -> int | None:
        """Fetch what this host lacks of the newest state that the hosts hold together; return its
        step.

        One rank of each host calls it. A host that does not answer counts as one that holds
        nothing.
        """
        held: dict[tuple[object, ...], dict[int, tuple[str, PeerSeal]]] = defaultdict(dict)
        for shelf in self._others():
            for one in self._sealed(shelf):
                held[_state(one)].setdefault(one.seal.rank, (shelf, one))
        for one in list_seals(memory):
            held[_state(one)][one.seal.rank] = ("", one)
        whole = [ranks for ranks in held.values() if len(ranks) == _any(ranks).seal.ranks]
        if not whole:
            return None
        newest = max(whole, key=lambda ranks: _any(ranks).seal.step)
        for shelf, one in newest.values():
            if shelf:
                self._bring(shelf, one, memory)
        return _any(newest).seal.step

    def _others(self) -> list[str]:
        return [shelf for n, shelf in enumerate(self.shelves) if n != self.own]

    def _sealed(self, shelf: str) -> list[PeerSeal]:
        try:
            answer = parse_record(self._ask(shelf, "GET", "seals"))
            return [PeerSeal(_slot(slot), Seal.from_table(dict(seal))) for slot, seal in answer]
        except (OSError, ValueError, TypeError):  # a host that answers nonsense holds nothing
            return []

    def _bring(self, shelf: str, one: PeerSeal, memory: Path) -> None:
        for name in one.files:
            path = memory / one.slot / name
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_name(f".fetched-{path.name}")
            with aside.open("wb") as file, self._answer(shelf, "GET", f"{one.slot}/{name}") as body:
                shutil.copyfileobj(body, file, _CHUNK_BYTES)
            aside.replace(path)

    def _ask(
        self,
        shelf: str,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        with self._answer(shelf, method, path, body, headers) as answer:
            return answer.read()

    def _answer(
        self,
        shelf: str,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        address, _, port = shelf.rpartition(":")
        line = http.client.HTTPConnection(address, int(port), timeout=ANSWER_S)
        proved = RequestProof.made(self.secret, method, f"/{path}", _digest(body)).headers()
        proved |= headers or {}
        try:
            # One that refuses answers before it has read everything, and hangs up.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                line.request(method, f"/{path}", body, proved)  # type: ignore[arg-type]
            answer = line.getresponse()
        except http.client.HTTPException as error:
            raise OSError(f"{shelf}: {type(error).__name__}: {error}") from error
        if answer.status >= 300:
            raise OSError(f"{shelf}: {method} {path}: {answer.status} {answer.reason}")
        return answer


def from_environment() -> Peers | None:
    """Return the other hosts of this attempt; None if there are none."""
    shelves = [shelf for shelf in os.environ.get(SHELVES, "").split(",") if shelf]
    if len(shelves) < 2:
        return None
    return Peers(shelves, int(os.environ[OWN]), os.environ[SECRET])


def list_seals(memory: Path) -> Iterator[PeerSeal]:
    """List all seals in the memory of a host."""
    for fast in sorted(memory.glob("fast-*")):
        for slot in sorted(slot_folders(fast)):
            for path in sorted(slot.glob("seal-r*.json")):
                if seal := read_seal(path):
                    yield PeerSeal(str(slot.relative_to(memory)), seal)


def discard_after(memory: Path, after_step: int) -> None:
    """Remove the copies of later steps, after a rollback."""
    for one in list_seals(memory):
        if one.seal.step > after_step:
            seal_path(memory / one.slot, one.seal.rank).unlink(missing_ok=True)


class Headers(Protocol):
    def get(self, name: str) -> str | None: ...


@dataclass(frozen=True)
class RequestProof:
    """The headers that show that a request's sender knows the secret."""

    digest: str  # BLAKE3 of the body
    time_s: str  # seconds since 1970, by the sender's clock
    nonce: str
    signature: str

    @classmethod
    def made(cls, secret: str, method: str, path: str, digest: str) -> "RequestProof":
        time_s, nonce = f"{time.time():.3f}", secrets.token_hex(16)
        return cls(digest, time_s, nonce, _signed(secret, method, path, digest, time_s, nonce))

    @classmethod
    def of(cls, headers: Headers) -> "RequestProof":
        return cls(*(headers.get(name) or "" for name in _HEADERS))

    def headers(self) -> dict[str, str]:
        values = (self.digest, self.time_s, self.nonce, self.signature)
        return dict(zip(_HEADERS, values, strict=True))

    def problem(self, secret: str, method: str, path: str) -> str:
        """Say why it proves nothing; "" if it does. Reuse of a proof is checked elsewhere."""
        said = (method, path, self.digest, self.time_s, self.nonce)
        if not hmac.compare_digest(self.signature.encode(), _signed(secret, *said).encode()):
            return "no proof"
        apart_s = abs(time.time() - float(self.time_s))
        return f"the clocks are {apart_s:.0f} s apart" if apart_s > PROOF_S else ""


def _signed(secret: str, *said: str) -> str:
    return hmac.new(secret.encode(), "\n".join(said).encode(), "sha256").hexdigest()


def _digest(body: object) -> str:
    """Hash what is about to be sent; a file's position does not change."""
    hashed = blake3(max_threads=blake3.AUTO)
    if isinstance(body, bytes):
        hashed.update(body)
    elif body is not None:
        hashed.update_mmap(body.name)  # type: ignore[attr-defined]
    return hashed.hexdigest()


def _slot(found: object) -> str:
    if not isinstance(found, str) or not _SLOT.fullmatch(found):
        raise ValueError(f"{found!r:.200} is no slot")
    return found


def _is_of(path: Path, names: Sequence[str]) -> bool:
    seal = read_seal(path)
    return seal is not None and set(names) <= set(seal.files)


def _state(one: PeerSeal) -> tuple[object, ...]:
    """Return what seals of one state have in common."""
    seal = one.seal
    return one.slot, seal.format, seal.run, seal.mark, seal.step, seal.ranks


def _any(ranks: Mapping[int, tuple[str, PeerSeal]]) -> PeerSeal:
    return next(iter(ranks.values()))[1]
