"""Looking: which queues take the records of some ranges; what a task of the pipeline `route` does.

Only the metadata of records is read. Filters are asked in Python, block by block. Where only some
texts of one header can match a filter, only the records that have one of these are asked. What
matches is answered as runs of offsets, so that a queue that takes everything costs no more than one
that takes nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from msgspec import Struct

from millstream.filters import Filter, parse
from millstream.log.model.block import RecordBlock
from millstream.queue.service.decoding import TextIndex
from millstream.spark.options import ReadOptions
from millstream.spark.place import reading
from millstream.spark.source.bins import Range
from millstream.spark.source.columns import DecodedBlock
from millstream.spark.source.losses import Loss, warn
from millstream.spark.source.task import blocks_of

if TYPE_CHECKING:
    from millstream.header import Scalar

OFFSETS_KEPT = 8_192
"""Offsets of one queue that wait in a task to be joined to runs."""

T = TypeVar("T")


class Interest(Struct, frozen=True, array_like=True):
    """A queue that takes from a log, and its filter; without one it takes everything."""

    queue: str
    filter: str


class Runs(Struct, frozen=True, array_like=True):
    """Runs of neighbouring offsets, in order: the first of each, and how many they are."""

    firsts: bytes
    counts: bytes

    def pairs(self) -> list[tuple[int, int]]:
        """Each run as its first offset and its length."""
        return list(zip(_numbers(self.firsts), _numbers(self.counts), strict=True))


class RangeLook(Struct, frozen=True, array_like=True):
    """What a task found in one range: the runs of each queue that takes any of it."""

    log: str
    taken: dict[str, Runs]


class TaskAnswer(Struct, frozen=True, array_like=True):
    """What a task found in its ranges, in order, and what it could not read."""

    looked: list[RangeLook]
    lost: list[Loss]


def look_at(
    options: ReadOptions, wanted: Sequence[Range], interests: Mapping[str, Sequence[Interest]]
) -> TaskAnswer:
    """Ask the filters of each log's queues about the records of ranges."""
    answer = TaskAnswer([], [])
    tell = warn if options.fail_on_data_loss else answer.lost.append
    with reading(options.place) as session:
        for one in wanted:
            takers = [_Taker(interest) for interest in interests.get(one.log, ())]
            for block in blocks_of(session, options, one, values=False, tell=tell):
                records = _Records(block, trusted=not options.place.is_server)
                for taker in takers:
                    taker.take(records)
            taken = {taker.queue: taker.runs() for taker in takers if taker.has_any()}
            answer.looked.append(RangeLook(one.log, taken))
    return answer


class _Records:
    """The records of a block, decoded as far as filters ask for them."""

    def __init__(self, block: RecordBlock, *, trusted: bool) -> None:
        self._block = block
        self._piece = DecodedBlock(block, trusted=trusted)
        self._columns: dict[str, Any] = {}
        self.first = block.first_offset
        self.count = block.count

    def matching(self, condition: Filter) -> list[int]:
        """Which of them match, counted from the first."""
        if condition.anchor is None:
            some: Sequence[int] = range(self.count)
            headers: Sequence[Mapping[str, Scalar]] = self._headers
        else:
            some = self._texts.having(*condition.anchor)
            headers = [self._headers[i] for i in some]
        metadata = self._piece.metadata
        matched = condition.match_many(
            headers,
            keys=self._picked(condition, "_key", metadata.keys, some),
            timestamps=self._picked(condition, "_timestamp", metadata.timestamps, some),
            log=self._block.log,
            valid=self._picked(condition, "_value", metadata.valid, some),
        )
        return list(compress(some, matched))

    def _picked(
        self,
        condition: Filter,
        field: str,
        ask: Callable[[int, int], Sequence[T] | None],
        some: Sequence[int],
    ) -> Sequence[T] | None:
        """A column at some records, if the filter names its field; None if it says nothing."""
        if field not in condition.fields:
            return None
        if field not in self._columns:
            self._columns[field] = ask(self._block.skip, self.count)
        column: Sequence[T] | None = self._columns[field]
        return column if column is None or len(some) == self.count else [column[i] for i in some]

    @cached_property
    def _headers(self) -> list[dict[str, Scalar]]:
        return self._piece.visible_headers()

    @cached_property
    def _texts(self) -> TextIndex:
        return TextIndex(self._headers)


class _Taker:
    """One queue, and what it takes of a range."""

    def __init__(self, interest: Interest) -> None:
        self.queue = interest.queue
        self._condition = parse(interest.filter) if interest.filter else None
        self._waiting = array("q")
        self._firsts = array("q")
        self._counts = array("q")

    def take(self, records: _Records) -> None:
        """Take what matches of a block."""
        if self._condition is None:
            self._add(records.first, records.count)
            return
        first = records.first
        self._waiting.extend([first + at for at in records.matching(self._condition)])
        if len(self._waiting) >= OFFSETS_KEPT:
            self._join()

    def has_any(self) -> bool:
        """Whether anything matched."""
        return bool(self._firsts or self._waiting)

    def runs(self) -> Runs:
        """All that it took."""
        self._join()
        return Runs(self._firsts.tobytes(), self._counts.tobytes())

    def _join(self) -> None:
        """Make runs of the offsets that wait."""
        if not self._waiting:
            return
        found = np.frombuffer(self._waiting, dtype=np.int64)
        starts = np.flatnonzero(np.diff(found, prepend=found[0] - 2) != 1)
        counts = np.diff(starts, append=len(found))
        firsts = found[starts]
        self._add(int(firsts[0]), int(counts[0]))
        self._firsts.frombytes(firsts[1:].tobytes())
        self._counts.frombytes(counts[1:].astype(np.int64).tobytes())
        self._waiting = array("q")

    def _add(self, first: int, count: int) -> None:
        """Add a run, or make the last one longer."""
        if self._firsts and self._firsts[-1] + self._counts[-1] == first:
            self._counts[-1] += count
            return
        self._firsts.append(first)
        self._counts.append(count)


def _numbers(data: bytes) -> list[int]:
    found: list[int] = array("q", data).tolist()
    return found
