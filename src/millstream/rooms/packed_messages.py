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
from millstream.rooms.names import PRESENT, check_key, check_type

TYPE, SENDER, ORIGIN, NUMBER, DELETED = "type", "from", "origin", "n", "deleted"
"""The headers of a message."""

NULL = b"null"
CLIENT_CHARS_MAX = 64

_encode = msgspec.msgpack.Encoder().encode


def pack_messages(
    messages: Sequence[RoomMessage], *, sender: str, origin: str, number: int | None
) -> Single | Batch:
    """Pack messages that a client sends at once."""
    if not messages:
        raise InvalidInput("there is no message to send")
    common: dict[str, Scalar] = {}
    if sender:
        common[SENDER] = check_sender(sender)
    if origin:
        common[ORIGIN] = check_client(origin)
    if number is not None:
        common[NUMBER] = check_integer("the number of a call", number)
    kinds = dict.fromkeys((message.type, message.deleted) for message in messages)
    headers = {kind: _headers(*kind, common) for kind in kinds}
    return pack(
        [NULL if message.deleted else check_data(message.data) for message in messages],
        [None if message.key is None else check_key(message.key) for message in messages],
        [headers[message.type, message.deleted] for message in messages],
    )


def pack(
    values: Sequence[bytes], keys: Sequence[bytes | None], headers: Sequence[bytes]
) -> Single | Batch:
    """Pack values, keys and headers that were checked before."""
    if len(values) == 1:
        return Single(values[0], keys[0], headers[0], None)
    has_keys = any(key is not None for key in keys)
    columns, metadata = block.encode_metadata(
        timestamps=None, keys=keys if has_keys else None, headers=headers
    )
    return batch_of(len(values), block.encode_values(values), columns, metadata, None)


def announcement(kind: str, users: Sequence[str]) -> Single | Batch:
    """Pack the messages about users who have come or left."""
    values = [msgspec.json.encode({"user": user}) for user in users]
    headers = [_encode({TYPE: kind, SENDER: user}) for user in users]
    return pack(values, [None] * len(users), headers)


def state_announcement(user: str, state: bytes) -> Single | Batch:
    """Pack the message about the state of a user's presence."""
    value = b'{"user":%b,"state":%b}' % (msgspec.json.encode(user), state or b"{}")
    return pack([value], [None], [_encode({TYPE: PRESENT, SENDER: user})])


def check_data(data: bytes) -> bytes:
    """Check the data of a message: JSON that every client can read."""
    check_json_text(data, "the data of a message")
    return bytes(data)


def data_of(value: Any) -> bytes:
    """Encode a JSON value as the data of a message."""
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
    """Return messages, given as messages or as tuples (type, data) or (type, data, key)."""
    return [
        message if isinstance(message, RoomMessage) else _message_of(message)
        for message in messages
    ]


def _message_of(fields: Any) -> RoomMessage:
    if not isinstance(fields, tuple | list) or len(fields) not in (2, 3):
        raise InvalidInput(
            f"a message is (type, data) or (type, data, key), or a RoomMessage; not {fields!r:.100}"
        )
    kind, data, *key = fields
    return RoomMessage(kind, data_of(data), *key)


def check_sender(user: str) -> str:
    """Check a user's name: 1 to 255 characters without control characters."""
    return check_name(user, "user")


def check_client(client: str) -> str:
    """Check the id of a client: 1 to 64 characters."""
    if len(check_name(client, "client")) > CLIENT_CHARS_MAX:
        raise InvalidInput(
            f"the id of a client has 1 to {CLIENT_CHARS_MAX} characters, not {len(client)}; "
            f"a name has up to {NAME_CHARS_MAX}"
        )
    return client


def _headers(kind: str, deleted: bool, common: dict[str, Scalar]) -> bytes:
    headers: dict[str, Scalar] = {TYPE: check_type(kind), **common}
    if deleted:
        headers[DELETED] = True
    return _encode(headers)
