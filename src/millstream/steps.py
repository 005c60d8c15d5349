"""Steps: what a transaction gathers, the same for every surface; without any I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from millstream.command import Sql
from millstream.errors import InvalidInput
from millstream.format.packing import check_json, pack_many, pack_single
from millstream.limits import Limits
from millstream.log import commands as c
from millstream.log.names import check_name
from millstream.log.progress import Acknowledged, Progress, ranges_of
from millstream.queue.commands import FinishClaims
from millstream.queue.model.message import Message
from millstream.queue.putting import Wishes, put_batch, put_one
from millstream.queue.runs import Messages, runs_of
from millstream.record import Headers, Producer, Record


class NamedLog(Protocol):
    """A log, whatever surface it belongs to."""

    name: str


class NamedQueue(Protocol):
    """A queue, whatever surface it belongs to."""

    name: str


class NamedCursor(Protocol):
    """A durable cursor, whatever surface it belongs to."""

    name: str
    log_name: str
    durable: bool
    progress: Progress


class Later:
    """The answer of a step, there once the transaction has been committed."""

    __slots__ = ("_result", "_told", "done")

    def __init__(self, told: Callable[[], None] | None = None) -> None:
        self.done = False
        self._told = told
        self._result: Any = None

    def settle(self, result: Any) -> None:
        """Put the answer in, and tell the handle that the step was about."""
        self._result, self.done = result, True
        if self._told is not None:
            self._told()

    @property
    def result(self) -> Any:
        """The step's answer; asking before the commit is a mistake."""
        if not self.done:
            raise RuntimeError("the transaction has not been committed yet")
        return self._result


class Steps:
    """Gathers operations; none happens before the transaction that they belong to is committed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._steps: list[Any] = []
        self._answers: list[Later] = []

    def append(
        self,
        log: str | NamedLog,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
        expect_end: int | None = None,
        producer: Producer | None = None,
    ) -> Later:
        """Append one record; the answer is its offset."""
        record = pack_single(
            value, key=key, headers=headers, timestamp=timestamp, limits=self._limits
        )
        return self._add(c.Append(_name(log), record, expect_end, producer))

    def append_many(
        self,
        log: str | NamedLog,
        values: Sequence[Any],
        *,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        timestamps: Sequence[int] | int | None = None,
    ) -> Later:
        """Append a batch; the answer is the offset of its first record."""
        records = pack_many(
            values, keys=keys, headers=headers, timestamps=timestamps, limits=self._limits
        )
        if records is None:
            return self._nothing()
        return self._add(c.Append(_name(log), records))

    def truncate(self, log: str | NamedLog, *, before: int) -> Later:
        """Forget the records before an offset; the answer is how many went."""
        return self._add(c.Truncate(_name(log), before))

    def set_metadata(self, log: str | NamedLog, key: str, value: Any) -> Later:
        """Set a metadata entry."""
        return self._add(c.SetMetadata(_name(log), check_name(key, "metadata"), check_json(value)))

    def put(
        self,
        queue: str | NamedQueue,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        producer: Producer | None = None,
    ) -> Later:
        """Put one message to a queue, which must exist; the answer is its offset in the inbox."""
        command = put_one(
            _name(queue, "queue"),
            None,
            value,
            key=key,
            headers=headers,
            producer=producer,
            wishes=Wishes(),
            limits=self._limits,
        )
        return self._add(command)

    def put_many(
        self,
        queue: str | NamedQueue,
        values: Iterable[Any],
        *,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
    ) -> Later:
        """Put a batch to a queue, which must exist; the answer is its first offset in the inbox."""
        command, _ = put_batch(
            _name(queue, "queue"),
            None,
            values,
            keys=keys,
            headers=headers,
            wishes=Wishes(),
            limits=self._limits,
        )
        return self._nothing() if command is None else self._add(command)

    def done(self, messages: Messages) -> Later:
        """Acknowledge claimed messages of one queue; a lost lease undoes the whole transaction."""
        return self._finish(messages, "ack")

    def failed(self, messages: Messages, *, reason: str = "") -> Later:
        """Give up on claimed messages of one queue."""
        return self._finish(messages, "fail", reason)

    def _finish(self, messages: Messages, outcome: str, reason: str = "") -> Later:
        chosen = [messages] if isinstance(messages, Message) else list(messages)
        queues = {message.queue for message in chosen}
        if len(queues) != 1:
            raise InvalidInput(
                f"a step finishes messages of one queue, not of {len(queues)}: {sorted(queues)}"
            )
        return self._add(FinishClaims(queues.pop(), runs_of(chosen), outcome, reason=reason))

    def ack(self, cursor: NamedCursor, records: Acknowledged) -> Later:
        """Acknowledge on a durable cursor; the answer is its floor.

        `Conflict` if the records were set aside since they were taken.
        """
        named = [records] if isinstance(records, Record | int) else list(records)
        ranges, log, setbacks = (
            ranges_of(named),
            _durable(cursor).log_name,
            cursor.progress.setbacks,
        )
        cursor.progress.check(log, named)
        step = c.Acknowledge(log, cursor.name, ranges, setbacks)
        return self._add(step, lambda: cursor.progress.acked(ranges, setbacks))

    def seek(self, cursor: NamedCursor, offset: int) -> Later:
        """Set a durable cursor's floor; the answer is the floor."""
        step = c.MoveCursor(_durable(cursor).log_name, cursor.name, offset)
        return self._add(step, lambda: cursor.progress.moved(offset))

    def sql(self, statement: str, parameters: Sequence[Any] = ()) -> Later:
        """Write the application's own tables, on SQLite, in the same commit."""
        return self._add(Sql(statement, list(parameters)))

    def _add(self, step: Any, told: Callable[[], None] | None = None) -> Later:
        self._steps.append(step)
        answer = Later(told)
        self._answers.append(answer)
        return answer

    def _nothing(self) -> Later:
        """The answer of a step that there is no need to take."""
        answer = Later()
        answer.settle(None)
        return answer

    def _settle(self, results: list[Any]) -> None:
        for answer, result in zip(self._answers, results, strict=True):
            answer.settle(result)


def _durable(cursor: NamedCursor) -> NamedCursor:
    if not cursor.durable:
        raise InvalidInput(f"cursor {cursor.name!r} keeps its acknowledgements in memory")
    return cursor


def _name(noun: str | NamedLog | NamedQueue, what: str = "log") -> str:
    name: Any = getattr(noun, "name", None)
    return check_name(noun if name is None else name, what)  # type: ignore[arg-type]
