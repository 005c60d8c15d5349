"""Logs over REST: list, create, truncate and delete them; their metadata and retention."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from millstream.aio.log import Log
from millstream.errors import InvalidInput, NotFound
from millstream.format.json_text import check_json_text
from millstream.format.packing import check_json
from millstream.log import commands as c
from millstream.partitioning import PARTITIONS_MAX, partition_of
from millstream.record import LogInfo, Retention
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints, Reply
from millstream.server.rest.payload import Delay, Position

PAGE_MAX = 1_000


class Page(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which part of a listing."""

    after: Annotated[str, Meta(max_length=255)] = ""
    """The last name of the page before."""
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 100


class LogsQuery(Page, forbid_unknown_fields=True, kw_only=True):
    """Which part of the list of logs."""

    partitions: bool = False
    """Whether partitions are listed instead of the logs that have them."""


class CreateQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """The partitions of a new log."""

    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)] | None = None
    """How many partitions; default: the log has none."""
    grows: bool = False
    """Whether to add partitions, if the log has fewer."""


class TruncateBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which records to delete."""

    before: Position
    past_end: bool = False
    """Whether the offset may lie beyond the end; if so, start and end move to the offset."""


class Rules(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Retention: a record is deleted as soon as one rule allows it. Without rules all records
    stay."""

    age: Delay | None = None
    """Seconds."""
    bytes: Position | None = None
    count: Position | None = None
    consumed: bool = False


class LogShown(LogInfo, frozen=True, kw_only=True):
    """A log with its offsets, size and settings."""

    retention: Rules  # type: ignore[assignment]


class LogPage(Struct, kw_only=True):
    """Logs in the order of their names."""

    logs: list[LogShown]
    after: str | None
    """Pass this as `after` for the next page; null: this is the last page."""


class MetadataBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """An entry's new value; with `expect`, only if the entry has that value now (null: no
    entry)."""

    value: Any
    expect: Raw | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Refuse an expected value that no entry can have."""
        if isinstance(self.expect, Raw):
            check_json_text(bytes(self.expect), "'expect'")


class RemovedCount(Struct, kw_only=True):
    """How many were removed or changed."""

    count: int


class Existed(Struct, kw_only=True):
    """Whether there was something to delete."""

    deleted: bool


endpoint = Endpoints("logs")


@endpoint("GET /logs")
async def list_logs(ask: Ask, query: LogsQuery) -> LogPage:
    """List logs in the order of their names.

    A log with partitions is one log in this list. Its figures are sums, and it is sorted by the
    name of its first partition. `partitions=true` lists the partitions instead.
    """
    page = c.ListLogs(checked_after(query.after), query.limit, query.partitions)
    infos = await ask.execute(page)
    after = infos[-1].name if len(infos) == query.limit else None
    return LogPage(logs=[_shown(info) for info in infos], after=after)


def checked_after(name: str) -> str:
    """Check the name to continue after: any text of valid Unicode."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput("'after' is not valid Unicode") from error
    return name


@endpoint("GET /logs/{log}", errors=(404,))
async def get_log(ask: Ask, log: str) -> LogShown:
    """Show a log: its offsets, size and settings."""
    info = await ask.execute(c.DescribeLog(log))
    if info is None:
        raise _missing(log)
    return _shown(info)


def _missing(log: str) -> NotFound:
    if (partition := partition_of(log)) is not None:
        name, number = partition
        text = f"log {name!r} has no partition {number}; GET /logs/{name}/partitions lists them"
    else:
        text = f"there is no log {log!r}; its first append creates it, and so does PUT"
    return NotFound(text, name=log)


def _shown(info: LogInfo) -> LogShown:
    return LogShown(**{**msgspec.structs.asdict(info), "retention": _rules(info.retention)})


def _rules(retention: Retention) -> Rules:
    """Return retention rules as REST shows them: durations in seconds."""
    age = None if retention.age_ms is None else retention.age_ms / 1000
    return Rules(age=age, bytes=retention.bytes, count=retention.count, consumed=retention.consumed)


@endpoint(
    "PUT /logs/{log}",
    description="The log existed",
    also={201: "The log was created"},
    errors=(404, 409),
)
async def create_log(ask: Ask, log: str, query: CreateQuery) -> Reply[LogShown]:
    """Create an empty log, if it does not exist; with `partitions`, a log with that many
    partitions.

    The first append creates a log without partitions, too. If the log has another number of
    partitions, the request is refused, unless `grows` allows to add some.
    """
    if query.partitions is None:
        made = await ask.execute(c.CreateLog(log))
    else:
        made = not await ask.execute(c.DescribePartitions(log))
        await ask.execute(c.CreatePartitions(log, query.partitions, query.grows))
    return Reply(await get_log(ask, log), 201 if made else 200)


@endpoint("GET /logs/{log}/partitions", errors=(404,))
async def list_partitions(ask: Ask, log: str) -> list[LogShown]:
    """List the partitions of a log in order; empty if the log has no partitions."""
    partitions = await ask.execute(c.DescribePartitions(log))
    if not partitions:
        await get_log(ask, log)  # raises if the log does not exist
    return [_shown(info) for info in partitions]


@endpoint("DELETE /logs/{log}", errors=(409, 423))
async def delete_log(ask: Ask, log: str) -> Existed:
    """Delete a log with its cursors and metadata."""
    return Existed(deleted=await ask.execute(c.DeleteLog(log)))


@endpoint("POST /logs/{log}/truncate", errors=(409, 416, 423))
async def truncate_log(ask: Ask, log: str, body: TruncateBody) -> RemovedCount:
    """Delete the records before an offset."""
    return RemovedCount(count=await ask.execute(c.Truncate(log, body.before, body.past_end)))


@endpoint("GET /logs/{log}/metadata")
async def get_metadata(ask: Ask, log: str) -> dict[str, Any]:
    """Show a log's metadata: a small map of JSON values."""
    return await ask.execute(c.GetMetadata(log))


@endpoint("PUT /logs/{log}/metadata/{key}", description="All entries", errors=(409,))
async def set_metadata(ask: Ask, log: str, key: str, body: MetadataBody) -> dict[str, Any]:
    """Set a metadata entry, if `expect` allows it."""
    bytes_max = ask.limits.metadata_bytes_max
    expect = UNSET if body.expect is UNSET else msgspec.json.decode(body.expect)
    command = c.SetMetadata(
        log,
        key,
        check_json(body.value, bytes_max=bytes_max),
        expect=None if expect is UNSET else check_json(expect, bytes_max=bytes_max),
        compare=expect is not UNSET,
    )
    await ask.execute(command)
    return await get_metadata(ask, log)


@endpoint("DELETE /logs/{log}/metadata/{key}", description="The other entries")
async def delete_metadata(ask: Ask, log: str, key: str) -> dict[str, Any]:
    """Delete a metadata entry."""
    await ask.execute(c.SetMetadata(log, key, delete=True))
    return await get_metadata(ask, log)


@endpoint("GET /logs/{log}/retention")
async def get_retention(ask: Ask, log: str) -> Rules:
    """Show the retention rules of a log."""
    return _rules(await Log(ask, log).retention())


@endpoint("PUT /logs/{log}/retention")
async def set_retention(ask: Ask, log: str, body: Rules) -> Rules:
    """Set the retention rules of a log."""
    await Log(ask, log).retain(**msgspec.structs.asdict(body))
    return body


@endpoint("POST /logs/{log}/retention/enforce")
async def enforce_retention(ask: Ask, log: str) -> RemovedCount:
    """Apply the retention now, instead of in the background."""
    return RemovedCount(count=await ask.execute(c.EnforceRetention(log)))
