"""Stage 8, shard: a range of keys of all parts becomes one shard of the dataset.

Keys are hashes, so equal ranges of keys hold about equally many tokens: the number of shards is
chosen once all tokens are counted, and each shard has about the requested size. A document never
continues in the next shard.
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.data.build.parts import result_columns, unpack_rows
from penstock.data.format.columns import Columns, read_columns
from penstock.data.format.types import Tokens
from penstock.data.format.writer import write_shard
from penstock.data.tokenize.pack import lay_out_bins, pack_documents
from penstock.extras import extra

_ROWS_LEVEL = 3  # of zstd; with one thread its output is the same on every machine

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def shard_count(token_bytes: int, shard_bytes: int) -> int:
    return max(1, -(-token_bytes // shard_bytes))


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
    folder.mkdir(parents=True, exist_ok=True)
    squeeze = extra("zstandard", "Storing the rows of documents")
    stored = squeeze.ZstdCompressor(level=_ROWS_LEVEL).compress(b"\n".join(rows) + b"\n")
    return result_columns(asdict(write_shard(folder, tokens, starts[:-1], mask, stored)))


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
    for path in parts:
        columns = read_columns(path)
        here = columns["keys"]
        begin = int(np.searchsorted(here, np.uint64(first)))
        end = len(here) if last >> 64 else int(np.searchsorted(here, np.uint64(last)))
        is_last &= end == len(here)
        if begin == end:
            continue
        keys.append(np.asarray(here[begin:end]))
        lows.append(np.asarray(columns["lows"][begin:end]))
        ends = columns["ends"][begin:end].tolist()
        start = int(columns["ends"][begin - 1]) if begin else 0
        mine = np.array(columns["tokens"][start : ends[-1]])  # a copy: the map is let go
        cuts = np.array(ends[:-1], np.int64) - start
        documents += np.split(mine, cuts)
        if "mask" in columns:
            masks += np.split(np.array(columns["mask"][start : ends[-1]]), cuts)
        rows += _rows(columns, begin, end)
    if not documents:
        return None
    order = np.lexsort((np.concatenate(lows), np.concatenate(keys))).tolist()
    lengths = [len(documents[at]) for at in order]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    mask = np.concatenate([masks[at] for at in order]).astype(bool) if masks else None
    tokens = np.concatenate([documents[at] for at in order])
    return (tokens, starts, mask, [rows[at] for at in order]), is_last


def _rows(columns: Columns, begin: int, end: int) -> Iterator[bytes]:
    ends = columns["rows.ends"]
    start = int(ends[begin - 1]) if begin else 0
    mine = {
        "rows": columns["rows"][start : int(ends[end - 1])],
        "rows.ends": ends[begin:end] - start,
    }
    return (bytes(piece) for piece in unpack_rows(mine, "rows"))


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
