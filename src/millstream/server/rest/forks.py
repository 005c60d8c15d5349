"""Forks and owners over REST: fork and merge logs, and hand a log over to another store."""

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
    """The name of a new fork."""

    name: Name | None = None
    """The fork's name; null: the server chooses a name."""


class MergeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """How to merge a fork."""

    on_fork: Literal["refuse", "longest", "rebase"] = "refuse"
    """If both logs have new records: refuse; let the longer log count; or append the fork's records
    again (rebase)."""


class OwnerBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The new owner of a log."""

    store: Name | None = None
    """The id of the store; null: the store of this server."""


class Forked(Struct, kw_only=True):
    """A fork that was created."""

    fork: str
    """The fork's name."""


class ForkShown(Struct, kw_only=True):
    """A fork and its parent."""

    name: str
    parent: str | None
    """The log it was forked from; null if you may not read that log."""
    start_offset: int
    end_offset: int
    created: datetime
    """The time of creation, in UTC."""


class ForkPage(Struct, kw_only=True):
    """Forks in the order of their names."""

    forks: list[ForkShown]
    """The forks among the logs of this page."""
    after: str | None
    """Pass this as `after` for the next page; null: this is the last page."""


endpoint = Endpoints("logs")


@endpoint("GET /forks")
async def list_forks(ask: Ask, query: Page) -> ForkPage:
    """List forks in the order of their names; `limit` counts the logs examined, not the forks."""
    page = c.ListLogs(checked_after(query.after), query.limit, partitions=True)
    logs = await ask.execute(page)
    forks = [fork for log in logs if (fork := await _fork(ask, log)) is not None]
    return ForkPage(forks=forks, after=logs[-1].name if len(logs) == query.limit else None)


async def _fork(ask: Ask, log: LogInfo) -> ForkShown | None:
    """Return a log as a fork; None if the log is not a fork, or was deleted."""
    try:
        parent = await ask.execute(c.GetParent(log.name))
    except NotFound:
        return None
    if parent is None:
        return None
    may_read = ask.principal.allows(need_of_log("read", parent))
    return ForkShown(
        name=log.name,
        parent=parent if may_read else None,
        start_offset=log.start_offset,
        end_offset=log.end_offset,
        created=log.created,
    )


@endpoint(
    "POST /logs/{log}/fork", status=201, description="The fork was created", errors=(404, 409)
)
async def fork_log(ask: Ask, log: str, body: ForkBody) -> Forked:
    """Create a fork of a log: it shares all present records, and copies nothing."""
    return Forked(fork=await ask.execute(c.ForkLog(log, body.name)))


@endpoint("POST /logs/{log}/merge", errors=(404, 409, 423))
async def merge_fork(ask: Ask, log: str, body: MergeBody) -> Merged:
    """Merge a fork's records into its parent.

    If both logs have new records, the merge is refused unless `on_fork` says how to resolve it.
    """
    return await ask.execute(c.MergeFork(log, body.on_fork))


@endpoint("GET /logs/{log}/owner", errors=(404,))
async def get_owner(ask: Ask, log: str) -> Owner:
    """Show which store may append to a log."""
    return await ask.execute(c.GetOwner(log))


@endpoint("PUT /logs/{log}/owner", errors=(404, 409, 423))
async def set_owner(ask: Ask, log: str, body: OwnerBody) -> Owner:
    """Hand a log over to another store, or take it over."""
    if body.store is None:
        return await ask.execute(c.TakeOver(log))
    return await ask.execute(c.HandOver(log, body.store))
