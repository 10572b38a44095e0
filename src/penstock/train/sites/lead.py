"""How the ranks of a site do together what rank 0 finds in the bucket.

That may take hours: an upload over a thin link, or a site that is waited for. So rank 0 asks in a
thread beside its loop, and the loop tells the others every second to wait on. What concerns the
weights is done by all ranks at once: the thread orders it, the loop passes the order on, and every
rank calls the same method of its `SiteWeights`.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import torch

from penstock.errors import PenstockError, RunFailed
from penstock.train.sites.weights import MemberWeights, SiteWeights
from penstock.train.world.world import World

TELL_S = 1.0  # between words to the ranks that wait for the one that talks to the bucket


@dataclass(frozen=True)
class WeightsOrder:
    """A method of `SiteWeights` that all ranks are to call."""

    method: str
    own: tuple[Any, ...]  # what rank 0 calls it with
    others: tuple[Any, ...]  # what the others do: payloads are empty there
    answer: Future[Any] = field(default_factory=Future)


@dataclass
class SiteLead:
    """The ranks of a site while rank 0 talks to the bucket. All ranks build it."""

    weights: SiteWeights
    world: World
    beat: Callable[[], None]  # a sign of life of a rank that waits
    _orders: SimpleQueue[WeightsOrder | None] = field(default_factory=SimpleQueue, init=False)

    def member_weights(self) -> MemberWeights:
        """Return the weights as the thread that talks to the bucket must use them."""
        return self.weights if self.world.ranks == 1 else LedWeights(self)

    def run(
        self, ask: Callable[[], str], place: Callable[[], dict[str, Any]]
    ) -> tuple[str, dict[str, Any] | None]:
        """Return what `ask` answers on rank 0; and on the others, where rank 0 is (`place`)."""
        if self.world.ranks == 1:
            return ask(), None
        return (self._lead(ask, place), None) if self.world.lead else self._follow()

    def order(self, order: WeightsOrder) -> Any:
        """Have all ranks call a method; return what it returned on rank 0. Called in the thread."""
        self._orders.put(order)
        return order.answer.result()

    def _lead(self, ask: Callable[[], str], place: Callable[[], dict[str, Any]]) -> str:
        self._orders = SimpleQueue()
        pool = ThreadPoolExecutor(1, "site", self._begin_thread)
        asked = pool.submit(ask)
        pool.shutdown(wait=False)  # a rank that is lost meanwhile must not keep this one waiting
        asked.add_done_callback(lambda _: self._orders.put(None))
        while True:
            try:
                order = self._orders.get(timeout=TELL_S)
            except Empty:
                self.world.broadcast(["wait"])
                continue
            if order is None:
                break
            self._do(order)
        try:
            what = asked.result()
        except PenstockError as error:
            self.world.broadcast(["refused", str(error), error.exit_code])
            raise
        self.world.broadcast(["there", what, place()])
        return what

    def _do(self, order: WeightsOrder) -> None:
        try:
            self.world.broadcast(["do", order.method, order.others])
            order.answer.set_result(getattr(self.weights, order.method)(*order.own))
        except BaseException as error:
            order.answer.set_exception(error)
            if not isinstance(error, PenstockError):  # such a one is the same on all ranks
                raise

    def _begin_thread(self) -> None:
        if self.world.cuda:
            torch.cuda.set_device(self.world.device)

    def _follow(self) -> tuple[str, dict[str, Any]]:
        while True:
            kind, *rest = self.world.broadcast(None)
            self.beat()
            if kind == "do":
                method, given = rest
                with suppress(PenstockError):  # rank 0 has it too, and says what follows
                    getattr(self.weights, method)(*given)
            elif kind == "refused":
                why, exit_code = rest
                raise RunFailed(why) if exit_code == RunFailed.exit_code else PenstockError(why)
            elif kind == "there":
                what, place = rest
                return str(what), place


class LedWeights:
    """The weights of a site whose ranks act together, for the thread of rank 0."""

    def __init__(self, lead: SiteLead) -> None:
        self._lead, self._own = lead, lead.weights

    @property
    def message_bytes(self) -> int:
        return self._own.message_bytes

    @property
    def snapshot_sizes(self) -> list[int]:
        return self._own.snapshot_sizes

    def check(self, payload: bytes) -> str:
        return self._own.check(payload)

    def message(self, tokens: int) -> bytes:
        return self._all("message", tokens)

    def keep_owed(self, payload: bytes) -> None:
        self._lead.order(WeightsOrder("keep_owed", (payload,), (b"",)))

    def merge(self, payloads: list[bytes], share: float) -> None:
        self._lead.order(WeightsOrder("merge", (payloads, share), ([], share)))

    def adopt(self) -> None:
        self._all("adopt")

    def anchor_hash(self) -> str:
        return self._all("anchor_hash")

    def snapshot(self, part: int) -> bytes:
        return self._all("snapshot", part)

    def load_snapshot(self, part: int, payload: bytes) -> None:
        self._lead.order(WeightsOrder("load_snapshot", (part, payload), (part, b"")))

    def _all(self, method: str, *given: int) -> Any:
        return self._lead.order(WeightsOrder(method, given, given))
