"""Payloads: records and messages in JSON requests and answers.

A value is JSON under `value`, or bytes under `base64`. A JSON string is stored as UTF-8 with the
content type `text/plain`; other JSON is stored unchanged with `application/json`. Both come back
under `value`. A value with another content type comes back under `base64`. A null value (a
tombstone, not JSON's null) is `"base64": null`.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from millstream.errors import InvalidInput
from millstream.format.header_cells import CONTENT_TYPE
from millstream.format.json_text import check_json_text, is_json_text
from millstream.format.packing import JSON, TEXT, TIMESTAMP_MS_MAX
from millstream.header import Headers, HeadersLike, HeaderValue, as_plain
from millstream.queue.model.message import Damage, Message, Try
from millstream.record import Item, Record

Position = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Timestamp = Annotated[int, Meta(ge=0, le=TIMESTAMP_MS_MAX)]
Wait = Annotated[float, Meta(ge=0, le=1e6)]
Delay = Annotated[float, Meta(ge=0, le=1e12)]
"""Durations in seconds. These limits lie beyond the limits of the store."""

_TYPE = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,250}")
_json_type = re.compile(r"application/(?:[\w.-]+\+)?json(?:\s*;.*)?", re.I)


_UNSAID = "application/x-www-form-urlencoded"
"""The content type that curl sends without `-H`; it never means a form here."""


class HeaderBytes(Struct, forbid_unknown_fields=True):
    """A header value of bytes."""

    base64: bytes


_Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
JsonHeader = str | _Integer | float | bool | HeaderBytes | None
JsonHeaders = dict[str, JsonHeader] | list[tuple[str, JsonHeader]]
"""Headers in JSON: an object, or pairs of name and value if a name is repeated."""


class NewRecord(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A record to append: a value as JSON or as base64, with key, headers and timestamp."""

    value: Raw | UnsetType = UNSET
    base64: bytes | UnsetType | None = UNSET
    """Bytes; null for a null value, the tombstone of its key."""
    key: str | None = None
    key_base64: bytes | None = None
    headers: JsonHeaders | None = None
    """An object, or pairs if a name is repeated; bytes are written as {"base64": …}."""
    timestamp: Timestamp | None = None
    """Milliseconds since the epoch; default: the time of the append."""

    def __post_init__(self) -> None:
        """Refuse JSON that could be stored but not decoded; large bodies are checked on a
        thread."""
        if isinstance(self.value, Raw):
            check_json_text(bytes(self.value), "'value'")


class _Read(Struct, kw_only=True, omit_defaults=True):
    offset: int
    timestamp: int
    value: Raw | UnsetType = UNSET
    base64: bytes | UnsetType | None = UNSET
    key: str | UnsetType = UNSET
    key_base64: bytes | UnsetType = UNSET
    headers: dict[str, Any] | list[tuple[str, Any]] = {}


class ReadRecord(_Read, kw_only=True, omit_defaults=True):
    """A record; it has `value` if its content type is JSON or text, else `base64`."""

    appended: int


class ReadMessage(_Read, kw_only=True, omit_defaults=True):
    """A message of a queue; pass `claim` to ack, nack, fail and renew."""

    claim: str
    claim_id: str
    attempt: int
    log: str
    id: int | None = None
    """The id that the put returned; absent for a record of a source."""
    until: datetime | None = None
    """When the lease ends. In a peek: when the message is due, or when it ended."""
    reason: str = ""
    damage: Damage = ""
    """In a peek: the unreadable part, the "value" or the complete "record" with key and headers."""
    attempts: list[Try] = []
    """In a peek with `attempts`: the attempts at the message, in order."""


_decode_headers = msgspec.json.Decoder(JsonHeaders).decode


def item_of(record: NewRecord, where: str = "") -> Item:
    """Return a record in the form that packing takes."""
    value, headers = value_of(record, where)
    return Item(value, key_of(record), headers, record.timestamp)


def check_only_listed(body: NewRecord, kind: type[NewRecord], noun: str) -> None:
    """Refuse a body that is a record itself and also lists records."""
    empty = kind()
    if any(getattr(body, name) != getattr(empty, name) for name in kind.__struct_fields__):
        raise InvalidInput(f"a body is a single {noun}, or lists '{noun}s'; not both")


def headers_of(headers: JsonHeaders) -> HeadersLike:
    """Return headers from their JSON form."""
    if isinstance(headers, dict):
        return {name: _header_of(value) for name, value in headers.items()}
    return [(name, _header_of(value)) for name, value in headers]


def _header_of(value: JsonHeader) -> HeaderValue:
    return value.base64 if isinstance(value, HeaderBytes) else value


def value_of(record: NewRecord, where: str = "") -> tuple[bytes | str | None, HeadersLike | None]:
    """Return the stored value, and the headers with the content type of the value."""
    headers = None if record.headers is None else headers_of(record.headers)
    if (record.value is UNSET) == (record.base64 is UNSET):
        raise InvalidInput(
            f"{where}a record needs either a 'value' (JSON) or 'base64' (bytes), and not both"
        )
    if not isinstance(record.value, Raw):
        assert not isinstance(record.base64, UnsetType)
        return record.base64, headers
    data = bytes(record.value).strip(b" \t\r\n")
    if data.startswith(b'"'):
        try:
            return msgspec.json.decode(data, type=str), headers
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"{where}the text is not valid Unicode: {error}") from error
    return data, _with_type(JSON, headers)


def _with_type(kind: str, headers: HeadersLike | None) -> HeadersLike:
    """Put a content type before the headers, unless they have one."""
    plain = as_plain(headers or {})
    if isinstance(plain, dict):
        return {CONTENT_TYPE: kind, **plain}
    return plain if CONTENT_TYPE in dict(plain) else ((CONTENT_TYPE, kind), *plain)


def key_of(record: NewRecord) -> bytes | str | None:
    """Return the key from `key` or `key_base64`."""
    if record.key is not None and record.key_base64 is not None:
        raise InvalidInput("a key is text under 'key' or bytes under 'key_base64', not both")
    return record.key if record.key_base64 is None else record.key_base64


def item_of_raw(data: bytes, sent: dict[str, str]) -> Item:
    """Return a raw body as a record; HTTP headers carry its key, headers and timestamp."""
    headers: HeadersLike = {}
    if text := sent.get("millstream-headers"):
        try:
            headers = headers_of(_decode_headers(text.encode()))
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise InvalidInput(
                f"Millstream-Headers must be a JSON object or an array of pairs: {error}"
            ) from error
    is_null = _is_null(data, sent)
    kind = "" if is_null else sent.get("content-type", "")
    if kind == _UNSAID:
        kind = TEXT if _is_text(data) else ""
    if kind and _TYPE.fullmatch(kind):
        headers = _with_type(kind, headers)
    timestamp = sent.get("millstream-timestamp")
    if timestamp is not None and not (timestamp.isascii() and timestamp.isdigit()):
        raise InvalidInput(
            f"Millstream-Timestamp is milliseconds since the epoch, not {timestamp[:40]!r}"
        )
    if timestamp is not None and len(timestamp) > 15:
        raise InvalidInput(
            f"Millstream-Timestamp has up to 15 digits, not {len(timestamp)}: it is in milliseconds"
        )
    key = sent.get("millstream-key")
    return Item(
        None if is_null else data,
        None if key is None else unquote_to_bytes(key),
        headers or None,
        None if timestamp is None else int(timestamp),
    )


def _is_null(data: bytes, sent: dict[str, str]) -> bool:
    is_null = sent.get("millstream-null", "false").lower()
    if is_null not in ("true", "false") or (is_null == "true" and data):
        raise InvalidInput("Millstream-Null must be true, beside an empty body, or false")
    return is_null == "true"


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def show_record(record: Record) -> ReadRecord:
    """Return a record as JSON shows it."""
    return ReadRecord(appended=record.appended, **_shown(record))


def show_message(message: Message) -> ReadMessage:
    """Return a message as JSON shows it."""
    return ReadMessage(
        claim=f"{message.claim_id}:{message.attempt}",
        claim_id=str(message.claim_id),
        id=message.id,
        attempt=message.attempt,
        log=message.log,
        until=message.until,
        reason=message.reason,
        damage=message.damage,
        **_shown(message),
    )


def media_type_of(headers: Headers) -> str:
    """Return the content type of a value, if an HTTP header can carry it."""
    kind = headers.get(CONTENT_TYPE)
    if isinstance(kind, str) and _TYPE.fullmatch(kind) and "/" in kind:
        return kind
    return "application/octet-stream"


def _shown(record: Record | Message) -> dict[str, Any]:
    """Return the fields that records and messages share."""
    shown: dict[str, Any] = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "headers": record.headers.shown(),
    }
    kind = record.headers.get(CONTENT_TYPE)
    value = record.value
    as_json = _as_json(value, kind) if isinstance(kind, str) and value is not None else None
    if as_json is not None:
        shown["value"] = as_json
    else:
        shown["base64"] = value
    if record.key is not None:
        try:
            shown["key"] = record.key.decode()
        except UnicodeDecodeError:
            shown["key_base64"] = record.key
    return shown


def _as_json(value: bytes, kind: str) -> Raw | None:
    """Return the value as JSON, if its content type says so and the value matches."""
    try:
        if kind == TEXT or kind.lower() == "text/plain":
            return Raw(msgspec.json.encode(value.decode()))
        if _json_type.fullmatch(kind):
            return Raw(value) if is_json_text(value) else None
    except UnicodeDecodeError:
        pass  # not UTF-8, against its content type: show the bytes as base64
    return None
