"""Staging: append now, commit later.

A staging handle holds its log exclusively. What it appends can be read through it at once, and by
everybody once it is committed: by `commit`, by leaving the `with` block, or because a section is
full. What was not committed is lost with the handle.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from millstream.command import Session
from millstream.errors import InvalidInput
from millstream.format import block
from millstream.format.packing import Batch, Single, pack_single
from millstream.limits import Limits
from millstream.log import commands as c
from millstream.log.cursor import SECTION, Cursor
from millstream.record import NO_HEADERS, Extent, Headers, Record, Seconds

_decode_headers = msgspec.msgpack.Decoder(dict[str, Any]).decode


class _Log(Protocol):
    name: str

    def read(self, start: int | None = None, stop: int | None = None) -> Iterator[Record]:
        """The records in [start, stop)."""

    def start_offset(self) -> int:
        """The first offset that is there."""

    def extent(self, known: int = 0) -> Extent:
        """Both ends, and how far the end went back since it did so `known` times."""


class Stage:
    """Records that are readable here, and durable at the next commit."""

    def __init__(self, session: Session, log: _Log, *, section: int) -> None:
        if section < 1:
            raise InvalidInput(f"a section has at least one record, not {section}")
        self.name = log.name
        self._session = session
        self._log = log
        self._section = section
        self._token = secrets.token_hex(8)
        self._committed = session.execute(c.TakeLog(log.name, self._token))
        self._records: list[Single] = []
        self._bytes = 0

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
        headers: Headers | None = None,
        timestamp: int | None = None,
    ) -> int:
        """Stage one record and return the offset that it will have."""
        record = pack_single(
            value,
            key=key,
            headers=headers,
            timestamp=self._session.clock.wall_ms() if timestamp is None else timestamp,
            limits=self._session.limits,
        )
        self._records.append(record)
        offset = self._committed + len(self._records) - 1
        self._bytes += len(record.value) + len(record.headers)
        if is_full(offset, self._bytes, section=self._section, limits=self._session.limits):
            self.commit()
        return offset

    def commit(self) -> int:
        """Make what is staged durable and visible to all; answers the end of the log."""
        if self._records:
            records = self._records[0] if len(self._records) == 1 else batch_of(self._records)
            self._session.execute(
                c.Append(self.name, records, expect_end=self._committed, token=self._token)
            )
            self._committed += len(self._records)
            self._records, self._bytes = [], 0
        return self._committed

    def discard(self) -> int:
        """Drop what is staged; answers how many records went."""
        gone = len(self._records)
        self._records, self._bytes = [], 0
        return gone

    def close(self) -> None:
        """Drop what is staged and let others append again."""
        self.discard()
        self._session.execute(c.FreeLog(self.name, self._token))

    def get(self, offset: int) -> Record | None:
        """The record at an offset, staged or committed."""
        return next(self.read(offset, offset + 1), None) if offset < self.end_offset() else None

    def read(self, start: int | None = None, stop: int | None = None) -> Iterator[Record]:
        """The records in [start, stop), those that are staged included."""
        stop = self.end_offset() if stop is None else min(stop, self.end_offset())
        position = self.start_offset() if start is None else start
        if position < self._committed:
            yield from self._log.read(position, min(stop, self._committed))
        for offset in range(max(position, self._committed), stop):
            yield staged_record(self.name, offset, self._records[offset - self._committed])

    def start_offset(self) -> int:
        """The offset of the first record that is there."""
        return self._log.start_offset()

    def end_offset(self) -> int:
        """The offset that the next record will get."""
        return self._committed + len(self._records)

    def extent(self, known: int = 0) -> Extent:
        """Both ends; those of a log that is held do not go back."""
        extent = self._log.extent(known)
        return Extent(extent.start, self.end_offset(), extent.setbacks, extent.set_back_to)

    def wait(
        self, offset: int, *, timeout: Seconds | None = None, setbacks: int | None = None
    ) -> bool:
        """Whether there is a record at the offset: nobody else can add one meanwhile."""
        return self.end_offset() > offset

    def cursor(
        self,
        name: str,
        *,
        durable: bool = False,
        start: int | str = "earliest",
        section: int | None = None,
    ) -> Cursor:
        """A cursor that sees staged records as well."""
        return Cursor(
            self._session,
            self,
            name,
            durable=durable,
            start=start,
            section=section or self._section or SECTION,
        )


def is_full(offset: int, staged_bytes: int, *, section: int, limits: Limits) -> bool:
    """Whether what is staged must be committed: its section is full, or its batch is large."""
    return (offset + 1) % section == 0 or staged_bytes > limits.batch_bytes_max // 2


def staged_record(log: str, offset: int, record: Single) -> Record:
    """A staged record as readers of the handle see it; it has no time of its append yet."""
    return Record(
        log,
        offset,
        record.value,
        record.timestamp_ms or 0,
        record.key,
        _decode_headers(record.headers) if record.headers else NO_HEADERS,
    )


def batch_of(records: list[Single]) -> Batch:
    """Several staged records as one batch."""
    payload = block.encode_values([record.value for record in records])
    columns, metadata = block.encode_metadata(
        timestamps=[record.timestamp_ms or 0 for record in records],
        keys=[r.key for r in records] if any(r.key is not None for r in records) else None,
        headers=[r.headers for r in records] if any(r.headers for r in records) else None,
    )
    return Batch(
        len(records),
        payload,
        block.checksum(payload),
        columns,
        metadata,
        block.checksum(metadata),
        None,
    )
