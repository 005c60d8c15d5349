"""The commands of logs and cursors."""

from __future__ import annotations

from typing import Any

from msgspec import field

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
from millstream.log.model.acknowledged import Range
from millstream.log.model.block import RecordBlock
from millstream.record import CursorInfo, Extent, LogInfo, Merged, Owner, Producer, Retention
from millstream.schema.history import SchemaVersion
from millstream.schema.model import StructType

SCHEMAS = "schemas"
"""The ability of servers that know schemas."""


class CreateLog(Operation[bool], frozen=True):
    """Make an empty log; return False if the log exists."""

    traits = Traits(needs=(on_log("write"),), is_step=True)

    log: str


class CreatePartitions(Operation[int], frozen=True):
    """Make a log with partitions, or raise their number; return the number of partitions.

    A number that differs from that of the log is refused with `Partitioned`, unless the log `grows`.
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
    """Add records at the end; return the offset of the first record."""

    traits = Traits(needs=(on_log("put"),), repeat="sequence", is_step=True)

    log: str
    records: Single | Batch
    expect_end: int | None = None
    producer: Producer | None = None
    token: str = ""
    """The token of the staging handle that holds the log."""


class Truncate(Operation[int], frozen=True):
    """Forget the records before an offset; return the number of forgotten records."""

    traits = Traits(needs=(on_log("admin"),), is_step=True, tidies=True)

    log: str
    before: int
    past_end: bool = False
    """Whether the offset may lie past the end; the start and the end then move there, and leave a gap."""


class DeleteLog(Operation[bool], frozen=True):
    """Forget a log, its cursors and its metadata; return False if there is no log."""

    traits = Traits(needs=(on_log("admin"),), is_step=True, tidies=True)

    log: str


class SetMetadata(Operation[None], frozen=True):
    """Set or delete a metadata entry, if the current value is as expected."""

    traits = Traits(needs=(on_log("write"),), is_step=True, names=("key",))

    log: str
    key: str
    value: Any = None
    delete: bool = False
    expect: Any = None
    compare: bool = False
    """Whether to compare with `expect`; None means that the entry must not exist."""


class SetSchema(Operation[SchemaVersion], frozen=True):
    """Give a log a schema, or its schema another version; return the newest version.

    A schema that the log has already changes nothing but the mode.
    """

    traits = Traits(
        needs=(
            on_log("write"),
            Right("log", "admin", "log", when=("force", True)),
            Right("log", "admin", "log", when=("mode", "warn")),
        ),
        repeat="harmless",
        is_step=True,
        ability=SCHEMAS,
    )

    log: str
    schema: StructType
    mode: str = "enforce"
    force: bool = False
    """Whether to accept a schema that conflicts with the version before."""


class DeleteSchema(Operation[bool], frozen=True):
    """Forget the schema of a log with its versions; return False if the log has none."""

    traits = Traits(needs=(on_log("admin"),), repeat="harmless", is_step=True, ability=SCHEMAS)

    log: str


class GetSchemas(Read[list[SchemaVersion]], frozen=True):
    """Return the versions of the schema of a log, the oldest first; empty without a schema."""

    traits = Traits(needs=(on_log("read"),), ability=SCHEMAS)

    log: str


class SetRetention(Operation[None], frozen=True):
    """Set the retention of a log."""

    traits = Traits(needs=(on_log("admin"),), is_step=True, tidies=True)

    log: str
    retention: Retention


class TakeLog(Operation[int], frozen=True):
    """Hold a log exclusively, or prolong the hold; return the end of the log."""

    traits = Traits(needs=(on_log("write"),))

    log: str
    token: str


class FreeLog(Operation[None], frozen=True):
    """Release the hold on a log."""

    traits = Traits(needs=(on_log("write"),))

    log: str
    token: str


class ForkLog(Operation[str], frozen=True):
    """Fork a log without copying records; return the name of the fork."""

    traits = Traits(needs=(on_log("write"), on_log("admin", "name"), on_fork(("name", None))))

    log: str
    name: str | None = None


class HandOver(Operation[Owner], frozen=True):
    """Make another store the owner of a log, which may append."""

    traits = Traits(needs=(on_log("admin"),))

    log: str
    to: str


class TakeOver(Operation[Owner], frozen=True):
    """Make this store the owner of a log, which may append."""

    traits = Traits(needs=(on_log("admin"),))

    log: str


class OpenCursor(Operation[CursorInfo], frozen=True):
    """Make a cursor unless it exists; return the state of the cursor."""

    traits = Traits(needs=(on_log("write"),), is_step=True, names=("cursor",))

    log: str
    cursor: str
    start: int | str
    section: int
    durable: bool


class Acknowledge(Operation[int], frozen=True):
    """Acknowledge ranges of offsets; return the floor."""

    traits = Traits(needs=(on_log("write"),), is_step=True, names=("cursor",))

    log: str
    cursor: str
    ranges: list[Range]
    log_id: int = 0
    """The id of the log that was read, which a log set aside keeps; 0 for any log."""
    lost: list[Range] = field(default_factory=list)
    """Ranges that the reader passed over, because the log had deleted the records."""


class MoveCursor(Operation[int], frozen=True):
    """Set the floor of a cursor and return it; with `forward`, never move backwards."""

    traits = Traits(needs=(on_log("write"),), is_step=True, names=("cursor",))

    log: str
    cursor: str
    floor: int
    forward: bool = False
    log_id: int = 0
    """See `Acknowledge`."""
    lost: list[Range] = field(default_factory=list)
    """See `Acknowledge`."""


class DeleteCursor(Operation[bool], frozen=True):
    """Forget a cursor; return False if there is no cursor."""

    traits = Traits(needs=(on_log("write"),), is_step=True, names=("cursor",))

    log: str
    cursor: str


class GetBounds(Read[tuple[int, int]], frozen=True):
    """Return the start and the end offset; (0, 0) without a log."""

    traits = Traits(needs=(on_log("read"),))

    log: str


class GetExtent(Read[Extent], frozen=True):
    """Return the start, the end and the id; for a log that the caller knows, how both relate."""

    traits = Traits(needs=(on_log("read"),))

    log: str
    known: int
    """The id of the log that the caller read last under this name; 0 for none."""


class ReadBlocks(Read[list[RecordBlock]], frozen=True):
    """Return the first records of [start, stop), in order, up to `bytes_max`."""

    traits = Traits(needs=(on_log("read"),), bytes="bytes_max", is_large=True)

    log: str
    start: int
    stop: int
    bytes_max: int
    values: bool = True
    """Whether to read payloads; otherwise `payload` of the blocks is empty."""


class FindOffset(Read[int], frozen=True):
    """Return the offset of the first record whose timestamp is at or after a time; else the end."""

    traits = Traits(needs=(on_log("read"),))

    log: str
    time_ms: int
    """The time since the epoch; with `is_ago`, how long ago by the clock of the store."""
    is_ago: bool = False


class WaitForOffset(Read[bool], frozen=True):
    """Wait until the end is past an offset; return False after the timeout."""

    traits = Traits(needs=(on_log("read"),), waits=Wait("timeout_ms", is_endless=True))

    log: str
    offset: int
    timeout_ms: int | None
    log_id: int = 0
    """If set, the wait also ends once the name stands for a log of another id."""


class DescribePartitions(Read[list[LogInfo]], frozen=True):
    """Describe the partitions of a log, in order; empty for a log without partitions."""

    traits = Traits(needs=(on_log("read"),))

    log: str


class WaitForPartitions(Read[bool], frozen=True):
    """Wait until the end of a partition is past its offset; return False after the timeout."""

    traits = Traits(needs=(on_log("read"),), waits=Wait("timeout_ms", is_endless=True))

    log: str
    offsets: list[int]
    timeout_ms: int | None


class GetMetadata(Read[dict[str, Any]], frozen=True):
    """Return the metadata map."""

    traits = Traits(needs=(on_log("read"),))

    log: str


class DescribeLog(Read[LogInfo | None], frozen=True):
    """Describe a log."""

    traits = Traits(needs=(on_log("read"),))

    log: str


class ListLogs(Read[list[LogInfo]], frozen=True):
    """List up to `limit` logs after a name, in the order of names.

    A log with partitions is listed once, with the sums of its partitions, at the name of its first
    partition.
    """

    traits = Traits(needs="seen", page="limit")

    after: str
    limit: int
    partitions: bool = False
    """Whether to list partitions instead of logs with partitions."""


class DescribeCursor(Read[CursorInfo | None], frozen=True):
    """Describe a cursor."""

    traits = Traits(needs=(on_log("read"),), names=("cursor",))

    log: str
    cursor: str


class ListCursors(Read[list[CursorInfo]], frozen=True):
    """List the cursors of a log."""

    traits = Traits(needs=(on_log("read"),))

    log: str


class EnforceRetention(Procedure[int], frozen=True):
    """Apply the retention of a log now; return the number of forgotten records."""

    traits = Traits(needs=(on_log("admin"),), repeat="harmless")

    log: str


class GetOwner(Read[Owner], frozen=True):
    """Return the owner of a log, which is the store that may append."""

    traits = Traits(needs=(on_log("read"),))

    log: str


class GetParent(Read[str | None], frozen=True):
    """Return the name of the parent of a fork; None for a log that is no fork."""

    traits = Traits(needs=(on_log("read"),))

    log: str


class MergeFork(Procedure[Merged], frozen=True):
    """Append the records of a fork to its parent, in several commits if needed."""

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
