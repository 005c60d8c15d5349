"""Problems: errors over HTTP, as RFC 9457 documents with our error's name and data.

One table says which status each error has; what is not in it is a mistake of ours, and is told
without any of its insides.
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
"""Lost claims that an error lists."""


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
    """A mistake of the server; its log says where."""


class NotAllowed(MillstreamError):
    """A method that this address does not have. Data: `allow`."""


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
"""The status of each error; one that is not listed has its parent's."""


class Problem(Struct, kw_only=True, omit_defaults=True):
    """What went wrong. `title` is the error's name; `data` are the facts behind `detail`."""

    type: str
    title: str
    status: int
    detail: str
    data: dict[str, Any] = {}
    retry: bool | UnsetType = UNSET
    """Whether the same request may succeed later."""
    outcome: str | UnsetType = UNSET
    """'unknown', if what was asked may have been done all the same."""


def status_of(error: MillstreamError) -> int:
    """The status that tells an error."""
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def problem_of(error: MillstreamError) -> Problem:
    """An error as a document."""
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
    """The answer that tells an error."""
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
    """The answer to a mistake of ours: its kind and place are logged, not answered."""
    note_failure(error)
    return respond(InternalError("the server made a mistake; its log says where"))


async def refuse_handshake(send: Send, error: MillstreamError) -> None:
    """Answer a handshake that lets no one in, as a request would be answered."""
    response = respond(error)
    start: dict[str, Any] = {
        "type": "websocket.http.response.start",
        "status": response.status_code,
        "headers": response.raw_headers,
    }
    await send(start)
    await send({"type": "websocket.http.response.body", "body": response.body})


class NoSocket:
    """What a route does that stands behind those of all sockets: says where they are."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the handshake."""
        await receive()  # websocket.connect
        told = (
            "there is no socket at this address: clients connect to /socket, listeners to /rooms/…"
        )
        await refuse_handshake(send, errors.NotFound(told))


async def nothing_here(request: Request, error: Exception) -> Response:
    """The answer to an address that does not exist; for an application's `exception_handlers`."""
    return respond(errors.NotFound("there is nothing at this address; /docs lists what there is"))


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    """Data that JSON can hold; claims as the tokens that clients know."""
    found = {key: _value(value) for key, value in data.items()}
    if isinstance(data.get("lost"), list):
        tokens = (
            f"{claim_id + i}:{attempt}"
            for claim_id, count, attempt in data["lost"]
            for i in range(min(count, LOST_TOLD_MAX))
        )
        found["lost"] = [token for token, _ in zip(tokens, range(LOST_TOLD_MAX), strict=False)]
    return found


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return _clean(value)
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _clean(str(value))
    return value


def _clean(text: str) -> str:
    """Text without what UTF-8 cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode()
