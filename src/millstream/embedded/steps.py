"""The steps of a transaction, gathered without I/O, the same for every surface."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, ParamSpec, Protocol, overload

from msgspec import convert

from millstream.command import Sql, sql_parameters
from millstream.errors import InvalidInput
from millstream.format.packing import check_json, pack_many, pack_single
from millstream.header import HeadersLike
from millstream.limits import Limits
from millstream.log import commands as c
from millstream.log.model.names import check_name
from millstream.log.partitioner import Spreader
from millstream.log.progress import Acknowledged, CursorProgress, listed, ranges_of
from millstream.numbers import checked, checked_numbers
from millstream.queue.commands import CancelWaiting, FinishClaims, NoteProgress, RenewClaims
from millstream.queue.model.message import LeaseEnd, Message
from millstream.queue.model.spec import Named, lease_ms_of
from millstream.queue.put_commands import put_batch, put_one
from millstream.queue.runs import (
    Messages,
    cancel_command,
    chosen_of,
    claims_of,
    results_of,
)
from millstream.record import PartitionOffset, Producer, Record, Seconds, optional_ms
from millstream.rooms.commands import SendToRoom
from millstream.rooms.model import RoomMessage
from millstream.rooms.packed_messages import data_of

P = ParamSpec("P")


class NamedCursor(Protocol):
    """A durable cursor of any surface."""

    name: str
    log_name: str
    durable: bool
    progress: CursorProgress


Divided = Record | PartitionOffset | Iterable["Record | PartitionOffset"]
"""Records of a log with partitions, or their places."""


class DividedCursor(Protocol):
    """A durable cursor over the partitions of a log, of any surface."""

    def by_partition(self, records: Divided, /) -> Sequence[tuple[NamedCursor, list[Record | int]]]:
        """Return the records of each partition, with the cursor of the partition."""


class TaskStep(NamedTuple):
    """A job to put in a transaction."""

    before: list[Any]
    """Steps that come first: the queue is made if it may be missing."""
    command: Any
    read: Callable[[Any], Any]
    """Makes the id of the job from the answer of the command."""


class PutTask(Protocol[P]):
    """A task of any surface, whose jobs are put in a transaction."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function of the task."""

    def put_step(self, args: tuple[Any, ...], kwargs: dict[str, Any], limits: Limits) -> TaskStep:
        """Return the steps that put a job."""


class Later:
    """The answer of a step, available after the commit of the transaction."""

    __slots__ = ("_notify", "_read", "_result", "done")

    def __init__(
        self, notify: Callable[[], None] | None = None, read: Callable[[Any], Any] | None = None
    ) -> None:
        self.done = False
        self._notify = notify
        self._read = read
        self._result: Any = None

    def settle(self, result: Any) -> None:
        """Store the answer, and notify the handle of the step."""
        self._result = result if self._read is None else self._read(result)
        self.done = True
        if self._notify is not None:
            self._notify()

    def __repr__(self) -> str:
        return f"Later({self._result!r})" if self.done else "Later(after the commit)"

    @property
    def result(self) -> Any:
        """The step's answer; raises before the commit."""
        if not self.done:
            raise RuntimeError(
                "the transaction has not been committed: a step's answer is there after the "
                "`with` block, if that ended without an error"
            )
        return self._result


@checked_numbers
class Steps:
    """The operations of a transaction. They run when the transaction is committed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._steps: list[Any] = []
        self._answers: list[Later] = []
        self._then: list[Callable[[], None]] = []
        """Calls to make after all answers are stored."""
        self._ended = False

    def append(
        self,
        log: str | Named,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        timestamp: int | None = None,
        expect_end: int | None = None,
        producer: Producer | None = None,
    ) -> Later:
        """Append a record; the answer is its offset, or its `PartitionOffset` in a log with
        partitions.
        """
        spreader: Spreader | None = getattr(log, "spreader", None)
        if spreader is not None:
            return self._spread_one(
                spreader,
                value,
                key=key,
                headers=headers,
                timestamp=timestamp,
                expect_end=expect_end,
                producer=producer,
            )
        record = pack_single(
            value, key=key, headers=headers, timestamp=timestamp, limits=self._limits
        )
        return self._add(c.Append(_name(log), record, expect_end, producer))

    def append_many(
        self,
        log: str | Named,
        values: Sequence[Any],
        *,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Sequence[HeadersLike | None] | None = None,
        timestamps: Sequence[int] | int | None = None,
    ) -> Later:
        """Append a batch; the answer is the offset of its first record.

        For a log with partitions the answer is a list with the `PartitionOffset` of each record.
        """
        spreader: Spreader | None = getattr(log, "spreader", None)
        if spreader is not None:
            return self._spread_many(
                spreader, values, keys=keys, headers=headers, timestamps=timestamps
            )
        records = pack_many(
            values, keys=keys, headers=headers, timestamps=timestamps, limits=self._limits
        )
        if records is None:
            return self._nothing()
        return self._add(c.Append(_name(log), records))

    def _spread_one(
        self,
        spreader: Spreader,
        value: Any,
        *,
        key: bytes | str | None,
        headers: HeadersLike | None,
        timestamp: int | None,
        expect_end: int | None,
        producer: Producer | None,
    ) -> Later:
        if expect_end is not None:
            raise InvalidInput("expect_end is of one log: name a partition, log.partition(0)")
        number, step = spreader.one(
            value,
            key=key,
            headers=headers,
            timestamp=timestamp,
            partition=None,
            producer=producer,
            limits=self._limits,
        )
        self._add(c.CreatePartitions(spreader.log, spreader.partitions))
        return self._add(step, read=lambda offset: PartitionOffset(number, offset))

    def _spread_many(self, spreader: Spreader, values: Sequence[Any], **columns: Any) -> Later:
        spread = spreader.many(values, **columns, limits=self._limits)
        self._add(c.CreatePartitions(spreader.log, spreader.partitions))
        answers = [self._add(step) for step in spread.appends]
        places = Later()

        def settle_places() -> None:
            places.settle(spread.places([answer.result for answer in answers]))

        self._then.append(settle_places)
        return places

    def truncate(self, log: str | Named, *, before: int, past_end: bool = False) -> Later:
        """Delete the records before an offset; the answer is the number of deleted records."""
        return self._add(c.Truncate(_name(log), before, past_end))

    def set_metadata(self, log: str | Named, key: str, value: Any) -> Later:
        """Set a metadata entry."""
        return self._add(c.SetMetadata(_name(log), check_name(key, "metadata"), check_json(value)))

    @overload
    def put(self, task: PutTask[P], /, *args: P.args, **kwargs: P.kwargs) -> Later: ...
    @overload
    def put(
        self,
        queue: str | Named,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        priority: int | None = None,
        group: str | None = None,
        dedup: str | None = None,
        delay: Seconds | None = None,
        at: datetime | int | None = None,
        producer: Producer | None = None,
    ) -> Later: ...
    def put(self, /, *args: Any, **options: Any) -> Later:  # type: ignore[misc]
        """Put a message, as `Queue.put` does; the answer is its id.

        Or put a job: `tx.put(task, ...)` takes the arguments of the task; the answer is the job's id.
        """
        prepare = getattr(args[0], "put_step", None) if args else None
        if prepare is None:
            return self._put_message(*args, **options)
        step: TaskStep = prepare(args[1:], options, self._limits)
        for first in step.before:
            self._add(first)
        return self._add(step.command, read=step.read)

    @checked
    def _put_message(
        self,
        queue: str | Named,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        priority: int | None = None,
        group: str | None = None,
        dedup: str | None = None,
        delay: Seconds | None = None,
        at: datetime | int | None = None,
        producer: Producer | None = None,
    ) -> Later:
        return self._add(
            put_one(
                _name(queue, "queue"),
                value,
                key=key,
                headers=headers,
                priority=priority,
                group=group,
                dedup=dedup,
                delay=delay,
                at=at,
                producer=producer,
                limits=self._limits,
            )
        )

    def put_many(
        self,
        queue: str | Named,
        values: Iterable[Any],
        *,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Sequence[HeadersLike | None] | None = None,
        delay: Seconds | None = None,
        at: datetime | int | None = None,
    ) -> Later:
        """Put a batch to a queue, which must exist; the answer is the id of its first message."""
        command, _ = put_batch(
            _name(queue, "queue"),
            values,
            keys=keys,
            headers=headers,
            delay=delay,
            at=at,
            limits=self._limits,
        )
        return self._nothing() if command is None else self._add(command)

    def send(
        self,
        room: str | Named,
        type: str,
        data: Any,
        key: str | None = None,
        *,
        user: str | None = None,
    ) -> Later:
        """Send a message to a room, as `Room.send` does; the answer is its offset.

        The sending handle does not hear its own messages; `user` is shown as the sender.
        """
        sender = getattr(room, "user", "") if user is None else user
        message = RoomMessage(type, data_of(data), key)
        name, origin = _name(room, "room"), getattr(room, "origin", "")
        return self._add(SendToRoom(name, [message], sender, origin))

    @overload
    def ack(
        self, messages: Messages, /, *, result: bytes | Sequence[bytes | None] | None = None
    ) -> Later: ...
    @overload
    def ack(self, cursor: NamedCursor, records: Acknowledged, /) -> Later: ...
    @overload
    def ack(self, cursor: DividedCursor, records: Divided, /) -> Later: ...
    def ack(self, named: Any, records: Any = None, /, *, result: Any = None) -> Later:
        """Acknowledge claimed messages of a queue, or records on a durable cursor.

        `result` is stored with the messages, as in `Queue.ack`. A lost lease undoes the whole transaction. So does a `Conflict`, if the records were set
        aside since they were read. The answer for a cursor is its floor.
        """
        if records is None:
            return self._finish(named, "ack", result=result)
        if result is not None:
            raise InvalidInput("only messages of a queue have a result, not records of a cursor")
        if (divide := getattr(named, "by_partition", None)) is not None:
            return [self._nothing(), *(self.ack(*arguments) for arguments in divide(records))][-1]
        acknowledged = listed(records)
        cursor = _durable(named)
        ranges, lost = ranges_of(acknowledged), cursor.progress.unsettled()
        log, log_id = cursor.log_name, cursor.progress.log_id
        cursor.progress.check(log, acknowledged)
        step = c.Acknowledge(log, cursor.name, ranges, log_id, lost)
        return self._add(step, lambda: cursor.progress.acked([*lost, *ranges], log_id))

    def nack(
        self,
        messages: Messages,
        *,
        delay: Seconds | None = None,
        reason: str = "",
        error: bytes | None = None,
    ) -> Later:
        """Retry claimed messages of a queue, as `Queue.nack` does."""
        delay_ms = optional_ms(delay, "delay")
        return self._finish(messages, "nack", delay_ms, reason, error=error)

    def fail(self, messages: Messages, *, reason: str = "", error: bytes | None = None) -> Later:
        """Give up on claimed messages of a queue."""
        return self._finish(messages, "fail", reason=reason, error=error)

    def cancel(self, queue: Named, message: Message | int, *, running: bool = False) -> Later:
        """Cancel a message of a queue, as `Queue.cancel` does; the answer is the outcome."""
        name = queue if isinstance(queue, str) else queue.name
        return self._add(cancel_command(check_name(name, "queue"), message, running=running))

    def note_progress(self, messages: Messages, progress: bytes) -> Later:
        """Store the progress of claimed messages of a queue, as `Queue.note_progress` does."""
        queue, runs = claims_of(messages)
        if not runs:
            return self._nothing()
        return self._add(NoteProgress(queue, runs, progress))

    def renew(self, messages: Messages, *, lease: Seconds | None = None) -> Later:
        """Renew the leases of claimed messages of a queue; the answer is their new end."""
        queue, runs = claims_of(messages)
        if not runs:
            return self._nothing()
        lease_ms = lease_ms_of(lease)
        return self._add(RenewClaims(queue, runs, lease_ms), read=_until)

    def cancel_waiting(self, message: Message) -> Later:
        """Cancel a message of a peek that waits; a message that does not wait undoes the transaction.

        So of two transactions that replace the same message, the first succeeds.
        """
        if message.id is None:
            raise InvalidInput("only a message of `put` can be cancelled, not a record of a source")
        return self._add(CancelWaiting(message.queue, message.claim_id, message.id))

    def _finish(
        self,
        messages: Messages,
        outcome: str,
        delay_ms: int | None = None,
        reason: str = "",
        *,
        result: bytes | Sequence[bytes | None] | None = None,
        error: bytes | None = None,
    ) -> Later:
        chosen = chosen_of(messages)
        queue, runs = claims_of(chosen)
        if not runs:
            return self._nothing()
        results = results_of(chosen, result)
        step = FinishClaims(queue, runs, outcome, delay_ms, reason, results=results, error=error)
        return self._add(step, read=_none)

    def seek(self, cursor: NamedCursor, offset: int) -> Later:
        """Set a durable cursor's floor; the answer is the floor."""
        step = c.MoveCursor(_durable(cursor).log_name, cursor.name, offset)
        return self._add(step, lambda: cursor.progress.moved(offset))

    def _add(
        self,
        step: Any,
        notify: Callable[[], None] | None = None,
        read: Callable[[Any], Any] | None = None,
    ) -> Later:
        if self._ended:
            raise RuntimeError("the transaction has ended: its steps are gathered inside the block")
        self._steps.append(step)
        answer = Later(notify, read)
        self._answers.append(answer)
        return answer

    def _nothing(self) -> Later:
        """Return the answer of a step that has no effect."""
        answer = Later()
        answer.settle(None)
        return answer

    def _settle(self, results: list[Any]) -> None:
        for answer, result in zip(self._answers, results, strict=True):
            answer.settle(result)
        for then in self._then:
            then()


class DeferredSteps(Steps):
    """Steps of a transaction whose statements also run when the transaction is committed."""

    def sql(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Later:
        """Read or write the application's own tables, on SQLite, in the same commit.

        The answer is a `SqlResult`: the rows, and the number of changed rows. Only a program that
        has opened the file can use it; servers and clusters do not offer SQL. To read the result
        before the commit, use `ms.begin()`.
        """
        return self._add(Sql(statement, sql_parameters(parameters)))


def _until(end: Any) -> datetime:
    """Return the end of leases; the answer of a server is untyped."""
    return convert(end, LeaseEnd).until


def _none(_lost: Any) -> None:
    """Ignore lost claims: in a transaction all attempts end, or none does."""


def _durable(cursor: NamedCursor) -> NamedCursor:
    if not hasattr(cursor, "progress"):
        raise InvalidInput(
            "tx.ack takes messages, or a cursor and its records: tx.ack(messages) or "
            f"tx.ack(cursor, records); got a {type(cursor).__name__} and records"
        )
    if not cursor.durable:
        raise InvalidInput(f"cursor {cursor.name!r} keeps its acknowledgements in memory")
    return cursor


def _name(noun: str | Named, kind: str = "log") -> str:
    name: Any = getattr(noun, "name", None)
    return check_name(noun if name is None else name, kind)  # type: ignore[arg-type]
