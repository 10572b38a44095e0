"""Parquet files, read one row group at a time, so that a damaged group costs only its own rows.

The format is read from its end, so the bytes are hashed in a first pass. Checksums of pages are
verified; most writers store none, and then a flipped bit inside a value is not detected.
"""

from collections.abc import Iterator
from typing import BinaryIO

from penstock.data.sources.arrow import BATCH_ROWS, ArrowRows, arrow_errors, first_line
from penstock.data.sources.blocks import BLOCK_BYTES
from penstock.data.sources.documents import Document, FileTally, Rejected
from penstock.data.sources.files import RawFile
from penstock.data.sources.options import ReadOptions
from penstock.data.sources.records import hash_and_finish
from penstock.extras import extra

_THRIFT_LIMIT = 64 << 20  # for a string or list in the footer, whose length may be damaged


def read(
    file: RawFile, stored: BinaryIO, options: ReadOptions, tally: FileTally
) -> Iterator[Document | Rejected]:
    pyarrow = extra("pyarrow", "Reading Parquet")
    yield from hash_and_finish(file.name, stored, tally)
    if file.packing:
        yield Rejected(file.name, "packed Parquet", f"unpack it: Parquet within {file.packing}")
        return
    if not tally.size or tally.damage:
        return
    rows = ArrowRows(pyarrow, file.name, options, tally)
    try:
        stored.seek(0)
        opened = extra("pyarrow.parquet", "Reading Parquet").ParquetFile(
            stored,
            buffer_size=BLOCK_BYTES,
            pre_buffer=False,
            page_checksum_verification=True,
            thrift_string_size_limit=_THRIFT_LIMIT,
            thrift_container_size_limit=_THRIFT_LIMIT,
        )
        groups, schema = opened.metadata.num_row_groups, opened.schema_arrow
        counts = [opened.metadata.row_group(group).num_rows for group in range(groups)]
    except arrow_errors(pyarrow) as error:
        tally.damage = "damaged Parquet"
        yield Rejected(file.name, tally.damage, first_line(error))
        return
    columns = rows.choose_columns(schema)
    if isinstance(columns, Rejected):
        yield columns
        return
    first = 1
    for group in range(groups):
        try:
            row = first
            for batch in opened.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns):
                yield from rows.read_batch(batch, row, columns)
                row += batch.num_rows
        except arrow_errors(pyarrow) as error:
            tally.damage = "damaged Parquet"
            detail = f"row group {group} from row {row} on: {first_line(error)}"
            yield Rejected(file.name, tally.damage, detail, line=row)
        first += max(counts[group], 0)
