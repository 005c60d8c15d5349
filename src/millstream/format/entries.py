"""Log entries: the metadata of records with adjacent offsets, as an RFC array or as a block.

An append of one record is the RFC's `Array<MessageMetadata>` of one element; an append of several
records is a metadata block. The fold joins neighbouring single entries into blocks (`block_join`), as if
their records had been appended together.

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
"""Bytes before the metadata in the entry of one record: count, message id and size."""

NO_HEADERS = b""
_NO_MAP = b"\x80"
_EMPTY_MAP = Raw(_NO_MAP)

_SINGLE = struct.Struct("<HQI")
_ARRAY = b"\xdd"
"""The MessagePack mark of an array, before a count of 32 bits and the elements."""

_PAYLOAD = keys.prefix(keys.PAYLOAD)

_encode = msgspec.msgpack.Encoder().encode


class Places(Struct, kw_only=True):
    """The payloads of an entry's records, and their append times."""

    ids: Sequence[int]
    appended: Sequence[int]
    packed: bool
    """True if one block holds all payloads, keyed by the first id."""

    def __len__(self) -> int:
        return len(self.ids)


class Entry(Places, kw_only=True):
    """The metadata of an entry's records, as columns."""

    keys: Sequence[bytes | None]
    headers: Sequence[bytes]
    timestamps: Sequence[int]
    valid: Sequence[bool] | None = None
    """Flags of records whose value is not null; None if no value is null."""

    def first(self, count: int) -> Entry:
        """Return an entry of the first `count` records, not for storing."""
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
        """True if the value of a record is null."""
        return self.valid is not None and not self.valid[index]


def encode_metadata(
    *,
    key: bytes | None,
    timestamp_ms: int,
    headers: bytes,
    appended_ms: int,
    is_null: bool = False,
) -> bytes:
    """Encode the metadata of one message; `headers` is packed, or empty."""
    entry = encode_record(0, key, timestamp_ms, headers, appended_ms, is_null=is_null)
    return entry[SINGLE_HEAD_BYTES:]


def encode_record(
    message_id: int,
    key: bytes | None,
    timestamp_ms: int,
    headers: bytes,
    appended_ms: int,
    *,
    is_null: bool,
) -> bytes:
    """Encode the entry of one record: `encode_single` of its `encode_metadata`."""
    fields = [key, timestamp_ms, Raw(headers) if headers else _EMPTY_MAP]
    if is_null:
        fields += (appended_ms, True)
    elif appended_ms != timestamp_ms:
        fields.append(appended_ms)
    metadata = _encode(fields)
    return _SINGLE.pack(1, message_id, len(metadata)) + metadata


def metadata_of(value: bytes) -> list[tuple[int, bytes]]:
    """Return the message id and the encoded metadata of each record of an entry."""
    if not block.is_block(value):
        return [(single_id(value), value[SINGLE_HEAD_BYTES:])]
    entry = decode(value)
    return [
        (
            message_id,
            encode_metadata(
                key=entry.keys[at],
                timestamp_ms=entry.timestamps[at],
                headers=entry.headers[at],
                appended_ms=entry.appended[at],
                is_null=entry.is_null(at),
            ),
        )
        for at, message_id in enumerate(entry.ids)
    ]


def encode_single(message_id: int, metadata: bytes) -> bytes:
    """Encode the entry of one record."""
    return _SINGLE.pack(1, message_id, len(metadata)) + metadata


def single_id(value: bytes) -> int:
    """Check the entry of one record, and return its message id."""
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
    checked_id: int = message_id
    return checked_id


def single_metadata(value: bytes) -> tuple[bytes | None, int, bytes, int, bool]:
    """Decode the metadata of the entry of one record, as `decode_metadata` does."""
    return decode_metadata(value[SINGLE_HEAD_BYTES:])


def payload_key(value: bytes) -> bytes:
    """Return the key of the payload for the entry of one record: the id in reverse byte order."""
    return _PAYLOAD + value[9:1:-1]


def count(value: bytes) -> int:
    """Return the number of records of an entry, without decoding the entry."""
    if block.is_block(value):
        return block.decode_header(value, kind=block.METADATA).count
    if len(value) < SINGLE_HEAD_BYTES:
        raise CorruptionError("a log entry is cut", what="log entry", where=len(value))
    return 1


def extent(key: bytes, value: bytes) -> tuple[int, int]:
    """Return the offset of an entry's first record, and the offset behind its last record."""
    stop = keys.pair(key)[1] + 1
    return stop - count(value), stop


def decode(value: bytes, start: int = 0, stop: int | None = None) -> Entry:
    """Decode an entry, or only its records [start, stop), counted from the first record."""
    if not block.is_block(value):
        return decode_singles([value])
    metadata = block.Block(value, kind=block.METADATA)
    total = (metadata.count if stop is None else stop) - start
    return Entry(
        ids=metadata.ids(start, total),
        keys=metadata.keys(start, total),
        headers=metadata.column(block.HEADERS, start, total) or [NO_HEADERS] * total,
        timestamps=metadata.timestamps(start, total),
        appended=metadata.appended(start, total),
        packed=True,
        valid=metadata.valid(start, total),
    )


def decode_places(value: bytes) -> Places:
    """Decode only the payload ids and append times of an entry."""
    if not block.is_block(value):
        return decode_singles([value])
    metadata = block.Block(value, kind=block.METADATA)
    return Places(ids=metadata.ids(), appended=metadata.appended(), packed=True)


def decode_singles(values: Sequence[bytes]) -> Entry:
    """Decode single-record entries as one entry with separate payloads."""
    ids = list(map(single_id, values))
    decoded = _fields_of(values)
    headers = [bytes(fields.headers) for fields in decoded]
    nulls = [fields.is_null for fields in decoded]
    timestamps = [fields.timestamp_ms for fields in decoded]
    appended = [fields.appended_ms for fields in decoded]
    if None in appended:
        pairs = zip(timestamps, appended, strict=True)
        appended = [
            timestamp_ms if appended_ms is None else appended_ms
            for timestamp_ms, appended_ms in pairs
        ]
    if _NO_MAP in headers:
        headers = [NO_HEADERS if cell == _NO_MAP else cell for cell in headers]
    return Entry(
        ids=as_range(ids),
        keys=[fields.key for fields in decoded],
        headers=headers,
        timestamps=timestamps,
        appended=appended,  # type: ignore[arg-type]
        packed=False,
        valid=None if True not in nulls else [not null for null in nulls],
    )


def as_range(ids: Sequence[int]) -> Sequence[int]:
    """Return consecutive message ids as a range, and other ids unchanged."""
    consecutive = range(ids[0], ids[0] + len(ids))
    return consecutive if ids[-1] == consecutive[-1] and list(consecutive) == ids else ids


def head_of(value: bytes, count: int) -> bytes:
    """Return a block with only the first `count` records; `with_payload` cuts its payload."""
    metadata = block.Block(value, kind=block.METADATA)
    head, ids = metadata.header, metadata.ids(0, count)
    columns, body = encode_some(metadata, 0, count, None if isinstance(ids, range) else ids)
    return block.place(
        body,
        kind=block.METADATA,
        count=count,
        first_id=ids[0],
        columns=columns,
        appended_ms=head.appended_ms,
        timestamp_ms=head.timestamp_ms,
    )


def encode(entry: Entry, *, payload_bytes: int = 0, counted_bytes: int = 0) -> bytes:
    """Encode a metadata block; values that all records share take no column."""
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
    metadata: block.Block, start: int, total: int, ids: Sequence[int] | None = None
) -> tuple[int, bytes]:
    """Return the columns bitmap and body for a range of a metadata block, with optional new ids."""
    columns = metadata.header.columns
    return block.encode_metadata(
        timestamps=metadata.timestamps(start, total) if columns & block.TIMESTAMP else None,
        keys=metadata.keys(start, total) if columns & block.KEY else None,
        headers=metadata.column(block.HEADERS, start, total),
        valid=metadata.valid(start, total),
        appended=metadata.appended(start, total) if columns & block.APPENDED else None,
        ids=ids,
    )


def with_payload(value: bytes, payload: bytes) -> tuple[bytes, bytes]:
    """Return metadata and payload of a cut block, as if its records had been appended in one batch.

    `payload` is the payload of the block before the cut.
    """
    head = block.decode_header(value, kind=block.METADATA)
    cells = block.Block(payload, kind=block.PAYLOAD).column(block.VALUE, 0, head.count) or []
    values, body = block.encode_values(cells), value[block.HEADER_BYTES :]
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


class _Metadata(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    key: bytes | None
    timestamp_ms: int
    headers: Raw
    appended_ms: int | None = None
    is_null: bool = False


_decode_fields = msgspec.msgpack.Decoder(_Metadata).decode
_decode_many = msgspec.msgpack.Decoder(list[_Metadata]).decode


def decode_metadata(data: bytes) -> tuple[bytes | None, int, bytes, int, bool]:
    """Return key, timestamp, packed headers (empty without headers), append time, and the flag of a
    null value."""
    try:
        fields = _decode_fields(data)
    except msgspec.MsgspecError as error:
        raise CorruptionError(
            f"message metadata: {error}", what="message metadata", where=0
        ) from error
    headers = bytes(fields.headers)
    appended_ms = fields.timestamp_ms if fields.appended_ms is None else fields.appended_ms
    return (
        fields.key,
        fields.timestamp_ms,
        NO_HEADERS if headers == _NO_MAP else headers,
        appended_ms,
        fields.is_null,
    )


def _fields_of(values: Sequence[bytes]) -> list[_Metadata]:
    """Decode the fields of single entries in one array: it takes half the time of single decodes."""
    encoded = [value[SINGLE_HEAD_BYTES:] for value in values]
    try:
        return _decode_many(_ARRAY + len(encoded).to_bytes(4, "big") + b"".join(encoded))
    except msgspec.MsgspecError as error:
        raise CorruptionError(
            f"message metadata: {error}", what="message metadata", where=0
        ) from error
