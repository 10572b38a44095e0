"""Stage 8, shard: a range of keys of all parts becomes one shard of the dataset.

Keys are hashes, so equal ranges of keys hold about equally many tokens: the number of shards is
chosen once all tokens are counted, and each shard has about the requested size. A document never
continues in the next shard.
"""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

from penstock.data.build.parts import pack_rows, result_columns, unpack_rows
from penstock.data.format.columns import ColumnFile, Columns, with_index
from penstock.data.format.types import Tokens
from penstock.data.format.writer import write_shard
from penstock.data.store.object_path import ObjectPath, map_places
from penstock.data.tokenize.pack import lay_out_bins, pack_documents
from penstock.data.workers.pool import Task
from penstock.extras import extra

MERGE_FROM = 2048  # parts; fewer are not merged
_MERGED_PARTS = 32
_MERGED_BYTES = 64 << 20  # of tokens in a merged file; rows come on top
_ROWS_LEVEL = 3  # of zstd; with one thread its output is the same on every machine

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def shard_count(token_bytes: int, shard_bytes: int) -> int:
    return max(1, -(-token_bytes // shard_bytes))


def merge_tasks(
    parts: tuple[Path, ...], shards: int, token_bytes: int, folder: Path
) -> tuple[list[Task], list[tuple[Path, ...]]]:
    """Return the tasks that merge the parts of a large set, and the files that each shard reads.

    A shard is a range of keys of every part: tens of thousands of shards would open as many parts
    each. Merged, the parts of a group become one file for each range of several shards.
    """
    if len(parts) < MERGE_FROM:
        return [], [parts] * shards
    groups = [parts[at : at + _MERGED_PARTS] for at in range(0, len(parts), _MERGED_PARTS)]
    ranges = min(shards, max(1, -(-token_bytes // len(groups) // _MERGED_BYTES)))
    tasks: list[Task] = []
    inputs: list[tuple[Path, ...]] = []
    for number in range(ranges):
        first, last = shards * number // ranges, shards * (number + 1) // ranges
        mine = [
            Task(folder / f"{number}-{place:06d}", merge_parts, (group, first, last, shards))
            for place, group in enumerate(groups)
        ]
        tasks += mine
        inputs += [tuple(task.path for task in mine)] * (last - first)
    return tasks, inputs


def merge_parts(parts: tuple[Path, ...], first: int, last: int, shards: int) -> Columns:
    """Return the documents of some parts that belong to the shards [first, last), sorted by key."""
    load = partial(_load_range, first=(first << 64) // shards, last=(last << 64) // shards)
    found = list(map_places(load, parts, parts[0]))
    keys = np.concatenate([one.keys for one in found])
    lows = np.concatenate([one.lows for one in found])
    documents = [tokens for one in found for tokens in one.documents]
    masks = [mask for one in found for mask in one.masks]
    rows = [row for one in found for row in one.rows]
    order = np.lexsort((lows, keys))
    columns: Columns = {
        "keys": keys[order],
        "lows": lows[order],
        "tokens": np.concatenate([np.empty(0, found[0].dtype), *(documents[at] for at in order)]),
        "ends": np.cumsum([len(documents[at]) for at in order], dtype=np.int64),
        **pack_rows("rows", [rows[at] for at in order]),
    }
    if masks or found[0].masked:
        columns["mask"] = np.concatenate([np.empty(0, np.bool_), *(masks[at] for at in order)])
    later = np.array([not all(one.is_last for one in found)])
    return {"later": later, **with_index(columns, "keys")}  # first: it comes with the header


def write_shard_of_range(
    number: int, shards: int, parts: tuple[Path, ...], folder: Path, packed: int, end: int
) -> Columns:
    """Write the files of a shard; return their description, or null for an empty range."""
    found = _gathered(number, shards, parts)
    if found is None:
        return result_columns(None)
    (tokens, starts, mask, rows), last = found
    if packed:
        tokens, starts, mask, rows = _packed(tokens, starts, mask, rows, packed, end, last)
    squeeze = extra("zstandard", "Storing the rows of documents")
    stored = squeeze.ZstdCompressor(level=_ROWS_LEVEL).compress(b"\n".join(rows) + b"\n")
    if not isinstance(folder, ObjectPath):
        folder.mkdir(parents=True, exist_ok=True)
        return result_columns(asdict(write_shard(folder, tokens, starts[:-1], mask, stored)))
    with TemporaryDirectory(prefix="penstock-shard-") as scratch:
        shard = write_shard(Path(scratch), tokens, starts[:-1], mask, stored)
        for file in sorted(Path(scratch).iterdir()):
            # An empty file has no parts to send.
            folder.store.put(f"{folder.key}/{file.name}", file if file.stat().st_size else b"")
    return result_columns(asdict(shard))


_Documents = tuple[Tokens, Ints, Mask | None, list[bytes]]  # tokens, starts and the end, mask, rows


def _gathered(number: int, shards: int, parts: tuple[Path, ...]) -> tuple[_Documents, bool] | None:
    """Return the documents of all parts with keys in this range, sorted by key.

    Also whether they are the last documents of the dataset: later ranges may be empty.
    """
    first, last = (number << 64) // shards, ((number + 1) << 64) // shards
    keys, lows = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    documents: list[Tokens] = []
    masks: list[Mask] = []
    rows: list[bytes] = []
    is_last = True
    load = partial(_load_range, first=first, last=last)
    for found in map_places(load, parts, parts[0] if parts else None):
        is_last &= found.is_last
        keys.append(found.keys)
        lows.append(found.lows)
        documents += found.documents
        masks += found.masks
        rows += found.rows
    if not documents:
        return None
    order = np.lexsort((np.concatenate(lows), np.concatenate(keys))).tolist()
    lengths = [len(documents[at]) for at in order]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    mask = np.concatenate([masks[at] for at in order]).astype(bool) if masks else None
    tokens = np.concatenate([documents[at] for at in order])
    return (tokens, starts, mask, [rows[at] for at in order]), is_last


@dataclass(frozen=True)
class _Range:
    """The documents of one part with keys in a range."""

    keys: npt.NDArray[np.uint64]
    lows: npt.NDArray[np.uint64]
    documents: list[Tokens]
    masks: list[Mask]
    rows: list[bytes]
    is_last: bool  # the part has no documents with larger keys
    dtype: np.dtype[np.unsignedinteger]  # of the tokens
    masked: bool


def _load_range(path: Path, first: int, last: int) -> _Range:
    file = ColumnFile(path)
    begin, found = file.find("keys", first, last, "lows")
    end = begin + len(found["keys"])
    later = "later" in file.columns and bool(file.read("later")["later"][0])
    is_last = end == file.rows("keys") and not later
    about = is_last, file.columns["tokens"].dtype, "mask" in file.columns
    keys, lows = np.asarray(found["keys"]), np.asarray(found["lows"])
    if begin == end:
        return _Range(keys, lows, [], [], [], *about)
    ends = file.cut(max(0, begin - 1), end, "ends", "rows.ends")
    if not begin:
        ends = {name: np.concatenate([[0], column]) for name, column in ends.items()}
    start, stop = int(ends["ends"][0]), int(ends["ends"][-1])
    names = [name for name in ("tokens", "mask") if name in file.columns]
    content = file.cut(start, stop, *names)
    cuts = ends["ends"][1:-1] - start
    # Copies: the maps are let go.
    documents = np.split(np.array(content["tokens"]), cuts)
    masks = np.split(np.array(content["mask"]), cuts) if "mask" in content else []
    row = int(ends["rows.ends"][0])
    stored = file.cut(row, int(ends["rows.ends"][-1]), "rows")
    stored["rows.ends"] = ends["rows.ends"][1:] - row
    rows = [bytes(piece) for piece in unpack_rows(stored, "rows")]
    return _Range(keys, lows, documents, masks, rows, *about)


def _packed(
    tokens: Tokens,
    starts: Ints,
    mask: Mask | None,
    rows: list[bytes],
    sequence: int,
    end: int,
    last: bool,
) -> _Documents:
    bins = pack_documents(np.diff(starts), sequence)
    laid = lay_out_bins(tokens, starts, mask, bins, end, sequence)
    # A sample needs one token after it: without one the last bin of the dataset would be lost.
    after = [end] if last else []
    total = len(laid.tokens) + len(after)
    return (
        np.append(laid.tokens, np.array(after, laid.tokens.dtype)),
        np.append(laid.starts, total),
        np.append(laid.mask, np.zeros(len(after), bool)),
        [rows[document] for document in bins.documents.tolist()],
    )
