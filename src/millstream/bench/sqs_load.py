"""Raw HTTP clients of SQS: connections that send requests in JSON and read answers, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import msgspec
import uvloop

from millstream.bench.measure import StepMeter, seconds

Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Sends an action with its parameters, and returns the answer."""

_SCOPE = "Credential=bench/20260101/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=0"


@dataclass(frozen=True, slots=True)
class SqsAddress:
    """A server of SQS, and the address of the queue that is measured."""

    host: str
    port: int
    queue: str = ""

    @classmethod
    def of_url(cls, url: str) -> SqsAddress:
        """Return the server of an address."""
        address = urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        return cls(address.hostname, address.port)

    def with_queue(self, url: str) -> SqsAddress:
        """Return the same server with the address of a queue."""
        return replace(self, queue=url)


Step = Callable[[Ask, SqsAddress], Awaitable[int]]
"""Does a piece of work over one connection, and returns its number of messages; 0 ends the load."""


class _Connection(asyncio.Protocol):
    """One connection with one request at a time; it connects again if the server closes it."""

    def __init__(self, server: SqsAddress) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._buffer = bytearray()

    async def ask(self, action: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Send an action; return its answer, or raise `RuntimeError` with the refusal."""
        loop = asyncio.get_running_loop()
        if self._transport is None or self._transport.is_closing():
            self._buffer.clear()
            place = self._server.host, self._server.port
            self._transport, _ = await loop.create_connection(lambda: self, *place)
        self._answer = loop.create_future()
        body = msgspec.json.encode(parameters)
        self._transport.write(_head(self._server, action, len(body)) + body)
        answer: dict[str, Any] = msgspec.json.decode(await self._answer or b"{}")
        return answer

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Answer the request that waits, once its answer is complete."""
        self._buffer += data
        head, separator, body = bytes(self._buffer).partition(b"\r\n\r\n")
        if not separator:
            return
        lines = head.lower().split(b"\r\n")
        lengths = [line[15:] for line in lines if line.startswith(b"content-length:")]
        if not lengths or len(body) < int(lengths[0]):
            return
        if b"connection: close" in lines and self._transport is not None:
            self._transport.close()
        self._buffer.clear()
        self._settle(lines[0].split()[1] == b"200", body)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the request that waits for an answer."""
        self._transport = None
        self._settle(False, b"the connection has ended")

    def _settle(self, is_good: bool, body: bytes) -> None:
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return
        if is_good:
            answer.set_result(body)
        else:
            answer.set_exception(RuntimeError(body.decode("utf-8", "replace")[:500]))


def _head(server: SqsAddress, action: str, length: int) -> bytes:
    return (
        f"POST / HTTP/1.1\r\nHost: {server.host}:{server.port}\r\n"
        f"X-Amz-Target: AmazonSQS.{action}\r\nContent-Type: application/x-amz-json-1.0\r\n"
        f"X-Amz-Date: 20260101T000000Z\r\nAuthorization: AWS4-HMAC-SHA256 {_SCOPE}\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def ask_once(server: SqsAddress, action: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Send one action over a connection of its own."""

    async def run() -> dict[str, Any]:
        connection = _Connection(server)
        try:
            return await connection.ask(action, parameters)
        finally:
            connection.close()

    return uvloop.run(run())


def load(server: SqsAddress, step: Step, connections: int, length_s: float) -> StepMeter:
    """Repeat a step over connections for a while, or until a step finds nothing to do."""
    meter = StepMeter()

    async def work(connection: _Connection, ends_s: float) -> None:
        began = seconds()
        while began < ends_s:
            count = await step(connection.ask, server)
            ended = seconds()
            meter.messages += count
            meter.step_s.append(ended - began)
            if not count:
                return
            began = ended

    async def run() -> None:
        crowd = [_Connection(server) for _ in range(connections)]
        began = seconds()
        try:
            await asyncio.gather(*(work(connection, began + length_s) for connection in crowd))
            meter.elapsed_s = seconds() - began
        finally:
            for connection in crowd:
                connection.close()

    uvloop.run(run())
    return meter
