"""Log entries: the metadata of one append, as an RFC array or as a block.

An append of one record is the RFC's `Array<MessageMetadata>` of one element, of more a metadata
block. The fold joins neighbouring arrays into longer ones: an entry covers as many offsets as its
array has elements.

    MessageMetadata.metadata = MessagePack [key, timestamp, headers], or, where the producer gave
    another timestamp than the time of the append, [key, timestamp, headers, appended]
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import Raw, Struct

from millstream.errors import CorruptionError
from millstream.format import block, keys

ARRAY_RECORDS_MAX = 500
"""Elements in a joined array: an entry is read whole."""

ARRAY_BYTES_MAX = 64 * 1024

ARRAY_HEAD_BYTES = 2
ELEMENT_HEAD_BYTES = 12

NO_HEADERS = b""
_EMPTY_MAP = Raw(b"\x80")

_SINGLE = struct.Struct("<HQI")
_COUNT = struct.Struct("<H")
_ELEMENT = struct.Struct("<QI")

_encode = msgspec.msgpack.Encoder().encode


class Places(Struct, kw_only=True):
    """Which payloads the records of one entry have, and when these were appended."""

    ids: Sequence[int]
    appended: Sequence[int]
    packed: bool
    """Whether the payloads lie together in one block, keyed by the first id."""

    def __len__(self) -> int:
        return len(self.ids)


class Entry(Places, kw_only=True):
    """All metadata of the records that one entry covers, as columns."""

    keys: Sequence[bytes | None]
    headers: Sequence[bytes]
    timestamps: Sequence[int]


def encode_metadata(
    *, key: bytes | None, timestamp_ms: int, headers: bytes, appended_ms: int
) -> bytes:
    """The metadata of one message; `headers` is a MessagePack map, or empty."""
    fields = [key, timestamp_ms, Raw(headers) if headers else _EMPTY_MAP]
    if appended_ms != timestamp_ms:
        fields.append(appended_ms)
    return _encode(fields)


def metadata_of(value: bytes) -> list[tuple[int, bytes]]:
    """The message id and the metadata, as `encode_metadata` gives it, of each record of an entry."""
    if not block.is_block(value):
        return [(message_id, value[start:stop]) for message_id, start, stop in _elements(value)]
    found = decode(value)
    columns = zip(
        found.ids, found.keys, found.timestamps, found.headers, found.appended, strict=True
    )
    return [
        (
            message_id,
            encode_metadata(key=key, timestamp_ms=ms, headers=headers, appended_ms=appended_ms),
        )
        for message_id, key, ms, headers, appended_ms in columns
    ]


def encode_single(message_id: int, metadata: bytes) -> bytes:
    """The entry of an append of one record."""
    return _SINGLE.pack(1, message_id, len(metadata)) + metadata


def count(value: bytes) -> int:
    """How many records an entry covers, without decoding it."""
    if block.is_block(value):
        return block.decode_header(value, kind=block.METADATA).count
    if len(value) < 2:
        raise CorruptionError("a log entry is cut", what="log entry", where=len(value))
    found: int = _COUNT.unpack_from(value)[0]
    return found


def extent(key: bytes, value: bytes) -> tuple[int, int]:
    """The offset of an entry's first record, and the one behind its last."""
    stop = keys.pair(key)[1] + 1
    return stop - count(value), stop


def decode(value: bytes, start: int = 0, stop: int | None = None) -> Entry:
    """Read an entry, of either form; or only its records [start, stop), counted from its first."""
    if not block.is_block(value):
        return _decode_array(value, start, stop)
    found = block.Block(value, kind=block.METADATA)
    total, first = (found.count if stop is None else stop) - start, found.header.first_id + start
    return Entry(
        ids=range(first, first + total),
        keys=found.keys(start, total),
        headers=found.column(block.HEADERS, start, total) or [NO_HEADERS] * total,
        timestamps=found.timestamps(start, total),
        appended=found.appended(start, total),
        packed=True,
    )


def decode_places(value: bytes) -> Places:
    """Read only where the payloads of an entry are, and when they came."""
    if not block.is_block(value):
        return _decode_array(value)
    found = block.Block(value, kind=block.METADATA)
    first = found.header.first_id
    return Places(ids=range(first, first + found.count), appended=found.appended(), packed=True)


def head_of(value: bytes, count: int) -> bytes:
    """An entry as if it had only its first `count` records; see `with_payload` for its payload."""
    if not block.is_block(value):
        return _COUNT.pack(count) + value[ARRAY_HEAD_BYTES : _elements(value)[count - 1][2]]
    return _block_of(value, 0, count)


def tail_of(value: bytes, start: int) -> bytes:
    """An entry as if it had only the records from `start` on; see `with_payload` for its payload."""
    if not block.is_block(value):
        elements = _elements(value)
        begin = elements[start][1] - ELEMENT_HEAD_BYTES
        return _COUNT.pack(len(elements) - start) + value[begin:]
    return _block_of(value, start, count(value))


def encode_some(found: block.Block, start: int, total: int) -> tuple[int, bytes]:
    """The columns bitmap and body of some records of a metadata block."""
    columns = found.header.columns
    return block.encode_metadata(
        timestamps=found.timestamps(start, total) if columns & block.TIMESTAMP else None,
        keys=found.keys(start, total) if columns & block.KEY else None,
        headers=found.column(block.HEADERS, start, total),
        appended=found.appended(start, total) if columns & block.APPENDED else None,
    )


def _block_of(value: bytes, start: int, stop: int) -> bytes:
    found = block.Block(value, kind=block.METADATA)
    head, some = found.header, stop - start
    columns, body = encode_some(found, start, some)
    return block.place(
        body,
        kind=block.METADATA,
        count=some,
        first_id=head.first_id + start,
        columns=columns,
        appended_ms=head.appended_ms,
        timestamp_ms=head.timestamp_ms,
    )


def with_payload(value: bytes, payload: bytes, start: int = 0) -> tuple[bytes, bytes]:
    """Of a block that was cut, metadata and payload as if its records had been appended so.

    `payload` is the whole block's, in which the records begin at `start`.
    """
    head = block.decode_header(value, kind=block.METADATA)
    cells = block.Block(payload, kind=block.PAYLOAD).column(block.VALUE, start, head.count)
    values, body = block.encode_values(cells or []), value[block.HEADER_BYTES :]
    metadata = block.place(
        body,
        kind=block.METADATA,
        count=head.count,
        first_id=head.first_id,
        columns=head.columns,
        body_crc=head.body_crc,
        appended_ms=head.appended_ms,
        timestamp_ms=head.timestamp_ms,
        payload_bytes=len(values),
    )
    return metadata, block.place_values(values, count=head.count, first_id=head.first_id)


def _decode_array(value: bytes, start: int = 0, stop: int | None = None) -> Entry:
    ids, found_keys, headers, timestamps, appended = [], [], [], [], []
    for message_id, begin, end in _elements(value)[start:stop]:
        key, timestamp_ms, packed, appended_ms = decode_metadata(value[begin:end])
        ids.append(message_id)
        found_keys.append(key)
        headers.append(packed)
        timestamps.append(timestamp_ms)
        appended.append(appended_ms)
    return Entry(
        ids=ids,
        keys=found_keys,
        headers=headers,
        timestamps=timestamps,
        appended=appended,
        packed=False,
    )


def _elements(value: bytes) -> list[tuple[int, int, int]]:
    """Of each element of an array: the message id, and where its metadata starts and ends."""
    found: list[tuple[int, int, int]] = []
    position = ARRAY_HEAD_BYTES
    for _ in range(count(value)):
        base = position + ELEMENT_HEAD_BYTES
        if base > len(value):
            raise CorruptionError("a log entry is cut", what="log entry", where=position)
        message_id, size = _ELEMENT.unpack_from(value, position)
        position = base + size
        if position > len(value):
            raise CorruptionError("a log entry is cut", what="log entry", where=base)
        found.append((message_id, base, position))
    if position != len(value):
        raise CorruptionError(
            f"a log entry has {len(value) - position} bytes too many",
            what="log entry",
            where=position,
        )
    return found


class _Metadata(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    key: bytes | None
    timestamp_ms: int
    headers: Raw
    appended_ms: int | None = None


_decode_fields = msgspec.msgpack.Decoder(_Metadata).decode


def decode_metadata(data: bytes) -> tuple[bytes | None, int, bytes, int]:
    """Key, timestamp, packed headers (empty where there are none) and time of the append."""
    try:
        found = _decode_fields(data)
    except msgspec.MsgspecError as error:
        raise CorruptionError(
            f"message metadata: {error}", what="message metadata", where=0
        ) from error
    headers = bytes(found.headers)
    appended_ms = found.timestamp_ms if found.appended_ms is None else found.appended_ms
    return found.key, found.timestamp_ms, NO_HEADERS if headers == b"\x80" else headers, appended_ms


def coalesce(rows: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Join the arrays of neighbouring offsets; every other row stays as it is."""
    result: list[tuple[bytes, bytes]] = []
    arrays: dict[int, list[tuple[int, bytes]]] = {}
    for key, value in rows:
        if key[1] != keys.ENTRY or block.is_block(value):
            result.append((key, value))
        else:
            log_id, last = keys.pair(key)
            arrays.setdefault(log_id, []).append((last, value))
    for log_id, found in arrays.items():
        result += _joined(log_id, found)
    return result


def _joined(log_id: int, arrays: list[tuple[int, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Arrays of one log, each with its last offset, in rows as long as they may be."""
    parts: list[bytes] = []
    total = size = end = 0
    for last, value in arrays:
        more = count(value)
        fits = total + more <= ARRAY_RECORDS_MAX and size + len(value) <= ARRAY_BYTES_MAX
        if parts and (last - more != end or not fits):
            yield keys.entry(log_id, end), _COUNT.pack(total) + b"".join(parts)
            parts, total, size = [], 0, 0
        parts.append(value[ARRAY_HEAD_BYTES:])
        total, size, end = total + more, size + len(value), last
    yield keys.entry(log_id, end), _COUNT.pack(total) + b"".join(parts)
