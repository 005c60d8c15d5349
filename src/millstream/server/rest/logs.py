"""Logs: what there is, how each stands, its metadata, and what it may forget."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from millstream.errors import InvalidInput, NotFound
from millstream.format.packing import check_json
from millstream.log import commands as c
from millstream.record import LogInfo, Retention, retention_of
from millstream.server.rest.ask import Ask, milliseconds
from millstream.server.rest.endpoint import Answer, Endpoint, Reply
from millstream.server.rest.payload import Position

PAGE_MAX = 1_000


class Page(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which names of a listing."""

    after: Annotated[str, Meta(max_length=255)] = ""
    """The last name of the page before."""
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 100


class LogPage(Struct, kw_only=True):
    """Logs in the order of their names."""

    logs: list[LogInfo]
    after: str | None
    """Ask with this for the next page; null: there is none."""


class TruncateBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Forget the records before an offset."""

    before: Position


class RetentionBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What a log may forget: a record goes as soon as one rule lets it go. Empty keeps all."""

    age: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    """Seconds."""
    bytes: Position | None = None
    count: Position | None = None
    consumed: bool = False


class MetadataBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """An entry's new value; with `expect`, only if it is that now (null: absent)."""

    value: Any
    expect: Raw | UnsetType = UNSET


class Removed(Struct, kw_only=True):
    """How many went."""

    count: int


class Existed(Struct, kw_only=True):
    """Whether there was something to delete."""

    deleted: bool


async def list_logs(ask: Ask) -> LogPage:
    """A page of logs."""
    page: Page = ask.query
    found = await ask.execute(c.ListLogs(checked_after(page.after), page.limit))
    return LogPage(logs=found, after=found[-1].name if len(found) == page.limit else None)


def checked_after(name: str) -> str:
    """A name to go on after; any text that can be written."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput("'after' is not valid Unicode") from error
    return name


async def get_log(ask: Ask) -> LogInfo:
    """How a log stands."""
    name = ask.name("log")
    info = await ask.execute(c.DescribeLog(name))
    if info is None:
        raise NotFound(f"there is no log {name!r}", name=name)
    return info


async def create_log(ask: Ask) -> Reply:
    """Make a log, unless there is one."""
    made = await ask.execute(c.CreateLog(ask.name("log")))
    return Reply(await get_log(ask), 201 if made else 200)


async def delete_log(ask: Ask) -> Existed:
    """Forget a log."""
    return Existed(deleted=await ask.execute(c.DeleteLog(ask.name("log"))))


async def truncate_log(ask: Ask) -> Removed:
    """Forget records from the front."""
    return Removed(count=await ask.execute(c.Truncate(ask.name("log"), ask.body.before)))


async def get_metadata(ask: Ask) -> dict[str, Any]:
    """Every entry."""
    return await ask.execute(c.GetMetadata(ask.name("log")))


async def set_metadata(ask: Ask) -> dict[str, Any]:
    """Set one entry; answers all."""
    body: MetadataBody = ask.body
    most = ask.session.limits.metadata_bytes_max
    expect = UNSET if body.expect is UNSET else msgspec.json.decode(body.expect)
    command = c.SetMetadata(
        ask.name("log"),
        ask.name("key"),
        check_json(body.value, bytes_max=most),
        expect=None if expect is UNSET else check_json(expect, bytes_max=most),
        compare=expect is not UNSET,
    )
    await ask.execute(command)
    return await get_metadata(ask)


async def delete_metadata(ask: Ask) -> dict[str, Any]:
    """Delete one entry, if it is there; answers the others."""
    await ask.execute(c.SetMetadata(ask.name("log"), ask.name("key"), delete=True))
    return await get_metadata(ask)


async def get_retention(ask: Ask) -> Retention:
    """What a log may forget."""
    info = await ask.execute(c.DescribeLog(ask.name("log")))
    return Retention() if info is None else info.retention


async def set_retention(ask: Ask) -> Retention:
    """Say what a log may forget."""
    body: RetentionBody = ask.body
    rules = retention_of(
        age=None if body.age is None else milliseconds(body.age) / 1000,
        bytes=body.bytes,
        count=body.count,
        consumed=body.consumed,
    )
    await ask.execute(c.SetRetention(ask.name("log"), rules))
    return rules


async def enforce_retention(ask: Ask) -> Removed:
    """Forget now what may be forgotten."""
    return Removed(count=await ask.execute(c.EnforceRetention(ask.name("log"))))


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/logs",
        name="listLogs",
        summary="List logs in the order of their names",
        run=list_logs,
        tag="logs",
        query=Page,
        answers=(Answer(LogPage),),
    ),
    Endpoint(
        method="GET",
        path="/logs/{log}",
        name="getLog",
        summary="How a log stands",
        run=get_log,
        tag="logs",
        answers=(Answer(LogInfo),),
        errors=(404,),
    ),
    Endpoint(
        method="PUT",
        path="/logs/{log}",
        name="createLog",
        summary="Make an empty log, unless there is one",
        detail="A log also comes to exist with its first append.",
        run=create_log,
        tag="logs",
        answers=(
            Answer(LogInfo, "It existed"),
            Answer(LogInfo, "It was made", status=201),
        ),
        errors=(404,),
    ),
    Endpoint(
        method="DELETE",
        path="/logs/{log}",
        name="deleteLog",
        summary="Forget a log, its cursors and its metadata",
        run=delete_log,
        tag="logs",
        answers=(Answer(Existed),),
        errors=(409, 423),
    ),
    Endpoint(
        method="POST",
        path="/logs/{log}/truncate",
        name="truncateLog",
        summary="Forget the records before an offset",
        run=truncate_log,
        tag="logs",
        body=TruncateBody,
        answers=(Answer(Removed),),
        errors=(409, 423),
    ),
    Endpoint(
        method="GET",
        path="/logs/{log}/metadata",
        name="getMetadata",
        summary="A log's metadata: a small map of JSON values",
        run=get_metadata,
        tag="logs",
        answers=(Answer(dict[str, Any]),),
    ),
    Endpoint(
        method="PUT",
        path="/logs/{log}/metadata/{key}",
        name="setMetadata",
        summary="Set one metadata entry, if it is as expected",
        run=set_metadata,
        tag="logs",
        body=MetadataBody,
        answers=(Answer(dict[str, Any], "All entries"),),
        errors=(409,),
    ),
    Endpoint(
        method="DELETE",
        path="/logs/{log}/metadata/{key}",
        name="deleteMetadata",
        summary="Delete one metadata entry",
        run=delete_metadata,
        tag="logs",
        answers=(Answer(dict[str, Any], "The other entries"),),
    ),
    Endpoint(
        method="GET",
        path="/logs/{log}/retention",
        name="getRetention",
        summary="What a log may forget",
        run=get_retention,
        tag="logs",
        answers=(Answer(Retention),),
    ),
    Endpoint(
        method="PUT",
        path="/logs/{log}/retention",
        name="setRetention",
        summary="Say what a log may forget",
        run=set_retention,
        tag="logs",
        body=RetentionBody,
        answers=(Answer(Retention),),
    ),
    Endpoint(
        method="POST",
        path="/logs/{log}/retention/enforce",
        name="enforceRetention",
        summary="Forget now what may be forgotten, rather than in the background",
        run=enforce_retention,
        tag="logs",
        answers=(Answer(Removed),),
    ),
)
