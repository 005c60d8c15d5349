"""Forks and owners: logs that begin as another one is, and which store may append."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from millstream.log import commands as c
from millstream.record import Merged, Owner
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Answer, Endpoint, Reply

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


async def fork_log(ask: Ask) -> Reply:
    """Fork a log."""
    body: ForkBody = ask.body
    return Reply(Forked(fork=await ask.execute(c.ForkLog(ask.name("log"), body.name))), 201)


async def merge_fork(ask: Ask) -> Merged:
    """Merge a fork."""
    return await ask.execute(c.MergeFork(ask.name("log"), ask.body.on_fork))


async def get_owner(ask: Ask) -> Owner:
    """Who may append."""
    return await ask.execute(c.GetOwner(ask.name("log")))


async def set_owner(ask: Ask) -> Owner:
    """Hand a log over, or take it over."""
    body: OwnerBody = ask.body
    log = ask.name("log")
    if body.store is None:
        return await ask.execute(c.TakeOver(log))
    return await ask.execute(c.HandOver(log, body.store))


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/logs/{log}/fork",
        name="forkLog",
        summary="Make a log that begins as this one is now; nothing is copied",
        run=fork_log,
        tag="logs",
        body=ForkBody,
        answers=(Answer(Forked, "It was made", status=201),),
        errors=(404, 409),
    ),
    Endpoint(
        method="POST",
        path="/logs/{log}/merge",
        name="mergeFork",
        summary="Bring a fork's records into the log that it was forked from",
        detail="If both have gone on meanwhile it is refused, unless the body says what to do.",
        run=merge_fork,
        tag="logs",
        body=MergeBody,
        answers=(Answer(Merged),),
        errors=(404, 409, 423),
    ),
    Endpoint(
        method="GET",
        path="/logs/{log}/owner",
        name="getOwner",
        summary="Which store may append to a log",
        run=get_owner,
        tag="logs",
        answers=(Answer(Owner),),
        errors=(404,),
    ),
    Endpoint(
        method="PUT",
        path="/logs/{log}/owner",
        name="setOwner",
        summary="Hand a log over to another store, or take it over",
        run=set_owner,
        tag="logs",
        body=OwnerBody,
        answers=(Answer(Owner),),
        errors=(404, 409, 423),
    ),
)
