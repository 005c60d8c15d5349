"""Payloads: records and messages as JSON takes and shows them.

A value is JSON under `value`, or bytes under `base64`. Text is a JSON string: it is stored as
UTF-8 under `text/plain`, everything else as it was sent under `application/json`; so it comes back
the same way. What has another content type comes back as base64. A value that is null (a tombstone,
not JSON's null) is `"base64": null`.
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
"""Durations are seconds; these are beyond all bounds that the store has."""

_TYPE = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,250}")
_json_type = re.compile(r"application/(?:[\w.-]+\+)?json(?:\s*;.*)?", re.I)


_UNSAID = "application/x-www-form-urlencoded"
"""What curl sends without a `-H`; here it never means a form."""


class HeaderBytes(Struct, forbid_unknown_fields=True):
    """The value of a header that is bytes."""

    base64: bytes


_Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
JsonHeader = str | _Integer | float | bool | HeaderBytes | None
JsonHeaders = dict[str, JsonHeader] | list[tuple[str, JsonHeader]]
"""Headers in JSON: an object, or pairs of a name and a value if a name is repeated."""


class NewRecord(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A record to be appended: a value as JSON or as base64, and what belongs to it."""

    value: Raw | UnsetType = UNSET
    base64: bytes | UnsetType | None = UNSET
    """Bytes; null for a value that is null, a tombstone of its key."""
    key: str | None = None
    key_base64: bytes | None = None
    headers: JsonHeaders | None = None
    """An object, or pairs if a name is repeated; a value that is bytes is {"base64": …}."""
    timestamp: Timestamp | None = None
    """Milliseconds since the epoch; without one, the time at which it is appended."""

    def __post_init__(self) -> None:
        """Refuse a value that could be stored and not be decoded again; large ones in a thread."""
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
    """A record as it was read; `value` if its content type is JSON or text, else `base64`."""

    appended: int


class ReadMessage(_Read, kw_only=True, omit_defaults=True):
    """A message of a queue; `claim` names this attempt at it, for ack, nack, fail and renew."""

    claim: str
    claim_id: str
    attempt: int
    log: str
    until: datetime | None = None
    """When the lease ends; in a peek, when the message is due, or ended."""
    reason: str = ""
    damage: Damage = ""
    """In a peek: what cannot be read, the "value", or the whole "record" with key and headers."""
    attempts: list[Try] = []
    """In a peek that asks for them: how its attempts went, in order."""


_decode_headers = msgspec.json.Decoder(JsonHeaders).decode


def item_of(record: NewRecord, where: str = "") -> Item:
    """A record as the packing takes it."""
    value, headers = value_of(record, where)
    return Item(value, key_of(record), headers, record.timestamp)


def check_only_listed(body: NewRecord, kind: type[NewRecord], noun: str) -> None:
    """Refuse a body that lists several, and is one of them as well."""
    none = kind()
    if any(getattr(body, name) != getattr(none, name) for name in kind.__struct_fields__):
        raise InvalidInput(f"a body is one {noun}, or has '{noun}s'; not both")


def headers_of(told: JsonHeaders) -> HeadersLike:
    """Headers from their JSON."""
    if isinstance(told, dict):
        return {name: _header_of(value) for name, value in told.items()}
    return [(name, _header_of(value)) for name, value in told]


def _header_of(value: JsonHeader) -> HeaderValue:
    return value.base64 if isinstance(value, HeaderBytes) else value


def value_of(record: NewRecord, where: str = "") -> tuple[bytes | str | None, HeadersLike | None]:
    """The value as it is stored, and the headers with its content type."""
    headers = None if record.headers is None else headers_of(record.headers)
    if (record.value is UNSET) == (record.base64 is UNSET):
        raise InvalidInput(f"{where}a record has a 'value' (JSON) or 'base64' (bytes), one of them")
    if not isinstance(record.value, Raw):
        assert not isinstance(record.base64, UnsetType)
        return record.base64, headers
    data = bytes(record.value).strip(b" \t\r\n")
    if data.startswith(b'"'):
        try:
            return msgspec.json.decode(data, type=str), headers
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"{where}a text that is not valid Unicode: {error}") from error
    return data, _with_type(JSON, headers)


def _with_type(kind: str, headers: HeadersLike | None) -> HeadersLike:
    """Headers with a content type before them, unless they name one."""
    found = as_plain(headers or {})
    if isinstance(found, dict):
        return {CONTENT_TYPE: kind, **found}
    return found if CONTENT_TYPE in dict(found) else ((CONTENT_TYPE, kind), *found)


def key_of(record: NewRecord) -> bytes | str | None:
    """The key, from either form."""
    if record.key is not None and record.key_base64 is not None:
        raise InvalidInput("a key is text under 'key' or bytes under 'key_base64', not both")
    return record.key if record.key_base64 is None else record.key_base64


def item_of_raw(data: bytes, sent: dict[str, str]) -> Item:
    """A raw body as a record; its key, headers and timestamp are HTTP headers."""
    headers: HeadersLike = {}
    if told := sent.get("millstream-headers"):
        try:
            headers = headers_of(_decode_headers(told.encode()))
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise InvalidInput(
                f"Millstream-Headers is a JSON object, or an array of pairs: {error}"
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
    told = sent.get("millstream-null", "false").lower()
    if told not in ("true", "false") or (told == "true" and data):
        raise InvalidInput("Millstream-Null is true, beside an empty body, or false")
    return told == "true"


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def show_record(record: Record) -> ReadRecord:
    """A record as JSON shows it."""
    return ReadRecord(appended=record.appended, **_shown(record))


def show_message(message: Message) -> ReadMessage:
    """A message as JSON shows it."""
    return ReadMessage(
        claim=f"{message.claim_id}:{message.attempt}",
        claim_id=str(message.claim_id),
        attempt=message.attempt,
        log=message.log,
        until=message.until,
        reason=message.reason,
        damage=message.damage,
        **_shown(message),
    )


def media_type_of(headers: Headers) -> str:
    """The content type of a value, if it can stand in a header."""
    kind = headers.get(CONTENT_TYPE)
    if isinstance(kind, str) and _TYPE.fullmatch(kind) and "/" in kind:
        return kind
    return "application/octet-stream"


def _shown(found: Record | Message) -> dict[str, Any]:
    """What both have, by the name of its field."""
    shown: dict[str, Any] = {
        "offset": found.offset,
        "timestamp": found.timestamp,
        "headers": found.headers.shown(),
    }
    kind = found.headers.get(CONTENT_TYPE)
    value = found.value
    as_json = _as_json(value, kind) if isinstance(kind, str) and value is not None else None
    if as_json is not None:
        shown["value"] = as_json
    else:
        shown["base64"] = value
    if found.key is not None:
        try:
            shown["key"] = found.key.decode()
        except UnicodeDecodeError:
            shown["key_base64"] = found.key
    return shown


def _as_json(value: bytes, kind: str) -> Raw | None:
    """The value as JSON, if its content type says so and it is true."""
    try:
        if kind == TEXT or kind.lower() == "text/plain":
            return Raw(msgspec.json.encode(value.decode()))
        if _json_type.fullmatch(kind):
            return Raw(value) if is_json_text(value) else None
    except UnicodeDecodeError:
        pass  # bytes that are not what they are called come back as bytes
    return None
