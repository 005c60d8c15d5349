# Generated from src/millstream/aio/stage.py by `make generate`: change that file, not this one.

"""Staging for threads: append now, commit later.

A staging handle holds its log exclusively. What it appends can be read through it at once, and by
every reader once it is committed: by `commit`, by leaving the `with` block, or because a section is
full. What was not committed is lost with the handle.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

from millstream.command import Session
from millstream.errors import EndMoved, MillstreamError, OutcomeUnknown
from millstream.format.packing import pack_single
from millstream.header import HeadersLike
from millstream.log import commands as c
from millstream.log.progress import check_section
from millstream.log.staged import Staged, staged_record
from millstream.numbers import checked_numbers
from millstream.record import Extent, Record, Seconds
from millstream.threads.cursor import Cursor, Source, open_cursor
from millstream.threads.runtime import Lock, Unbroken


def open_stage(session: Session, log: Source, *, section: int) -> Stage:
    """Hold a log exclusively, from its end on."""
    check_section(section)
    token = secrets.token_hex(8)
    end = session.execute(c.TakeLog(log.name, token))
    return Stage(session, log, section=section, token=token, end=end)


@checked_numbers
class Stage:
    """Records that are readable here, and durable at the next commit."""

    def __init__(
        self, session: Session, log: Source, *, section: int, token: str, end: int
    ) -> None:
        self.name = log.name
        self._session = session
        self._log = log
        self._section = section
        self._token = token
        self._staged = Staged(log.name, token, end, section=section, limits=session.limits)
        self._changing = Lock()
        self._commits = Unbroken(session)
        """A cancelled caller leaves its commit running: the next call looks how that ended."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.close()

    def append(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        timestamp: int | None = None,
    ) -> int:
        """Stage a record and return its future offset; `key`, `headers` and `timestamp` as in a log.

        A record that fills its section commits the section. After an error nothing of the call is
        staged. A repeated call stores the record once, even after `OutcomeUnknown`.
        """
        record = pack_single(
            value,
            key=key,
            headers=headers,
            timestamp=self._session.clock.wall_ms() if timestamp is None else timestamp,
            limits=self._session.limits,
        )
        with self._changing:
            self._settle()
            stored = self._staged.repeated(record, timed=timestamp is not None)
            if stored is not None:
                return stored
            offset = self._staged.add(record)
            if self._staged.is_full():
                self._commit(by_call=True)
            return offset

    def commit(self) -> int:
        """Make the staged records durable and visible to all; return the end of the log."""
        with self._changing:
            self._settle()
            if self._staged.records:
                self._commit(by_call=False)
            return self._staged.committed

    def discard(self) -> int:
        """Drop the staged records, and return their number."""
        with self._changing:
            self._settle()
            return self._staged.clear()

    def close(self) -> None:
        """Drop what is staged and let others append again."""
        with self._changing:
            self._commits.ended()
            self._staged.clear()
            self._session.execute(c.FreeLog(self.name, self._token))

    def _commit(self, *, by_call: bool) -> None:
        command = self._staged.begin(by_call=by_call)
        try:
            self._commits.execute(command)
        except MillstreamError as error:
            if not isinstance(error, OutcomeUnknown):
                self._staged.failed()
            raise
        self._staged.succeeded()

    def _settle(self) -> None:
        """Find out how a commit ended, if that is in doubt."""
        if not self._staged.in_doubt:
            return
        self._commits.ended()
        try:
            self._session.execute(self._staged.probe())
        except EndMoved:
            self._staged.failed()
        else:
            self._staged.was_stored()

    def get(self, offset: int) -> Record | None:
        """The record at an offset, staged or committed."""
        if offset >= self.end_offset():
            return None
        return next(self.read(offset, offset + 1), None)

    def read(self, start: int | None = None, stop: int | None = None) -> Iterator[Record]:
        """Yield the records from `start` to `stop` as `Log.read` does, staged records included."""
        first = self.start_offset() if start is None or start < 0 else start
        committed, records = self._staged.committed, self._staged.visible()
        end = committed + len(records)
        position = max(first, end + start) if start is not None and start < 0 else first
        stop = end if stop is None else min(stop if stop >= 0 else max(0, end + stop), end)
        first = max(position, committed)
        records = records[first - committed : max(stop - committed, 0)]  # as they are now
        if position < committed:
            yield from self._log.read(position, min(stop, committed))
        for offset, staged in enumerate(records, first):
            yield staged_record(self.name, offset, staged)

    def start_offset(self) -> int:
        """The offset of the first record that is there."""
        return self._log.start_offset()

    def end_offset(self) -> int:
        """The offset that the next record will get."""
        return self._staged.committed + len(self._staged.visible())

    def read_next(self, start: int, stop: int | None = None) -> Iterator[Record]:
        """Yield the records from `start` on, staged records included, as `read` does.

        The records lie before `stop` (default: the end).
        """
        yield from self.read(start, stop)

    def extent(self, known: int = 0) -> Extent:
        """Both ends, the id of the log, and its relation to the log `known`, as `Log.extent`."""
        extent = self._log.extent(known)
        return Extent(extent.start, self.end_offset(), extent.id, extent.equal_below)

    def wait(self, offset: int, *, timeout: Seconds | None = None, log_id: int = 0) -> bool:
        """Return True if the offset holds a record, without a wait.

        No other writer can append meanwhile, so `timeout` and `log_id` change nothing.
        """
        return self.end_offset() > offset

    def cursor(
        self,
        name: str,
        *,
        durable: bool = False,
        start: int | str | datetime | timedelta = "earliest",
        section: int | None = None,
    ) -> Cursor:
        """Return a cursor that sees staged records as well.

        See `Log.cursor` for `start`, `durable` (default: False) and `section` (default: the section
        of the stage). A `start` at a time finds committed records.
        """
        return open_cursor(
            self._session,
            self,
            name,
            durable=durable,
            start=start,
            section=section or self._section,
        )
