"""The weights of a site as its exchange sees them: messages, merges, snapshots, hashes."""

from dataclasses import dataclass

import torch
from blake3 import blake3
from torch import Tensor

from penstock.errors import PenstockError
from penstock.train.codecs.codec import check_content, check_finite, encoded_bytes
from penstock.train.replicas.outer import HEADER, OuterStep


@dataclass
class SiteWeights:
    """Anchor, outer momentum and weights of a site, on one of its ranks."""

    outer: OuterStep
    adopted: int = 0  # times that it went on from the anchor

    @property
    def message_bytes(self) -> int:
        """Bytes of what a site publishes."""
        return HEADER.size + encoded_bytes(self.outer.codec, self.outer.layout.length)

    def message(self, tokens: int) -> tuple[bytes, Tensor | None]:
        """Return the difference that `tokens` of training have made, and what is owed then."""
        message, owed = self.outer.encode(0, tokens)
        return _to_bytes(message), owed

    def keep_owed(self, owed: Tensor | None) -> None:
        """Owe what `message` returned: it is published."""
        self.outer.keep_owed(0, owed)

    def check(self, payload: bytes) -> str:
        """Return why what a site published cannot be merged; empty if it can."""
        message = _from_bytes(payload)
        length = self.outer.layout.length
        (tokens,) = HEADER.unpack(payload[: HEADER.size])
        if tokens < 0:
            return f"is a difference of {tokens} tokens"
        try:
            check_content(message[HEADER.size :], self.outer.codec, length, "it")
            decoded = self.outer.codec.decode(message[HEADER.size :].to(self._device), length)
            check_finite(decoded, "its difference of weights")
        except PenstockError as error:
            return f"cannot be merged: {error}"
        return ""

    def merge(self, payloads: list[bytes], share: float) -> None:
        """Move the anchor by the mean of what sites published."""
        if any(HEADER.unpack(one[: HEADER.size])[0] for one in payloads):
            self.outer.merge([_from_bytes(one).to(self._device) for one in payloads], share)

    def adopt(self) -> None:
        """Go on from the anchor."""
        self.outer.adopt()
        self.adopted += 1

    def anchor_hash(self) -> str:
        """Return the hash of anchor and outer momentum, on which all sites agree."""
        found = blake3(_to_bytes(self.outer.anchor))
        found.update(_to_bytes(self.outer.velocity))
        return found.hexdigest()

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of a snapshot."""
        anchor = self.outer.anchor
        return 2 * anchor.numel() * anchor.element_size()

    def snapshot(self) -> bytes:
        """Return anchor and outer momentum."""
        return _to_bytes(self.outer.anchor) + _to_bytes(self.outer.velocity)

    def load_snapshot(self, payload: bytes) -> None:
        """Take anchor and outer momentum over from another site."""
        outer = self.outer
        if len(payload) != self.snapshot_bytes:
            raise PenstockError(
                f"a snapshot of {len(payload)} bytes in the bucket is of another model than this "
                "one; put the model back as it is in the other sites"
            )
        values = _from_bytes(payload).view(outer.anchor.dtype).to(self._device)
        outer.anchor.copy_(values[: outer.anchor.numel()])
        outer.velocity.copy_(values[outer.anchor.numel() :])

    @property
    def _device(self) -> torch.device:
        return self.outer.anchor.device


def _to_bytes(values: Tensor) -> bytes:
    return values.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes()


def _from_bytes(payload: bytes) -> Tensor:
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8)
