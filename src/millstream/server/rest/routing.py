"""Routing: endpoints become Starlette routes, one for each path with all of its methods.

Paths are matched as they were sent, before percent-decoding: so a name may contain a slash, sent
as `%2F`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import groupby
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from millstream.errors import MillstreamError
from millstream.server import problems
from millstream.server.auth.quota import SMALL_BYTES
from millstream.server.core import Core
from millstream.server.rest.ask import Ask, decoded_segment
from millstream.server.rest.body import (
    BODY_S,
    JSON_INLINE_BYTES_MAX,
    decode_json,
    decode_query,
    header,
    read_body,
)
from millstream.server.rest.endpoint import JSON, Endpoint, Reply

_encode = msgspec.json.Encoder().encode


def routes_of(core: Core, endpoints: Iterable[Endpoint]) -> list[Route]:
    """A route for each path; fixed paths go before those with names in their place."""
    ordered = sorted(endpoints, key=lambda one: (_rank(one.path), one.method))
    return [
        PathRoute(core, path, {endpoint.method: endpoint for endpoint in found})
        for path, found in groupby(ordered, key=lambda one: one.path)
    ]


class Paths(BaseRoute):
    """Many paths as one route, found by their first part and their length."""

    def __init__(self, routes: list[Route]) -> None:
        self.routes = routes
        self._by_shape: dict[tuple[bytes, int], list[Route]] = {}
        for route in routes:
            self._by_shape.setdefault(_shape(route.path.encode()), []).append(route)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request is for one of the paths."""
        if scope["type"] != "http":
            return Match.NONE, {}
        for route in self._by_shape.get(_shape(_sent_path(scope)), ()):
            match, found = route.matches(scope)
            if match is Match.FULL:
                return match, {**found, "path_route": route}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer by the path that matched."""
        await scope["path_route"].handle(scope, receive, send)


def _shape(path: bytes) -> tuple[bytes, int]:
    """The first part of a path, and how many there are."""
    return path[1:].partition(b"/")[0], path.count(b"/")


def _sent_path(scope: Scope) -> bytes:
    """The path as it came, before percent-decoding."""
    sent: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    return sent


def _rank(path: str) -> tuple[str, ...]:
    """Sorts `/a/b` before `/a/{name}`."""
    return tuple("~" + part if part.startswith("{") else part for part in path.split("/"))


class PathRoute(Route):
    """One path, and what each of its methods does."""

    def __init__(self, core: Core, path: str, endpoints: dict[str, Endpoint]) -> None:
        super().__init__(path, self._unused, methods=[*endpoints])
        self._core = core
        self._endpoints = endpoints
        if "GET" in endpoints:
            self._endpoints = {**endpoints, "HEAD": endpoints["GET"]}
        parts = re.split(r"\{(\w+)\}", path)
        names = parts[1::2]
        pattern = "".join(
            f"(?P<{part}>[^/]+)" if i % 2 else re.escape(part) for i, part in enumerate(parts)
        )
        assert len(set(names)) == len(names)
        self._pattern = re.compile(pattern.encode())

    async def _unused(self, request: Request) -> Response:
        """Starlette wants to wrap a function; `handle` does the work."""
        raise AssertionError("handle() answers")

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request is for this path, whatever its method."""
        if scope["type"] != "http":
            return Match.NONE, {}
        found = self._pattern.fullmatch(_sent_path(scope))
        if found is None:
            return Match.NONE, {}
        return Match.FULL, {"endpoint": self.endpoint, "path_params": found.groupdict()}

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
        endpoint = self._endpoints.get(request.method)
        if endpoint is None or endpoint.run is None:
            allow = sorted(self._endpoints)
            raise problems.NotAllowed(
                f"{request.method} is not possible here; {', '.join(allow)} are", allow=allow
            )
        path = {
            name: decoded_segment(segment) for name, segment in request.scope["path_params"].items()
        }
        ask = Ask(self._core, request, path=path)
        given = request.query_params.multi_items() if request.scope["query_string"] else []
        ask.query = decode_query(given, endpoint.query)
        if not endpoint.takes_body or _is_small(request):
            if endpoint.takes_body:
                await _read(ask, endpoint)
            return _written(await endpoint.run(ask), endpoint)
        with self._core.quota.receiving(request.state.principal) as grow:
            await _read(ask, endpoint, grow)
            return _written(await endpoint.run(ask), endpoint)


def _is_small(request: Request) -> bool:
    """Whether a body says that it is too small to be counted."""
    told = header(request.scope, b"content-length") or ""
    return told.isascii() and told.isdigit() and len(told) <= 6 and int(told) <= SMALL_BYTES


async def _read(ask: Ask, endpoint: Endpoint, grow: Callable[[int], None] | None = None) -> None:
    """Read the body, as JSON or as it is."""
    request = ask.request
    kind = (header(request.scope, b"content-type") or "").partition(";")[0].strip().lower()
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
    if is_json:
        if not data and endpoint.body_optional:
            data = b"{}"
        if len(data) <= JSON_INLINE_BYTES_MAX:
            ask.body = decode_json(data, endpoint.body)
        else:
            ask.body = await asyncio.to_thread(decode_json, data, endpoint.body)
    else:
        ask.raw = data


def _written(answer: Any, endpoint: Endpoint) -> Response:
    """A handler's answer as a response."""
    if isinstance(answer, Response):
        return answer
    status = endpoint.answers[0].status
    if isinstance(answer, Reply):
        answer, status = answer.value, answer.status
    if answer is None:
        return Response(status_code=status)
    return Response(_encode(answer), status_code=status, media_type=JSON)
