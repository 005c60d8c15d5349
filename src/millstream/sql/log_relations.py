"""The relations of logs: `millstream_logs` and `millstream_records`.

`appended` grows with the offset, unless the clock of the machine was set back. So bounds on it are
found by a binary search, as `millstream read --since` does.
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from operator import attrgetter
from typing import NamedTuple

import msgspec

from millstream.errors import InvalidName, Truncated
from millstream.partitioning import partition_name, partition_of
from millstream.record import LogInfo, Record, wall_ms_of
from millstream.sql.relation import (
    EQUAL,
    RANGE,
    Column,
    Relation,
    Scan,
    SqlValue,
    headers_text,
    text_or_bytes,
    time_text,
)
from millstream.threads.database import Millstream
from millstream.threads.log import Log

SECTION_FIRST = 32
"""Records that a scan reads at first, because many scans have a LIMIT; each section is twice as long."""

BACKWARD_MAX = 256
"""The most records that a descending scan reads at once, and keeps in memory."""

_TIME = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d(:\d\d(\.\d+)?)?)?")
"""A time that sorts as text as it does in time."""


class StoredRecord(NamedTuple):
    """A row of `millstream_records`."""

    log: str
    partition: int
    offset: int
    record: Record | None
    """None if the statement needs the place of the record only."""


class _Part(NamedTuple):
    """A log that holds records: a plain log, or a partition."""

    log: str
    partition: int
    handle: Log


def _scan_logs(ms: Millstream, scan: Scan) -> Iterator[LogInfo]:
    name = scan.text("name")
    if name is None:
        yield from ms.logs()
    elif (info := _describe(ms, name)) is not None:
        yield info


def _describe(ms: Millstream, name: str) -> LogInfo | None:
    with suppress(InvalidName):  # no log can have the name
        return ms.log(name).info()
    return None


def _scan_records(ms: Millstream, scan: Scan) -> Iterator[StoredRecord]:
    parts = _parts(ms, scan)
    if not scan.order:
        for part in parts:
            yield from _read(part, scan)
        return
    # The rows of partitions are merged: a plain log is the only one.
    is_descending = scan.order == "descending"
    scans = [_read(part, scan) for part in parts]
    yield from heapq.merge(*scans, key=attrgetter("offset"), reverse=is_descending)


def _parts(ms: Millstream, scan: Scan) -> Iterator[_Part]:
    """Yield the logs and partitions that may hold rows of a scan."""
    numbers = scan.integers("partition")
    name = scan.text("log")
    if name is None:
        for info in ms.logs(partitions=True):
            log, number = partition_of(info.name) or (info.name, 0)
            if number in numbers:
                yield _Part(log, number, ms.log(info.name))
        return
    named = _describe(ms, name)
    if named is None:
        return
    if not named.partitions:
        yield _Part(name, 0, ms.log(name))
    for number in range(named.partitions):
        if number in numbers:
            yield _Part(name, number, ms.log(partition_name(name, number)))


def _read(part: _Part, scan: Scan) -> Iterator[StoredRecord]:
    """Yield the rows of a log or partition that a scan may need."""
    log = part.handle
    start, end = log.start_offset(), log.end_offset()
    offsets = scan.integers("offset")
    start, end = max(start, offsets.start), min(end, offsets.stop)
    for operator, value in scan.values("appended"):
        start, end = _within(log, start, end, operator, value)
    is_descending = scan.order == "descending"
    if scan.columns <= _PLACE_COLUMNS:
        for offset in range(end - 1, start - 1, -1) if is_descending else range(start, end):
            yield StoredRecord(part.log, part.partition, offset, None)
        return
    records = _backward(log, start, end) if is_descending else _forward(log, start, end)
    for record in records:
        yield StoredRecord(part.log, part.partition, record.offset, record)


def _forward(log: Log, start: int, end: int) -> Iterator[Record]:
    """Yield records in order; records that the log deletes meanwhile are left out."""
    position, count = start, SECTION_FIRST
    while position < end:
        try:
            yield from log.read(position, min(end, position + count))
            position, count = position + count, 2 * count
        except Truncated as gone:
            position = max(position, gone.start)


def _backward(log: Log, start: int, end: int) -> Iterator[Record]:
    """Yield records from the last one to the first one."""
    count = SECTION_FIRST
    while start < end:
        first = max(start, end - count)
        yield from reversed(list(_forward(log, first, end)))
        end, count = first, min(2 * count, BACKWARD_MAX)


def _within(log: Log, start: int, end: int, operator: str, time: SqlValue) -> tuple[int, int]:
    """Return the bounds of the records that were appended before or after a time."""
    if not isinstance(time, str) or not _TIME.fullmatch(time) or start >= end:
        return start, end
    try:
        wall_ms = wall_ms_of(datetime.fromisoformat(time).replace(tzinfo=UTC))
    except ValueError:
        return start, end

    def appended(offset: int) -> int:
        record = log.get(offset)
        return 0 if record is None else record.appended

    if operator in ("=", ">", ">="):
        start = bisect_left(range(end), wall_ms, lo=start, key=appended)
    if operator in ("=", "<", "<="):
        end = bisect_right(range(end), wall_ms, lo=start, key=appended)
    return start, end


def _of(row: StoredRecord) -> Record:
    assert row.record is not None, "the scan was told that only the place is needed"
    return row.record


LOGS = Relation(
    "millstream_logs",
    (
        Column("name", "TEXT", lambda info: info.name),
        Column("records", "INTEGER", len),
        Column("start_offset", "INTEGER", lambda info: info.start_offset),
        Column("end_offset", "INTEGER", lambda info: info.end_offset),
        Column("bytes", "INTEGER", lambda info: info.bytes),
        Column("partitions", "INTEGER", lambda info: info.partitions),
        Column("time", "TEXT", lambda info: time_text(info.timestamp)),
        Column("created", "TEXT", lambda info: time_text(info.created)),
        Column(
            "retention",
            "TEXT",
            lambda info: msgspec.json.encode(info.retention).decode() if info.retention else None,
        ),
    ),
    key=("name",),
    searched={"name": EQUAL},
    scan=_scan_logs,
)

RECORDS = Relation(
    "millstream_records",
    (
        Column("log", "TEXT", lambda row: row.log),
        Column("offset", "INTEGER", lambda row: row.offset),
        Column("time", "TEXT", lambda row: time_text(_of(row).timestamp)),
        Column("key", "", lambda row: text_or_bytes(_of(row).key)),
        Column("value", "", lambda row: text_or_bytes(_of(row).value)),
        Column("headers", "TEXT", lambda row: headers_text(_of(row).headers)),
        Column("partition", "INTEGER", lambda row: row.partition),
        Column("appended", "TEXT", lambda row: time_text(_of(row).appended)),
    ),
    key=("log", "partition", "offset"),
    searched={"log": EQUAL, "partition": RANGE, "offset": RANGE, "appended": RANGE},
    scan=_scan_records,
    order_by="offset",
    order_within="log",
)

_PLACE_COLUMNS = frozenset(RECORDS.key)
