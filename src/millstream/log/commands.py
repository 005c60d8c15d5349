"""What can be asked of logs and cursors."""

from __future__ import annotations

from typing import Any

from millstream.command import (
    Operation,
    Procedure,
    Read,
    Right,
    Traits,
    Wait,
    on_fork,
    on_log,
    on_parent,
)
from millstream.format.packing import Batch, Single
from millstream.log.model.block import RecordBlock
from millstream.log.model.marks import Range
from millstream.record import CursorInfo, Extent, LogInfo, Merged, Owner, Producer, Retention


class CreateLog(Operation[bool], frozen=True):
    """Make an empty log; False if there was one."""

    traits = Traits(needs=(on_log("write"),), is_step=True)

    log: str


class CreatePartitions(Operation[int], frozen=True):
    """Make a log with so many partitions, or raise their number; answers how many there are.

    A number that is not that of the log is refused with `Partitioned`, unless it `grows`.
    """

    traits = Traits(
        needs=(on_log("write"), Right("log", "admin", "log", when=("grows", True))),
        repeat="harmless",
        is_step=True,
    )

    log: str
    partitions: int
    grows: bool = False


class Append(Operation[int], frozen=True):
    """Add records at the end; answers the offset of the first."""

    traits = Traits(needs=(on_log("write"),), repeat="sequence", is_step=True)

    log: str
    records: Single | Batch
    expect_end: int | None = None
    producer: Producer | None = None
    token: str = ""
    """Of the staging handle that holds the log."""


class Truncate(Operation[int], frozen=True):
    """Forget the records before an offset; answers how many went."""

    traits = Traits(needs=(on_log("admin"),), is_step=True, tidies=True)

    log: str
    before: int
    past_end: bool = False
    """Whether the offset may lie past the end: then both ends move there, and leave a gap."""


class DeleteLog(Operation[bool], frozen=True):
    """Forget a log, its cursors and its metadata; False if there was none."""

    traits = Traits(needs=(on_log("admin"),), is_step=True, tidies=True)

    log: str


class SetMetadata(Operation[None], frozen=True):
    """Set or delete one metadata entry, if it is as expected."""

    traits = Traits(needs=(on_log("write"),), is_step=True, names=("key",))

    log: str
    key: str
    value: Any = None
    delete: bool = False
    expect: Any = None
    compare: bool = False
    """Whether `expect` counts; expecting None means that there must be no entry."""


class SetRetention(Operation[None], frozen=True):
    """Say what a log may forget."""

    traits = Traits(needs=(on_log("admin"),), is_step=True, tidies=True)

    log: str
    retention: Retention


class TakeLog(Operation[int], frozen=True):
    """Hold a log exclusively, or go on holding it; answers its end."""

    traits = Traits(needs=(on_log("write"),))

    log: str
    token: str


class FreeLog(Operation[None], frozen=True):
    """Stop holding a log."""

    traits = Traits(needs=(on_log("write"),))

    log: str
    token: str


class ForkLog(Operation[str], frozen=True):
    """Make a log that begins as another one is now, without copying; answers its name."""

    traits = Traits(needs=(on_log("write"), on_log("admin", "name"), on_fork(("name", None))))

    log: str
    name: str | None = None


class HandOver(Operation[Owner], frozen=True):
    """Let another store append to a log from now on."""

    traits = Traits(needs=(on_log("admin"),))

    log: str
    to: str


class TakeOver(Operation[Owner], frozen=True):
    """Append to a log here from now on."""

    traits = Traits(needs=(on_log("admin"),))

    log: str


class OpenCursor(Operation[CursorInfo], frozen=True):
    """Make a cursor if there is none; answers how it stands."""

    traits = Traits(needs=(on_log("write"),), is_step=True, names=("cursor",))

    log: str
    cursor: str
    start: int | str
    section: int
    durable: bool


class Acknowledge(Operation[int], frozen=True):
    """Mark ranges as done; answers the floor."""

    traits = Traits(needs=(on_log("write"),), is_step=True, names=("cursor",))

    log: str
    cursor: str
    ranges: list[Range]
    setbacks: int | None = None
    """How often the log's end had gone back when these were read: others may lie there now."""


class MoveCursor(Operation[int], frozen=True):
    """Set a cursor's floor; with `forward`, only ever upwards. Answers the floor."""

    traits = Traits(needs=(on_log("write"),), is_step=True, names=("cursor",))

    log: str
    cursor: str
    floor: int
    forward: bool = False
    setbacks: int | None = None
    """As in `Acknowledge`."""


class DeleteCursor(Operation[bool], frozen=True):
    """Forget a cursor; False if there was none."""

    traits = Traits(needs=(on_log("write"),), is_step=True, names=("cursor",))

    log: str
    cursor: str


class GetBounds(Read[tuple[int, int]], frozen=True):
    """The start and end offset; (0, 0) if there is no such log."""

    traits = Traits(needs=(on_log("read"),))

    log: str


class GetExtent(Read[Extent], frozen=True):
    """Where a log begins and ends, and how far its end went back since it did so `known` times."""

    traits = Traits(needs=(on_log("read"),))

    log: str
    known: int


class ReadBlocks(Read[list[RecordBlock]], frozen=True):
    """Some of the records in [start, stop), in order, from the first on."""

    traits = Traits(needs=(on_log("read"),), bytes="bytes_max", is_large=True)

    log: str
    start: int
    stop: int
    bytes_max: int
    values: bool = True
    """Without them the payloads are not read: the blocks' `payload` is empty."""


class WaitForOffset(Read[bool], frozen=True):
    """Wait until the end is past an offset; False if it took too long."""

    traits = Traits(needs=(on_log("read"),), waits=Wait("timeout_ms", is_endless=True))

    log: str
    offset: int
    timeout_ms: int | None
    setbacks: int | None = None
    """If given, the wait also ends once the log's end has gone back more often than that."""


class DescribePartitions(Read[list[LogInfo]], frozen=True):
    """What is known of each partition of a log, in their order; empty if it has none."""

    traits = Traits(needs=(on_log("read"),))

    log: str


class WaitForPartitions(Read[bool], frozen=True):
    """Wait until the end of one of the partitions is past its offset; False if it took too long."""

    traits = Traits(needs=(on_log("read"),), waits=Wait("timeout_ms", is_endless=True))

    log: str
    offsets: list[int]
    timeout_ms: int | None


class GetMetadata(Read[dict[str, Any]], frozen=True):
    """The metadata map."""

    traits = Traits(needs=(on_log("read"),))

    log: str


class DescribeLog(Read[LogInfo | None], frozen=True):
    """What is known of a log."""

    traits = Traits(needs=(on_log("read"),))

    log: str


class ListLogs(Read[list[LogInfo]], frozen=True):
    """Logs in the order of their names, after one name, at most so many.

    One with partitions is one log, of which all figures are sums. It stands where the first of its
    partitions does.
    """

    traits = Traits(needs="seen", page="limit")

    after: str
    limit: int
    partitions: bool = False
    """Whether partitions are listed instead of the logs that have them."""


class DescribeCursor(Read[CursorInfo | None], frozen=True):
    """How a cursor stands."""

    traits = Traits(needs=(on_log("read"),), names=("cursor",))

    log: str
    cursor: str


class ListCursors(Read[list[CursorInfo]], frozen=True):
    """The cursors of a log."""

    traits = Traits(needs=(on_log("read"),))

    log: str


class EnforceRetention(Procedure[int], frozen=True):
    """Forget now what the log may forget; answers how many records went."""

    traits = Traits(needs=(on_log("admin"),), repeat="harmless")

    log: str


class GetOwner(Read[Owner], frozen=True):
    """Which store may append to a log."""

    traits = Traits(needs=(on_log("read"),))

    log: str


class GetParent(Read[str | None], frozen=True):
    """The name of the log that one was forked from; None if it is no fork."""

    traits = Traits(needs=(on_log("read"),))

    log: str


class MergeFork(Procedure[Merged], frozen=True):
    """Bring a fork's records into its parent, in as many commits as it takes."""

    traits = Traits(
        needs=(
            on_log("write"),
            on_parent("write"),
            on_fork(("on_fork", "longest"), of_parent=True),
        ),
        repeat="harmless",
    )

    log: str
    on_fork: str = "refuse"
