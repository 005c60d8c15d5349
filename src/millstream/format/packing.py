"""Packing: records of users become checked bytes, before they are stored.

One record becomes a `Single`, several records become a `Batch`: two block bodies without ids. A client
packs in the same way and sends these bodies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from millstream.errors import InvalidInput
from millstream.format import block
from millstream.format.header_cells import NO_HEADERS, pack_header_column, pack_headers
from millstream.header import HeadersLike
from millstream.limits import Limits, too_large
from millstream.record import Item

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"

_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode

_ENDLESS = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]", re.DOTALL)
"""A float64 in MessagePack whose exponent is that of NaN and infinity."""

TIMESTAMP_MS_MAX = 253_402_300_799_999
"""The end of the year 9999: most tools cannot show later times."""


class Single(Struct, frozen=True, array_like=True, gc=False, tag=1):
    """One record, ready to be stored."""

    count: ClassVar[int] = 1

    value: bytes | None
    """None for null: a tombstone, after which its key has no value."""
    key: bytes | None
    headers: bytes
    timestamp_ms: int | None


class Batch(Struct, frozen=True, array_like=True, gc=False, tag=2):
    """Several records, ready to be stored: the bodies of their two blocks."""

    count: int
    payload: bytes
    payload_crc: int
    columns: int
    metadata: bytes
    metadata_crc: int
    timestamp_ms: int | None


def pack_single(
    value: Any,
    *,
    key: bytes | str | None,
    headers: HeadersLike | None,
    timestamp: int | None,
    limits: Limits,
) -> Single:
    """Pack one record; raise `TooLarge` or `InvalidInput`."""
    data: bytes | None
    if type(value) is bytes or value is None:
        data, kind = value, None
    else:
        data, kind = pack_value(value)
    if data is not None and len(data) > limits.value_bytes_max:
        raise too_large("a value", len(data), limits.value_bytes_max)
    return Single(
        data,
        None if key is None else pack_key(key, limits),
        pack_headers(headers, kind, limits) if headers or kind else NO_HEADERS,
        None if timestamp is None else check_timestamp(timestamp),
    )


def pack_batch(
    values: Sequence[Any],
    *,
    keys: Sequence[bytes | str | None] | None,
    headers: Sequence[HeadersLike | None] | None,
    timestamps: Sequence[int] | int | None,
    limits: Limits,
) -> Batch:
    """Pack several records, as columns of equal length."""
    count = len(values)
    if count > limits.batch_records_max:
        raise too_large("a batch", count, limits.batch_records_max, unit="records")
    payload, kinds, valid = _pack_values(values, limits)
    column = timestamps if isinstance(timestamps, Sequence) else None
    constant = None if isinstance(timestamps, Sequence) else timestamps
    return _pack_columns(
        payload,
        count=count,
        keys=_pack_keys(keys, limits),
        headers=pack_header_column(headers, kinds, count, limits),
        valid=valid,
        timestamps=None if column is None else [check_timestamp(ms) for ms in column],
        timestamp_ms=None if constant is None else check_timestamp(constant),
        limits=limits,
    )


def pack_checked(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None],
    header_cells: Sequence[bytes],
    timestamps: Sequence[int],
    limits: Limits,
) -> Single | Batch:
    """Pack one or more records whose keys, packed headers and timestamps were checked before."""
    if len(values) == 1:
        return Single(values[0], keys[0], header_cells[0], timestamps[0])
    payload, _, valid = _pack_values(values, limits)
    return _pack_columns(
        payload,
        count=len(values),
        keys=keys if any(key is not None for key in keys) else None,
        headers=header_cells if any(header_cells) else None,
        valid=valid,
        timestamps=timestamps,
        timestamp_ms=None,
        limits=limits,
    )


def _pack_columns(
    payload: bytes,
    *,
    count: int,
    keys: Sequence[bytes | None] | None,
    headers: Sequence[bytes] | None,
    valid: Sequence[bool] | None,
    timestamps: Sequence[int] | None,
    timestamp_ms: int | None,
    limits: Limits,
) -> Batch:
    columns, metadata = block.encode_metadata(
        timestamps=timestamps, keys=keys, headers=headers, valid=valid
    )
    if len(payload) + len(metadata) > limits.batch_bytes_max:
        raise too_large("a batch", len(payload) + len(metadata), limits.batch_bytes_max)
    return batch_of(count, payload, columns, metadata, timestamp_ms)


def batch_of(
    count: int, payload: bytes, columns: int, metadata: bytes, timestamp_ms: int | None
) -> Batch:
    """Return a batch of two bodies, with their checksums."""
    crcs = block.checksum(payload), block.checksum(metadata)
    return Batch(count, payload, crcs[0], columns, metadata, crcs[1], timestamp_ms)


def pack_many(
    values: Iterable[Any],
    *,
    keys: Sequence[bytes | str | None] | None,
    headers: Sequence[HeadersLike | None] | None,
    timestamps: Sequence[int] | int | None,
    limits: Limits,
) -> Single | Batch | None:
    """Pack a batch from columns or items; a `Single` for one record, None without a record."""
    if isinstance(values, str | bytes | bytearray | memoryview):
        raise InvalidInput("append_many takes several values; append takes one")
    rows = values if isinstance(values, list | tuple) else list(values)
    if not rows:
        return None
    if isinstance(rows[0], Item):
        if keys is not None or headers is not None or timestamps is not None:
            raise InvalidInput("items carry their own keys, headers and timestamps")
        if not all(isinstance(item, Item) for item in rows):
            raise InvalidInput("a batch is all items or all values")
        keys = [item.key for item in rows]
        headers = [item.headers for item in rows]
        if any(item.timestamp is not None for item in rows):
            if any(item.timestamp is None for item in rows):
                raise InvalidInput("either every item of a batch has a timestamp, or none")
            timestamps = [item.timestamp for item in rows]
        rows = [item.value for item in rows]
    check_columns(len(rows), keys=keys, headers=headers, timestamps=timestamps)
    if len(rows) == 1:
        return pack_single(
            rows[0],
            key=keys[0] if keys else None,
            headers=headers[0] if headers else None,
            timestamp=timestamps[0] if isinstance(timestamps, Sequence) else timestamps,
            limits=limits,
        )
    return pack_batch(rows, keys=keys, headers=headers, timestamps=timestamps, limits=limits)


def check_columns(count: int, **columns: Sequence[Any] | int | None) -> None:
    """Refuse columns whose length differs from the number of values."""
    for name, column in columns.items():
        if isinstance(column, Sequence) and len(column) != count:
            raise InvalidInput(f"{count} values, but {len(column)} {name}")


def check_json(value: Any, *, bytes_max: int | None = None) -> Any:
    """Return a copy of a JSON value, which the caller cannot change later; else `InvalidInput`.

    A value of more than `bytes_max` stored bytes raises `TooLarge`, before the copy.
    """
    try:
        size = 0 if bytes_max is None else len(_encode(value))
        if bytes_max is None or size <= bytes_max:
            data = _encode_json(value)
            check_finite(value, data)
            copy = msgspec.json.decode(data)
            _encode(copy)
            return copy
    except InvalidInput:
        raise
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidInput(f"not a JSON value: {error}") from error
    raise too_large("a JSON value", size, bytes_max)


def pack_value(value: Any) -> tuple[bytes, str | None]:
    """Encode text as UTF-8, and objects as JSON; bytes stay. Return bytes and content type."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), None
    if isinstance(value, str):
        try:
            return value.encode(), TEXT
        except UnicodeEncodeError as error:
            raise InvalidInput(f"text that is not valid Unicode: {error}") from error
    try:
        data = _encode_json(value)
        check_finite(value, data)
        return data, JSON
    except InvalidInput:
        raise
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(
            f"a value is bytes, text or JSON; {type(value).__name__} is not: {error}"
        ) from error


def check_finite(value: Any, data: bytes) -> None:
    """Refuse NaN and infinity, which JSON lacks: the encoder has written null for them.

    The walk through the value is slow. So it runs only if the JSON contains a null, and the MessagePack
    form contains the exponent of NaN and infinity.
    """
    if b"null" not in data or _ENDLESS.search(_encode(value)) is None:
        return
    waiting = [("$", msgspec.to_builtins(value))]
    while waiting:
        place, item = waiting.pop()
        if isinstance(item, float) and not isfinite(item):
            raise InvalidInput(
                f"JSON has no NaN and no infinity, and the value at {place} is {item}: "
                "use null, text, or bytes of your own",
                where=place,
            )
        if isinstance(item, dict):
            waiting += [(f"{place}.{key}", inner) for key, inner in item.items()]
        elif isinstance(item, list | tuple | set | frozenset):
            waiting += [(f"{place}[{index}]", inner) for index, inner in enumerate(item)]


def pack_key(key: bytes | str, limits: Limits) -> bytes:
    """Return a key as bytes, and text as UTF-8."""
    if isinstance(key, str):
        try:
            key = key.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"a key that is not valid Unicode: {error}") from error
    elif not isinstance(key, bytes):
        raise InvalidInput(f"a key is bytes or text, not {type(key).__name__}")
    if len(key) > limits.key_bytes_max:
        raise too_large("a key", len(key), limits.key_bytes_max)
    return key


def check_timestamp(timestamp: int) -> int:
    """Return a valid timestamp: milliseconds since the epoch, up to the year 9999."""
    if type(timestamp) is not int or not 0 <= timestamp <= TIMESTAMP_MS_MAX:
        raise InvalidInput(f"a timestamp is milliseconds since the epoch, not {timestamp!r}")
    return timestamp


def _pack_values(
    values: Sequence[Any], limits: Limits
) -> tuple[bytes, Sequence[str | None] | None, Sequence[bool] | None]:
    """Return the payload's body, the content types of encoded values, and the flags of valid values."""
    kinds: Sequence[str | None] | None = None
    valid: Sequence[bool] | None = None
    if not _all_are(bytes, values):
        packed = [(b"", None) if value is None else pack_value(value) for value in values]
        valid = [value is not None for value in values]
        values = [data for data, _ in packed]
        if any(kind for _, kind in packed):
            kinds = [kind for _, kind in packed]
    payload = block.encode_values(values)
    if len(payload) > limits.value_bytes_max:
        largest = max(map(len, values))
        if largest > limits.value_bytes_max:
            raise too_large("a value", largest, limits.value_bytes_max)
    return payload, kinds, valid


def _all_are(kind: type, values: Sequence[Any]) -> bool:
    return list(map(type, values)).count(kind) == len(values)


def _pack_keys(
    keys: Sequence[bytes | str | None] | None, limits: Limits
) -> Sequence[bytes | None] | None:
    if keys is None or (_all_are(bytes, keys) and _fit(keys, limits)):
        return keys  # type: ignore[return-value]
    if not any(key is not None for key in keys):
        return None
    return [None if key is None else pack_key(key, limits) for key in keys]


def _fit(keys: Sequence[Any], limits: Limits) -> bool:
    return max(map(len, keys), default=0) <= limits.key_bytes_max
