"""Clients over REST: the connections of this server, with the messages that each client holds."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec
from msgspec import Struct

from millstream.cluster.read_level import HOP_HEADER
from millstream.record import moment
from millstream.server.auth.need import Need
from millstream.server.claim_counts import HeldMessages
from millstream.server.clients import Client
from millstream.server.core import Core
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints


class ClientShown(Struct, kw_only=True):
    """A client: a connection, or all HTTP requests of a token."""

    kind: Literal["socket", "room", "http"]
    """`socket`: a client of the streaming socket; `room`: a client in a room; `http`: the requests of
    a token."""
    name: str
    """The name of the token; `local` for clients without a token."""
    address: str
    """The address and port of the client; empty for HTTP requests."""
    since: datetime | None
    """When the connection was opened, in UTC; null for HTTP requests."""
    room: str
    """The room of a client in a room."""
    user: str
    """The user of a client in a room; empty if the client only listens."""
    queues: list[HeldMessages]
    """The queues from which the client holds messages, or for whose messages it waits."""


class ClientPage(Struct, kw_only=True):
    """The clients of this server."""

    clients: list[ClientShown]
    """Open connections of sockets and rooms, and tokens with claims over HTTP."""
    connections: int
    """All open connections and requests, also of clients that are not listed."""


endpoint = Endpoints("store")
_decode = msgspec.json.Decoder(ClientPage).decode


@endpoint("GET /clients")
async def list_clients(ask: Ask) -> ClientPage:
    """List the clients of this server, and the messages that each client holds.

    Clients of other servers, and programs that open the store's file, are not listed: their claims
    are shown by `GET /queues/{queue}/consumers`.
    """
    ask.principal.require(Need("store", "admin", ""))
    page = _own_page(ask.core)
    siblings = ask.core.siblings
    if siblings is None:
        return page
    if HOP_HEADER in ask.request.headers:
        page.connections -= 1  # the request of the sibling
        return page
    shares = [_decode(share) for _, share in await siblings.ask_all(ask.request)]
    return ClientPage(
        clients=[client for share in (page, *shares) for client in share.clients],
        connections=sum(share.connections for share in (page, *shares)),
    )


def _own_page(core: Core) -> ClientPage:
    """List the clients of this process."""
    now_ms = core.admission.now_ms()
    requests = [
        Client(kind="http", name=name, claims=claims)
        for name, claims in core.admission.http_claims()
    ]
    shown = [_shown(client, now_ms) for client in (*core.clients, *requests)]
    return ClientPage(
        clients=[client for client in shown if client.kind != "http" or client.queues],
        connections=core.meter.requests_open.count,
    )


def _shown(client: Client, now_ms: int) -> ClientShown:
    return ClientShown(
        kind=client.kind,
        name=client.name,
        address=client.address,
        since=None if client.since_ms is None else moment(client.since_ms),
        room=client.room,
        user=client.user,
        queues=client.held(now_ms),
    )
