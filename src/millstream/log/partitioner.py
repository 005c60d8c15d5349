"""Spreading: chooses the partition of each record, and makes a batch for each partition; without I/O.

The key of a record determines its partition. The records of a call without keys go to one partition
together, and those of the next call to the next partition, so that batches stay large.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from millstream.errors import InvalidInput
from millstream.format.packing import (
    Batch,
    Single,
    check_columns,
    pack_key,
    pack_many,
    pack_single,
)
from millstream.header import HeadersLike
from millstream.limits import Limits
from millstream.log import commands as c
from millstream.log.model.names import check_name
from millstream.partitioning import PARTITIONS_MAX, key_partition, partition_name
from millstream.record import Item, PartitionOffset, Producer


class SpreadRecords:
    """The records of a call, with a batch for each target partition."""

    def __init__(
        self, log: str, targets: Sequence[int], batches: dict[int, Single | Batch]
    ) -> None:
        self._targets = targets
        self._numbers = list(batches)
        self.appends = [
            c.Append(partition_name(log, number), records) for number, records in batches.items()
        ]
        """The append for each target partition."""

    def places(self, firsts: Sequence[int]) -> list[PartitionOffset]:
        """Return the partition and offset of each record, from the first offsets of the appends."""
        following = dict(zip(self._numbers, firsts, strict=True))
        offsets = []
        for number in self._targets:
            offset = following[number]
            following[number] = offset + 1
            offsets.append(PartitionOffset(number, offset))
        return offsets


class Spreader:
    """Chooses partitions; for any thread."""

    def __init__(self, log: str, partitions: int) -> None:
        if type(partitions) is not int or not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidInput(f"a log has 1 to {PARTITIONS_MAX:,} partitions, not {partitions!r}")
        self.log = check_name(log)
        self.partitions = partitions
        self._turns = count(
            random.randrange(partitions)
        )  # a random start, so that short-lived handles also spread

    def check(self, partition: int) -> int:
        """Return a valid partition number; raise otherwise."""
        if type(partition) is not int or not 0 <= partition < self.partitions:
            raise InvalidInput(
                f"log {self.log!r} has the partitions 0 to {self.partitions - 1}, not {partition!r}"
            )
        return partition

    def of_key(self, key: bytes | str, limits: Limits) -> int:
        """Return the partition of a key."""
        return key_partition(pack_key(key, limits), self.partitions)

    def turn(self) -> int:
        """Return the partition of the next records without a key."""
        return next(self._turns) % self.partitions

    def one(
        self,
        value: Any,
        *,
        key: bytes | str | None,
        headers: HeadersLike | None,
        timestamp: int | None,
        partition: int | None,
        producer: Producer | None,
        limits: Limits,
    ) -> tuple[int, c.Append]:
        """Return the partition of a record, and the command that appends the record."""
        record = pack_single(value, key=key, headers=headers, timestamp=timestamp, limits=limits)
        if partition is not None:
            number = self.check(partition)
        elif record.key is not None:
            number = key_partition(record.key, self.partitions)
        elif producer is None:
            number = self.turn()
        else:
            raise InvalidInput(
                "a producer counts its appends to one partition, so that a repeat must go where "
                "the first went: name a key, or the partition"
            )
        return number, c.Append(partition_name(self.log, number), record, None, producer)

    def many(
        self,
        values: Iterable[Any],
        *,
        keys: Sequence[bytes | str | None] | None,
        headers: Sequence[HeadersLike | None] | None,
        timestamps: Sequence[int] | int | None,
        limits: Limits,
    ) -> SpreadRecords:
        """Return the records with a batch for each target partition."""
        if isinstance(values, str | bytes | bytearray | memoryview):
            raise InvalidInput("append_many takes several values; append takes one")
        rows = values if isinstance(values, list | tuple) else list(values)
        check_columns(len(rows), keys=keys, headers=headers, timestamps=timestamps)
        record_keys = keys
        if rows and isinstance(rows[0], Item):
            if not all(isinstance(row, Item) for row in rows):
                raise InvalidInput("a batch is all items or all values")
            if keys is None:
                record_keys = [row.key for row in rows]
        targets = self._targets(len(rows), record_keys, limits)
        indexes: dict[int, list[int]] = {}
        for index, number in enumerate(targets):
            indexes.setdefault(number, []).append(index)
        batches = {}
        for number, chosen in indexes.items():
            packed = pack_many(
                _picked(rows, chosen),
                keys=_picked(keys, chosen),
                headers=_picked(headers, chosen),
                timestamps=_picked(timestamps, chosen),
                limits=limits,
            )
            assert packed is not None
            batches[number] = packed
        return SpreadRecords(self.log, targets, batches)

    def _targets(
        self, size: int, keys: Sequence[bytes | str | None] | None, limits: Limits
    ) -> list[int]:
        if not size:
            return []
        turn = self.turn() if keys is None or None in keys else 0
        if keys is None:
            return [turn] * size
        return [turn if key is None else self.of_key(key, limits) for key in keys]


def _picked(column: Any, chosen: list[int]) -> Any:
    """Return the chosen rows of a column; a value that is no column applies to every row."""
    if column is None or not isinstance(column, Sequence) or len(column) == len(chosen):
        return column
    return [column[index] for index in chosen]
