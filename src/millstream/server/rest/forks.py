"""Forks and owners: logs that begin as another one is, and which store may append."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from millstream.errors import NotFound
from millstream.log import commands as c
from millstream.record import LogInfo, Merged, Owner
from millstream.server.auth.need import need_of_log
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints
from millstream.server.rest.logs import Page, checked_after

Name = Annotated[str, Meta(min_length=1, max_length=255)]


class ForkBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """How to make a fork."""

    name: Name | None = None
    """What it is called; null: a name is chosen."""


class MergeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """How to merge a fork."""

    on_fork: Literal["refuse", "longest", "rebase"] = "refuse"
    """If both logs have gone on: refuse; append the fork's records again; or let the longer count."""


class OwnerBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Who is to append."""

    store: Name | None = None
    """The id of the store; null: the store of this server."""


class Forked(Struct, kw_only=True):
    """A fork that was made."""

    fork: str
    """Its name."""


class ForkShown(Struct, kw_only=True):
    """A fork, and where it comes from."""

    name: str
    parent: str | None
    """The log that it was forked from; null if the asker may not read that one."""
    start_offset: int
    end_offset: int
    created: datetime
    """When it was made, in UTC."""


class ForkPage(Struct, kw_only=True):
    """Forks in the order of their names."""

    forks: list[ForkShown]
    """Those among the logs that were looked at."""
    after: str | None
    """Ask with this for the next page; null: there is none."""


endpoint = Endpoints("logs")


@endpoint("GET /forks")
async def list_forks(ask: Ask, query: Page) -> ForkPage:
    """List forks in the order of their names; `limit` is how many logs are looked at."""
    page = c.ListLogs(checked_after(query.after), query.limit, partitions=True)
    logs = await ask.execute(page)
    forks = [fork for log in logs if (fork := await _fork(ask, log)) is not None]
    return ForkPage(forks=forks, after=logs[-1].name if len(logs) == query.limit else None)


async def _fork(ask: Ask, log: LogInfo) -> ForkShown | None:
    """How a log stands as a fork; None if it is none, or is gone."""
    try:
        parent = await ask.execute(c.GetParent(log.name))
    except NotFound:
        return None
    if parent is None:
        return None
    is_seen = ask.principal.allows(need_of_log("read", parent))
    return ForkShown(
        name=log.name,
        parent=parent if is_seen else None,
        start_offset=log.start_offset,
        end_offset=log.end_offset,
        created=log.created,
    )


@endpoint("POST /logs/{log}/fork", status=201, description="It was made", errors=(404, 409))
async def fork_log(ask: Ask, log: str, body: ForkBody) -> Forked:
    """Make a log that begins as this one is now; nothing is copied."""
    return Forked(fork=await ask.execute(c.ForkLog(log, body.name)))


@endpoint("POST /logs/{log}/merge", errors=(404, 409, 423))
async def merge_fork(ask: Ask, log: str, body: MergeBody) -> Merged:
    """Bring a fork's records into the log that it was forked from.

    If both have gone on meanwhile it is refused, unless the body says what to do.
    """
    return await ask.execute(c.MergeFork(log, body.on_fork))


@endpoint("GET /logs/{log}/owner", errors=(404,))
async def get_owner(ask: Ask, log: str) -> Owner:
    """Which store may append to a log."""
    return await ask.execute(c.GetOwner(log))


@endpoint("PUT /logs/{log}/owner", errors=(404, 409, 423))
async def set_owner(ask: Ask, log: str, body: OwnerBody) -> Owner:
    """Hand a log over to another store, or take it over."""
    if body.store is None:
        return await ask.execute(c.TakeOver(log))
    return await ask.execute(c.HandOver(log, body.store))
