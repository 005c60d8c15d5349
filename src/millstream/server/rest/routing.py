"""Routing: a single Starlette route for all endpoints.

Paths are matched as sent, before percent-decoding, so that a name may contain a slash, sent as
`%2F`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from millstream.command import Command
from millstream.errors import MillstreamError, NotFound
from millstream.log.commands import ListLogs
from millstream.log.model.names import SEARCHED_MAX, similar_name
from millstream.queue.commands import ListQueues
from millstream.rooms.commands import ListRooms
from millstream.server import problems
from millstream.server.auth.quota import SMALL_BYTES
from millstream.server.core import Core
from millstream.server.rest.ask import Ask, checked_segment
from millstream.server.rest.body import (
    BODY_S,
    JSON_INLINE_BYTES_MAX,
    decode_json,
    decode_query,
    read_body,
)
from millstream.server.rest.endpoint import JSON, Endpoint, Reply

encode_json = msgspec.json.Encoder().encode

Methods = dict[str, Endpoint]


class Paths(BaseRoute):
    """All paths, indexed by first segment and number of segments, with the endpoint of each
    method."""

    def __init__(self, core: Core, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = endpoints
        self._core = core
        self._by_shape: dict[tuple[bytes, int], dict[re.Pattern[bytes], Methods]] = {}
        for endpoint in sorted(endpoints, key=lambda each: _rank(each.path)):
            by_pattern = self._by_shape.setdefault(_shape(endpoint.path.encode()), {})
            methods = by_pattern.setdefault(_pattern(endpoint.path), {})
            methods[endpoint.method] = endpoint
            if endpoint.method == "GET":
                methods["HEAD"] = endpoint

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request is for one of the paths, with any method."""
        if scope["type"] == "http":
            path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
            for pattern, methods in self._by_shape.get(_shape(path), {}).items():
                if match := pattern.fullmatch(path):
                    return Match.FULL, {"methods": methods, "path_params": match.groupdict()}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; an error is answered as a problem document."""
        request = Request(scope, receive, send)
        try:
            response = await self._answer(request)
        except MillstreamError as error:
            response = problems.respond(error)
        except Exception as error:  # answer without details, and log them
            response = problems.respond_unexpected(error)
        if request.method != "GET":  # send the answer of a change even above the quota
            await response(scope, receive, send)
            return
        with ExitStack() as sending:
            size = len(getattr(response, "body", b""))  # a stream has no body yet
            quota = self._core.quota
            try:
                sending.enter_context(quota.sending(request.state.principal, size))
            except MillstreamError as error:
                response = problems.respond(error)
            await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        methods: Methods = request.scope["methods"]
        endpoint = methods.get(request.method)
        if endpoint is None:
            allow = sorted(methods)
            raise problems.NotAllowed(
                f"{request.method} is not allowed here; allowed: {', '.join(allow)}", allow=allow
            )
        with ExitStack() as held:
            return await self._run(
                Ask(self._core, request.scope, request.state.principal, request), endpoint, held
            )

    async def _run(self, ask: Ask, endpoint: Endpoint, held: ExitStack) -> Response:
        request, arguments = ask.request, {}
        pairs = request.query_params.multi_items() if request.scope["query_string"] else []
        query = decode_query(pairs, endpoint.query)
        if endpoint.query is not None:
            arguments["query"] = query
        if endpoint.takes_body:
            grow = None
            if not _is_small(request):
                grow = held.enter_context(self._core.quota.receiving(request.state.principal))
            body = await _read(ask, endpoint, grow)
            if endpoint.body is not None:
                arguments["body"] = body
        for name, segment in request.path_params.items():
            arguments[name] = checked_segment(name, segment, endpoint.path_types[name])
        try:
            answer = await endpoint.run(ask, **arguments)
        except NotFound as error:
            raise await with_similar_name(ask, error, arguments) from error
        return written(answer, endpoint)


def _shape(path: bytes) -> tuple[bytes, int]:
    """Return the first segment of a path, and the number of segments."""
    return path[1:].partition(b"/")[0], path.count(b"/")


def _rank(path: str) -> tuple[str, ...]:
    """Return a sort key that puts `/a/b` before `/a/{name}`."""
    segments = path.split("/")
    return tuple("~" + name if name.startswith("{") else name for name in segments)


def _pattern(path: str) -> re.Pattern[bytes]:
    named = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(path))
    return re.compile(named.encode())


def _is_small(request: Request) -> bool:
    """Whether the declared length of a body is too small to be counted."""
    length = request.headers.get("content-length", "")
    return length.isascii() and length.isdigit() and len(length) <= 6 and int(length) <= SMALL_BYTES


async def _read(ask: Ask, endpoint: Endpoint, grow: Callable[[int], None] | None) -> Any:
    """Read the body; return its JSON as a struct, or None for a raw body, which is `ask.data`."""
    request = ask.request
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = kind == JSON or (not kind and not endpoint.raw)
    if endpoint.body is None or not is_json:
        is_json = False
        if "*/*" not in endpoint.raw and kind not in endpoint.raw:
            offered = [*((JSON,) if endpoint.body is not None else ()), *endpoint.raw]
            if kind or not endpoint.body_optional:
                raise problems.UnsupportedMedia(
                    f"the media type {kind or 'none'} is not accepted here; send "
                    f"{' or '.join(offered)}",
                    offered=offered,
                )
    data = await read_body(
        request, bytes_max=ask.core.settings.body_bytes_max, seconds=BODY_S, grow=grow
    )
    ask.data = data
    if not is_json:
        return None
    if not data and endpoint.body_optional:
        data = b"{}"
    if len(data) <= JSON_INLINE_BYTES_MAX:
        return decode_json(data, endpoint.body)
    return await asyncio.to_thread(decode_json, data, endpoint.body)


def written(answer: Any, endpoint: Endpoint) -> Response:
    """Return a handler's answer as a response."""
    if isinstance(answer, Response):
        return answer
    status = endpoint.answers[0].status
    if isinstance(answer, Reply):
        answer, status = answer.value, answer.status
    if answer is None:
        return Response(status_code=status)
    return Response(encode_json(answer), status_code=status, media_type=JSON)


_LISTINGS: dict[str, Command[Any]] = {
    "log": ListLogs("", SEARCHED_MAX),
    "queue": ListQueues("", SEARCHED_MAX),
    "room": ListRooms("", SEARCHED_MAX),
}
"""The listing of each noun that a path may name."""


async def with_similar_name(ask: Ask, error: NotFound, segments: dict[str, Any]) -> NotFound:
    """Return the error with a similar name, if the error is about a name in the path.

    The names come from the listing of the caller, so a mistyped name reveals no name that the caller
    may not read.
    """
    name = error.data.get("name")
    noun = next((noun for noun in _LISTINGS if segments.get(noun) == name), None)
    if noun is None or not isinstance(name, str):
        return error
    try:
        infos = await ask.execute(_LISTINGS[noun])
    except MillstreamError:  # the caller still gets the error of the request
        return error
    similar = similar_name(name, (info.name for info in infos))
    if similar is None:
        return error
    return NotFound(f"{error.message}; did you mean {similar!r}?", **error.data, similar=similar)
