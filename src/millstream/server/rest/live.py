"""The live view over HTTP: server-sent events, and what was told in the last minutes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import Struct
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from millstream.embedded.status import Pulse
from millstream.errors import Denied, MillstreamError, Unauthenticated
from millstream.server.auth.need import Need
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints

EVENTS = "text/event-stream"
_NEED = Need("store", "read", "")
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_LAST_EVENT = "last-event-id"

endpoint = Endpoints("store")


class Events(StreamingResponse):
    """Events as they come; what makes them ends at once when the client leaves."""

    async def stream_response(self, send: Send) -> None:
        """Send them, each when the client has taken the ones before."""
        body = self.body_iterator
        assert isinstance(body, AsyncGenerator)
        async with aclosing(body):
            await super().stream_response(send)


class LiveQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """What may follow the question mark of `GET /live`."""

    seconds: float | None = None
    """End after so long; left out, it goes on."""
    history: bool = True
    """Whether the last minutes are sent first."""


@endpoint("GET /live", media_types=(EVENTS,))
async def watch_store(ask: Ask, query: LiveQuery) -> Response:
    """How the server and its store stand, once per second, as server-sent events.

    The last minutes are sent first, if a client watched then. Each event is a JSON document as in
    `GET /live/history`. A client that comes again with `Last-Event-ID` gets what it has not seen.
    """
    ask.principal.require(_NEED)
    if ask.request.method == "HEAD":
        return Response(headers=_HEADERS, media_type=EVENTS)
    return Events(_events(ask, query), headers=_HEADERS, media_type=EVENTS)


@endpoint("GET /live/history")
async def get_history(ask: Ask) -> list[Pulse]:
    """How the server and its store stood in the last five minutes, oldest first.

    They are made while a client watches, and for five minutes more.
    """
    ask.principal.require(_NEED)
    return ask.core.live.history()


async def _events(ask: Ask, query: LiveQuery) -> AsyncGenerator[bytes, None]:
    """The events, for as long as the client may see them."""
    given = ask.request.headers.get(_LAST_EVENT, "")
    after_ms = int(given) if given.isascii() and given.isdigit() and len(given) < 16 else 0
    if not query.history and not after_ms:
        after_ms = ask.core.store.clock.wall_ms()
    loop = asyncio.get_running_loop()
    ends_s = math.inf if query.seconds is None else loop.time() + query.seconds
    async with aclosing(ask.core.live.watch(after_ms)) as told:
        async for event in told:
            if not await _may_see(ask):
                return
            yield event
            if loop.time() >= ends_s:
                return


async def _may_see(ask: Ask) -> bool:
    """Whether the token, which may have been revoked meanwhile, still allows it."""
    try:
        await ask.core.tokens.freshen_for(ask.principal)
        ask.core.admission.require(ask.principal, _NEED)
    except (Unauthenticated, Denied):
        return False
    except MillstreamError:
        pass  # the store does not answer now: what the token allows is looked at again later
    return True
