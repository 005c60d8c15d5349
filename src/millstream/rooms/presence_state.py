"""The state of a user's presence, such as `{"typing": true}`: its rules, and who is shown with what.

Each connection of a user has a state of its own, because a user may have two pages open. The user is
shown with the state that was set last. If that connection ends, the state goes with it, and the user
is shown with the state that was set before by another connection.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from millstream.errors import CorruptionError, InvalidInput, TooLarge
from millstream.format.json_text import check_json_text

STATE_BYTES_MAX = 1_024
"""Bytes of a state as JSON: every joiner gets the states of the first hundred users."""

NO_STATE = b""


class Connection(Struct, array_like=True, frozen=True):
    """The value of a presence row."""

    client: str
    since_ms: int
    generation: int
    due_ms: int = 0
    """When the row is deleted, in store time; 0 for an open connection."""
    state: bytes = NO_STATE
    """The state of the connection: a JSON object; empty without a state."""
    turn: int = 0
    """Counts the states that the user has set; 0 before the first state of the connection."""


_decode = msgspec.msgpack.Decoder(Connection).decode
encode_connection = msgspec.msgpack.Encoder().encode


def decode_connection(key: bytes, value: bytes) -> Connection:
    """Decode a presence row's value."""
    try:
        return _decode(value)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"a presence: {error}", what="presence", where=key.hex()) from error


def check_state(data: bytes) -> bytes:
    """Check a state: a small JSON object. Return it, empty for `{}` and `null`."""
    if len(data) > STATE_BYTES_MAX:
        raise TooLarge(
            f"the state of a presence has {len(data):,} bytes; the limit is {STATE_BYTES_MAX:,}; "
            "send larger values as messages",
            size=len(data),
            limit=STATE_BYTES_MAX,
        )
    check_json_text(data, "the state of a presence")
    value = msgspec.json.decode(data)
    if value is not None and not isinstance(value, dict):
        raise InvalidInput(
            'the state of a presence is a JSON object, such as {"typing": true}, or null; '
            f"not {data.decode()!r:.100}"
        )
    return bytes(data) if value else NO_STATE


def shown_state(connections: Iterable[Connection]) -> tuple[int, bytes]:
    """Return the last turn of a user's connections, and the state that was set in it."""
    return max(((each.turn, each.state) for each in connections), default=(0, NO_STATE))
