"""Entries of the shared log: what they say, their bytes, and the chain that joins them.

    kind      body
    epoch     which node leads from here on, where it is reached, and at which delta its rows stand
    commit    what one commit or one fold does to the rows, and to the application's own tables
    barrier   nothing: it shows that its writer still led, and that nothing came in between
    chunk     a piece of the body of a large commit
    chunked   how many pieces there were, and how long they are together: it makes them true
    closed    nothing: no entry of this log follows, and the cluster goes on over another log

Every entry carries the hash of the one before it, so the last hash stands for the whole log.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

from millstream.engine.commit import Commit, Row
from millstream.errors import CorruptionError, Overloaded
from millstream.format import keys

EPOCH, COMMIT, BARRIER, CHUNK, CHUNKED, CLOSED = range(1, 7)

HASH_BYTES = 32
ID_BYTES = 16

CHUNK_BYTES_MAX = 512 * 1024
"""The longest body of one entry: a longer one travels in pieces."""

POSITION_EVERY = 64
"""A barrier whose sequence is a multiple of this is noted on disk, as every commit and epoch is."""


class Differs(Exception):
    """The shared log is not the one that this store has followed, or its rows are not the leader's."""


class SharedEntry(Struct, frozen=True, array_like=True):
    """One entry."""

    kind: int
    epoch: int
    id: bytes
    """Random: by it a node recognises what it has sent. The pieces of a commit share one."""
    previous: bytes
    """The hash of the entry before; nothing but zeros in the first one."""
    time_ms: int
    """The cluster's time, as its writer knew it."""
    wall_ms: int
    """The writer's wall clock."""
    body: bytes = b""


class EpochBody(Struct, frozen=True, array_like=True):
    """Which node leads from here on."""

    node: str
    address: str
    last_seq: int
    """The newest delta of its store: every node that applies this entry must stand there too."""


class TableChange(Struct, frozen=True, array_like=True):
    """What a transaction did to the application's own tables: a changeset, or a statement."""

    changeset: bytes = b""
    statement: str = ""
    """What changes the schema: changesets have only rows."""


class SharedCommit(Struct, frozen=True, array_like=True):
    """Everything that a commit does."""

    rows: list[Row] = []
    deletes: list[bytes] = []
    ranges: list[tuple[bytes, bytes]] = []
    tables: list[TableChange] = []


class ChunkedBody(Struct, frozen=True, array_like=True):
    """How many chunks there were, and their bytes."""

    chunks: int
    size: int


class Position(Struct, frozen=True, array_like=True):
    """How far a node has come in the shared log; a row of its store, the same on all nodes."""

    cluster: bytes = b""
    """The id of the first entry of all: which cluster this is."""
    sequence: int = 0
    epoch: int = 0
    hash: bytes = bytes(HASH_BYTES)
    leader: str = ""
    address: str = ""
    time_ms: int = 0
    wall_ms: int = 0
    closed: bool = False
    """Whether that entry has closed its log: the next one is in another."""

    def row(self) -> Row:
        """As it is stored."""
        return keys.CLUSTER_KEY, encode(self)


encode = msgspec.msgpack.Encoder().encode
_entries = msgspec.msgpack.Decoder(SharedEntry)
_positions = msgspec.msgpack.Decoder(Position)
_bodies: dict[type, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (EpochBody, SharedCommit, ChunkedBody)
}


def digest(data: bytes) -> bytes:
    """The hash of an entry's bytes."""
    return blake2b(data, digest_size=HASH_BYTES).digest()


def decode(sequence: int, data: bytes) -> SharedEntry:
    """Read an entry; raises `Differs` if it is none."""
    try:
        found = _entries.decode(data)
    except msgspec.MsgspecError as error:
        raise _unreadable(sequence, error) from error
    if not EPOCH <= found.kind <= CLOSED:
        raise Differs(
            f"entry {sequence} of the shared log has the kind {found.kind}, which this version does not "
            "know: a newer version leads. Upgrade this node, and it goes on from where it is"
        )
    return found


def decode_body(sequence: int, kind: type[Any], data: bytes) -> Any:
    """Read the body of an entry; raises `Differs` if it is none."""
    try:
        return _bodies[kind].decode(data)
    except msgspec.MsgspecError as error:
        raise _unreadable(sequence, error) from error


def decode_position(data: bytes | None) -> Position:
    """Read the row; without one, a store stands before the first entry."""
    if data is None:
        return Position()
    try:
        return _positions.decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"the cluster's row: {error}", what="row", where=0) from error


def _unreadable(sequence: int, why: object) -> Differs:
    return Differs(f"entry {sequence} of the shared log is not what was sent: {why}")


def pack(commit: Commit, tables: list[TableChange], *, bytes_max: int) -> bytes:
    """A commit as the body of an entry; `Overloaded` if it is larger than a shared log takes."""
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
    """A long body in pieces."""
    return [body[at : at + size] for at in range(0, len(body), size)]


def behind(position: Position, data: bytes, entry: SharedEntry) -> Position:
    """The position behind one more entry, which has these bytes."""
    leader, address = position.leader, position.address
    if entry.kind == EPOCH:
        body = decode_body(position.sequence + 1, EpochBody, entry.body)
        leader, address = body.node, body.address
    return Position(
        position.cluster or entry.id,
        position.sequence + 1,
        entry.epoch,
        digest(data),
        leader,
        address,
        entry.time_ms,
        entry.wall_ms,
        entry.kind == CLOSED,
    )


def closing(sequence: int, data: bytes) -> SharedEntry:
    """The entry that closes a log behind the last one, which has these bytes."""
    last = decode(sequence, data)
    name = secrets.token_bytes(ID_BYTES)
    return SharedEntry(CLOSED, last.epoch, name, digest(data), last.time_ms, last.wall_ms)


def is_noted(kind: int, sequence: int) -> bool:
    """Whether the position behind an entry is stored, unless chunks before it wait for their end."""
    if kind == BARRIER:
        return sequence % POSITION_EVERY == 0
    return kind != CHUNK
