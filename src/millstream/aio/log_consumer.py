"""The consumer of a log: single records after a named cursor, acknowledged in groups."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from millstream.aio.consumer import PrefetchingConsumer
from millstream.command import AsyncSession
from millstream.errors import InvalidInput
from millstream.log.progress import OnLoss
from millstream.partitioning import whole_of
from millstream.record import Record, Seconds, to_ms
from millstream.store.wait_breaker import WaitBroken
from millstream.streaming.prefetching import Prefetching, PrefetchPlan, Refill, Settle
from millstream.worker.shift import IDLE_WAIT_S


class RecordCursor(Protocol):
    """The methods of a cursor that a consumer needs."""

    async def take(self, n: int = 1, *, wait: Seconds | None = None) -> list[Record]:
        """Return the next unacknowledged records, at most `n`."""

    async def ack(self, records: Any) -> None:
        """Mark records as processed, in any order and repeatedly."""


class CursorSource(Protocol):
    """The log of a consumer; `Log` and `PartitionedLog` implement it."""

    name: str

    async def cursor(self, name: str, *, start: Any, on_loss: OnLoss) -> RecordCursor:
        """Return the cursor of this name; make it at `start` if it does not exist."""


class LogConsumer(PrefetchingConsumer[Record]):
    """Yields the records after a cursor one by one. The loop acknowledges records in any order.

    Any coroutine may acknowledge records. An acknowledgement is noted at once, and stored with others
    after `linger`; reads do not wait for it. Records without a stored acknowledgement come again.
    """

    def __init__(
        self,
        log: CursorSource,
        session: AsyncSession,
        cursor: str,
        *,
        prefetch: int,
        auto_ack: bool,
        linger: Seconds,
        timeout: Seconds | None,
        start: int | str | datetime | timedelta,
        on_loss: OnLoss,
    ) -> None:
        super().__init__(session, log.name)
        self._log, self._cursor_name = log, cursor
        self._start, self._on_loss = start, on_loss
        self._auto_ack = auto_ack
        self._plan = PrefetchPlan(
            prefetch=prefetch,
            linger_s=to_ms(linger, "linger") / 1000,
            wait_s=IDLE_WAIT_S,
            timeout_s=None if timeout is None else to_ms(timeout, "timeout") / 1000,
            acks_apart=True,
        )

    async def ack(self, record: Record) -> None:
        """Note that a record is processed. `flush` stores the note."""
        try:
            must_wake = self._machine.ack(record)
        except (AttributeError, KeyError):  # no machine, or a record that it does not hold
            must_wake = self._checked(record).ack_unknown(record)
        if must_wake:
            self._wake()

    def _checked(self, record: Any) -> Prefetching[Record]:
        """Return the machine of an open consumer for a record of its log."""
        machine = self._open_machine()
        is_record = isinstance(record, Record)
        if not is_record or self.name not in (record.log, whole_of(record.log)):
            raise InvalidInput(f"a record of log {self.name!r} is expected, not {record!r:.100}")
        return machine

    async def _begin(self) -> Prefetching[Record]:
        self._cursor = await self._log.cursor(
            self._cursor_name, start=self._start, on_loss=self._on_loss
        )
        return Prefetching(self._plan)

    async def _claim(self, refill: Refill[Record]) -> Sequence[Record]:
        try:
            return await self._cursor.take(refill.n, wait=refill.wait_s)
        except WaitBroken:  # by a stop
            return []

    async def _settle(self, settle: Settle[Record]) -> int:
        if settle.how == "ack":
            await self._cursor.ack(settle.messages)
        return 0
