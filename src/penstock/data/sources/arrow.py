"""Arrow files, as `datasets` saves them (IPC streams) and as Feather (IPC files).

The format has no checksums: a flipped bit inside a value is not seen. Each batch is validated in
full before a value is taken from it, since a mangled offset would read foreign memory.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO

from penstock.data.sources.arrow_rows import BATCH_ROWS, Rows, errors, short
from penstock.data.sources.damage import finish_unread
from penstock.data.sources.files import File
from penstock.data.sources.options import Options
from penstock.data.sources.pieces import Document, Rejected, Tally
from penstock.extras import extra

_FILE = b"ARROW1"


def read(
    file: File, stored: BinaryIO, options: Options, tally: Tally
) -> Iterator[Document | Rejected]:
    pyarrow = extra("pyarrow", "Reading Arrow")
    yield from finish_unread(file.name, stored, tally)
    if file.packing:
        yield Rejected(file.name, "packed Arrow", f"unpack it: Arrow within {file.packing}")
        return
    if not tally.size or tally.damage:
        return
    rows = Rows(pyarrow, file.name, options, tally)
    row = 1
    try:
        batches, schema = _batches(stored)
        columns = rows.choose(schema)
        if isinstance(columns, Rejected):
            yield columns
            return
        for batch in batches:
            batch.validate(full=True)
            batch = batch.select(columns)
            for at in range(0, batch.num_rows, BATCH_ROWS):
                part = batch.slice(at, BATCH_ROWS)
                yield from rows.batch(part, row, columns)
                row += part.num_rows
    except errors(pyarrow) as error:
        tally.damage = "damaged Arrow"
        yield Rejected(file.name, tally.damage, f"from row {row} on: {short(error)}", line=row)


def _batches(stored: BinaryIO) -> tuple[Iterator[Any], Any]:
    ipc = extra("pyarrow.ipc", "Reading Arrow")
    stored.seek(0)
    is_file = stored.read(len(_FILE)) == _FILE
    stored.seek(0)
    if not is_file:
        stream = ipc.open_stream(stored)
        return iter(stream), stream.schema
    opened = ipc.open_file(stored)
    return (opened.get_batch(n) for n in range(opened.num_record_batches)), opened.schema
