"""The keys of rooms: settings, retained values, presence, and instances that serve rooms.

The table in `keys` lists the types of these records.
"""

from __future__ import annotations

import struct
from functools import partial

from millstream.format.encodings import KEY_U64, Reader, encode_terminated_bytes
from millstream.format.keys import (
    ATTENDANCE,
    DEPARTURE,
    INSTANCE,
    PRESENCE,
    RETAINED,
    ROOM,
    VERSION,
)

_ONE = struct.Struct(">BBQ")
_TWO = struct.Struct(">BBQQ")

_INSTANCE_PREFIX = bytes((VERSION, INSTANCE))
_PRESENCE_PREFIX = bytes((VERSION, PRESENCE))

room = partial(_ONE.pack, VERSION, ROOM)
"""Log id → the key of a room's settings and counts."""


def retained(log_id: int, kind: str, key: str = "") -> bytes:
    """Return the key of a retained value; without `key`, the prefix of all values of a type."""
    start = _ONE.pack(VERSION, RETAINED, log_id)
    return start + encode_terminated_bytes(kind.encode()) + key.encode()


def retained_parts(row_key: bytes) -> tuple[str, str]:
    """Return the type and the key of a retained value."""
    reader = Reader(row_key, "retained key")
    reader.position = _ONE.size
    kind = reader.terminated_bytes()
    return kind.decode(), row_key[reader.position :].decode()


def presence(log_id: int, user: str, instance: str, connection: str) -> bytes:
    """Return the key of a user's connection to a room."""
    end = encode_terminated_bytes(instance.encode()) + connection.encode()
    return presences(log_id, user) + end


def presences(log_id: int, user: str) -> bytes:
    """Return the prefix of all connections of a user to a room."""
    start = _ONE.pack(VERSION, PRESENCE, log_id)
    return start + encode_terminated_bytes(user.encode())


def presence_parts(key: bytes) -> tuple[int, str, str, str]:
    """Return log id, user, instance and connection."""
    reader = Reader(key, "presence key")
    reader.key_prefix(PRESENCE)
    log_id = reader.number(KEY_U64)
    user, instance_name = reader.terminated_bytes(), reader.terminated_bytes()
    connection = reader.take(reader.remaining)
    return log_id, user.decode(), instance_name.decode(), connection.decode()


def presence_user(key: bytes) -> str:
    """Return only the user, quickly: rooms with thousands of connections are listed."""
    end = key.index(b"\x00", _ONE.size)
    user = key[_ONE.size : end]
    return presence_parts(key)[1] if b"\x01" in user else user.decode()


def attendance(generation: int, presence_key: bytes) -> bytes:
    """Return the key under which a connection is listed by the generation of its instance."""
    return _ONE.pack(VERSION, ATTENDANCE, generation) + presence_key[2:]


def generation_of(key: bytes) -> int:
    """Return the generation under which a connection is listed."""
    return int.from_bytes(key[2 : _ONE.size], "big")


def attended(key: bytes) -> bytes:
    """Return the key of the presence that an attendance lists."""
    return _PRESENCE_PREFIX + key[_ONE.size :]


def departure(due_ms: int, presence_key: bytes) -> bytes:
    """Return the key under which a closed connection waits until it is deleted."""
    return _TWO.pack(VERSION, DEPARTURE, 0, due_ms) + presence_key[2:]


def departures(due_ms: int) -> tuple[bytes, bytes]:
    """Return the range of departures that are due at a time."""
    start = _TWO.pack(VERSION, DEPARTURE, 0, 0)
    return start, _TWO.pack(VERSION, DEPARTURE, 0, due_ms + 1)


def departed(key: bytes) -> bytes:
    """Return the key of the presence that a departure lists."""
    return _PRESENCE_PREFIX + key[_TWO.size :]


def instance(name: str) -> bytes:
    """Return the key of an instance; with an empty name, the prefix of all instances."""
    return _INSTANCE_PREFIX + name.encode()
