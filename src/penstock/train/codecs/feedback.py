"""Error feedback: what a codec leaves out of one message is added to the next.

So the sum of all that was decoded, and what is still owed, is the sum of all that was to be sent.
"""

from torch import Tensor

from penstock.train.codecs.codec import Codec


def encode_owed(codec: Codec, values: Tensor, owed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the bytes of `values` and what is owed from before, and what is owed after them."""
    wanted = values if owed is None else values + owed
    content = codec.encode(wanted)
    return content, wanted - codec.decode(content, wanted.numel()).to(wanted.dtype)
