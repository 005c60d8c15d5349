"""Planning a read: which logs, and which offsets of each."""

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
from millstream.queue.rules.sources import INBOX, LATER, OWN
from millstream.record import LogInfo
from millstream.spark.options import EARLIEST, LATEST, Positions, ReadOptions
from millstream.spark.source.bins import Range
from millstream.spark.source.listing import listed
from millstream.spark.source.losses import Loss, TellLoss, warn

if TYPE_CHECKING:
    from millstream.command import Session

NAMED_MAX = 100
"""Up to so many logs are asked for by name; of more, all are listed: that takes fewer questions."""


def find_logs(session: Session, options: ReadOptions, tell: TellLoss = warn) -> dict[str, LogInfo]:
    """The logs that are asked for and exist, by name; a pattern takes none of our own books.

    A log whose own rows are damaged ends it; with failOnDataLoss=false it is left out, and told.
    """
    told = None if options.fail_on_data_loss else tell
    if not options.pattern:
        return _named_logs(session, list(options.logs), told, first_only=options.assigned)
    pattern = re.compile(options.pattern)

    def is_wanted(name: str) -> bool:
        is_own = name.startswith((INBOX, LATER, OWN))
        fits = any(map(pattern.fullmatch, (name, whole_of(name))))
        return not is_own and fits

    return {info.name: info for info in _all_logs(session, is_wanted, told)}


def _named_logs(
    session: Session, names: list[str], tell: TellLoss | None, *, first_only: bool = False
) -> dict[str, LogInfo]:
    """Logs by name; one with partitions is those, or the first of them."""
    found: dict[str, list[LogInfo]] = {}
    if len(names) > NAMED_MAX:
        wanted = set(names)
        for info in _all_logs(session, lambda name: bool({name, whole_of(name)} & wanted), tell):
            for name in {info.name, whole_of(info.name)}:
                found.setdefault(name, []).append(info)
    else:
        found = {name: _described(session, name, tell) for name in names}
    parts = [found.get(name, [])[: 1 if first_only else None] for name in names]
    return {info.name: info for some in parts for info in some}


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
    """The logs whose names are wanted, in order; of damaged ones `tell` hears, if it is given."""

    def left_out(name: str, error: CorruptionError) -> None:
        if tell is not None and is_wanted(name):
            tell(Loss(name, 0, 0, error.message))

    found = listed(
        lambda after, limit: session.execute(c.ListLogs(after, limit, partitions=True)),
        named_by="name",
        tell=None if tell is None else left_out,
    )
    return (info for info in found if is_wanted(info.name))


def plan_batch(session: Session, options: ReadOptions) -> tuple[list[Range], dict[str, LogInfo]]:
    """The ranges of a batch read, and what is known of their logs."""
    infos = find_logs(session, options)
    known = with_wholes(infos)
    missing = [name for name in options.logs if name not in known]
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
    known = with_wholes(infos)
    for name in (*positions.offsets, *positions.times):
        part = partition_of(name)
        is_read = name in known or (part is not None and part[1] == 0 and part[0] in set(infos))
        if not is_read:
            raise InvalidInput(
                f"option {option}: names the log {name!r}, which is not read; expected some of "
                f"{', '.join(sorted(known)[:10]) or 'none'}"
            )


def with_wholes(infos: Iterable[str]) -> set[str]:
    """Names of logs, and of those that some of them are partitions of."""
    return {one for name in infos for one in (name, whole_of(name))}


def starting_offset(session: Session, info: LogInfo, options: ReadOptions) -> int:
    """The first offset to be read of a log."""
    positions = options.starting
    time_ms = positions.time_of(info.name)
    if time_ms is not None:
        found = offset_at(session, info, time_ms)
        if found == info.end_offset and not options.late_is_latest:
            raise OutOfRange(
                f"option startingTimestamp: log {info.name!r} has no record appended at or after "
                f"{time_ms} ms; with startingOffsetsByTimestampStrategy=latest the read begins "
                "at its end",
                position=time_ms,
                end=info.end_offset,
            )
        return found
    offset = positions.offset_of(info.name)
    if offset == EARLIEST:
        return info.start_offset
    if offset == LATEST:
        return info.end_offset
    return checked_start(info, offset, options, "startingOffsets")


def checked_start(info: LogInfo, offset: int, options: ReadOptions, what: str) -> int:
    """An offset to begin with, if its record is there; else as `failOnDataLoss` says."""
    if info.start_offset <= offset <= info.end_offset:
        return offset
    if options.fail_on_data_loss:
        raise lost(info.name, offset, info.start_offset, info.end_offset, what)
    return min(max(offset, info.start_offset), info.end_offset)


def made_anew(info: LogInfo, log_id: int, offset: int, what: str) -> Conflict:
    """A position is of a log that was deleted; another one has its name now."""
    return Conflict(
        f"{what} is of another log {info.name!r}: it was deleted at or after offset {offset} and made "
        f"anew (its id was {log_id}, and is {info.id}), or this is another store. Begin a new "
        "checkpoint; or set failOnDataLoss=false to read the new log from its beginning",
        name=info.name,
    )


def lost(log: str, offset: int, start: int, end: int, what: str) -> Truncated | OutOfRange:
    """Records that should be there are not."""
    advice = "set failOnDataLoss=false to go on with what is there"
    if offset < start:
        return Truncated(
            f"{what}: log {log!r} begins at {start}, so offsets {offset} to {start - 1} are lost; "
            f"{advice}",
            log=log,
            offset=offset,
            start=start,
        )
    return OutOfRange(
        f"{what}: log {log!r} ends at {end}, before offset {offset}: it may have been deleted and "
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
    """The first record that was appended at or after a time; the end if there is none.

    Found by halving: where the wall clock once went back, one of the records around is found. Of
    records that cannot be read it is not known when they were appended: if the time may be among
    theirs, the first of them is found.
    """
    low, high = info.start_offset, info.end_offset
    while low < high:
        middle = (low + high) // 2
        try:
            found = _first_sound(session, info.name, middle, high)
        except NotFound:
            return info.end_offset  # deleted meanwhile
        if found is not None and found[1] < time_ms:
            low = found[0] + 1
        else:
            high = middle
    return low


def _first_sound(session: Session, log: str, start: int, stop: int) -> tuple[int, int] | None:
    """The first record in a range that can be read, and when it was appended; None if there is none."""
    while start < stop:
        try:
            some = session.execute(c.ReadBlocks(log, start, start + 1, 1, values=False))
        except CorruptionError as error:
            start = max(start + 1, int(error.data.get("stop", 0)))
            continue
        if not some:
            raise NotFound(f"log {log!r} has no record at offset {start} any more")
        return start, some[0].appended()[0]
    return None


def bytes_of(one: Range, info: LogInfo) -> int:
    """About how many bytes a range of a log has."""
    return info.bytes * len(one) // max(1, len(info))
