"""The reads of logs and cursors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from millstream.errors import CorruptionError, InvalidInput
from millstream.format import keys
from millstream.log import commands as c
from millstream.log.model.block import RecordBlock
from millstream.log.model.cursor_state import CursorState
from millstream.log.model.head import Bounds, Head, Name
from millstream.log.model.metadata import MetadataState
from millstream.log.model.partitioned import (
    count_partitions,
    first_of,
    is_partitioned,
    partitions_of,
)
from millstream.log.reading import reader, times
from millstream.log.reading.damage import of_log
from millstream.log.rules import retention
from millstream.log.rules.ancestry import equal_below
from millstream.log.rules.cursor_operations import cursor_info
from millstream.log.rules.operations import find_log
from millstream.numbers import NUMBER_MAX
from millstream.partitioning import partition_name, partition_of
from millstream.record import CursorInfo, Extent, LogInfo, joined_info, moment
from millstream.store.sleep import Sleep, Waiting
from millstream.store.state.view import Rows, View
from millstream.store.store import Store

CURSORS_LISTED_MAX = 10_000


def get_bounds(store: Store, query: c.GetBounds) -> tuple[int, int]:
    """Return the start and the end of a log."""
    bounds = reader.bounds_of(store, reader.log_id_of(store, query.log), query.log)
    return bounds.start, bounds.end


def get_extent(store: Store, query: c.GetExtent) -> Extent:
    """Return the start, the end and the id of a log, and how it relates to the log `known`."""
    log_id = reader.log_id_of(store, query.log)
    bounds = reader.bounds_of(store, log_id, query.log)
    if not 0 <= query.known <= NUMBER_MAX:
        raise InvalidInput(
            f"known is the id of a log: a whole number from 0 to {NUMBER_MAX}, not {query.known}"
        )
    if query.known in (0, log_id):
        return Extent(bounds.start, bounds.end, log_id)

    def look(view: View) -> Extent:
        log = find_log(view, query.log)
        if log is None:
            return Extent(0, 0)
        now_id, head = log
        return Extent(head.start, head.end, now_id, equal_below(view, now_id, query.known))

    return store.view(look)


def read_blocks(store: Store, query: c.ReadBlocks) -> list[RecordBlock]:
    """Return the first blocks of a range."""
    return reader.read_blocks(
        store,
        query.log,
        start=query.start,
        stop=query.stop,
        bytes_max=query.bytes_max,
        values=query.values,
    )


def find_offset(store: Store, query: c.FindOffset) -> int:
    """Return the offset of the first record whose timestamp is at or after a time; else the end."""
    log_id = reader.log_id_of(store, query.log)
    time_ms = store.clock.wall_ms() - query.time_ms if query.is_ago else query.time_ms
    if not log_id:
        return 0

    def find(bounds: Bounds, rows: Rows) -> int:
        return times.offset_at(rows, log_id, start=bounds.start, end=bounds.end, time_ms=time_ms)

    return reader.with_rows(store, log_id, find, query.log)


def wait_for_partitions(store: Store, query: c.WaitForPartitions) -> Waiting[bool]:
    """Wait until a partition is past its offset; return False after the timeout."""
    timeout_ms = query.timeout_ms
    deadline = None if timeout_ms is None else store.clock.seconds() + timeout_ms / 1000
    waits = [
        c.WaitForOffset(partition_name(query.log, number), offset, None)
        for number, offset in enumerate([*query.offsets, 0])  # the last wait is for a new partition
    ]
    return _until_any(store, waits, deadline)


def _until_any(store: Store, waits: list[c.WaitForOffset], deadline: float | None) -> Waiting[bool]:
    while not any(_is_past(store, query) for query in waits):
        left_s = None if deadline is None else deadline - store.clock.seconds()
        if left_s is not None and left_s <= 0:
            return False
        awaited = tuple(_awaited(store, query) for query in waits)
        yield Sleep(awaited, partial(_is_any_over, store, waits, awaited), left_s)
    return True


def _is_any_over(store: Store, waits: list[c.WaitForOffset], awaited: tuple[bytes, ...]) -> bool:
    return any(_is_over(store, query, key) for query, key in zip(waits, awaited, strict=True))


def wait_for_offset(store: Store, query: c.WaitForOffset) -> Waiting[bool]:
    """Wait until there is a record at the offset; return False after the timeout.

    The timeout runs from this call, not from the first step.
    """
    timeout_ms = query.timeout_ms
    deadline = None if timeout_ms is None else store.clock.seconds() + timeout_ms / 1000
    return _until_past(store, query, deadline)


def _until_past(store: Store, query: c.WaitForOffset, deadline: float | None) -> Waiting[bool]:
    while not _is_past(store, query):
        left_s = None if deadline is None else deadline - store.clock.seconds()
        if left_s is not None and left_s <= 0:
            return False
        key = _awaited(store, query)
        yield Sleep((key,), partial(_is_over, store, query, key), left_s)
    return True


def _is_over(store: Store, query: c.WaitForOffset, key: bytes) -> bool:
    return _is_past(store, query) or _awaited(store, query) != key


def _awaited(store: Store, query: c.WaitForOffset) -> bytes:
    """Return the key to watch for growth: the head of the log, or the name of a missing log."""
    log_id = reader.log_id_of(store, query.log)
    return keys.head(log_id) if log_id else keys.log_name(query.log)


def _is_past(store: Store, query: c.WaitForOffset) -> bool:
    """Return whether there is a record at the offset, or the name stands for another log."""
    log_id = reader.log_id_of(store, query.log)
    is_other = bool(query.log_id and log_id) and query.log_id != log_id
    return is_other or reader.bounds_of(store, log_id, query.log).end > query.offset


def get_metadata(view: View, query: c.GetMetadata) -> dict[str, Any]:
    """Return a copy of the metadata map, so that callers cannot change the store's map."""
    log = find_log(view, first_of(view, query.log))
    if log is None:
        return {}
    values = view.entity(keys.metadata(log[0]), MetadataState).values()
    copy: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(values))
    return copy


def describe_log(view: View, query: c.DescribeLog) -> LogInfo | None:
    """Describe a log; a partitioned log is described by the sums of its partitions."""
    log = find_log(view, query.log)
    if log is not None:
        return log_info(*log)
    partitions = describe_partitions(view, c.DescribePartitions(query.log))
    return joined_info(query.log, partitions) if partitions else None


def describe_partitions(view: View, query: c.DescribePartitions) -> list[LogInfo]:
    """Describe the partitions of a log; a partition that a copy has not received yet is empty."""
    infos = []
    for name in partitions_of(view, query.log):
        log = find_log(view, name)
        infos.append(log_info(*(log or (0, Head(name=name)))))
    return infos


def list_logs(view: View, query: c.ListLogs) -> list[LogInfo]:
    """List logs in the order of names; a partitioned log is listed at its first partition."""
    try:
        return list(islice(_listing(view, query), query.limit))
    except CorruptionError as error:
        key = bytes.fromhex(error.data["where"]) if error.data["what"] == "row" else b""
        if "name" in error.data or not key.startswith(keys.log_name("")):
            raise
        raise of_log(error, keys.name_of_log(key)) from error


def _listing(view: View, query: c.ListLogs) -> Iterator[LogInfo]:
    if query.partitions:
        for key in view.find(*keys.log_names(query.after), limit=query.limit):
            yield _named_info(view, key)
        return
    is_whole = count_partitions(view, query.after) > 0
    start, stop = keys.log_names(partition_name(query.after, 0) if is_whole else query.after)
    for key in view.find_all(start, stop):
        if (info := _listed(view, key)) is not None:
            yield info


def _listed(view: View, key: bytes) -> LogInfo | None:
    """Return the entry of a name in a listing, or None for a later partition.

    The first partition stands for the partitioned log. A partition that its log does not count is listed
    as a plain log, so that no log is hidden.
    """
    name = keys.name_of_log(key)
    partition = partition_of(name)
    if partition is None or partition[1] >= count_partitions(view, partition[0]):
        return _named_info(view, key)
    partitioned, number = partition
    return None if number else describe_log(view, c.DescribeLog(partitioned))


def _named_info(view: View, key: bytes) -> LogInfo:
    try:
        log_id = view.entity(key, Name).log_id
        return log_info(log_id, view.entity(keys.head(log_id), Head))
    except CorruptionError as error:
        raise of_log(error, keys.name_of_log(key)) from error


def describe_cursor(view: View, query: c.DescribeCursor) -> CursorInfo | None:
    """Describe a cursor."""
    log = find_log(view, query.log)
    if log is None:
        return None
    cursor = view.entity(keys.cursor(log[0], query.cursor), CursorState)
    return cursor_info(query.cursor, cursor, *log) if cursor.present else None


def list_cursors(view: View, query: c.ListCursors) -> list[CursorInfo]:
    """List the cursors of a log."""
    log = find_log(view, query.log)
    if log is None:
        if count := count_partitions(view, query.log):
            raise is_partitioned(query.log, count)
        return []
    page = view.find(*keys.range_of(keys.cursor(log[0], "")), limit=CURSORS_LISTED_MAX)
    return [
        cursor_info(keys.trailing_name(key), view.entity(key, CursorState), *log) for key in page
    ]


def enforce_retention(store: Store, query: c.EnforceRetention) -> int:
    """Apply the retention of a log and of its partitions now, and delete the bytes."""
    names = store.view(lambda view: partitions_of(view, query.log)) or [query.log]
    return sum(_forget_now(store, reader.log_id_of(store, name)) for name in names)


def _forget_now(store: Store, log_id: int) -> int:
    if not log_id:
        return 0
    gone = 0
    while count := retention.forget(store, log_id):
        gone += count
    while retention.tend(store, log_id):
        pass
    return gone


def log_info(log_id: int, head: Head) -> LogInfo:
    """Describe a log by its head."""
    return LogInfo(
        name=head.name,
        start_offset=head.start,
        end_offset=head.end,
        bytes=head.bytes,
        created=moment(head.created_ms),
        timestamp=head.timestamp_ms,
        retention=head.retention,
        id=log_id,
    )
