"""Small values that ranks exchange: JSON in byte tensors of bounded size.

torch's own object collectives unpickle what a peer sent, and a pickle can run any code. Here a
peer can send data only. `refuse_pickles` closes torch's way for everything else in the process.

JSON has no tuples, no bytes and no dicts with other keys than strings. They are written as an
object with one key that says the type: {"tuple": […]}, {"bytes": base64}, {"dict": [[key, value]]}.
"""

import base64
import json
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

MOST_BYTES = 1 << 30  # of one rank's value: an index of a large model has millions of entries
_SCALARS = (str, int, float, bool, type(None))


def gather(value: Any, ranks: int, group: Any) -> list[Any]:
    """Return every rank's value, on every rank. Raises when one of them is gone."""
    own = torch.frombuffer(bytearray(encode(value)), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks)]
    dist.all_gather(sizes, torch.tensor([own.numel()]), group=group)
    lengths = [_bounded(int(size)) for size in sizes]
    padded = torch.zeros(max(lengths), dtype=torch.uint8)
    padded[: own.numel()] = own
    every = [torch.empty_like(padded) for _ in range(ranks)]
    dist.all_gather(every, padded, group=group)
    return [
        decode(one[:length].numpy().tobytes()) for one, length in zip(every, lengths, strict=True)
    ]


def broadcast(value: Any, rank: int, group: Any) -> Any:
    """Return rank 0's value, on every rank."""
    own = torch.frombuffer(bytearray(encode(value)), dtype=torch.uint8) if rank == 0 else None
    size = torch.tensor([0 if own is None else own.numel()])
    dist.broadcast(size, src=0, group=group)
    sent = torch.empty(_bounded(int(size)), dtype=torch.uint8) if own is None else own
    dist.broadcast(sent, src=0, group=group)
    return decode(sent.numpy().tobytes())  # rank 0 too: all ranks go on with the same


def encode(value: Any) -> bytes:
    """Write a value of plain types as JSON; a value of another type is a TypeError."""
    return json.dumps(_tagged(value), separators=(",", ":")).encode()


def decode(content: bytes) -> Any:
    """Read what `encode` wrote; anything else is a ValueError."""
    try:
        return _untagged(json.loads(content))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"a message of another rank cannot be read: {error}") from None


def refuse_pickles() -> None:
    """Make torch's object collectives fail in this process, before they unpickle anything."""
    distributed_c10d._tensor_to_object = _refuse
    distributed_c10d._object_to_tensor = _refuse


def _refuse(*args: object, **kwargs: object) -> NoReturn:
    raise RuntimeError(
        "torch's object collectives (all_gather_object, broadcast_object_list, …) unpickle what a "
        "peer sent, which can run any code; Penstock does not let them. Exchange tensors instead"
    )


def _bounded(size: int) -> int:
    if not 0 < size <= MOST_BYTES:
        raise ValueError(f"another rank announced a message of {size} bytes")
    return size


def _tagged(value: Any) -> Any:
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, list):
        return [_tagged(one) for one in value]
    if isinstance(value, tuple):
        return {"tuple": [_tagged(one) for one in value]}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {"dict": [[_tagged(key), _tagged(one)] for key, one in value.items()]}
    raise TypeError(f"{type(value).__name__}: ranks exchange plain values only")


def _untagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_untagged(one) for one in value]
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    if tag == "tuple":
        return tuple(_untagged(one) for one in content)
    if tag == "bytes":
        return base64.b64decode(content, validate=True)
    if tag == "dict":
        return {_untagged(key): _untagged(one) for key, one in content}
    raise ValueError(f"no type is called {tag!r}")
