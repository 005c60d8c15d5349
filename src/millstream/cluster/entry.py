"""Entries of the shared log: contents, bytes, and the chain of hashes between entries.

    kind      body
    epoch     the node that leads from here on, its address, and the delta at which its rows stand
    commit    the effect of a commit or a fold on the rows, and on the application's own tables
    barrier   empty: it shows that its writer still led, and that no entry came in between
    chunk     a piece of the body of a large commit
    chunked   the number of pieces, and their total size: it completes the commit
    closed    empty: no entry of this log follows, and the cluster continues over another log

Every entry carries the hash of the entry before, so the last hash identifies the complete log.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

from millstream.engine.commit import Commit, Row
from millstream.engine.protocol import TableChange
from millstream.errors import CorruptionError, Overloaded
from millstream.format import keys

EPOCH, COMMIT, BARRIER, CHUNK, CHUNKED, CLOSED = range(1, 7)

HASH_BYTES = 32
ID_BYTES = 16

CHUNK_BYTES_MAX = 512 * 1024
"""The longest body of an entry: a longer body travels in pieces."""

POSITION_EVERY = 64
"""A barrier is noted on disk if its sequence is a multiple of this; commits and epochs always are.
"""


class Differs(Exception):
    """The shared log is not the log of this store, or its rows differ from the leader's."""


class SharedEntry(Struct, frozen=True, array_like=True):
    """An entry of the shared log."""

    kind: int
    epoch: int
    id: bytes
    """Random: a node recognises its own entries by it. The pieces of a commit share an id."""
    previous: bytes
    """The hash of the entry before; zeros in the first entry."""
    time_ms: int
    """The cluster's time at the writer."""
    wall_ms: int
    """The writer's wall clock."""
    body: bytes = b""


class EpochBody(Struct, frozen=True, array_like=True):
    """The body of an epoch: the node that leads from here on."""

    node: str
    address: str
    last_seq: int
    """The newest delta of the leader's store. A node that applies this entry must have an equal
    delta."""


class SharedCommit(Struct, frozen=True, array_like=True):
    """All effects of a commit."""

    rows: list[Row] = []
    deletes: list[bytes] = []
    ranges: list[tuple[bytes, bytes]] = []
    tables: list[TableChange] = []


class ChunkedBody(Struct, frozen=True, array_like=True):
    """The number of chunks, and their total size in bytes."""

    chunks: int
    size: int


class Position(Struct, frozen=True, array_like=True):
    """A node's position in the shared log; a row of its store, identical on all nodes."""

    cluster: bytes = b""
    """The id of the very first entry: it identifies the cluster."""
    sequence: int = 0
    epoch: int = 0
    hash: bytes = bytes(HASH_BYTES)
    leader: str = ""
    address: str = ""
    time_ms: int = 0
    wall_ms: int = 0
    closed: bool = False
    """Whether the entry at this position has closed its log: the next entry is in another log."""

    def row(self) -> Row:
        """Return the position as a row."""
        return keys.CLUSTER_KEY, encode(self)


encode = msgspec.msgpack.Encoder().encode
_entries = msgspec.msgpack.Decoder(SharedEntry)
_positions = msgspec.msgpack.Decoder(Position)
_bodies: dict[type, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (EpochBody, SharedCommit, ChunkedBody)
}


def digest(data: bytes) -> bytes:
    """Return the hash of an entry's bytes."""
    return blake2b(data, digest_size=HASH_BYTES).digest()


def decode(sequence: int, data: bytes) -> SharedEntry:
    """Decode an entry. Raises `Differs` for other bytes."""
    try:
        entry = _entries.decode(data)
    except msgspec.MsgspecError as error:
        raise _unreadable(sequence, error) from error
    if not EPOCH <= entry.kind <= CLOSED:
        raise Differs(
            f"entry {sequence} of the shared log has the kind {entry.kind}, which this version does not "
            "know: a newer version leads. Upgrade this node, and it goes on from where it is"
        )
    return entry


def decode_body(sequence: int, kind: type[Any], data: bytes) -> Any:
    """Decode the body of an entry. Raises `Differs` for other bytes."""
    try:
        return _bodies[kind].decode(data)
    except msgspec.MsgspecError as error:
        raise _unreadable(sequence, error) from error


def decode_position(data: bytes | None) -> Position:
    """Decode the row; a store without a row stands before the first entry."""
    if data is None:
        return Position()
    try:
        return _positions.decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"the cluster's row: {error}", what="row", where=0) from error


def _unreadable(sequence: int, why: object) -> Differs:
    return Differs(f"entry {sequence} of the shared log is not what was sent: {why}")


def pack(commit: Commit, tables: list[TableChange], *, bytes_max: int) -> bytes:
    """Encode a commit as the body of an entry. Raises `Overloaded` if it exceeds the limit."""
    size = sum(len(value) for _, value in commit.rows)
    size += sum(len(change.changeset) for change in tables)
    if size > bytes_max:
        raise Overloaded(
            f"{size:,} bytes in one commit, and a cluster's shared log takes {bytes_max:,}: nothing "
            "was stored; send less at once",
            size=size,
            limit=bytes_max,
        )
    return encode(
        SharedCommit(list(commit.rows), list(commit.deletes), list(commit.ranges), tables)
    )


def cut(body: bytes, size: int) -> list[bytes]:
    """Cut a long body into pieces."""
    return [body[at : at + size] for at in range(0, len(body), size)]


def behind(position: Position, data: bytes, entry: SharedEntry) -> Position:
    """Return the position behind an entry with these bytes."""
    leader, address = position.leader, position.address
    if entry.kind == EPOCH:
        body = decode_body(position.sequence + 1, EpochBody, entry.body)
        leader, address = body.node, body.address
    return Position(
        cluster=position.cluster or entry.id,
        sequence=position.sequence + 1,
        epoch=entry.epoch,
        hash=digest(data),
        leader=leader,
        address=address,
        time_ms=entry.time_ms,
        wall_ms=entry.wall_ms,
        closed=entry.kind == CLOSED,
    )


def closing(sequence: int, data: bytes) -> SharedEntry:
    """Return the entry that closes a log behind the last entry with these bytes."""
    last = decode(sequence, data)
    name = secrets.token_bytes(ID_BYTES)
    return SharedEntry(
        kind=CLOSED,
        epoch=last.epoch,
        id=name,
        previous=digest(data),
        time_ms=last.time_ms,
        wall_ms=last.wall_ms,
    )


def is_noted(kind: int, sequence: int) -> bool:
    """Whether the position behind an entry is stored, unless chunks wait for their last piece."""
    if kind == BARRIER:
        return sequence % POSITION_EVERY == 0
    return kind != CHUNK
