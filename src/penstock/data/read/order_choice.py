"""Which order a dataset is read in: a function of the dataset and the run file alone.

The sizes are read by plans too, which do without numpy: the orders are imported when one is made.
"""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from penstock.data.read.order import Order

Kind = Literal["auto", "shuffle", "window"]

# A set of this size stays in the memory of any machine that trains; from there on reads are local.
SHUFFLED_BYTES = 1 << 30
# A run reads one block more at the end of each for its last target alone: a sixteenth of these.
BLOCK_BYTES = 16 << 20


def order_of(kind: Kind, set_bytes: int, sample_bytes: int, samples: int, seed: int) -> "Order":
    """`set_bytes` is the size of all tokens, held-out ones included: what a cache would hold."""
    from penstock.data.read.order import Shuffle
    from penstock.data.read.order_window import Window

    if kind == "shuffle" or (kind == "auto" and set_bytes <= SHUFFLED_BYTES):
        return Shuffle(samples, seed)
    return Window(samples, seed, block=max(1, BLOCK_BYTES // sample_bytes))
