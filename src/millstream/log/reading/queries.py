"""What can be asked of logs and cursors without changing them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from millstream.errors import CorruptionError
from millstream.format import keys
from millstream.log import commands as c
from millstream.log.model.block import RecordBlock
from millstream.log.model.cursor_state import CursorState
from millstream.log.model.head import Head, Name
from millstream.log.model.metadata import MetadataState
from millstream.log.model.partitioned import (
    count_partitions,
    first_of,
    is_partitioned,
    partitions_of,
)
from millstream.log.reading import reader
from millstream.log.reading.damage import of_log
from millstream.log.rules import retention
from millstream.log.rules.ancestry import set_back_to
from millstream.log.rules.cursor_operations import cursor_info
from millstream.log.rules.operations import find_log
from millstream.partitioning import partition_name, partition_of
from millstream.record import CursorInfo, Extent, LogInfo, joined_info, moment
from millstream.store.sleep import Sleep, Waiting
from millstream.store.state.view import View
from millstream.store.store import Store

CURSORS_LISTED_MAX = 10_000


def get_bounds(store: Store, query: c.GetBounds) -> tuple[int, int]:
    """Start and end."""
    bounds = reader.bounds_of(store, reader.log_id_of(store, query.log), query.log)
    return bounds.start, bounds.end


def get_extent(store: Store, query: c.GetExtent) -> Extent:
    """Start, end, and how far the end went back; most logs' ends never do."""
    log_id = reader.log_id_of(store, query.log)
    bounds = reader.bounds_of(store, log_id, query.log)
    if bounds.setbacks <= query.known:
        return Extent(bounds.start, bounds.end, bounds.setbacks)

    def look(view: View) -> Extent:
        head = view.entity(keys.head(log_id), Head)
        back_to = set_back_to(view, log_id, query.known)
        return Extent(head.start, head.end, head.setbacks, back_to)

    return store.view(look)


def read_blocks(store: Store, query: c.ReadBlocks) -> list[RecordBlock]:
    """Some of the records that were asked for."""
    return reader.read_blocks(
        store,
        query.log,
        start=query.start,
        stop=query.stop,
        bytes_max=query.bytes_max,
        values=query.values,
    )


def wait_for_partitions(store: Store, query: c.WaitForPartitions) -> Waiting[bool]:
    """Wait until one of the partitions is past its offset; False if the time is up before."""
    wanted_ms = query.timeout_ms
    deadline = None if wanted_ms is None else store.clock.seconds() + wanted_ms / 1000
    waits = [
        c.WaitForOffset(partition_name(query.log, number), offset, None)
        for number, offset in enumerate([*query.offsets, 0])  # one that is added counts as well
    ]
    return _until_any(store, waits, deadline)


def _until_any(store: Store, waits: list[c.WaitForOffset], deadline: float | None) -> Waiting[bool]:
    while not any(_is_past(store, one) for one in waits):
        left_s = None if deadline is None else deadline - store.clock.seconds()
        if left_s is not None and left_s <= 0:
            return False
        awaited = tuple(_awaited(store, one) for one in waits)
        yield Sleep(awaited, partial(_is_any_over, store, waits, awaited), left_s)
    return True


def _is_any_over(store: Store, waits: list[c.WaitForOffset], awaited: tuple[bytes, ...]) -> bool:
    return any(_is_over(store, one, key) for one, key in zip(waits, awaited, strict=True))


def wait_for_offset(store: Store, query: c.WaitForOffset) -> Waiting[bool]:
    """Wait until there is a record at the offset; False if the time is up before.

    The time runs from this call, not from the first step.
    """
    wanted_ms = query.timeout_ms
    deadline = None if wanted_ms is None else store.clock.seconds() + wanted_ms / 1000
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
    """The entity to wait for until the log grows: its head, or its name if there is no log yet."""
    log_id = reader.log_id_of(store, query.log)
    return keys.head(log_id) if log_id else keys.log_name(query.log)


def _is_past(store: Store, query: c.WaitForOffset) -> bool:
    """Whether there is a record at the offset now, or what was there was set aside."""
    bounds = reader.bounds_of(store, reader.log_id_of(store, query.log), query.log)
    went_back = query.setbacks is not None and bounds.setbacks > query.setbacks
    return bounds.end > query.offset or went_back


def get_metadata(view: View, query: c.GetMetadata) -> dict[str, Any]:
    """The metadata map: a copy, so that callers cannot change what the store holds."""
    found = find_log(view, first_of(view, query.log))
    if found is None:
        return {}
    values = view.entity(keys.metadata(found[0]), MetadataState).values()
    copy: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(values))
    return copy


def describe_log(view: View, query: c.DescribeLog) -> LogInfo | None:
    """What is known of a log; of one with partitions, of all of them together."""
    found = find_log(view, query.log)
    if found is not None:
        return log_info(*found)
    parts = describe_partitions(view, c.DescribePartitions(query.log))
    return joined_info(query.log, parts) if parts else None


def describe_partitions(view: View, query: c.DescribePartitions) -> list[LogInfo]:
    """What is known of each partition; one that a copy has not got yet is empty."""
    found = []
    for name in partitions_of(view, query.log):
        known = find_log(view, name)
        found.append(log_info(*(known or (0, Head(name=name)))))
    return found


def list_logs(view: View, query: c.ListLogs) -> list[LogInfo]:
    """Logs in the order of their names; one with partitions stands where the first of these does."""
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
    """What a listing says of a name; None for a partition, but for the first, which tells of all.

    One that its log does not count is told by itself, so that nothing is hidden.
    """
    name = keys.name_of_log(key)
    part = partition_of(name)
    if part is None or part[1] >= count_partitions(view, part[0]):
        return _named_info(view, key)
    whole, number = part
    return None if number else describe_log(view, c.DescribeLog(whole))


def _named_info(view: View, key: bytes) -> LogInfo:
    try:
        log_id = view.entity(key, Name).log_id
        return log_info(log_id, view.entity(keys.head(log_id), Head))
    except CorruptionError as error:
        raise of_log(error, keys.name_of_log(key)) from error


def describe_cursor(view: View, query: c.DescribeCursor) -> CursorInfo | None:
    """How a cursor stands."""
    found = find_log(view, query.log)
    if found is None:
        return None
    cursor = view.entity(keys.cursor(found[0], query.cursor), CursorState)
    return cursor_info(query.cursor, cursor, found[1]) if cursor.present else None


def list_cursors(view: View, query: c.ListCursors) -> list[CursorInfo]:
    """The cursors of a log."""
    found = find_log(view, query.log)
    if found is None:
        if count := count_partitions(view, query.log):
            raise is_partitioned(query.log, count)
        return []
    page = view.find(*keys.range_of(keys.cursor(found[0], "")), limit=CURSORS_LISTED_MAX)
    return [
        cursor_info(keys.trailing_name(key), view.entity(key, CursorState), found[1])
        for key in page
    ]


def enforce_retention(store: Store, query: c.EnforceRetention) -> int:
    """Forget now what the log may forget, or each of its partitions, bytes included."""
    names = store.view(lambda view: partitions_of(view, query.log)) or [query.log]
    return sum(_forget_now(store, reader.log_id_of(store, name)) for name in names)


def _forget_now(store: Store, log_id: int) -> int:
    if not log_id:
        return 0
    gone = 0
    while some := retention.forget(store, log_id):
        gone += some
    while retention.tend(store, log_id):
        pass
    return gone


def log_info(log_id: int, head: Head) -> LogInfo:
    """What the head of a log says of it."""
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
