"""CSV: a record per row, under the names of the columns.

A value or key is text, or base64 if it is not UTF-8; the column beside it names the encoding, and
"null" is a tombstone or a record without a key.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO, TextIOWrapper
from typing import BinaryIO

from millstream.errors import InvalidInput
from millstream.exchange.rows import RecordColumns, RowChunk, checked, chunk_of
from millstream.exchange.selection import ChosenRecords
from millstream.exchange.values import (
    NULL,
    TEXT,
    decode_headers,
    decode_text,
    shown_headers,
    text_or_base64,
)
from millstream.limits import Limits, MiB

COLUMNS = (
    "log",
    "partition",
    "partitions",
    "offset",
    "timestamp",
    "key",
    "key_encoding",
    "headers",
    "value",
    "value_encoding",
)
CHUNK_ROWS = 2_000
CHUNK_BYTES = 4 * MiB


class CsvWriter:
    """Writes records to a stream, below a row with the names of the columns."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._write_rows([COLUMNS])

    def write(self, records: ChosenRecords) -> None:
        """Write a row per record."""
        log = records.log
        place = (log.name, log.partition, log.partitions or None)
        headers, _ = shown_headers(records.cells)
        self._write_rows(
            (
                *place,
                offset,
                timestamp,
                *text_or_base64(key),
                cell,
                *text_or_base64(value),
            )
            for offset, timestamp, key, cell, value in records.beside(headers, records.values)
        )

    def close(self) -> None:
        """End the file; the stream stays open."""

    def _write_rows(self, rows: Iterator[tuple[object, ...]] | list[tuple[str, ...]]) -> None:
        text = StringIO(newline="")
        csv.writer(text).writerows(rows)
        self._stream.write(text.getvalue().encode())


def read_csv(stream: BinaryIO, *, needs_log: bool) -> Iterator[RowChunk]:
    """Yield the records of a stream, some thousand rows at a time, and the rows that are bad."""
    csv.field_size_limit(2 * Limits().value_bytes_max)
    text = TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    try:
        yield from _chunks(csv.reader(text, strict=True), needs_log)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidInput(f"the file is not CSV in UTF-8: {error}") from error
    finally:
        text.detach()


def _chunks(rows: Iterator[list[str]], needs_log: bool) -> Iterator[RowChunk]:
    names = next(rows, None)
    if names is None:
        return
    unknown = [name for name in names if name not in COLUMNS]
    repeated = [name for name in names if names.count(name) > 1]
    if unknown or repeated or "value" not in names:
        problem = "`value` is missing"
        if unknown or repeated:
            problem = f"{unknown[0]!r:.100} is unknown" if unknown else f"{repeated[0]!r} repeats"
        raise InvalidInput(
            f"the first row names the columns, and {problem}; known are {', '.join(COLUMNS)}"
        )

    def convert(cells: Sequence[list[str]]) -> RecordColumns:
        return _columns(names, cells, needs_log=needs_log)

    gathered: list[list[str]] = []
    first, size = 2, 0
    for row in rows:
        gathered.append(row)
        size += sum(map(len, row))
        if len(gathered) >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield chunk_of(gathered, first, convert)
            first, gathered, size = first + len(gathered), [], 0
    yield chunk_of(gathered, first, convert)


def _columns(names: Sequence[str], rows: Sequence[list[str]], *, needs_log: bool) -> RecordColumns:
    """Return the records of rows; raise `InvalidInput` if a row is bad."""
    for row in rows:
        if len(row) != len(names):
            raise InvalidInput(f"the row has {len(row)} cells, and there are {len(names)} columns")
    absent = [""] * len(rows)
    cells = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
    columns = {name: cells.get(name, absent) for name in COLUMNS}
    records = RecordColumns(
        columns["log"],
        _bytes(columns, "value", lambda text: TEXT),
        _bytes(columns, "key", lambda text: TEXT if text else NULL),
        [decode_headers(headers.encode()) for headers in columns["headers"]],
        [_number("timestamp", text) for text in columns["timestamp"]],
        [_number("partitions", text) or 0 for text in columns["partitions"]],
    )
    return checked(records, needs_log=needs_log)


def _bytes(
    columns: Mapping[str, Sequence[str]], field: str, default: Callable[[str], str]
) -> list[bytes | None]:
    """Return the bytes of a column; `default` chooses the encoding of a text without one."""
    texts, encodings = columns[field], columns[f"{field}_encoding"]
    return [
        None if encoding == NULL else decode_text(text, encoding, field)
        for text, encoding in [
            (text, encoding or default(text))
            for text, encoding in zip(texts, encodings, strict=True)
        ]
    ]


def _number(field: str, text: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or len(text) > 19:
        raise InvalidInput(f"the {field} is a whole number, not {text!r:.100}")
    return int(text)
