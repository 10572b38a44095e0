"""The outer step of replicas that take local steps (DiLoCo), on one rank's part of the model.

Between outer steps every replica trains on its own. Then it sends the difference between the anchor
(the weights that all last agreed on) and its weights, by a codec with error feedback. Every replica
moves the anchor by the mean of the differences, weighted by the tokens behind them, and goes on
from there. Anchor and outer momentum are equal on all replicas, the rest is a replica's own.

An exchange may be late: weights have moved on since their difference was sent. That movement is
kept, on top of the new anchor.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from penstock.errors import PenstockError, RunFailed
from penstock.train.codecs.codec import Codec, check_content, check_finite
from penstock.train.codecs.feedback import encode_owed
from penstock.train.optim.nesterov import Nesterov
from penstock.train.replicas.flat import FlatLayout
from penstock.train.replicas.transport import Exchange, OuterTransport

HEADER = struct.Struct("<q")  # tokens behind the difference


@dataclass
class Flight:
    """A part of the model whose difference is on its way."""

    sent: Tensor | None  # the weights whose difference was sent; None if nothing happens meanwhile
    exchange: Exchange | None  # None: it is through
    messages: list[Tensor] = field(default_factory=list)  # of all replicas, once they are here
    mean: Tensor | None = None  # of their differences, once it is computed

    @property
    def tensors(self) -> dict[str, Tensor]:
        assert self.mean is not None
        return {"mean": self.mean} | ({} if self.sent is None else {"sent": self.sent})


class OuterStep:
    """Anchor, outer momentum and error feedback of one rank's weights, and their exchange.

    `weights` are the tensors that the inner optimizer updates, in fp32 or wider.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        codec: Codec,
        optimizer: Nesterov,
        transport: OuterTransport,
        parts: int = 1,
    ) -> None:
        self.weights, self.codec, self.optimizer = weights, codec, optimizer
        self.transport = transport
        self.layout = FlatLayout(
            {n: tuple(w.shape) for n, w in weights.items()}, codec.block, parts
        )
        widest = max((w.dtype for w in weights.values()), key=lambda d: d.itemsize, default=None)
        self.dtype = torch.promote_types(widest or torch.float32, torch.float32)
        self.anchor = torch.cat([self._inner(part) for part in range(parts)])
        self.velocity = torch.zeros_like(self.anchor)
        self.owed = None if codec.exact else torch.zeros_like(self.anchor)
        self.flights: dict[int, Flight] = {}
        self.sent_bytes = 0  # of all exchanges so far

    @torch.no_grad()
    def begin(self, part: int, tokens: int, late: bool = False) -> None:
        """Encode the difference of a part, which `tokens` of training have made, and send it.

        With `late`, inner steps are taken before `finish`.
        """
        inner = self._inner(part)
        message, owed = self.encode(part, tokens, inner)
        self.keep_owed(part, owed)
        self.sent_bytes += len(message)
        self.flights[part] = Flight(inner if late else None, self.transport.begin(message))

    @torch.no_grad()
    def encode(
        self, part: int, tokens: int, inner: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the message with the difference of a part, and what its codec owes from then on.

        The kept rounding error changes only with `keep_owed`, when the message is safe.
        """
        at = self.layout.parts[part]
        difference = self.anchor[at] - (self._inner(part) if inner is None else inner)
        self._refuse_bad(difference, part)
        owed = None
        if self.owed is None:
            content = self.codec.encode(difference)
        elif tokens:
            content, owed = encode_owed(self.codec, difference, self.owed[at])
            self.layout.clear_gaps(owed, part)
        else:  # counts nothing, so nothing is taken from what is owed
            content = self.codec.encode(torch.zeros_like(difference))
        head = torch.frombuffer(bytearray(HEADER.pack(tokens)), dtype=torch.uint8)
        return torch.cat((head.to(content.device), content)), owed

    def keep_owed(self, part: int, owed: Tensor | None) -> None:
        """Keep the rounding error that `encode` returned, for the next message."""
        if self.owed is not None and owed is not None:
            self.owed[self.layout.parts[part]] = owed

    def wait(self, part: int) -> None:
        """Wait until the differences of all replicas are here."""
        flight = self.flights[part]
        if flight.exchange is not None:
            flight.messages, flight.exchange = flight.exchange.wait(), None

    @torch.no_grad()
    def receive(self, part: int) -> Tensor:
        """Return the mean of all replicas' differences of a part."""
        self.wait(part)
        flight = self.flights[part]
        if flight.mean is None:
            flight.mean, flight.messages = self._mean(flight.messages, part), []
        return flight.mean

    @torch.no_grad()
    def finish(self, part: int) -> None:
        """Move the anchor of a part by the mean difference, and go on from there."""
        mean = self.receive(part)
        flight, at = self.flights.pop(part), self.layout.parts[part]
        self.optimizer.step(self.anchor[at], self.velocity[at], mean)
        new = self.anchor[at]
        if flight.sent is not None:
            new = new + (self._inner(part) - flight.sent)
        self._put(part, new)

    @torch.no_grad()
    def adopt(self) -> None:
        """Go on from the anchor."""
        for part in range(len(self.layout.parts)):
            self._put(part, self.anchor[self.layout.parts[part]])

    def _put(self, part: int, values: Tensor) -> None:
        first = self.layout.parts[part].start
        for place in self.layout.of(part):
            own = values[place.start - first : place.stop - first].view(place.shape)
            self.weights[place.name].copy_(own)

    @torch.no_grad()
    def restart(self) -> None:
        """Begin at the anchor, with no outer momentum and nothing owed."""
        self.flights = {}
        self.velocity.zero_()
        if self.owed is not None:
            self.owed.zero_()
        for name, anchor in self.views(self.anchor).items():
            self.weights[name].copy_(anchor)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the tensors of a flat vector by name; changing them changes it."""
        return {place.name: self.layout.view(flat, place) for place in self.layout.places}

    def _inner(self, part: int) -> Tensor:
        return self.layout.pack(self.weights, part, self.dtype)

    def _mean(self, messages: list[Tensor], part: int) -> Tensor:
        """Return the mean of the replicas' differences, weighted by their tokens."""
        at, size = self.layout.parts[part], HEADER.size
        count = at.stop - at.start
        heads = torch.stack([message[:size] for message in messages]).cpu().numpy()
        tokens = [HEADER.unpack(head.tobytes())[0] for head in heads]
        for replica, (message, own) in enumerate(zip(messages, tokens, strict=True)):
            if own < 0:
                raise RunFailed(f"replica {replica}: sent a difference of {own} tokens")
            check_content(message[size:], self.codec, count, f"replica {replica}")
        total = torch.zeros(count, dtype=self.dtype, device=self.anchor.device)
        for message, own in zip(messages, tokens, strict=True):
            if own:
                decoded = self.codec.decode(message[size:], count).to(self.dtype)
                total.add_(decoded, alpha=own / sum(tokens))
        if not bool(total.isfinite().all()):
            self._blame(messages, count)
        # A codec without a level for zero gives something there, which no checkpoint would keep.
        self.layout.clear_gaps(total, part)
        return total

    def _blame(self, messages: list[Tensor], count: int) -> None:
        for replica, message in enumerate(messages):
            decoded = self.codec.decode(message[HEADER.size :], count)
            try:
                check_finite(decoded, f"the difference of weights from replica {replica}")
            except PenstockError as error:
                raise RunFailed(str(error)) from None
        raise RunFailed("the mean difference of weights is not finite")

    def _refuse_bad(self, difference: Tensor, part: int) -> None:
        if bool(difference.isfinite().all()):
            return
        for place in self.layout.of(part):
            try:
                check_finite(self.weights[place.name], f"weights {place.name} after local steps")
            except PenstockError as error:
                raise RunFailed(str(error)) from None
        raise RunFailed("the difference of weights is not finite")
