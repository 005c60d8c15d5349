"""The plan of a read: the logs, and the offsets of each log."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from millstream.errors import (
    Conflict,
    CorruptionError,
    InvalidInput,
    NotFound,
    OutOfRange,
    Truncated,
)
from millstream.log import commands as c
from millstream.partitioning import partition_of, whole_of
from millstream.queue.model.own_logs import INBOX, LATER
from millstream.queue.rules.sources import OWN
from millstream.record import LogInfo
from millstream.spark.options import EARLIEST, LATEST, Positions, ReadOptions
from millstream.spark.source.bins import Range
from millstream.spark.source.listings import listed
from millstream.spark.source.losses import Loss, TellLoss, warn

if TYPE_CHECKING:
    from millstream.command import Session

NAMED_MAX = 100
"""The most logs that are asked for by name. For more logs a listing of all takes fewer requests."""


def find_logs(session: Session, options: ReadOptions, tell: TellLoss = warn) -> dict[str, LogInfo]:
    """Return the existing logs that the options name; a pattern never takes internal logs.

    A damaged log ends the search. With failOnDataLoss=false the log is left out and reported to
    `tell`.
    """
    report = None if options.fail_on_data_loss else tell
    if not options.pattern:
        return _named_logs(session, list(options.logs), report, first_only=options.assigned)
    pattern = re.compile(options.pattern)

    def is_wanted(name: str) -> bool:
        is_own = name.startswith((INBOX, LATER, OWN))
        fits = any(map(pattern.fullmatch, (name, whole_of(name))))
        return not is_own and fits

    return {info.name: info for info in _all_logs(session, is_wanted, report)}


def _named_logs(
    session: Session, names: list[str], tell: TellLoss | None, *, first_only: bool = False
) -> dict[str, LogInfo]:
    """Return logs by name; partitions, or the first partition, replace a partitioned log."""
    infos_by_name: dict[str, list[LogInfo]] = {}
    if len(names) > NAMED_MAX:
        name_set = set(names)
        for info in _all_logs(session, lambda name: bool({name, whole_of(name)} & name_set), tell):
            for name in {info.name, whole_of(info.name)}:
                infos_by_name.setdefault(name, []).append(info)
    else:
        infos_by_name = {name: _described(session, name, tell) for name in names}
    matches = [infos_by_name.get(name, [])[: 1 if first_only else None] for name in names]
    return {info.name: info for infos in matches for info in infos}


def _described(session: Session, name: str, tell: TellLoss | None) -> list[LogInfo]:
    try:
        info = session.execute(c.DescribeLog(name))
        if info is None or not info.partitions:
            return [] if info is None else [info]
        return session.execute(c.DescribePartitions(name))
    except CorruptionError as error:
        if tell is None:
            raise
        tell(Loss(name, 0, 0, error.message))
        return []


def _all_logs(
    session: Session, is_wanted: Callable[[str], bool], tell: TellLoss | None
) -> Iterator[LogInfo]:
    """Yield the logs with a wanted name, in order, and report damaged logs to `tell`."""

    def left_out(name: str, error: CorruptionError) -> None:
        if tell is not None and is_wanted(name):
            tell(Loss(name, 0, 0, error.message))

    infos = listed(
        lambda after, limit: session.execute(c.ListLogs(after, limit, partitions=True)),
        named_by="name",
        tell=None if tell is None else left_out,
    )
    return (info for info in infos if is_wanted(info.name))


def plan_batch(session: Session, options: ReadOptions) -> tuple[list[Range], dict[str, LogInfo]]:
    """Return the ranges of a batch read, and the description of each log."""
    infos = find_logs(session, options)
    names = with_wholes(infos)
    missing = [name for name in options.logs if name not in names]
    if missing and options.fail_on_data_loss:
        raise NotFound(
            f"option subscribe: there is no log {missing[0]!r}; with failOnDataLoss=false it is "
            "taken for an empty one",
            name=missing[0],
        )
    check_named(options.starting, infos, "startingOffsets")
    check_named(options.ending, infos, "endingOffsets")
    ranges = []
    for name, info in infos.items():
        start = starting_offset(session, info, options)
        stop = _ending_offset(session, info, options)
        if start < stop:
            ranges.append(Range(name, start, stop))
    return ranges, infos


def check_named(positions: Positions, infos: Iterable[str], option: str) -> None:
    """Refuse offsets of a log that is not read."""
    names = with_wholes(infos)
    for name in (*positions.offsets, *positions.times):
        partition = partition_of(name)
        is_read = name in names or (
            partition is not None and partition[1] == 0 and partition[0] in set(infos)
        )
        if not is_read:
            raise InvalidInput(
                f"option {option}: names the log {name!r}, which is not read; expected some of "
                f"{', '.join(sorted(names)[:10]) or 'none'}"
            )


def with_wholes(infos: Iterable[str]) -> set[str]:
    """Return the names, and for each partition the name of its partitioned log."""
    return {log_name for name in infos for log_name in (name, whole_of(name))}


def starting_offset(session: Session, info: LogInfo, options: ReadOptions) -> int:
    """The first offset to be read of a log."""
    positions = options.starting
    time_ms = positions.time_of(info.name)
    if time_ms is not None:
        offset_by_time = offset_at(session, info, time_ms)
        if offset_by_time == info.end_offset and not options.late_is_latest:
            raise OutOfRange(
                f"option startingTimestamp: log {info.name!r} has no record appended at or after "
                f"{time_ms} ms; with startingOffsetsByTimestampStrategy=latest the read begins "
                "at its end",
                position=time_ms,
                end=info.end_offset,
            )
        return offset_by_time
    offset = positions.offset_of(info.name)
    if offset == EARLIEST:
        return info.start_offset
    if offset == LATEST:
        return info.end_offset
    return checked_start(info, offset, options, "startingOffsets")


def checked_start(info: LogInfo, offset: int, options: ReadOptions, origin: str) -> int:
    """Return the offset if the log holds it; else raise, or move the offset to the nearest stored record."""
    if info.start_offset <= offset <= info.end_offset:
        return offset
    if options.fail_on_data_loss:
        raise lost(info.name, offset, info.start_offset, info.end_offset, origin)
    return min(max(offset, info.start_offset), info.end_offset)


def made_anew(
    name: str,
    new_id: int,
    *,
    old_id: int,
    offset: int,
    origin: str = "the checkpoint",
    advice: str = "Begin a new checkpoint; or set failOnDataLoss=false to read the new log from its "
    "beginning",
) -> Conflict:
    """Return the error for a position in a deleted log whose name belongs to a new log."""
    return Conflict(
        f"{origin} is of another log {name!r}: it was deleted at or after offset {offset} and made "
        f"anew (its id was {old_id}, and is {new_id}), or this is another store. {advice}",
        name=name,
    )


def lost(log: str, offset: int, start: int, end: int, origin: str) -> Truncated | OutOfRange:
    """Return the error for offsets that the log no longer holds."""
    advice = "set failOnDataLoss=false to go on with what is there"
    if offset < start:
        return Truncated(
            f"{origin}: log {log!r} begins at {start}, so offsets {offset} to {start - 1} are lost; "
            f"{advice}",
            log=log,
            offset=offset,
            start=start,
        )
    return OutOfRange(
        f"{origin}: log {log!r} ends at {end}, before offset {offset}: it may have been deleted and "
        f"made anew; {advice}",
        position=offset,
        end=end,
    )


def _ending_offset(session: Session, info: LogInfo, options: ReadOptions) -> int:
    positions = options.ending
    time_ms = positions.time_of(info.name)
    if time_ms is not None:
        return offset_at(session, info, time_ms)
    offset = positions.offset_of(info.name)
    if offset == LATEST:
        return info.end_offset
    if offset == EARLIEST:
        raise InvalidInput(f"option endingOffsets: -2 (earliest) is no end for log {info.name!r}")
    if offset > info.end_offset and options.fail_on_data_loss:
        raise lost(info.name, offset, info.start_offset, info.end_offset, "endingOffsets")
    return min(offset, info.end_offset)


def offset_at(session: Session, info: LogInfo, time_ms: int) -> int:
    """Return the offset of the first record appended at or after a time, or the end of the log.

    The search halves the range. If the wall clock once went back, the result is a record near that
    point. Nobody knows when damaged records were appended: if the time may fall among damaged
    records, the result is the first damaged offset.
    """
    low, high = info.start_offset, info.end_offset
    while low < high:
        middle = (low + high) // 2
        try:
            readable = _first_sound(session, info.name, middle, high)
        except NotFound:
            return info.end_offset  # deleted meanwhile
        if readable is not None and readable[1] < time_ms:
            low = readable[0] + 1
        else:
            high = middle
    return low


def _first_sound(session: Session, log: str, start: int, stop: int) -> tuple[int, int] | None:
    """Return the first readable record in a range and its append time, or None."""
    while start < stop:
        try:
            blocks = session.execute(c.ReadBlocks(log, start, start + 1, 1, values=False))
        except CorruptionError as error:
            start = max(start + 1, int(error.data.get("stop", 0)))
            continue
        if not blocks:
            raise NotFound(f"log {log!r} has no record at offset {start} any more")
        return start, blocks[0].appended()[0]
    return None


def bytes_of(range_: Range, info: LogInfo) -> int:
    """Estimate the bytes of a range of a log."""
    return info.bytes * len(range_) // max(1, len(info))
