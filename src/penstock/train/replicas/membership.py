"""Messages between the supervisor and the replicas of a live run, in the supervisor's store.

The supervisor writes the latest generation. Ranks report that they arrived in one, that one broke,
that a restarted replica can take a state, and that the run is finished.
"""

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch.distributed as dist


@dataclass(frozen=True)
class ReplicaGeneration:
    """Replicas that exchange gradients until one of them is lost or another joins."""

    number: int
    members: tuple[int, ...]


class ReplicaMembership:
    """The keys of the store through which replicas and supervisor agree on the members."""

    def __init__(self, store: "dist.Store", attempt: str) -> None:
        import torch.distributed as dist  # here, so that the launch needs no torch yet

        self.store = dist.PrefixStore(f"{attempt}/live", store)

    def publish(self, generation: ReplicaGeneration) -> None:
        """Publish the next generation; the supervisor calls this."""
        self.store.set("latest", json.dumps(asdict(generation)))

    def latest(self) -> ReplicaGeneration:
        """Return the latest generation."""
        found = json.loads(self.store.get("latest"))
        return ReplicaGeneration(found["number"], tuple(found["members"]))

    def register_arrival(self, number: int, expected: int) -> None:
        """Count this rank as arrived; the last of the `expected` ranks marks the generation
        complete.
        """
        if self.store.add(f"here/{number}", 1) == expected:
            self.store.set(f"complete/{number}", "")

    def is_complete(self, number: int) -> bool:
        """Return whether all ranks of the generation have arrived."""
        return self.store.check([f"complete/{number}"])

    def report_broken(self, number: int, step: int) -> None:
        """Report that a member of the generation cannot be reached, after `step`."""
        self.store.set(f"broken/{number}", str(step))

    def broken_after_step(self, number: int) -> int | None:
        """Return the last step before a generation broke, or None."""
        return self._number(f"broken/{number}")

    def announce_ready(self, replica: int, life: int) -> None:
        """Report that a restarted replica can take a state."""
        self.store.set(f"ready/{replica}/{life}", "")

    def is_ready(self, replica: int, life: int) -> bool:
        """Return whether a restarted replica has reported that it can take a state."""
        return self.store.check([f"ready/{replica}/{life}"])

    def mark_finished(self, step: int) -> None:
        """Record the end of the run: replicas need nothing more of each other."""
        self.store.set("finished", str(step))

    def finished_step(self) -> int | None:
        """Return the step after which the run ended, or None."""
        return self._number("finished")

    def _number(self, key: str) -> int | None:
        return int(self.store.get(key)) if self.store.check([key]) else None
