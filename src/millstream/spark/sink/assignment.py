"""The assignment sink: rows assign stored messages to queues.

Columns are `log` (or `topic`), `offset`, `queue`, and optionally `priority`, `group` and `delay`
(in seconds). A row without a queue states that the record belongs to no queue. Tasks only gather
rows; the driver's commit assigns them by log and offset. Each queue continues from its position, so
a repeated batch or a deleted checkpoint assigns no message twice.

With the option `queues` a batch is complete: it holds every match between the first and the last
offset of each log. The commit then
moves the named queues past the batch, and refuses a gap before the batch.
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
from millstream.queue.service.assignment import ASSIGNED_MAX, Assignment, AssignMessages, Wish
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
        gathered = Gathered()
        offsets: dict[tuple[str, str], array[int]] = defaultdict(lambda: array("q"))
        for batch in iterator:
            gather(batch.rename_columns(self._names), offsets, gathered)
        gathered.offsets = {key: numbers.tobytes() for key, numbers in offsets.items()}
        point("write")
        return gathered

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        """Assign what the tasks gathered."""
        gathered = [message for message in messages if isinstance(message, Gathered)]
        point("before commit")
        if any(message.edges for message in gathered):
            with writing(self._options.place) as session:
                assign_all(session, assignments_of(session, gathered, self._options.queues))
        point("after commit")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        """Nothing was handed in."""


def gather(
    batch: pa.RecordBatch, offsets: dict[tuple[str, str], array[int]], gathered: Gathered
) -> None:
    """Add the rows of a batch to what a task has gathered."""
    logs, numbers = batch.column("log"), batch.column("offset")
    if logs.null_count or numbers.null_count:
        raise InvalidInput("a row names no log or no offset; only the queue may be null")
    is_plain = numbers.type == pa.int64() and not any(
        wish_name in batch.schema.names for wish_name in WISHES
    )
    if is_plain:
        _gather_plain(batch, offsets, gathered)
        return
    queues = batch.column("queue").to_pylist()
    rows = zip(logs.to_pylist(), numbers.to_pylist(), queues, _wishes(batch), strict=True)
    for log, number, queue, wish in rows:
        low, high = gathered.edges.get(log, (number, number))
        if number <= low or number >= high:
            gathered.edges[log] = (min(low, number), max(high, number))
        if queue is None:
            continue
        offsets[queue, log].append(number)
        if wish is not None and wish != Wish():
            gathered.wishes.setdefault((queue, log), {})[number] = wish


def _gather_plain(
    batch: pa.RecordBatch, offsets: dict[tuple[str, str], array[int]], gathered: Gathered
) -> None:
    """Rows that wish for nothing, by queue and log; nothing is done per row."""
    logs, log_of = _encoded(batch.column("log"))
    queues, queue_of = _encoded(batch.column("queue"))
    numbers = _numbers(batch.column("offset"), np.int64)
    # Each pair of log and queue has a number. A stable sort by this number groups the rows of a pair
    # and keeps their order.
    pair_of = log_of.astype(np.int64) * len(queues) + queue_of
    order = np.argsort(pair_of, kind="stable")
    pairs, numbers = pair_of[order], numbers[order]
    edges = np.flatnonzero(np.diff(pairs, prepend=-1, append=-1))
    for start, stop in pairwise(edges.tolist()):
        of_log, of_queue = divmod(int(pairs[start]), len(queues))
        log, queue = str(logs[of_log]), queues[of_queue]
        pair_numbers = numbers[start:stop]
        low, high = int(pair_numbers.min()), int(pair_numbers.max())
        before = gathered.edges.get(log, (low, high))
        gathered.edges[log] = (min(low, before[0]), max(high, before[1]))
        if queue is not None:
            offsets[queue, log].frombytes(pair_numbers.tobytes())


def _encoded(column: pa.Array) -> tuple[list[str | None], Numbers]:
    """Return the distinct texts of a column with null, and for each row the index of its text."""
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.dictionary.to_pylist(), _numbers(encoded.indices, np.int32)


def _numbers(column: pa.Array, kind: type[np.int32] | type[np.int64]) -> Numbers:
    """Return a column of numbers without null as the array that lies in memory."""
    values = np.frombuffer(column.buffers()[1], dtype=kind)
    return values[column.offset : column.offset + len(column)]


def _wishes(batch: pa.RecordBatch) -> Iterable[Wish | None]:
    """Yield the wish of each row; None for all rows if the batch has no column of wishes."""
    none = [None] * batch.num_rows
    names = [name for name in WISHES if name in batch.schema.names]
    if not names:
        return none
    columns = {name: batch.column(name).to_pylist() for name in names}
    delays = (
        None if delay_s is None else to_ms(float(delay_s)) for delay_s in columns.get("delay", none)
    )
    return map(Wish, columns.get("priority", none), columns.get("group", none), delays)


def assign_all(session: Session, assignments: Iterable[Assignment]) -> None:
    """Assign in as few commits as possible."""
    for batch in commands(assignments):
        session.execute(AssignMessages(batch))


def commands(assignments: Iterable[Assignment]) -> Iterator[list[Assignment]]:
    """Yield lists of assignments, each small enough for a commit."""
    waiting: list[Assignment] = []
    size = 0
    for assignment in assignments:
        count = sum(count for _, count in assignment.runs)
        if waiting and size + count > ASSIGNED_MAX:
            yield waiting
            waiting, size = [], 0
        waiting.append(assignment)
        size += count
    if waiting:
        yield waiting


def assignments_of(
    session: Session, gathered: Sequence[Gathered], queues: Sequence[str]
) -> Iterator[Assignment]:
    """Merge the rows of tasks to assignments by queue and log; `queues` marks a complete batch."""
    offsets: dict[tuple[str, str], set[int]] = defaultdict(set)
    wishes: dict[tuple[str, str], dict[int, Wish]] = defaultdict(dict)
    edges: dict[str, tuple[int, int]] = {}
    for task_rows in gathered:
        for key, data in task_rows.offsets.items():
            offsets[key].update(array("q", data))
        for key, task_wishes in task_rows.wishes.items():
            wishes[key].update(task_wishes)
        for log, (low, high) in task_rows.edges.items():
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
    """Yield each queue together with the logs that it reads, pair by pair."""
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
    """Yield an assignment, or consecutive ones if a commit cannot take all messages."""
    start, stop = edges
    for first in range(0, max(1, len(numbers)), ASSIGNED_MAX):
        chunk = numbers[first : first + ASSIGNED_MAX]
        is_last = first + ASSIGNED_MAX >= len(numbers)
        end = stop if is_last else chunk[-1] + 1
        wished = None if wishes is None else [wishes.get(number, Wish()) for number in chunk]
        yield Assignment(queue, log, start, end, runs_of(chunk), wished, gapless)
        start = end


def runs_of(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending numbers as runs of neighbours: (first, count)."""
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
