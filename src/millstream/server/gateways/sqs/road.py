"""The two roads on which requests of SQS reach the gateway: the hot road, and the framework's.

The guard has checked the host name and the origin before, because a page in a browser can send a form
to any port of its machine.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive, Scope, Send

from millstream.server.gateways.sqs.gateway import SqsGateway, SqsRequest, is_sqs_path
from millstream.server.gateways.sqs.protocol import BODY_BYTES_MAX, SqsAnswer
from millstream.server.listen.hot import Head, HotCycle

BODY_S = 20.0
"""How long a body may take to arrive."""

_TOO_SLOW = SqsAnswer(408, [(b"connection", b"close"), (b"content-length", b"0")], b"")


class SqsRoads:
    """Takes requests of SQS off both roads; belongs to one event loop."""

    def __init__(self, gateway: SqsGateway) -> None:
        self._gateway = gateway
        self._meter = gateway.core.meter

    def takes(self, scope: Scope) -> bool:
        """Whether a request is SQS's."""
        if scope["type"] != "http":
            return False
        path, query = scope.get("raw_path") or b"", scope.get("query_string", b"")
        return is_sqs_path(scope["method"], path, query)

    def begin_hot(self, scope: Scope, head: Head, body: bytes, cycle: HotCycle) -> None:
        """Answer a complete request by `cycle.respond`, later."""
        request = SqsRequest(scope["raw_path"], b"", head, [*head.items()], body, scope["scheme"])
        self._meter.requests_open.count += 1
        self._meter.received_bytes.count += len(body)
        task = asyncio.get_running_loop().create_task(self._answer_hot(request, cycle))
        cycle.end_with(task)

    async def _answer_hot(self, request: SqsRequest, cycle: HotCycle) -> None:
        status, answer = 500, SqsAnswer(503, [(b"content-length", b"0")], b"")
        try:
            answer = await self._gateway.answer(request)
            status = answer.status
        finally:
            self._meter.requests_open.count -= 1
            self._meter.requests.add(status)
            self._meter.sent_bytes.count += len(answer.body)
            cycle.respond(answer.status, answer.headers, answer.body)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of the framework's road; a client that leaves ends its wait."""
        try:
            body = await _body_of(receive)
        except TimeoutError:
            await _send(send, _TOO_SLOW)
            return
        if body is None:
            return
        path = scope.get("raw_path") or b"/"
        headers = scope["headers"]
        head = dict(reversed(headers))
        request = SqsRequest(
            path, scope["query_string"], head, headers, body, scope["scheme"], scope["method"]
        )
        answering = asyncio.ensure_future(self._gateway.answer(request))
        leaving = asyncio.ensure_future(_has_left(receive))
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                await _send(send, answering.result())
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)


async def _body_of(receive: Receive) -> bytes | None:
    """Return the body, cut behind its bound; None if the client has left.

    Raises `TimeoutError` if the body is too slow.
    """
    body = bytearray()
    async with asyncio.timeout(BODY_S):
        while len(body) <= BODY_BYTES_MAX:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
    return bytes(body)


async def _has_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, answer: SqsAnswer) -> None:
    start: dict[str, Any] = {
        "type": "http.response.start",
        "status": answer.status,
        "headers": answer.headers,
    }
    await send(start)
    await send({"type": "http.response.body", "body": answer.body})
