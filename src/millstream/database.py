"""The handle that `millstream.open` gives: the nouns of one store, over whatever session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from millstream.command import Fold, Session, Sql, Stats, Transact
from millstream.format.packing import check_json, pack_single
from millstream.log import commands as c
from millstream.log.cursor import Cursor
from millstream.log.log import Log, pack_many
from millstream.log.names import check_name
from millstream.log.progress import Acknowledged, ranges_of
from millstream.record import Headers, LogInfo, Producer

LOGS_PER_PAGE = 1_000


class Millstream:
    """One open store. Any thread may use it; close it when done, or use it in a `with`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def log(self, name: str) -> Log:
        """The log of that name; it comes to exist with its first append."""
        return Log(self._session, name)

    def logs(self) -> Iterator[LogInfo]:
        """Every log, in the order of their names."""
        after = ""
        while page := self._session.execute(c.ListLogs(after, LOGS_PER_PAGE)):
            yield from page
            after = page[-1].name

    def transaction(self) -> Transaction:
        """Several mutations in one commit: they are gathered, and happen when the block ends."""
        return Transaction(self._session)

    def stats(self) -> dict[str, Any]:
        """Facts and counters: durability, sizes, what is unfolded."""
        return self._session.execute(Stats())

    def fold(self) -> int:
        """Move every commit into its records now rather than in the background."""
        return self._session.execute(Fold())

    def close(self) -> None:
        """Let go of the store; a second call does nothing."""
        self._session.close()


class Later:
    """The answer of a step, there once the transaction has been committed."""

    __slots__ = ("_result", "done")

    def __init__(self) -> None:
        self.done = False
        self._result: Any = None

    def settle(self, result: Any) -> None:
        """Put the answer in."""
        self._result, self.done = result, True

    @property
    def result(self) -> Any:
        """The step's answer; asking before the commit is a mistake."""
        if not self.done:
            raise RuntimeError("the transaction has not been committed yet")
        return self._result


class Transaction:
    """Gathers steps; leaving the block commits all of them, an exception none."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._steps: list[Any] = []
        self._answers: list[Later] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._steps:
            results = self._session.execute(Transact(self._steps))
            for answer, result in zip(self._answers, results, strict=True):
                answer.settle(result)

    def append(
        self,
        log: str | Log,
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
            value, key=key, headers=headers, timestamp=timestamp, limits=self._session.limits
        )
        return self._add(c.Append(_name(log), record, expect_end, producer))

    def append_many(
        self,
        log: str | Log,
        values: Sequence[Any],
        *,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        timestamps: Sequence[int] | int | None = None,
    ) -> Later:
        """Append a batch; the answer is the offset of its first record."""
        limits = self._session.limits
        records = pack_many(
            values, keys=keys, headers=headers, timestamps=timestamps, limits=limits
        )
        if records is None:
            nothing = Later()
            nothing.settle(None)
            return nothing
        return self._add(c.Append(_name(log), records))

    def truncate(self, log: str | Log, *, before: int) -> Later:
        """Forget the records before an offset; the answer is how many went."""
        return self._add(c.Truncate(_name(log), before))

    def set_metadata(self, log: str | Log, key: str, value: Any) -> Later:
        """Set a metadata entry."""
        return self._add(c.SetMetadata(_name(log), check_name(key, "metadata"), check_json(value)))

    def ack(self, cursor: Cursor, records: Acknowledged) -> Later:
        """Acknowledge on a durable cursor; the answer is its floor."""
        return self._add(c.Acknowledge(cursor.log_name, cursor.name, ranges_of(records)))

    def seek(self, cursor: Cursor, offset: int) -> Later:
        """Set a durable cursor's floor; the answer is the floor."""
        return self._add(c.MoveCursor(cursor.log_name, cursor.name, offset))

    def sql(self, statement: str, parameters: Sequence[Any] = ()) -> Later:
        """Write the application's own tables, on SQLite, in the same commit."""
        return self._add(Sql(statement, list(parameters)))

    def _add(self, step: Any) -> Later:
        self._steps.append(step)
        answer = Later()
        self._answers.append(answer)
        return answer


def _name(log: str | Log) -> str:
    return log.name if isinstance(log, Log) else check_name(log)
