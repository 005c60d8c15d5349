"""Entities: the small states that commits change, each with a record of its own.

An entity is loaded from its record, altered by changes, and written back by the fold. The record
carries the sequence of its last commit (`lsn`), so that a replay skips older changes. `apply` is a pure
rule: no clock, no I/O, the same result on every machine. The change None removes an entity. A tombstone
replaces the record while older deltas of the removed entity exist, and keeps the sequence up to which
a replay skips these deltas.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import cache
from typing import Any, ClassVar, Self

import msgspec
from msgspec import Struct

from millstream.engine.protocol import Snapshot
from millstream.errors import CorruptionError


class Entity(Struct, array_like=True):
    """The base class: subclasses add fields behind `lsn`, and declare their changes."""

    lsn: int = 0

    changes: ClassVar[Any] = None
    """The type, or union of tagged types, that `apply` accepts."""

    computed: ClassVar[tuple[type, ...]] = ()
    """Types of changes that hold only computed numbers and checked text.

    Such changes are certain to be readable, and are not decoded for a check before a commit."""

    weight: ClassVar[int] = 1
    """The most memory of an entity, in units of a simple entity; bounds the entities in memory."""

    def apply(self, change: Any) -> None:
        """Apply a change, which the rules have checked before."""
        raise TypeError(f"{type(self).__name__} takes no changes")

    def exists(self) -> bool:
        """Return whether the entity has a record; a blank entity has none."""
        return True

    def view(self) -> Any:
        """Return a frozen value for readers without a lock; None if readers see nothing."""
        return None

    def effort(self) -> int:
        """Return the work to write the record, in units of a simple record; bounds a slice of the fold."""
        return self.weight

    def is_settled(self) -> bool:
        """Return whether the entity rarely changes again, and should leave memory after the fold."""
        return False

    def encode(self) -> bytes:
        """Encode the record, for `decode`."""
        return _encode(self)

    def copied(self) -> Self:
        """Return an independent copy, for entities whose containers hold only values that never change."""
        duplicate = copy(self)
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if type(value) not in _IMMUTABLE:
                setattr(duplicate, name, copy(value))
        return duplicate

    @classmethod
    def blank(cls) -> Self:
        """Return an entity that does not exist."""
        return cls()

    @classmethod
    def gone(cls, lsn: int) -> Self:
        """Return a removed entity, for which changes up to a delta are skipped."""
        entity = cls.blank()
        entity.lsn = lsn
        return entity

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a record."""
        return msgspec.msgpack.decode(data, type=cls)

    @classmethod
    def decode_change(cls, data: bytes | msgspec.Raw) -> Any:
        """Decode a change from the bytes in a delta."""
        return _changes(cls).decode(data)

    @classmethod
    def load(cls, key: bytes, snapshot: Snapshot) -> Self:
        """Load the entity from its record; without a record, return a blank entity."""
        data = snapshot.get(key)
        if data is None:
            return cls.blank()
        try:
            if data[:1] == _TOMBSTONE:
                return cls.gone(msgspec.msgpack.decode(data, type=int))
            if data[:1] == _LOST:
                raise _lost(key, data)
            return cls.decode(data)
        except msgspec.MsgspecError as error:
            raise CorruptionError(
                f"{cls.__name__} {key.hex()}: {error}", what=cls.__name__, where=key.hex()
            ) from error


def tombstone(lsn: int) -> bytes:
    """Encode the tombstone of a removed entity: a MessagePack u64."""
    return _TOMBSTONE + lsn.to_bytes(8, "big")


def lost(lsn: int) -> bytes:
    """Encode the mark in place of a damaged record whose later changes were folded.

    The changes are lost with the record. Therefore the old record must never be read again, even if
    only memory was damaged and the disk still had the record without these changes.
    """
    return _LOST + lsn.to_bytes(8, "big")


def _lost(key: bytes, data: bytes) -> CorruptionError:
    return CorruptionError(
        f"it was damaged, and changes up to commit {int.from_bytes(data[1:], 'big')} could not be "
        "added to it; put back a copy of the store, or copy what can be read to a new one",
        what="row",
        where=key.hex(),
    )


_IMMUTABLE = frozenset({int, float, bool, str, bytes, tuple, type(None)})
_TOMBSTONE = b"\xcf"
_LOST = b"\xc1"
"""An invalid first byte in MessagePack, so that older versions report damage."""
_encode = msgspec.msgpack.Encoder().encode


@cache
def _changes(kind: type[Entity]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind.changes | None)


Kinds = Mapping[int, type[Entity]]
"""The type of a record → the class of its entities; every part of the program declares entities."""
