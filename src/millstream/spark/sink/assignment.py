"""The assignment sink: rows say which stored messages belong to which queues.

Columns are `log` (or `topic`), `offset`, `queue`, and where wanted `priority`, `group` and `delay` (in
seconds). A row without a queue says that the record was looked at and belongs to none. Tasks only
gather; the driver's commit hands the rows in, by log and offset. Each queue goes on from where it
stands, so neither a repeated batch nor a deleted checkpoint assigns anything twice.

With the option `queues` the rows of a batch are everything there is between the first and the last
offset of each log: then all those queues are moved past it, and a gap before it is refused.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from millstream.errors import InvalidInput, NotFound
from millstream.queue.commands import DescribeQueue
from millstream.queue.model.spec import QueueSpec
from millstream.queue.rules.sources import may_match
from millstream.queue.service.assigning import ASSIGNED_MAX, Assignment, AssignMessages, Wish
from millstream.record import to_ms
from millstream.spark.failures import point
from millstream.spark.options import WriteOptions
from millstream.spark.place import writing
from millstream.spark.sink.rows import check_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from millstream.command import Session

REQUIRED = ("log", "offset", "queue")
WISHES = ("priority", "group", "delay")

Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Gathered(WriterCommitMessage):
    """The rows of one task: offsets by queue and log, and what is wished for each of them."""

    offsets: dict[tuple[str, str], bytes] = field(default_factory=dict)
    wishes: dict[tuple[str, str], dict[int, Wish]] = field(default_factory=dict)
    edges: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each log, the first and the last offset that was looked at."""


class Assigner(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """Assigns, in a batch or in the batches of a stream."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._names = ["log" if name == "topic" else name for name in schema.fieldNames()]
        check_columns(self._names, (*REQUIRED, *WISHES), REQUIRED)
        if options.version is not None:
            raise InvalidInput(
                "options txnAppId and txnVersion: are for records; what is assigned is known by "
                "its offset"
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Gathered:
        """Gather the rows of one task."""
        found = Gathered()
        offsets: dict[tuple[str, str], array[int]] = defaultdict(lambda: array("q"))
        for batch in iterator:
            gather(batch.rename_columns(self._names), offsets, found)
        found.offsets = {key: some.tobytes() for key, some in offsets.items()}
        point("write")
        return found

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        """Assign what the tasks gathered."""
        found = [one for one in messages if isinstance(one, Gathered)]
        point("before commit")
        if any(one.edges for one in found):
            with writing(self._options.place) as session:
                assign_all(session, assignments_of(session, found, self._options.queues))
        point("after commit")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        """Nothing was handed in."""


def gather(
    batch: pa.RecordBatch, offsets: dict[tuple[str, str], array[int]], found: Gathered
) -> None:
    """Add the rows of a batch to what a task has gathered."""
    logs, numbers = batch.column("log"), batch.column("offset")
    if logs.null_count or numbers.null_count:
        raise InvalidInput("a row names no log or no offset; only the queue may be null")
    is_plain = numbers.type == pa.int64() and not any(one in batch.schema.names for one in WISHES)
    if is_plain:
        _gather_plain(batch, offsets, found)
        return
    queues = batch.column("queue").to_pylist()
    rows = zip(logs.to_pylist(), numbers.to_pylist(), queues, _wishes(batch), strict=True)
    for log, number, queue, wish in rows:
        low, high = found.edges.get(log, (number, number))
        if number <= low or number >= high:
            found.edges[log] = (min(low, number), max(high, number))
        if queue is None:
            continue
        offsets[queue, log].append(number)
        if wish is not None and wish != Wish():
            found.wishes.setdefault((queue, log), {})[number] = wish


def _gather_plain(
    batch: pa.RecordBatch, offsets: dict[tuple[str, str], array[int]], found: Gathered
) -> None:
    """Rows that wish for nothing, by queue and log; nothing is done per row."""
    logs, log_of = _encoded(batch.column("log"))
    queues, queue_of = _encoded(batch.column("queue"))
    numbers = _numbers(batch.column("offset"), np.int64)
    # One number for each pair: rows of one pair lie together when they are sorted by it, in order.
    pair_of = log_of.astype(np.int64) * len(queues) + queue_of
    order = np.argsort(pair_of, kind="stable")
    pairs, numbers = pair_of[order], numbers[order]
    edges = np.flatnonzero(np.diff(pairs, prepend=-1, append=-1))
    for start, stop in pairwise(edges.tolist()):
        of_log, of_queue = divmod(int(pairs[start]), len(queues))
        log, queue = str(logs[of_log]), queues[of_queue]
        some = numbers[start:stop]
        low, high = int(some.min()), int(some.max())
        before = found.edges.get(log, (low, high))
        found.edges[log] = (min(low, before[0]), max(high, before[1]))
        if queue is not None:
            offsets[queue, log].frombytes(some.tobytes())


def _encoded(column: pa.Array) -> tuple[list[str | None], Numbers]:
    """The different texts of a column, and for each row the place of its own; null is one of them."""
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.dictionary.to_pylist(), _numbers(encoded.indices, np.int32)


def _numbers(column: pa.Array, kind: type[np.int32] | type[np.int64]) -> Numbers:
    """A column of numbers without null, as it lies in memory."""
    whole = np.frombuffer(column.buffers()[1], dtype=kind)
    return whole[column.offset : column.offset + len(column)]


def _wishes(batch: pa.RecordBatch) -> Iterable[Wish | None]:
    """What each row wishes; None where there is no column for any wish."""
    none = [None] * batch.num_rows
    names = [name for name in WISHES if name in batch.schema.names]
    if not names:
        return none
    given = {name: batch.column(name).to_pylist() for name in names}
    delays = (None if one is None else to_ms(float(one)) for one in given.get("delay", none))
    return map(Wish, given.get("priority", none), given.get("group", none), delays)


def assign_all(session: Session, assignments: Iterable[Assignment]) -> None:
    """Assign, in as few commits as may be."""
    for some in commands(assignments):
        session.execute(AssignMessages(some))


def commands(assignments: Iterable[Assignment]) -> Iterator[list[Assignment]]:
    """Assignments in lists that one commit can take."""
    waiting: list[Assignment] = []
    size = 0
    for one in assignments:
        count = sum(count for _, count in one.runs)
        if waiting and size + count > ASSIGNED_MAX:
            yield waiting
            waiting, size = [], 0
        waiting.append(one)
        size += count
    if waiting:
        yield waiting


def assignments_of(
    session: Session, found: Sequence[Gathered], queues: Sequence[str]
) -> Iterator[Assignment]:
    """What tasks have gathered, by queue and log; `queues` if it is all there is for these."""
    offsets: dict[tuple[str, str], set[int]] = defaultdict(set)
    wishes: dict[tuple[str, str], dict[int, Wish]] = defaultdict(dict)
    edges: dict[str, tuple[int, int]] = {}
    for one in found:
        for key, data in one.offsets.items():
            offsets[key].update(array("q", data))
        for key, some in one.wishes.items():
            wishes[key].update(some)
        for log, (low, high) in one.edges.items():
            before = edges.get(log, (low, high))
            edges[log] = (min(low, before[0]), max(high, before[1]))
    specs = {name: _spec(session, name) for name in queues}
    for key in sorted({*offsets, *covered(specs, edges)}):
        queue, log = key
        if queues and queue not in queues:
            raise InvalidInput(f"option queues: does not name {queue!r}, to which rows belong")
        numbers = sorted(offsets.get(key, ()))
        start, stop = (
            (edges[log][0], edges[log][1] + 1) if queues else (numbers[0], numbers[-1] + 1)
        )
        yield from _cut(queue, log, (start, stop), numbers, wishes.get(key), gapless=bool(queues))


def _spec(session: Session, name: str) -> QueueSpec:
    info = session.execute(DescribeQueue(name))
    if info is None:
        raise NotFound(f"option queues: there is no queue {name!r}", name=name)
    return info.spec


def covered(specs: dict[str, QueueSpec], logs: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Queues and the logs among these that they take from."""
    for log in logs:
        for name, spec in specs.items():
            if log in spec.sources or may_match(log, spec):
                yield name, log


def _cut(
    queue: str,
    log: str,
    edges: tuple[int, int],
    numbers: Sequence[int],
    wishes: dict[int, Wish] | None,
    *,
    gapless: bool,
) -> Iterator[Assignment]:
    """One assignment, or several that go on from each other if there are many messages."""
    start, stop = edges
    for first in range(0, max(1, len(numbers)), ASSIGNED_MAX):
        some = numbers[first : first + ASSIGNED_MAX]
        is_last = first + ASSIGNED_MAX >= len(numbers)
        end = stop if is_last else some[-1] + 1
        wished = None if wishes is None else [wishes.get(one, Wish()) for one in some]
        yield Assignment(queue, log, start, end, runs_of(some), wished, gapless)
        start = end


def runs_of(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as runs of neighbours: (first, how many)."""
    runs: list[tuple[int, int]] = []
    first = stop = -1
    for number in numbers:
        if number != stop:
            if first != stop:
                runs.append((first, stop - first))
            first = number
        stop = number + 1
    if first != stop:
        runs.append((first, stop - first))
    return runs
