"""Packing: what users hand in becomes bytes, checked, before anything is stored.

A record alone becomes a `Single`, several become a `Batch`: two block bodies without ids, which
are the same whether they are packed here or arrive over a wire.
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
"""The end of the year 9999: later ones cannot be shown by most tools."""


class Single(Struct, frozen=True, array_like=True, gc=False, tag=1):
    """One record, ready to be stored."""

    count: ClassVar[int] = 1

    value: bytes | None
    """None for null: a record that says that its key has no value any more."""
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
    """One record; too large or of a wrong type is an error."""
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
    """Several records, given as columns of the same length."""
    count = len(values)
    if count > limits.batch_records_max:
        raise too_large("a batch", count, limits.batch_records_max, unit="records")
    payload, kinds, valid = _pack_values(values, limits)
    constant = timestamps if isinstance(timestamps, int) else None
    columns, metadata = block.encode_metadata(
        timestamps=(
            [check_timestamp(ms) for ms in timestamps] if isinstance(timestamps, Sequence) else None
        ),
        keys=_pack_keys(keys, limits),
        headers=pack_header_column(headers, kinds, count, limits),
        valid=valid,
    )
    if len(payload) + len(metadata) > limits.batch_bytes_max:
        raise too_large("a batch", len(payload) + len(metadata), limits.batch_bytes_max)
    timestamp_ms = None if constant is None else check_timestamp(constant)
    return batch_of(count, payload, columns, metadata, timestamp_ms)


def batch_of(
    count: int, payload: bytes, columns: int, metadata: bytes, timestamp_ms: int | None
) -> Batch:
    """A batch of two bodies, with their checksums."""
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
    """A batch from columns or from items; alone, a record is a `Single`; None if there is none."""
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
    """Refuse columns with more or fewer rows than there are values."""
    for name, column in columns.items():
        if isinstance(column, Sequence) and len(column) != count:
            raise InvalidInput(f"{count} values, but {len(column)} {name}")


def check_json(value: Any, *, bytes_max: int | None = None) -> Any:
    """A copy of a JSON value, which the caller cannot change later; else `InvalidInput`.

    One that takes more than `bytes_max` when it is stored is `TooLarge`, and is not copied.
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
    """Bytes as they are, text as UTF-8, anything else as JSON; and the content type, if any."""
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
    """Refuse NaN and infinity: JSON has neither, and the encoder has written null for them.

    Few values hold a null, and of those few a number that looks so in MessagePack: only they are
    looked at closely.
    """
    if b"null" not in data or _ENDLESS.search(_encode(value)) is None:
        return
    waiting = [("$", msgspec.to_builtins(value))]
    while waiting:
        place, one = waiting.pop()
        if isinstance(one, float) and not isfinite(one):
            raise InvalidInput(
                f"JSON has no NaN and no infinity, and the value at {place} is {one}: "
                "use null, text, or bytes of your own",
                where=place,
            )
        if isinstance(one, dict):
            waiting += [(f"{place}.{key}", inner) for key, inner in one.items()]
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += [(f"{place}[{index}]", inner) for index, inner in enumerate(one)]


def pack_key(key: bytes | str, limits: Limits) -> bytes:
    """A key as bytes; text as UTF-8."""
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
    """Milliseconds since the epoch, up to the year 9999."""
    if type(timestamp) is not int or not 0 <= timestamp <= TIMESTAMP_MS_MAX:
        raise InvalidInput(f"a timestamp is milliseconds since the epoch, not {timestamp!r}")
    return timestamp


def _pack_values(
    values: Sequence[Any], limits: Limits
) -> tuple[bytes, Sequence[str | None] | None, Sequence[bool] | None]:
    """The payload's body, the content types of values that were not bytes, and which are not null."""
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


def _all_are(kind: type, found: Sequence[Any]) -> bool:
    return list(map(type, found)).count(kind) == len(found)


def _pack_keys(
    found: Sequence[bytes | str | None] | None, limits: Limits
) -> Sequence[bytes | None] | None:
    if found is None or (_all_are(bytes, found) and _fit(found, limits)):
        return found  # type: ignore[return-value]
    if not any(key is not None for key in found):
        return None
    return [None if key is None else pack_key(key, limits) for key in found]


def _fit(found: Sequence[Any], limits: Limits) -> bool:
    return max(map(len, found), default=0) <= limits.key_bytes_max
