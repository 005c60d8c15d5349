"""What can be asked of logs and cursors."""

from __future__ import annotations

from typing import Any

from millstream.command import Mutation, Query
from millstream.format.packing import Batch, Single
from millstream.log.block import Block
from millstream.log.marks import Range
from millstream.record import CursorInfo, LogInfo, Merged, Owner, Producer, Retention


class CreateLog(Mutation[bool], frozen=True):
    """Make an empty log; False if there was one."""

    log: str


class Append(Mutation[int], frozen=True):
    """Add records at the end; answers the offset of the first."""

    log: str
    records: Single | Batch
    expect_end: int | None = None
    producer: Producer | None = None
    token: str = ""
    """Of the staging handle that holds the log."""


class Truncate(Mutation[int], frozen=True):
    """Forget the records before an offset; answers how many went."""

    log: str
    before: int


class DeleteLog(Mutation[bool], frozen=True):
    """Forget a log, its cursors and its metadata; False if there was none."""

    log: str


class SetMetadata(Mutation[None], frozen=True):
    """Set or delete one metadata entry, if it is as expected."""

    log: str
    key: str
    value: Any = None
    delete: bool = False
    expect: Any = None
    compare: bool = False
    """Whether `expect` counts; expecting None means that there must be no entry."""


class SetRetention(Mutation[None], frozen=True):
    """Say what a log may forget."""

    log: str
    retention: Retention


class TakeLog(Mutation[int], frozen=True):
    """Hold a log exclusively, or go on holding it; answers its end."""

    log: str
    token: str


class FreeLog(Mutation[None], frozen=True):
    """Stop holding a log."""

    log: str
    token: str


class ForkLog(Mutation[str], frozen=True):
    """Make a log that begins as another one is now, without copying; answers its name."""

    log: str
    name: str | None = None


class HandOver(Mutation[Owner], frozen=True):
    """Let another store append to a log from now on."""

    log: str
    to: str


class TakeOver(Mutation[Owner], frozen=True):
    """Append to a log here from now on."""

    log: str


class OpenCursor(Mutation[CursorInfo], frozen=True):
    """Make a cursor if there is none; answers how it stands."""

    log: str
    cursor: str
    start: int | str
    section: int
    durable: bool


class Acknowledge(Mutation[int], frozen=True):
    """Mark ranges as done; answers the floor."""

    log: str
    cursor: str
    ranges: list[Range]


class MoveCursor(Mutation[int], frozen=True):
    """Set a cursor's floor; with `forward`, only ever upwards. Answers the floor."""

    log: str
    cursor: str
    floor: int
    forward: bool = False


class DeleteCursor(Mutation[bool], frozen=True):
    """Forget a cursor; False if there was none."""

    log: str
    cursor: str


class GetBounds(Query[tuple[int, int]], frozen=True):
    """The start and end offset; (0, 0) if there is no such log."""

    log: str


class ReadBlocks(Query[list[Block]], frozen=True):
    """Some of the records in [start, stop), in order, from the first on."""

    log: str
    start: int
    stop: int
    bytes_max: int
    values: bool = True
    """Without them the payloads are not read: the blocks' `payload` is empty."""


class WaitForOffset(Query[bool], frozen=True):
    """Wait until the end is past an offset; False if it took too long."""

    log: str
    offset: int
    timeout_ms: int | None


class GetMetadata(Query[dict[str, Any]], frozen=True):
    """The metadata map."""

    log: str


class DescribeLog(Query[LogInfo | None], frozen=True):
    """What is known of a log."""

    log: str


class ListLogs(Query[list[LogInfo]], frozen=True):
    """Logs in the order of their names, after one name, at most so many."""

    after: str
    limit: int


class DescribeCursor(Query[CursorInfo | None], frozen=True):
    """How a cursor stands."""

    log: str
    cursor: str


class ListCursors(Query[list[CursorInfo]], frozen=True):
    """The cursors of a log."""

    log: str


class EnforceRetention(Query[int], frozen=True):
    """Forget now what the log may forget; answers how many records went."""

    log: str


class GetOwner(Query[Owner], frozen=True):
    """Which store may append to a log."""

    log: str


class GetParent(Query[str | None], frozen=True):
    """The name of the log that one was forked from; None if it is no fork."""

    log: str


class MergeFork(Query[Merged], frozen=True):
    """Bring a fork's records into its parent, in as many commits as it takes."""

    log: str
    on_fork: str = "refuse"
