"""The live view over HTTP: server-sent events, and the samples of the last minutes."""

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
    """A stream of events; its generator is closed as soon as the client disconnects."""

    async def stream_response(self, send: Send) -> None:
        """Send the events, each when the client has taken the events before."""
        body = self.body_iterator
        assert isinstance(body, AsyncGenerator)
        async with aclosing(body):
            await super().stream_response(send)


class LiveQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of `GET /live`."""

    seconds: float | None = None
    """End the stream after this many seconds; default: never."""
    history: bool = True
    """Whether the samples of the last minutes are sent first."""


@endpoint("GET /live", media_types=(EVENTS,))
async def watch_store(ask: Ask, query: LiveQuery) -> Response:
    """Watch the server and its store: one sample per second, as server-sent events.

    The samples of the last minutes are sent first, as far as a client was watching then. Each event
    is a JSON document as in `GET /live/history`. A client that reconnects with `Last-Event-ID` gets
    the events it has missed.
    """
    ask.principal.require(_NEED)
    if ask.request.method == "HEAD":
        return Response(headers=_HEADERS, media_type=EVENTS)
    return Events(_events(ask, query), headers=_HEADERS, media_type=EVENTS)


@endpoint("GET /live/history")
async def get_history(ask: Ask) -> list[Pulse]:
    """List the samples of the last five minutes, oldest first.

    Samples are taken while a client watches, and for five minutes after.
    """
    ask.principal.require(_NEED)
    return ask.core.live.history()


async def _events(ask: Ask, query: LiveQuery) -> AsyncGenerator[bytes, None]:
    """Yield events as long as the client's token allows it."""
    last_event = ask.request.headers.get(_LAST_EVENT, "")
    is_id = last_event.isascii() and last_event.isdigit() and len(last_event) < 16
    after_ms = int(last_event) if is_id else 0
    if not query.history and not after_ms:
        after_ms = ask.core.store.clock.wall_ms()
    loop = asyncio.get_running_loop()
    ends_s = math.inf if query.seconds is None else loop.time() + query.seconds
    async with aclosing(ask.core.live.watch(after_ms)) as events:
        async for event in events:
            if not await _may_see(ask):
                return
            yield event
            if loop.time() >= ends_s:
                return


async def _may_see(ask: Ask) -> bool:
    """Whether the token still allows it; the token may have been revoked meanwhile."""
    try:
        await ask.core.tokens.freshen_for(ask.principal)
        ask.core.admission.require(ask.principal, _NEED)
    except (Unauthenticated, Denied):
        return False
    except MillstreamError:
        pass  # the store does not answer now: check the token again with the next event
    return True
