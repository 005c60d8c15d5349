"""Log entries: the metadata of records with adjacent offsets, as an RFC array or as a block.

An append of one record is the RFC's `Array<MessageMetadata>` of one element, of more a metadata
block. The fold joins neighbouring single entries into blocks (`joining`), as if their records had
been appended together.

    MessageMetadata.metadata = MessagePack [key, timestamp, headers], or, where the producer gave
    another timestamp than the time of the append, [key, timestamp, headers, appended]; of a record
    whose value is null, [key, timestamp, headers, appended, true]
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

from millstream.errors import CorruptionError
from millstream.format import block, keys

SINGLE_HEAD_BYTES = 14
"""Of the entry of one record: count, message id and size of the metadata that follows."""

NO_HEADERS = b""
_NO_MAP = b"\x80"
_EMPTY_MAP = Raw(_NO_MAP)

_SINGLE = struct.Struct("<HQI")
_ARRAY = b"\xdd"
"""Before a count of 32 bits: what makes metadata that lies back to back a MessagePack array."""

_PAYLOAD = keys.prefix(keys.PAYLOAD)

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
    valid: Sequence[bool] | None = None
    """Which records have a value that is not null; None if all have."""

    def first(self, count: int) -> Entry:
        """The first of its records, in a form that is not kept."""
        if count == len(self):
            return self
        return Entry(
            ids=self.ids[:count],
            keys=self.keys[:count],
            headers=self.headers[:count],
            timestamps=self.timestamps[:count],
            appended=self.appended[:count],
            packed=self.packed,
            valid=None if self.valid is None else self.valid[:count],
        )

    def is_null(self, index: int) -> bool:
        """Whether the value of one of its records is null."""
        return self.valid is not None and not self.valid[index]


def encode_metadata(
    *,
    key: bytes | None,
    timestamp_ms: int,
    headers: bytes,
    appended_ms: int,
    is_null: bool = False,
) -> bytes:
    """The metadata of one message; `headers` is packed, or empty."""
    fields = [key, timestamp_ms, Raw(headers) if headers else _EMPTY_MAP]
    if is_null:
        fields += (appended_ms, True)
    elif appended_ms != timestamp_ms:
        fields.append(appended_ms)
    return _encode(fields)


def metadata_of(value: bytes) -> list[tuple[int, bytes]]:
    """The message id and the metadata, as `encode_metadata` gives it, of each record of an entry."""
    if not block.is_block(value):
        return [(single_id(value), value[SINGLE_HEAD_BYTES:])]
    found = decode(value)
    return [
        (
            message_id,
            encode_metadata(
                key=found.keys[at],
                timestamp_ms=found.timestamps[at],
                headers=found.headers[at],
                appended_ms=found.appended[at],
                is_null=found.is_null(at),
            ),
        )
        for at, message_id in enumerate(found.ids)
    ]


def encode_single(message_id: int, metadata: bytes) -> bytes:
    """The entry of an append of one record."""
    return _SINGLE.pack(1, message_id, len(metadata)) + metadata


def single_id(value: bytes) -> int:
    """The message id of the entry of one record, which is checked."""
    if len(value) < SINGLE_HEAD_BYTES:
        raise CorruptionError("a log entry is cut", what="log entry", where=len(value))
    total, message_id, size = _SINGLE.unpack_from(value)
    if total != 1:
        raise CorruptionError(
            f"an array of {total} elements; a log entry has 1, or is a block",
            what="log entry",
            where=0,
        )
    if len(value) != SINGLE_HEAD_BYTES + size:
        raise CorruptionError(
            f"a log entry has {len(value) - SINGLE_HEAD_BYTES} bytes of metadata, not {size}",
            what="log entry",
            where=10,
        )
    found: int = message_id
    return found


def single_metadata(value: bytes) -> tuple[bytes | None, int, bytes, int, bool]:
    """What `decode_metadata` gives for the record of such an entry."""
    return decode_metadata(value[SINGLE_HEAD_BYTES:])


def payload_key(value: bytes) -> bytes:
    """The key of the payload of the entry of one record: it has the id the other way round."""
    return _PAYLOAD + value[9:1:-1]


def count(value: bytes) -> int:
    """How many records an entry covers, without decoding it."""
    if block.is_block(value):
        return block.decode_header(value, kind=block.METADATA).count
    if len(value) < SINGLE_HEAD_BYTES:
        raise CorruptionError("a log entry is cut", what="log entry", where=len(value))
    return 1


def extent(key: bytes, value: bytes) -> tuple[int, int]:
    """The offset of an entry's first record, and the one behind its last."""
    stop = keys.pair(key)[1] + 1
    return stop - count(value), stop


def decode(value: bytes, start: int = 0, stop: int | None = None) -> Entry:
    """Read an entry, of either form; or only its records [start, stop), counted from its first."""
    if not block.is_block(value):
        return decode_singles([value])
    found = block.Block(value, kind=block.METADATA)
    total = (found.count if stop is None else stop) - start
    return Entry(
        ids=found.ids(start, total),
        keys=found.keys(start, total),
        headers=found.column(block.HEADERS, start, total) or [NO_HEADERS] * total,
        timestamps=found.timestamps(start, total),
        appended=found.appended(start, total),
        packed=True,
        valid=found.valid(start, total),
    )


def decode_places(value: bytes) -> Places:
    """Read only where the payloads of an entry are, and when they came."""
    if not block.is_block(value):
        return decode_singles([value])
    found = block.Block(value, kind=block.METADATA)
    return Places(ids=found.ids(), appended=found.appended(), packed=True)


def decode_singles(values: Sequence[bytes]) -> Entry:
    """Read entries of one record each, as one; their payloads lie apart."""
    ids = list(map(single_id, values))
    found = _fields_of(values)
    headers = [bytes(one.headers) for one in found]
    nulls = [one.is_null for one in found]
    timestamps = [one.timestamp_ms for one in found]
    appended = [one.appended_ms for one in found]
    if None in appended:
        pairs = zip(timestamps, appended, strict=True)
        appended = [given if own is None else own for given, own in pairs]
    if _NO_MAP in headers:
        headers = [NO_HEADERS if one == _NO_MAP else one for one in headers]
    return Entry(
        ids=as_range(ids),
        keys=[one.key for one in found],
        headers=headers,
        timestamps=timestamps,
        appended=appended,  # type: ignore[arg-type]
        packed=False,
        valid=None if True not in nulls else [not null for null in nulls],
    )


def as_range(ids: Sequence[int]) -> Sequence[int]:
    """Message ids, as a range if they follow each other by one."""
    found = range(ids[0], ids[0] + len(ids))
    return found if ids[-1] == found[-1] and list(found) == ids else ids


def head_of(value: bytes, count: int) -> bytes:
    """A block as if it had only its first `count` records; see `with_payload` for its payload."""
    return _block_of(value, 0, count)


def tail_of(value: bytes, start: int) -> bytes:
    """A block as if it had only the records from `start` on; see `with_payload` for its payload."""
    return _block_of(value, start, count(value))


def encode(entry: Entry, *, payload_bytes: int = 0, counted_bytes: int = 0) -> bytes:
    """The metadata block of some records: what they have in common takes no column."""
    appended, timestamps = list(entry.appended), list(entry.timestamps)
    together = appended.count(appended[0]) == len(appended)
    alike = timestamps == appended or timestamps.count(timestamps[0]) == len(timestamps)
    if not together:
        alike = timestamps == appended
    columns, body = block.encode_metadata(
        timestamps=None if alike else timestamps,
        keys=entry.keys if list(entry.keys).count(None) < len(entry) else None,
        headers=entry.headers if any(entry.headers) else None,
        valid=entry.valid,
        appended=None if together else appended,
        ids=None if isinstance(entry.ids, range) else entry.ids,
    )
    return block.place(
        body,
        kind=block.METADATA,
        count=len(entry),
        first_id=entry.ids[0],
        columns=columns,
        appended_ms=appended[0] if together else 0,
        timestamp_ms=timestamps[0] if together and alike else 0,
        payload_bytes=payload_bytes,
        counted_bytes=counted_bytes,
    )


def encode_some(
    found: block.Block, start: int, total: int, ids: Sequence[int] | None = None
) -> tuple[int, bytes]:
    """The columns bitmap and body of some records of a metadata block, with these ids if any."""
    columns = found.header.columns
    return block.encode_metadata(
        timestamps=found.timestamps(start, total) if columns & block.TIMESTAMP else None,
        keys=found.keys(start, total) if columns & block.KEY else None,
        headers=found.column(block.HEADERS, start, total),
        valid=found.valid(start, total),
        appended=found.appended(start, total) if columns & block.APPENDED else None,
        ids=ids,
    )


def _block_of(value: bytes, start: int, stop: int) -> bytes:
    found = block.Block(value, kind=block.METADATA)
    head, some = found.header, stop - start
    ids = found.ids(start, some)
    columns, body = encode_some(found, start, some, None if isinstance(ids, range) else ids)
    return block.place(
        body,
        kind=block.METADATA,
        count=some,
        first_id=ids[0],
        columns=columns,
        appended_ms=head.appended_ms,
        timestamp_ms=head.timestamp_ms,
    )


def with_payload(
    value: bytes, payload: bytes, start: int = 0, *, singly: bool = False
) -> tuple[bytes, bytes]:
    """Of a block that was cut, metadata and payload as if its records had been appended so.

    `payload` is the whole block's, in which the records begin at `start`. `singly`: the records
    count for as many bytes as if each had been appended alone.
    """
    head = block.decode_header(value, kind=block.METADATA)
    cells = block.Block(payload, kind=block.PAYLOAD).column(block.VALUE, start, head.count) or []
    values, body = block.encode_values(cells), value[block.HEADER_BYTES :]
    counted = 0
    if singly:
        counted = sum(map(len, cells)) + sum(len(metadata) for _, metadata in metadata_of(value))
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
        counted_bytes=counted,
    )
    return metadata, block.place_values(values, count=head.count, first_id=head.first_id)


class _Metadata(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    key: bytes | None
    timestamp_ms: int
    headers: Raw
    appended_ms: int | None = None
    is_null: bool = False


_decode_fields = msgspec.msgpack.Decoder(_Metadata).decode
_decode_many = msgspec.msgpack.Decoder(list[_Metadata]).decode


def decode_metadata(data: bytes) -> tuple[bytes | None, int, bytes, int, bool]:
    """Key, timestamp, packed headers (empty where there are none), time of the append, and whether
    the value is null."""
    try:
        found = _decode_fields(data)
    except msgspec.MsgspecError as error:
        raise CorruptionError(
            f"message metadata: {error}", what="message metadata", where=0
        ) from error
    headers = bytes(found.headers)
    appended_ms = found.timestamp_ms if found.appended_ms is None else found.appended_ms
    return (
        found.key,
        found.timestamp_ms,
        NO_HEADERS if headers == _NO_MAP else headers,
        appended_ms,
        found.is_null,
    )


def _fields_of(values: Sequence[bytes]) -> list[_Metadata]:
    """The fields of single entries: many take half as long together as one by one."""
    parts = [value[SINGLE_HEAD_BYTES:] for value in values]
    try:
        return _decode_many(_ARRAY + len(parts).to_bytes(4, "big") + b"".join(parts))
    except msgspec.MsgspecError as error:
        raise CorruptionError(
            f"message metadata: {error}", what="message metadata", where=0
        ) from error
