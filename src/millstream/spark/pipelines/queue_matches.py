"""Matches of queues: tasks of the pipeline `route` ask filters about ranges of records.

The task reads only the metadata of records and evaluates filters in Python, block by block. If a
filter can match only certain texts of a header, the task asks it only about records with such a
text. The answer holds runs of offsets, so that a queue with a match for every record costs as
little as a queue without a match.

Tasks work on a round while the driver assigns the round before. Only the driver assigns, in the order of
the rounds; so matches that are never assigned have changed nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from millstream.filters import Filter, parse
from millstream.log.model.block import RecordBlock
from millstream.queue.service.assignment import ASSIGNED_MAX, Assignment
from millstream.queue.service.decoded_entries import TextIndex
from millstream.spark.options import ReadOptions
from millstream.spark.place import reading
from millstream.spark.source.bins import Bin, BinSizes, Range, bins
from millstream.spark.source.columns import DecodedBlock
from millstream.spark.source.losses import Loss, warn
from millstream.spark.source.task import blocks_of

if TYPE_CHECKING:
    from millstream.header import Scalar
    from millstream.spark.pipelines.target import PipelineRun

RECORDS_PER_TASK = 50_000
OFFSETS_KEPT = 8_192
"""Offsets of one queue that wait in a task to be joined to runs."""

T = TypeVar("T")
R = TypeVar("R")


class Interest(Struct, frozen=True, array_like=True):
    """A queue that reads a log, and its filter; an empty filter matches every record."""

    queue: str
    filter: str


class Runs(Struct, frozen=True, array_like=True):
    """Runs of neighbouring offsets, in order: the first of each, and how many they are."""

    firsts: bytes
    counts: bytes

    def pairs(self) -> list[tuple[int, int]]:
        """Return the first offset and the length of every run."""
        return list(zip(_numbers(self.firsts), _numbers(self.counts), strict=True))


class RangeMatches(Struct, frozen=True, array_like=True):
    """The matches in a range: the runs of each queue with a match."""

    log: str
    taken: dict[str, Runs]


class TaskAnswer(Struct, frozen=True, array_like=True):
    """The matches in the ranges of a task, in order, and the records that it could not read."""

    ranges_matched: list[RangeMatches]
    lost: list[Loss]


def match_ranges(
    options: ReadOptions, ranges: Sequence[Range], interests: Mapping[str, Sequence[Interest]]
) -> TaskAnswer:
    """Evaluate the filters of each log's queues on the records of ranges."""
    answer = TaskAnswer([], [])
    tell = warn if options.fail_on_data_loss else answer.lost.append
    with reading(options.place) as session:
        for range_ in ranges:
            takers = [_Taker(interest) for interest in interests.get(range_.log, ())]
            for block in blocks_of(session, options, range_, values=False, tell=tell):
                records = _Records(block, trusted=not options.place.is_server)
                for taker in takers:
                    taker.take(records)
            matched = {taker.queue: taker.runs() for taker in takers if taker.has_any()}
            answer.ranges_matched.append(RangeMatches(range_.log, matched))
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
        """Return the positions in the block at which the filter matches."""
        if condition.anchor is None:
            positions: Sequence[int] = range(self.count)
            headers: Sequence[Mapping[str, Scalar]] = self._headers
        else:
            positions = self._texts.having(*condition.anchor)
            headers = [self._headers[i] for i in positions]
        metadata = self._piece.metadata
        matched = condition.match_many(
            headers,
            keys=self._picked(condition, "_key", metadata.keys, positions),
            timestamps=self._picked(condition, "_timestamp", metadata.timestamps, positions),
            log=self._block.log,
            valid=self._picked(condition, "_value", metadata.valid, positions),
        )
        return list(compress(positions, matched))

    def _picked(
        self,
        condition: Filter,
        field: str,
        ask: Callable[[int, int], Sequence[T] | None],
        positions: Sequence[int],
    ) -> Sequence[T] | None:
        """Return a column at the chosen positions; None unless the filter names the field."""
        if field not in condition.fields:
            return None
        if field not in self._columns:
            self._columns[field] = ask(self._block.skip, self.count)
        column: Sequence[T] | None = self._columns[field]
        return (
            column
            if column is None or len(positions) == self.count
            else [column[i] for i in positions]
        )

    @cached_property
    def _headers(self) -> list[dict[str, Scalar]]:
        return self._piece.visible_headers()

    @cached_property
    def _texts(self) -> TextIndex:
        return TextIndex(self._headers)


class _Taker:
    """A queue, and its matches in a range."""

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
        """Return all matches as runs."""
        self._join()
        return Runs(self._firsts.tobytes(), self._counts.tobytes())

    def _join(self) -> None:
        """Make runs of the offsets that wait."""
        if not self._waiting:
            return
        offsets = np.frombuffer(self._waiting, dtype=np.int64)
        starts = np.flatnonzero(np.diff(offsets, prepend=offsets[0] - 2) != 1)
        counts = np.diff(starts, append=len(offsets))
        firsts = offsets[starts]
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
    numbers: list[int] = array("q", data).tolist()
    return numbers


@dataclass(frozen=True)
class RoundMatches:
    """The matches of tasks in the ranges of a round."""

    ranges: list[Range]
    interests: dict[str, list[Interest]]
    """The interested queues of each log."""
    ranges_matched: list[RangeMatches]
    lost: list[Loss]

    def assignments(self) -> Iterator[Assignment]:
        """Yield the assignments of each queue; queues without matches are moved past the round."""
        runs: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for range_matches in self.ranges_matched:
            for queue, queue_runs in range_matches.taken.items():
                runs.setdefault((queue, range_matches.log), []).extend(queue_runs.pairs())
        for range_ in self.ranges:
            for interest in self.interests[range_.log]:
                matched = runs.get((interest.queue, range_.log), [])
                yield from _cut(interest.queue, range_, matched)


def match_round(
    job: PipelineRun,
    ranges: list[Range],
    interests: dict[str, list[Interest]],
    *,
    allow_gaps: bool,
) -> RoundMatches:
    """Let tasks evaluate the filters in the ranges of a round."""
    options = job.task_options(failOnDataLoss=not allow_gaps)

    def work(task_ranges: Bin[Range]) -> bytes:
        return msgspec.msgpack.encode(match_ranges(options, task_ranges, interests))

    chosen = bins(ranges, lambda _: 0, BinSizes(records=RECORDS_PER_TASK))
    encoded = job.in_tasks(work, chosen)
    answers = [msgspec.msgpack.decode(answer, type=TaskAnswer) for answer in encoded]
    ranges_matched = [
        range_matches for answer in answers for range_matches in answer.ranges_matched
    ]
    lost = [loss for answer in answers for loss in answer.lost]
    return RoundMatches(ranges, interests, ranges_matched, lost)


def one_ahead(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield the result of `work` for each item, and work on the next item meanwhile.

    If the caller stops early, also by an interrupt, the function does not wait for the running
    work.
    """
    pool = ThreadPoolExecutor(1, "millstream-ahead")
    try:
        waiting: list[Future[R]] = []
        for item in items:
            done = [future.result() for future in waiting]
            waiting = [pool.submit(work, item)]
            yield from done
        for future in waiting:
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _cut(queue: str, range_: Range, runs: Sequence[tuple[int, int]]) -> Iterator[Assignment]:
    """Yield an assignment, or consecutive ones if a commit cannot take all messages."""
    start = range_.start
    cut_runs: list[tuple[int, int]] = []
    room = ASSIGNED_MAX
    for first, count in runs:
        while count >= room:
            end = first + room
            yield Assignment(queue, range_.log, start, end, [*cut_runs, (first, room)], None, True)
            start, first, count = end, end, count - room
            cut_runs, room = [], ASSIGNED_MAX
        if count:
            cut_runs.append((first, count))
            room -= count
    if cut_runs or start < range_.stop:
        yield Assignment(queue, range_.log, start, range_.stop, cut_runs, None, True)
