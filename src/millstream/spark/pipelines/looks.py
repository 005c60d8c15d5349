"""Looks: the records of a round, looked at by tasks of Spark while the round before is assigned.

Tasks answer which offsets belong to which queue. Only the driver assigns them, in the order of the
rounds; so a look that was made ahead and never assigned has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from millstream.queue.service.assigning import ASSIGNED_MAX, Assignment
from millstream.spark.pipelines.queue_matches import Interest, RangeLook, TaskAnswer, look_at
from millstream.spark.source.bins import Bin, BinSizes, Range, bins
from millstream.spark.source.losses import Loss

if TYPE_CHECKING:
    from millstream.spark.pipelines.target import Job

RECORDS_PER_TASK = 50_000
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class RoundLook:
    """What tasks found in the ranges of a round."""

    ranges: list[Range]
    interests: dict[str, list[Interest]]
    """The queues that take from each log."""
    looked: list[RangeLook]
    lost: list[Loss]

    def assignments(self) -> Iterator[Assignment]:
        """What belongs to each queue; one that takes nothing is moved past the round too."""
        runs: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for one in self.looked:
            for queue, some in one.taken.items():
                runs.setdefault((queue, one.log), []).extend(some.pairs())
        for wanted in self.ranges:
            for interest in self.interests[wanted.log]:
                found = runs.get((interest.queue, wanted.log), [])
                yield from _cut(interest.queue, wanted, found)


def look(
    job: Job,
    ranges: list[Range],
    interests: dict[str, list[Interest]],
    *,
    allow_gaps: bool,
) -> RoundLook:
    """Let tasks look at some ranges."""
    options = job.task_options(failOnDataLoss=not allow_gaps)

    def work(wanted: Bin[Range]) -> bytes:
        return msgspec.msgpack.encode(look_at(options, wanted, interests))

    chosen = bins(ranges, lambda one: 0, BinSizes(records=RECORDS_PER_TASK))
    answers = [msgspec.msgpack.decode(one, type=TaskAnswer) for one in job.in_tasks(work, chosen)]
    looked = [one for answer in answers for one in answer.looked]
    lost = [one for answer in answers for one in answer.lost]
    return RoundLook(ranges, interests, looked, lost)


def one_ahead(work: Callable[[T], R], given: Iterable[T]) -> Iterator[R]:
    """The result for each; while the caller has one of them, the next is worked on.

    If the caller goes before the end, also by an interrupt, what is worked on is not waited for.
    """
    pool = ThreadPoolExecutor(1, "millstream-ahead")
    try:
        waiting: list[Future[R]] = []
        for one in given:
            done = [future.result() for future in waiting]
            waiting = [pool.submit(work, one)]
            yield from done
        for future in waiting:
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _cut(queue: str, one: Range, runs: Sequence[tuple[int, int]]) -> Iterator[Assignment]:
    """One assignment, or several that go on from each other if there are many messages."""
    start = one.start
    some: list[tuple[int, int]] = []
    room = ASSIGNED_MAX
    for first, count in runs:
        while count >= room:
            end = first + room
            yield Assignment(queue, one.log, start, end, [*some, (first, room)], None, True)
            start, first, count = end, end, count - room
            some, room = [], ASSIGNED_MAX
        if count:
            some.append((first, count))
            room -= count
    if some or start < one.stop:
        yield Assignment(queue, one.log, start, one.stop, some, None, True)
