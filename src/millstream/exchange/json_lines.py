"""JSON Lines: a record per line, with the fields of `millstream read --json`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from millstream.errors import InvalidInput, TooLarge
from millstream.exchange.rows import BadRow, RecordColumns, RowChunk, checked, joined
from millstream.exchange.selection import ChosenRecords
from millstream.exchange.values import (
    EMBEDDED,
    NULL,
    TEXT,
    decode_headers,
    decode_text,
    decode_value,
    encode_headers,
    encode_value,
    text_or_base64,
)
from millstream.format.packing import JSON
from millstream.header import Headers
from millstream.limits import MiB

READ_BYTES = 1 * MiB
LINE_BYTES_MAX = 128 * MiB
"""A value of the maximum size whose characters are all escaped."""

_BAD = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InvalidInput)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class WrittenLine(Struct, omit_defaults=True, gc=False):
    """A line of an export; fields with a default are left out if they have it."""

    log: str
    offset: int
    timestamp: int
    key: str | None
    headers: Raw
    value: Raw | str | None
    value_encoding: str
    key_encoding: str = TEXT
    partition: int | None = None
    partitions: int = 0


class _ReadLine(Struct, forbid_unknown_fields=True, gc=False):
    """A line of an import; only `value` is required."""

    value: Raw | UnsetType = UNSET
    value_encoding: str | None = None
    log: str = ""
    timestamp: int | None = None
    key: str | None = None
    key_encoding: Literal["text", "base64", "null"] = "text"
    headers: Raw = Raw(b"{}")
    partitions: int = 0
    # `read --json` and exports have these fields; a new record gets new ones.
    offset: int = 0
    partition: int | None = None
    appended: int = 0


_encode_lines = msgspec.json.Encoder().encode_lines
_line_decoder = msgspec.json.Decoder(_ReadLine)


class JsonLinesWriter:
    """Writes records to a stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, records: ChosenRecords) -> None:
        """Write a line per record."""
        log, lines = records.log, []
        name, partition, partitions = log.name, log.partition, log.partitions
        columns = zip(
            records.offsets,
            records.timestamps,
            records.keys,
            records.cells,
            records.values,
            strict=True,
        )
        for offset, timestamp, key, cell, value in columns:
            headers, is_json = encode_headers(cell)
            shown, encoding = encode_value(value, is_json=is_json)
            line = WrittenLine(name, offset, timestamp, None, headers, shown, encoding)
            if key is not None:
                line.key, line.key_encoding = text_or_base64(key)
            if partitions:
                line.partition, line.partitions = partition, partitions
            lines.append(line)
        self._stream.write(_encode_lines(lines))

    def close(self) -> None:
        """End the file; the stream stays open."""


def read_json_lines(stream: BinaryIO, *, needs_log: bool) -> Iterator[RowChunk]:
    """Yield the records of a stream, about a megabyte at a time, and the lines that are bad."""
    number, data = 1, stream.read(READ_BYTES)
    data = data.removeprefix(_BYTE_ORDER_MARK)
    while data:
        next_data = stream.read(READ_BYTES)
        end = data.rfind(b"\n") + 1 if next_data else len(data)
        if end:
            yield _chunk(data[:end], number, needs_log=needs_log)
            number += data.count(b"\n", 0, end)
        elif len(data) > LINE_BYTES_MAX:
            raise TooLarge(
                f"line {number} has more than {LINE_BYTES_MAX:,} bytes; a file of JSON Lines has one "
                "record per line",
                size=len(data),
                limit=LINE_BYTES_MAX,
            )
        data = data[end:] + next_data


def _chunk(data: bytes, number: int, *, needs_log: bool) -> RowChunk:
    """Return the records of complete lines; `number` is that of the first line."""
    try:
        lines = _line_decoder.decode_lines(data)
        return RowChunk(_columns(lines, needs_log=needs_log), [], len(data))
    except _BAD:
        pass  # the lines are decoded again, each alone, to find the bad ones
    line_records: list[RecordColumns] = []
    bad: list[BadRow] = []
    for place, line_data in enumerate(data.split(b"\n"), start=number):
        if not line_data.strip():
            continue
        try:
            line_records.append(_columns([_line_decoder.decode(line_data)], needs_log=needs_log))
        except _BAD as error:
            bad.append(BadRow(place, str(error)))
    return RowChunk(joined(line_records), bad, len(data))


def _columns(lines: Sequence[_ReadLine], *, needs_log: bool) -> RecordColumns:
    """Return the records of lines; raise `InvalidInput` if a line is bad.

    Whole columns are converted at once, and equal headers once per chunk: that takes half the time
    of a conversion record by record.
    """
    raws: list[Any] = [line.value for line in lines]
    cells = [bytes(line.headers) for line in lines]
    headers: list[Headers]
    values: list[bytes | None]
    if {line.value_encoding for line in lines} <= {EMBEDDED} and UNSET not in raws:
        values = list(map(bytes, raws))
        packed = {cell: decode_headers(cell) for cell in set(cells)}
        headers = [packed[cell] for cell in cells]
    else:
        values, headers = _decoded(lines, cells)
    keys = [
        None
        if line.key is None
        else line.key.encode()
        if line.key_encoding == TEXT
        else decode_text(line.key, line.key_encoding, "key")
        for line in lines
    ]
    columns = RecordColumns(
        [line.log for line in lines],
        values,
        keys,
        headers,
        [line.timestamp for line in lines],
        [line.partitions for line in lines],
    )
    return checked(columns, needs_log=needs_log)


def _decoded(
    lines: Sequence[_ReadLine], cells: Sequence[bytes]
) -> tuple[list[bytes | None], list[Headers]]:
    """Return the values and headers of lines with any encoding.

    Without an encoding a string is text, null is a tombstone, and other values are JSON.
    """
    values, headers = [], []
    for line, cell in zip(lines, cells, strict=True):
        raw, encoding, content_type = line.value, line.value_encoding, ""
        if not isinstance(raw, Raw):
            raise InvalidInput(
                "the field `value` is missing; `millstream append` stores other lines"
            )
        if encoding is None:
            encoding = {b'"': TEXT, b"n": NULL}.get(bytes(memoryview(raw)[:1]), EMBEDDED)
            content_type = JSON if encoding == EMBEDDED else ""
        values.append(decode_value(raw, encoding))
        headers.append(decode_headers(cell, content_type))
    return values, headers
