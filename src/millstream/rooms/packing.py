"""Messages of a room as records: packed and checked on the caller's thread; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from millstream.errors import InvalidInput
from millstream.format import block
from millstream.format.json_text import check_json_text
from millstream.format.packing import JSON, Batch, Single, batch_of, pack_value
from millstream.header import Scalar
from millstream.limits import NAME_CHARS_MAX
from millstream.log.model.names import check_integer, check_name
from millstream.rooms.model import RoomMessage
from millstream.rooms.names import check_key, check_type

TYPE, SENDER, ORIGIN, NUMBER, DELETED = "type", "from", "origin", "n", "deleted"
"""The headers of a message."""

NULL = b"null"
CLIENT_CHARS_MAX = 64

_encode = msgspec.msgpack.Encoder().encode


def pack_messages(
    messages: Sequence[RoomMessage], *, sender: str, origin: str, number: int | None
) -> Single | Batch:
    """The records of messages that one client sends at once."""
    if not messages:
        raise InvalidInput("there is no message to send")
    common: dict[str, Scalar] = {}
    if sender:
        common[SENDER] = check_sender(sender)
    if origin:
        common[ORIGIN] = check_client(origin)
    if number is not None:
        common[NUMBER] = check_integer("the number of a call", number)
    kinds = dict.fromkeys((one.type, one.deleted) for one in messages)
    headers = {kind: _headers(*kind, common) for kind in kinds}
    return pack(
        [NULL if one.deleted else check_data(one.data) for one in messages],
        [None if one.key is None else check_key(one.key) for one in messages],
        [headers[one.type, one.deleted] for one in messages],
    )


def pack(
    values: Sequence[bytes], keys: Sequence[bytes | None], headers: Sequence[bytes]
) -> Single | Batch:
    """Records of what is checked already."""
    if len(values) == 1:
        return Single(values[0], keys[0], headers[0], None)
    has_keys = any(key is not None for key in keys)
    columns, metadata = block.encode_metadata(
        timestamps=None, keys=keys if has_keys else None, headers=headers
    )
    return batch_of(len(values), block.encode_values(values), columns, metadata, None)


def announcement(kind: str, users: Sequence[str]) -> Single | Batch:
    """The records that tell of users who have come or gone."""
    values = [msgspec.json.encode({"user": user}) for user in users]
    headers = [_encode({TYPE: kind, SENDER: user}) for user in users]
    return pack(values, [None] * len(users), headers)


def check_data(data: bytes) -> bytes:
    """The data of a message: JSON that every client can read."""
    check_json_text(data, "the data of a message")
    return bytes(data)


def data_of(value: Any) -> bytes:
    """The data of a message, from a JSON value."""
    data, kind = pack_value(value)
    return data if kind == JSON else msgspec.json.encode(_text_of(value))


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise InvalidInput(
        f"the data of a message is a JSON value, not {type(value).__name__}; text, or base64 of "
        "bytes, can be sent"
    )


def messages_of(messages: Iterable[RoomMessage | Sequence[Any]]) -> list[RoomMessage]:
    """Messages, from themselves or from tuples of a type, data and perhaps a key."""
    return [one if isinstance(one, RoomMessage) else _message_of(one) for one in messages]


def _message_of(parts: Any) -> RoomMessage:
    if not isinstance(parts, tuple | list) or len(parts) not in (2, 3):
        raise InvalidInput(
            f"a message is (type, data) or (type, data, key), or a RoomMessage; not {parts!r:.100}"
        )
    kind, data, *key = parts
    return RoomMessage(kind, data_of(data), *key)


def check_sender(user: str) -> str:
    """A user's name: 1 to 255 characters, none of them a control character."""
    return check_name(user, "user")


def check_client(client: str) -> str:
    """The id of a client, which it has chosen: 1 to 64 characters."""
    if len(check_name(client, "client")) > CLIENT_CHARS_MAX:
        raise InvalidInput(
            f"the id of a client has 1 to {CLIENT_CHARS_MAX} characters, not {len(client)}; "
            f"a name has up to {NAME_CHARS_MAX}"
        )
    return client


def _headers(kind: str, deleted: bool, common: dict[str, Scalar]) -> bytes:
    found: dict[str, Scalar] = {TYPE: check_type(kind), **common}
    if deleted:
        found[DELETED] = True
    return _encode(found)
