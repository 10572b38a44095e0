"""What the supervisor and the replicas of a live run tell each other, in the supervisor's store.

The supervisor writes the latest generation. Ranks say that they came to one, that one broke, that a
replica which was started again can take a state, and that the run is over.
"""

import json
from dataclasses import asdict, dataclass

import torch.distributed as dist


@dataclass(frozen=True)
class ReplicaGeneration:
    """Replicas that exchange gradients until one of them is lost or another comes."""

    number: int
    members: tuple[int, ...]


class ReplicaMembership:
    def __init__(self, store: dist.Store, attempt: str) -> None:
        self.store = dist.PrefixStore(f"{attempt}/live", store)

    def publish(self, generation: ReplicaGeneration) -> None:
        self.store.set("latest", json.dumps(asdict(generation)))

    def latest(self) -> ReplicaGeneration:
        found = json.loads(self.store.get("latest"))
        return ReplicaGeneration(found["number"], tuple(found["members"]))

    def register_arrival(self, number: int, expected: int) -> None:
        """One more rank is here; the last of those that are expected says so to all."""
        if self.store.add(f"here/{number}", 1) == expected:
            self.store.set(f"complete/{number}", "")

    def is_complete(self, number: int) -> bool:
        return self.store.check([f"complete/{number}"])

    def report_broken(self, number: int, step: int) -> None:
        """A member of the generation cannot be reached."""
        self.store.set(f"broken/{number}", str(step))

    def broken_after_step(self, number: int) -> int | None:
        """The step that was passed last when a generation broke, if it did."""
        return self._number(f"broken/{number}")

    def announce_ready(self, replica: int, life: int) -> None:
        self.store.set(f"ready/{replica}/{life}", "")

    def is_ready(self, replica: int, life: int) -> bool:
        return self.store.check([f"ready/{replica}/{life}"])

    def mark_finished(self, step: int) -> None:
        """All have what they need of each other: whoever breaks off from here on breaks nothing."""
        self.store.set("finished", str(step))

    def finished_step(self) -> int | None:
        """The step after which the run ended, if it did."""
        return self._number("finished")

    def _number(self, key: str) -> int | None:
        return int(self.store.get(key)) if self.store.check([key]) else None
