"""JSON Lines: a record per line, with the fields of `millstream read --json`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any, BinaryIO, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from millstream.errors import InvalidInput, TooLarge
from millstream.exchange.rows import BadRow, RecordColumns, RowChunk, checked, joined
from millstream.exchange.selection import ChosenRecords
from millstream.exchange.values import (
    BASE64,
    EMBEDDED,
    NULL,
    TEXT,
    decode_headers,
    decode_text,
    decode_value,
    shown_cells,
    shown_headers,
    shown_values,
)
from millstream.format.packing import JSON
from millstream.limits import MiB

READ_BYTES = 1 * MiB
LINE_BYTES_MAX = 128 * MiB
"""A value of the maximum size whose characters are all escaped."""

_BAD = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InvalidInput)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _ReadLine(Struct, forbid_unknown_fields=True, gc=False):
    """A line of an import; only `value` is required.

    The fields have the order of an export: the decoder finds the next field at once then, which saves
    a third of its time.
    """

    log: str = ""
    offset: int = 0
    timestamp: int | None = None
    key: str | None = None
    headers: Raw = Raw(b"{}")
    value: Raw | UnsetType = UNSET
    value_encoding: str | None = None
    key_encoding: Literal["text", "base64", "null"] = "text"
    partition: int | None = None
    partitions: int = 0
    appended: int = 0
    """`read --json` and exports have this field, and the offset; a new record gets new ones."""


_encode_json = msgspec.json.Encoder().encode
_line_decoder = msgspec.json.Decoder(_ReadLine)


_KEY_ENDS = {TEXT: "", NULL: "", BASE64: f',"key_encoding":"{BASE64}"'}
"""The field for the encoding of a key, which is left out for text."""


class _Lines:
    """Lines of JSON, as columns of cells with literals between them.

    A column of equal cells becomes a part of the literal. So an export needs half the time of a line
    per record: most blocks have one timestamp and equal headers.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._columns: list[Iterable[str]] = []
        self._literal = ""

    def add(self, literal: str, cells: Iterable[str]) -> None:
        """Add a literal, and a column of cells behind it; without cells only the literal."""
        self._literal += literal
        column = list(cells)
        if column and column.count(column[0]) == len(column):
            self._literal += column[0]
        elif column:
            self._columns += [repeat(self._literal), column]
            self._literal = ""

    def text(self) -> str:
        """Return the lines; each ends with a brace."""
        columns = [*self._columns, repeat(self._literal + "}\n", self._count)]
        return "".join(chain.from_iterable(zip(*columns, strict=False)))


class JsonLinesWriter:
    """Writes records to a stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, records: ChosenRecords) -> None:
        """Write a line per record, by columns."""
        log, lines = records.log, _Lines(len(records.values))
        headers, are_json = shown_headers(records.cells)
        keys, key_encodings = shown_cells(records.keys)
        values, value_encodings = shown_values(records.values, are_json)
        lines.add(f'{{"log":{_encode_json(log.name).decode()},"offset":', map(str, records.offsets))
        lines.add(',"timestamp":', map(str, records.timestamps))
        lines.add(',"key":', keys)
        lines.add(',"headers":', headers)
        lines.add(',"value":', values)
        lines.add(',"value_encoding":"', value_encodings)
        lines.add('"', map(_KEY_ENDS.__getitem__, key_encodings))
        if log.partitions:
            lines.add(f',"partition":{log.partition},"partitions":{log.partitions}', ())
        self._stream.write(lines.text().encode())

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
            yield _chunk(memoryview(data)[:end], number, needs_log=needs_log)
            number += data.count(b"\n", 0, end)
        elif len(data) > LINE_BYTES_MAX:
            raise TooLarge(
                f"line {number} has more than {LINE_BYTES_MAX:,} bytes; a file of JSON Lines has one "
                "record per line",
                size=len(data),
                limit=LINE_BYTES_MAX,
            )
        data = data[end:] + next_data


def _chunk(data: memoryview, number: int, *, needs_log: bool) -> RowChunk:
    """Return the records of complete lines; `number` is that of the first line."""
    try:
        lines = _line_decoder.decode_lines(data)
        return RowChunk(_columns(lines, needs_log=needs_log), [], len(data))
    except _BAD:
        pass  # the lines are decoded again, each alone, to find the bad ones
    line_records: list[RecordColumns] = []
    bad: list[BadRow] = []
    for place, line_data in enumerate(bytes(data).split(b"\n"), start=number):
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
    cells = _cells([line.headers for line in lines])
    headers: list[bytes]
    values: list[bytes | None]
    encodings = [line.value_encoding for line in lines]
    if encodings.count(EMBEDDED) == len(lines) and UNSET not in raws:
        values = [*_cells(raws)]
        packed = {cell: decode_headers(cell) for cell in set(cells)}
        headers = [packed[cell] for cell in cells]
    else:
        values, headers = _decoded(lines, cells)
    columns = RecordColumns(
        [line.log for line in lines],
        values,
        _keys(lines),
        headers,
        [line.timestamp for line in lines],
        [line.partitions for line in lines],
    )
    return checked(columns, needs_log=needs_log)


def _cells(raws: Sequence[Raw]) -> list[bytes]:
    """Return the bytes of cells; together they take a third of the time, unless one has a line break."""
    joined_cells = b"\n".join(raws)
    if joined_cells.count(b"\n") + 1 != len(raws):
        return list(map(bytes, raws))
    return joined_cells.split(b"\n")


def _keys(lines: Sequence[_ReadLine]) -> list[bytes | None]:
    """Return the keys of lines; keys that are all text take a third of the time."""
    texts, encodings = [line.key for line in lines], {line.key_encoding for line in lines}
    if None not in texts and encodings <= {TEXT}:
        return list(map(str.encode, texts))  # type: ignore[arg-type]
    return [
        None if line.key is None else decode_text(line.key, line.key_encoding, "key")
        for line in lines
    ]


def _decoded(
    lines: Sequence[_ReadLine], cells: Sequence[bytes]
) -> tuple[list[bytes | None], list[bytes]]:
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
