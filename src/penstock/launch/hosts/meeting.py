"""The meeting place of the hosts of a run: their secret, marks and requests in it."""

import contextlib
import re
import secrets
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from penstock.data.store.meeting_place import MeetingPlace, ObjectStore, SharedFolder
from penstock.data.store.objects import is_url
from penstock.errors import PenstockError, RunFailed
from penstock.run.schema.run import Run

TOKEN = "PENSTOCK_SUBMISSION"
"""Environment variable that an engine sets on a node: the word that `mark_submission` left in the
meeting place."""
LEAST = "PENSTOCK_LEAST_NODES"
"""Environment variable that an engine sets on a node: with fewer hosts the run does not begin."""
SECRET_BYTES, MOST_SECRETS = 32, 100
REQUESTS_S = 3.0  # between two looks for requests
_SECRET, _SUBMITTED, _REQUESTS = "secret", "submitted", "requests"
_STOPPED = b"stopped"


def read_or_create_secret(place: MeetingPlace) -> str:
    """Return the secret of the run's hosts: the first host creates it, the others read it.

    All hosts pass over a damaged secret and use the next one.
    """
    for number in range(1, MOST_SECRETS):
        name = f"{_SECRET}/{number:06d}"
        try:
            secret = place.get(name)
        except FileNotFoundError:
            place.create(name, secrets.token_hex(SECRET_BYTES).encode())
            secret = place.get(name)  # this host's, or that of a host that was first
        if re.fullmatch(rb"[0-9a-f]{%d}" % (2 * SECRET_BYTES), secret):
            return secret.decode()
    raise RunFailed(f"{place}: none of {MOST_SECRETS - 1} secrets of the hosts can be read")


def meeting_place(run: Run) -> SharedFolder | ObjectStore:
    """Return a place below `guard.durable`, or below the run folder, which all hosts must share."""
    durable = run.guard.durable
    if durable is None:
        return SharedFolder(run.folder / "meeting")
    if is_url(durable):
        return ObjectStore(f"{durable.rstrip('/')}/{run.name}/meeting")
    return SharedFolder(Path(durable).expanduser() / run.name / "meeting")


def mark_submission(place: MeetingPlace, token: str) -> None:
    """Leave the word of a submission in the place, where its nodes look for it."""
    place.put(f"{_SUBMITTED}/{token}", b"submitted")


def mark_stopped(place: MeetingPlace, token: str) -> None:
    """Leave word that a person stopped the run, for nodes of the submission that start later."""
    place.put(f"{_SUBMITTED}/{token}", _STOPPED)


def was_stopped(place: MeetingPlace, token: str) -> bool:
    """Return whether a person stopped the run; refuse a place that is not the submission's.

    A folder of that name on the node's own disk would be another place on every node, and each node
    would train the whole run alone. A bucket is the same for all of them, and has no such word
    where what `--dry-run` shows was submitted by hand.
    """
    try:
        return place.get(f"{_SUBMITTED}/{token}") == _STOPPED
    except FileNotFoundError:
        if isinstance(place, ObjectStore):
            return False
        raise PenstockError(
            f"{place}: this node does not find there what the submitting machine wrote, so other "
            "nodes would not either; set guard.durable (or dir, without it) to a folder that all "
            "nodes share, or to a bucket"
        ) from None


def request(place: MeetingPlace, what: str) -> None:
    """Ask the run for `save` or `stop`, from a machine that does not share its folder."""
    place.put(f"{_REQUESTS}/{time.time_ns()}-{uuid.uuid4().hex[:8]}-{what}", what.encode())


class RequestReader:
    """A thread of the leader that reads what people ask for in the meeting place, each once.

    Requests from before it began are ignored: they were for an earlier invocation.
    """

    def __init__(self, place: MeetingPlace, take: Callable[[str], None]) -> None:
        self._place, self._take = place, take
        self._seen: set[str] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="requests", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()

    def _read(self) -> None:
        while True:
            with contextlib.suppress(OSError):  # asked again in a moment
                self.poll()
            if self._ended.wait(REQUESTS_S):
                return

    def poll(self) -> None:
        """Take what is new."""
        names = set(self._place.list(_REQUESTS))
        if self._seen is not None:
            for name in sorted(names - self._seen):
                what = name.rpartition("-")[2]
                if what in ("save", "stop"):
                    self._take(what)
        self._seen = names | (self._seen or set())
