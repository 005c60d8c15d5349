"""Routing: all endpoints as one Starlette route.

Paths are matched as they were sent, before percent-decoding: so a name may contain a slash, sent
as `%2F`.
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

from millstream.errors import MillstreamError
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
    """Every path, found by its first part and its length, with the endpoint of each method."""

    def __init__(self, core: Core, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = endpoints
        self._core = core
        self._by_shape: dict[tuple[bytes, int], dict[re.Pattern[bytes], Methods]] = {}
        for endpoint in sorted(endpoints, key=lambda one: _rank(one.path)):
            alike = self._by_shape.setdefault(_shape(endpoint.path.encode()), {})
            methods = alike.setdefault(_pattern(endpoint.path), {})
            methods[endpoint.method] = endpoint
            if endpoint.method == "GET":
                methods["HEAD"] = endpoint

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request is for one of the paths, whatever its method."""
        if scope["type"] == "http":
            sent: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
            for pattern, methods in self._by_shape.get(_shape(sent), {}).items():
                if found := pattern.fullmatch(sent):
                    return Match.FULL, {"methods": methods, "path_params": found.groupdict()}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; an error is answered as a problem document."""
        request = Request(scope, receive, send)
        try:
            response = await self._answer(request)
        except MillstreamError as error:
            response = problems.respond(error)
        except Exception as error:  # answered without details, and logged
            response = problems.respond_unexpected(error)
        if request.method != "GET":  # an answer that changed something is sent in any case
            await response(scope, receive, send)
            return
        with ExitStack() as sending:
            size = len(getattr(response, "body", b""))  # one that streams has none yet
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
                f"{request.method} is not possible here; {', '.join(allow)} are", allow=allow
            )
        with ExitStack() as held:
            return await self._run(
                Ask(self._core, request.scope, request.state.principal, request), endpoint, held
            )

    async def _run(self, ask: Ask, endpoint: Endpoint, held: ExitStack) -> Response:
        request, given = ask.request, {}
        pairs = request.query_params.multi_items() if request.scope["query_string"] else []
        query = decode_query(pairs, endpoint.query)
        if endpoint.query is not None:
            given["query"] = query
        if endpoint.takes_body:
            grow = None
            if not _is_small(request):
                grow = held.enter_context(self._core.quota.receiving(request.state.principal))
            body = await _read(ask, endpoint, grow)
            if endpoint.body is not None:
                given["body"] = body
        for name, segment in request.path_params.items():
            given[name] = checked_segment(name, segment, endpoint.path_types[name])
        return written(await endpoint.run(ask, **given), endpoint)


def _shape(path: bytes) -> tuple[bytes, int]:
    """The first part of a path, and how many there are."""
    return path[1:].partition(b"/")[0], path.count(b"/")


def _rank(path: str) -> tuple[str, ...]:
    """Sorts `/a/b` before `/a/{name}`."""
    return tuple("~" + part if part.startswith("{") else part for part in path.split("/"))


def _pattern(path: str) -> re.Pattern[bytes]:
    named = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(path))
    return re.compile(named.encode())


def _is_small(request: Request) -> bool:
    """Whether a body says that it is too small to be counted."""
    told = request.headers.get("content-length", "")
    return told.isascii() and told.isdigit() and len(told) <= 6 and int(told) <= SMALL_BYTES


async def _read(ask: Ask, endpoint: Endpoint, grow: Callable[[int], None] | None) -> Any:
    """Read the body: the struct that its JSON holds; None if it is to be taken as it is."""
    request = ask.request
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = kind == JSON or (not kind and not endpoint.raw)
    if endpoint.body is None or not is_json:
        is_json = False
        if "*/*" not in endpoint.raw and kind not in endpoint.raw:
            offered = [*((JSON,) if endpoint.body is not None else ()), *endpoint.raw]
            if kind or not endpoint.body_optional:
                raise problems.UnsupportedMedia(
                    f"a body of type {kind or 'none'} is not taken here; send "
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
    """A handler's answer as a response."""
    if isinstance(answer, Response):
        return answer
    status = endpoint.answers[0].status
    if isinstance(answer, Reply):
        answer, status = answer.value, answer.status
    if answer is None:
        return Response(status_code=status)
    return Response(encode_json(answer), status_code=status, media_type=JSON)
