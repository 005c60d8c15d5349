"""Entities: the small states that commits change, each with a record of its own.

An entity is loaded from its record, moved by changes, and written back by the fold. Its record
carries the sequence of the last commit that is in it (`lsn`), so a replay skips what it has
already seen. `apply` is a pure rule: no clock, no I/O, the same result on every machine. The change
None removes any entity: it is then as if it had never been. While deltas of its past life are still
there, a tombstone in place of its record keeps the sequence up to which they are to be skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Self

import msgspec
from msgspec import Struct

from millstream.engine.protocol import Snapshot
from millstream.errors import CorruptionError


class Entity(Struct, array_like=True):
    """The base: subclasses add fields behind `lsn`, and say which changes they take."""

    lsn: int = 0

    changes: ClassVar[Any] = None
    """The type, or union of tagged types, that `apply` accepts."""

    computed: ClassVar[tuple[type, ...]] = ()
    """Of these changes, those that are made of nothing but numbers which rules have computed, and
    text that they have checked: they need no second look before they are written."""

    weight: ClassVar[int] = 1
    """How much memory it takes at most, in simple entities: bounds what is kept in memory."""

    def apply(self, change: Any) -> None:
        """Move to the next state; a rule that was checked before the change was made."""
        raise TypeError(f"{type(self).__name__} takes no changes")

    def exists(self) -> bool:
        """Whether it has a record at all; a blank one has none."""
        return True

    def view(self) -> Any:
        """What readers may see of it between commits, as a frozen value; None for nothing."""
        return None

    def effort(self) -> int:
        """How much work its record is to write, in simple records: bounds a slice of the fold."""
        return self.weight

    def is_settled(self) -> bool:
        """Whether it hardly ever changes again: then it leaves memory once its record is written."""
        return False

    def encode(self) -> bytes:
        """The bytes of its record, as the fold writes them and `decode` reads them."""
        return _encode(self)

    def copied(self) -> Self:
        """One of its own, to be changed without changing this one."""
        return self.decode(self.encode()) if self.exists() else self.gone(self.lsn)

    @classmethod
    def blank(cls) -> Self:
        """One that does not exist."""
        return cls()

    @classmethod
    def gone(cls, lsn: int) -> Self:
        """One that was removed: the changes of its past life, up to a delta, count no more."""
        found = cls.blank()
        found.lsn = lsn
        return found

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read it from the bytes of its record."""
        return msgspec.msgpack.decode(data, type=cls)

    @classmethod
    def decode_change(cls, data: bytes | msgspec.Raw) -> Any:
        """Read one of its changes from the bytes in a delta."""
        return _changes(cls).decode(data)

    @classmethod
    def load(cls, key: bytes, snapshot: Snapshot) -> Self:
        """Read it from its record; without one, an entity that does not exist yet."""
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
    """What stands in place of the record of an entity that is gone: a MessagePack u64."""
    return _TOMBSTONE + lsn.to_bytes(8, "big")


def lost(lsn: int) -> bytes:
    """What stands in place of a record that was damaged when a commit that changes it was folded.

    What it held is gone, and so are those changes. So it must never be read again, also if the
    damage was in memory, and the disk still had the record as it was before them.
    """
    return _LOST + lsn.to_bytes(8, "big")


def _lost(key: bytes, data: bytes) -> CorruptionError:
    return CorruptionError(
        f"it was damaged, and changes up to commit {int.from_bytes(data[1:], 'big')} could not be "
        "added to it; put back a copy of the store, or copy what can be read to a new one",
        what="row",
        where=key.hex(),
    )


_TOMBSTONE = b"\xcf"
_LOST = b"\xc1"
"""No MessagePack begins so: versions that do not know it take it for damage as well."""
_encode = msgspec.msgpack.Encoder().encode


@cache
def _changes(kind: type[Entity]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind.changes | None)


Kinds = Mapping[int, type[Entity]]
"""Record type → its entities; the parts that make up a store hand theirs in."""
