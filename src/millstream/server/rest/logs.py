"""Logs: what there is, how each stands, its metadata, and what it may forget."""

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
    """Which names of a listing."""

    after: Annotated[str, Meta(max_length=255)] = ""
    """The last name of the page before."""
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 100


class LogsQuery(Page, forbid_unknown_fields=True, kw_only=True):
    """Which logs."""

    partitions: bool = False
    """Whether partitions are listed instead of the logs that have them."""


class CreateQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Whether the log has partitions."""

    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)] | None = None
    """How many; without it the log has none."""
    grows: bool = False
    """Whether their number is raised, if the log has fewer."""


class TruncateBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Forget the records before an offset."""

    before: Position
    past_end: bool = False
    """Whether the offset may lie past the end: then both ends move there."""


class Rules(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What a log may forget: a record goes as soon as one rule lets it go. Empty keeps all."""

    age: Delay | None = None
    """Seconds."""
    bytes: Position | None = None
    count: Position | None = None
    consumed: bool = False


class LogShown(LogInfo, frozen=True, kw_only=True):
    """How a log stands."""

    retention: Rules  # type: ignore[assignment]


class LogPage(Struct, kw_only=True):
    """Logs in the order of their names."""

    logs: list[LogShown]
    after: str | None
    """Ask with this for the next page; null: there is none."""


class MetadataBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """An entry's new value; with `expect`, only if it is that now (null: absent)."""

    value: Any
    expect: Raw | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Refuse to expect what no entry can be."""
        if isinstance(self.expect, Raw):
            check_json_text(bytes(self.expect), "'expect'")


class RemovedCount(Struct, kw_only=True):
    """How many went."""

    count: int


class Existed(Struct, kw_only=True):
    """Whether there was something to delete."""

    deleted: bool


endpoint = Endpoints("logs")


@endpoint("GET /logs")
async def list_logs(ask: Ask, query: LogsQuery) -> LogPage:
    """List logs in the order of their names.

    One with partitions is one log, of which all figures are sums; it stands where the first of its
    partitions does. `partitions` lists these instead.
    """
    page = c.ListLogs(checked_after(query.after), query.limit, query.partitions)
    found = await ask.execute(page)
    after = found[-1].name if len(found) == query.limit else None
    return LogPage(logs=[_shown(info) for info in found], after=after)


def checked_after(name: str) -> str:
    """A name to go on after; any text that can be written."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput("'after' is not valid Unicode") from error
    return name


@endpoint("GET /logs/{log}", errors=(404,))
async def get_log(ask: Ask, log: str) -> LogShown:
    """How a log stands."""
    info = await ask.execute(c.DescribeLog(log))
    if info is None:
        raise _missing(log)
    return _shown(info)


def _missing(log: str) -> NotFound:
    if (found := partition_of(log)) is not None:
        whole, number = found
        text = f"log {whole!r} has no partition {number}; GET /logs/{whole}/partitions lists them"
    else:
        text = f"there is no log {log!r}; it comes to exist with its first append, or by PUT"
    return NotFound(text, name=log)


def _shown(info: LogInfo) -> LogShown:
    return LogShown(**{**msgspec.structs.asdict(info), "retention": _rules(info.retention)})


def _rules(found: Retention) -> Rules:
    """Rules as REST tells them: durations are seconds."""
    age = None if found.age_ms is None else found.age_ms / 1000
    return Rules(age=age, bytes=found.bytes, count=found.count, consumed=found.consumed)


@endpoint("PUT /logs/{log}", description="It existed", also={201: "It was made"}, errors=(404, 409))
async def create_log(ask: Ask, log: str, query: CreateQuery) -> Reply[LogShown]:
    """Make an empty log, unless there is one; with `partitions`, one that has so many.

    A log without partitions also comes to exist with its first append. The number of partitions is
    refused if the log has another one, unless it `grows`.
    """
    if query.partitions is None:
        made = await ask.execute(c.CreateLog(log))
    else:
        made = not await ask.execute(c.DescribePartitions(log))
        await ask.execute(c.CreatePartitions(log, query.partitions, query.grows))
    return Reply(await get_log(ask, log), 201 if made else 200)


@endpoint("GET /logs/{log}/partitions", errors=(404,))
async def list_partitions(ask: Ask, log: str) -> list[LogShown]:
    """How each partition of a log stands, in their order; none, if it has no partitions."""
    found = await ask.execute(c.DescribePartitions(log))
    if not found:
        await get_log(ask, log)  # not found, if there is none
    return [_shown(info) for info in found]


@endpoint("DELETE /logs/{log}", errors=(409, 423))
async def delete_log(ask: Ask, log: str) -> Existed:
    """Forget a log, its cursors and its metadata."""
    return Existed(deleted=await ask.execute(c.DeleteLog(log)))


@endpoint("POST /logs/{log}/truncate", errors=(409, 416, 423))
async def truncate_log(ask: Ask, log: str, body: TruncateBody) -> RemovedCount:
    """Forget the records before an offset."""
    return RemovedCount(count=await ask.execute(c.Truncate(log, body.before, body.past_end)))


@endpoint("GET /logs/{log}/metadata")
async def get_metadata(ask: Ask, log: str) -> dict[str, Any]:
    """A log's metadata: a small map of JSON values."""
    return await ask.execute(c.GetMetadata(log))


@endpoint("PUT /logs/{log}/metadata/{key}", description="All entries", errors=(409,))
async def set_metadata(ask: Ask, log: str, key: str, body: MetadataBody) -> dict[str, Any]:
    """Set one metadata entry, if it is as expected."""
    most = ask.limits.metadata_bytes_max
    expect = UNSET if body.expect is UNSET else msgspec.json.decode(body.expect)
    command = c.SetMetadata(
        log,
        key,
        check_json(body.value, bytes_max=most),
        expect=None if expect is UNSET else check_json(expect, bytes_max=most),
        compare=expect is not UNSET,
    )
    await ask.execute(command)
    return await get_metadata(ask, log)


@endpoint("DELETE /logs/{log}/metadata/{key}", description="The other entries")
async def delete_metadata(ask: Ask, log: str, key: str) -> dict[str, Any]:
    """Delete one metadata entry."""
    await ask.execute(c.SetMetadata(log, key, delete=True))
    return await get_metadata(ask, log)


@endpoint("GET /logs/{log}/retention")
async def get_retention(ask: Ask, log: str) -> Rules:
    """What a log may forget."""
    return _rules(await Log(ask, log).retention())


@endpoint("PUT /logs/{log}/retention")
async def set_retention(ask: Ask, log: str, body: Rules) -> Rules:
    """Say what a log may forget."""
    await Log(ask, log).retain(**msgspec.structs.asdict(body))
    return body


@endpoint("POST /logs/{log}/retention/enforce")
async def enforce_retention(ask: Ask, log: str) -> RemovedCount:
    """Forget now what may be forgotten, rather than in the background."""
    return RemovedCount(count=await ask.execute(c.EnforceRetention(log)))
