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
    """The interested queues of each log."""
    looked: list[RangeLook]
    lost: list[Loss]

    def assignments(self) -> Iterator[Assignment]:
        """Yield the assignments of each queue; a queue without matches is moved past the round
        too.
        """
        runs: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for range_look in self.looked:
            for queue, queue_runs in range_look.taken.items():
                runs.setdefault((queue, range_look.log), []).extend(queue_runs.pairs())
        for range_ in self.ranges:
            for interest in self.interests[range_.log]:
                matched = runs.get((interest.queue, range_.log), [])
                yield from _cut(interest.queue, range_, matched)


def look(
    job: Job,
    ranges: list[Range],
    interests: dict[str, list[Interest]],
    *,
    allow_gaps: bool,
) -> RoundLook:
    """Let tasks look at some ranges."""
    options = job.task_options(failOnDataLoss=not allow_gaps)

    def work(task_ranges: Bin[Range]) -> bytes:
        return msgspec.msgpack.encode(look_at(options, task_ranges, interests))

    chosen = bins(ranges, lambda _: 0, BinSizes(records=RECORDS_PER_TASK))
    encoded = job.in_tasks(work, chosen)
    answers = [msgspec.msgpack.decode(answer, type=TaskAnswer) for answer in encoded]
    looked = [range_look for answer in answers for range_look in answer.looked]
    lost = [loss for answer in answers for loss in answer.lost]
    return RoundLook(ranges, interests, looked, lost)


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
    """Yield an assignment, or several consecutive ones if there are too many messages for a
    commit.
    """
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
