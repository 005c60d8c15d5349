"""Problems: errors over HTTP, as RFC 9457 documents with our error's name and data.

A table gives each error its status. An exception outside of the table is a mistake of ours; the
client gets no details of it.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from millstream import errors
from millstream.errors import Denied, MillstreamError, Unauthenticated, told_elsewhere
from millstream.server.journal import note_failure

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
"""Seconds in `Retry-After` for a client that came at a bad time."""
LOST_TOLD_MAX = 1_000
"""Most lost claims in one error."""


class Malformed(MillstreamError):
    """A request whose bytes cannot be read: JSON that does not parse, a body that ends early."""


class NotAcceptable(MillstreamError):
    """No form of the answer is one that the client accepts. Data: `offered`."""


class UnsupportedMedia(MillstreamError):
    """A body in a form that this address does not take. Data: `offered`."""


class TooSlow(MillstreamError):
    """A body that did not arrive in time."""

    retry = True


class InternalError(MillstreamError):
    """A mistake of the server; the log has the place."""


class NotAllowed(MillstreamError):
    """A method that the address does not support. Data: `allow`."""


STATUSES: dict[type[MillstreamError], int] = {
    Malformed: 400,
    Unauthenticated: 401,
    Denied: 403,
    errors.NotFound: 404,
    NotAllowed: 405,
    NotAcceptable: 406,
    TooSlow: 408,
    errors.Conflict: 409,
    errors.Truncated: 410,
    errors.TooLarge: 413,
    UnsupportedMedia: 415,
    errors.OutOfRange: 416,
    errors.InvalidInput: 422,
    errors.Locked: 423,
    errors.Overloaded: 429,
    errors.CorruptionError: 500,
    errors.OutcomeUnknown: 500,
    errors.StoreError: 503,
    errors.DiskFull: 507,
    MillstreamError: 500,
}
"""The status of each error; an error that is not listed has the status of its parent class."""


class Problem(Struct, kw_only=True, omit_defaults=True):
    """An error as a document. `title` is the error's name; `data` are the facts behind `detail`."""

    type: str
    title: str
    status: int
    detail: str
    data: dict[str, Any] = {}
    retry: bool | UnsetType = UNSET
    """Whether the same request may succeed later."""
    outcome: str | UnsetType = UNSET
    """'unknown' if the request may have been carried out all the same."""


def status_of(error: MillstreamError) -> int:
    """Return the HTTP status of an error."""
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def problem_of(error: MillstreamError) -> Problem:
    """Return the document of an error."""
    name = type(error).__name__
    message, data = told_elsewhere(error)
    return Problem(
        type=f"/docs#error-{name}",
        title=name,
        status=status_of(error),
        detail=_clean(message),
        data=_plain(data),
        retry=error.retry,
        outcome="unknown" if isinstance(error, errors.OutcomeUnknown) else UNSET,
    )


def respond(error: MillstreamError) -> Response:
    """Return the response for an error."""
    problem = problem_of(error)
    headers = {}
    if problem.status in (429, 503, 507) and error.retry:
        headers["retry-after"] = str(error.data.get("retry_after_s", RETRY_AFTER_S))
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = 'Bearer realm="millstream"'
    if isinstance(error, NotAllowed):
        headers["allow"] = ", ".join(error.data["allow"])
    if isinstance(error, TooSlow):
        headers["connection"] = "close"
    body = msgspec.json.encode(problem)
    return Response(body, status_code=problem.status, headers=headers, media_type=MEDIA_TYPE)


def respond_unexpected(error: Exception) -> Response:
    """Return the response for a mistake of ours, and log its type and place."""
    note_failure(error)
    return respond(InternalError("the server made a mistake; its log says where"))


async def refuse_handshake(send: Send, error: MillstreamError) -> None:
    """Refuse a WebSocket handshake with the response for an error."""
    response = respond(error)
    start: dict[str, Any] = {
        "type": "websocket.http.response.start",
        "status": response.status_code,
        "headers": response.raw_headers,
    }
    await send(start)
    await send({"type": "websocket.http.response.body", "body": response.body})


class NoSocket:
    """The last route of WebSockets: refuses handshakes at addresses without a socket."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the handshake."""
        await receive()  # websocket.connect
        reason = (
            "there is no socket at this address: clients connect to /socket, listeners to /rooms/…"
        )
        await refuse_handshake(send, errors.NotFound(reason))


async def nothing_here(request: Request, error: Exception) -> Response:
    """Return the response for an address that does not exist."""
    return respond(errors.NotFound("there is nothing at this address; /docs lists what there is"))


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    """Return data that JSON can hold, with claims as the tokens that clients know."""
    plain = {key: _value(value) for key, value in data.items()}
    if isinstance(data.get("lost"), list):
        tokens = (
            f"{claim_id + i}:{attempt}"
            for claim_id, count, attempt in data["lost"]
            for i in range(min(count, LOST_TOLD_MAX))
        )
        plain["lost"] = [token for token, _ in zip(tokens, range(LOST_TOLD_MAX), strict=False)]
    return plain


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return _clean(value)
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _clean(str(value))
    return value


def _clean(text: str) -> str:
    """Escape characters that UTF-8 cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode()
