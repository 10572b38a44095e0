"""The exchange between replicas that come and go: the sum and the vote are over those that live.

How a lost one is noticed, and what happens then, is the world's business (`live_world.py`).
"""

from torch import Tensor

from penstock.train.replicas.reduce import Replicas, Vote


class LiveReplicas(Replicas):
    def vote(self, loss: Tensor, squares: Tensor, requests: dict[str, bool]) -> Vote:
        """Every replica has the whole norm of the summed gradients, and puts in its share."""
        return super().vote(loss, squares / self.world.size("replicate"), requests)

    def regrouped(self) -> None:
        """What was left out is owed to members that are no more: its parts were cut for them."""
        self._residuals, self._next_residuals = [], []

    def local_state(self) -> dict[str, Tensor]:
        return {}
