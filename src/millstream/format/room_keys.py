"""The keys of rooms: their settings, retained values, presence, and the instances that serve them.

The types of these records stand in the table of `keys`, which has the keys of everything else.
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
    """The key of a room's latest value of a type; without a key, also the prefix of all of them."""
    start = _ONE.pack(VERSION, RETAINED, log_id)
    return start + encode_terminated_bytes(kind.encode()) + key.encode()


def retained_parts(found: bytes) -> tuple[str, str]:
    """The type and the key of a retained value."""
    reader = Reader(found, "retained key")
    reader.position = _ONE.size
    kind = reader.terminated_bytes()
    return kind.decode(), found[reader.position :].decode()


def presence(log_id: int, user: str, instance: str, connection: str) -> bytes:
    """The key of one connection of a user to a room."""
    end = encode_terminated_bytes(instance.encode()) + connection.encode()
    return presences(log_id, user) + end


def presences(log_id: int, user: str) -> bytes:
    """The prefix of all connections of a user to a room."""
    start = _ONE.pack(VERSION, PRESENCE, log_id)
    return start + encode_terminated_bytes(user.encode())


def presence_parts(key: bytes) -> tuple[int, str, str, str]:
    """The log's id, the user, the instance and the connection."""
    reader = Reader(key, "presence key")
    reader.key_prefix(PRESENCE)
    log_id = reader.number(KEY_U64)
    user, instance_name = reader.terminated_bytes(), reader.terminated_bytes()
    connection = reader.take(reader.remaining)
    return log_id, user.decode(), instance_name.decode(), connection.decode()


def presence_user(key: bytes) -> str:
    """The user alone: rooms with thousands of connections are listed."""
    end = key.index(b"\x00", _ONE.size)
    user = key[_ONE.size : end]
    return presence_parts(key)[1] if b"\x01" in user else user.decode()


def attendance(generation: int, presence_key: bytes) -> bytes:
    """The key under which a connection is listed by who keeps it up."""
    return _ONE.pack(VERSION, ATTENDANCE, generation) + presence_key[2:]


def generation_of(key: bytes) -> int:
    """The generation under which a connection is listed."""
    return int.from_bytes(key[2 : _ONE.size], "big")


def attended(key: bytes) -> bytes:
    """The key of the presence that is listed so."""
    return _PRESENCE_PREFIX + key[_ONE.size :]


def departure(due_ms: int, presence_key: bytes) -> bytes:
    """The key under which a connection that was left waits until it is forgotten."""
    return _TWO.pack(VERSION, DEPARTURE, 0, due_ms) + presence_key[2:]


def departures(due_ms: int) -> tuple[bytes, bytes]:
    """The range of all that are due at a time."""
    start = _TWO.pack(VERSION, DEPARTURE, 0, 0)
    return start, _TWO.pack(VERSION, DEPARTURE, 0, due_ms + 1)


def departed(key: bytes) -> bytes:
    """The key of the presence that waits so."""
    return _PRESENCE_PREFIX + key[_TWO.size :]


def instance(name: str) -> bytes:
    """The key of an instance; with an empty name, the prefix of all."""
    return _INSTANCE_PREFIX + name.encode()
