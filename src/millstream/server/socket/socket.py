"""The streaming socket: frames of requests in, frames of answers out.

Requests of one connection begin in the order in which they come, and are answered in the order in
which they are done. Everything that is kept for a connection is bounded: requests without an
answer, answers that are not read, messages that are claimed. `docs/PROTOCOL.md` has the bytes.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace
from starlette.types import Message, Receive, Scope, Send

from millstream import wire
from millstream.command import Command, waits
from millstream.errors import InvalidInput, MillstreamError, Overloaded, Unauthenticated
from millstream.format.keys import STORE_KEY
from millstream.limits import Limits
from millstream.server.auth.access import NODE, Principal
from millstream.server.bounds import check_records
from millstream.server.cluster.forwarding import Forwarder
from millstream.server.cluster.seat import ALONE, Asker, Seat
from millstream.server.core import Core
from millstream.server.holdings import Holdings
from millstream.server.journal import note_failure
from millstream.server.observe.tracing import traceparent_of
from millstream.server.parts import WEIGHT_MAX, decode_at_once, weigh
from millstream.server.socket.outbox import Outbox, Sent
from millstream.store.instance import Instance
from millstream.wire import decode_internal, decode_requests

PATH = "/socket"

GOING_AWAY = 1001
REFUSED_TEXT = 1003
NOT_A_FRAME = 1007
POLICY = 1008
TOO_BIG = 1009

NO_TOKEN = "the token has expired, or was revoked"

REASON_BYTES_MAX = 123
"""Of a close frame's reason, by RFC 6455."""

INLINE_BYTES_MAX = 256 * 1024
INLINE_WEIGHT_MAX = 20_000
"""A larger or heavier frame is taken apart in a thread: other connections do not wait for it."""

UNWEIGHED_BYTES_MAX = 8 * 1024
"""A frame of so few bytes is light enough, whatever is in it."""

NODE_REQUESTS_MAX = 16_384
NODE_READS_MAX = 64
"""Of a connection of another node, which asks for all of its rooms: requests and reads at once."""

READS_MAX = 4
"""Reads of one connection that run, or whose answers are not sent, at once: each may be large."""

ENDING = 0.5
"""The part of `stop_s` that what was begun gets to finish when the server stops."""

LOOK_S = 0.5
"""How often it is looked whether the tokens of open connections still count."""

CLOSE_S = 1.0
"""How long a close frame may wait behind answers that the client does not read."""

Request = tuple[int, Command[Any] | MillstreamError]
"""A request's number, and what it asks for; or why that is refused."""


class Violation(Exception):
    """Something after which a connection cannot go on: a close code, and why."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Socket:
    """What a route does: greets each client that connects, and talks with it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._hello = b""
        self._with_token: set[Conversation] = set()
        self._looking: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        if wire.SUBPROTOCOL not in scope["subprotocols"]:
            await _refuse(send, f"ask for the subprotocol {wire.SUBPROTOCOL}")
            return
        if not self._hello:
            self._hello = await asyncio.to_thread(_greeting, self._core)
        hello = self._hello
        if self._core.seat is not None:
            asked_as_node = scope["state"]["principal"] is NODE
            hello = _greeting_of_node(hello, self._core.seat, is_for_node=asked_as_node)
        await send({"type": "websocket.accept", "subprotocol": wire.SUBPROTOCOL})
        talk = Conversation(self._core, scope, receive, send)
        if talk.principal.token:
            self._with_token.add(talk)
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look())
        try:
            await talk.run(hello)
        finally:
            self._with_token.discard(talk)
            talk.hang_up()
            if talk.is_cut or talk.outbox.is_full:
                scope["state"]["abort"]()

    async def _look(self) -> None:
        """End conversations whose tokens were revoked, also those that only listen."""
        while self._with_token and not self._core.closing.is_set():
            await asyncio.sleep(LOOK_S)
            for talk in [*self._with_token]:
                try:
                    await self._core.tokens.confirm(talk.principal)
                except Unauthenticated:
                    talk.shut_out()
                except MillstreamError:
                    break  # the store does not answer now: look again later


class Conversation:
    """One connection: its requests in flight, and its answers on their way."""

    def __init__(self, core: Core, scope: Scope, receive: Receive, send: Send) -> None:
        settings = core.settings
        self.outbox = Outbox(send, settings.send_bytes_max, scope["state"].get("write"))
        self.is_cut = False
        """Whether the client does not even read that this is the end."""
        self.principal: Principal = scope["state"]["principal"]
        self._traceparent = traceparent_of(scope)
        self._core = core
        self._receive = receive
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._running: dict[int, asyncio.Task[None]] = {}
        self._waiting: set[int] = set()
        """Running requests that may wait for something to happen."""
        self._holdings = Holdings(settings.claims_open_max)
        self._is_node = self.principal is NODE
        self._reads = asyncio.Semaphore(NODE_READS_MAX if self._is_node else READS_MAX)
        self._asker: Asker = scope["state"].get("asker", ALONE)
        self._forwarder: Forwarder | None = None
        """How commands reach the leading node of the cluster; None where they go no further."""
        if core.seat is not None and not self._asker.is_handed_on:
            self._forwarder = Forwarder(core.seat, self._asker.credential)
        self._shut_out: asyncio.Future[None] = self._loop.create_future()

    async def run(self, hello: bytes) -> None:
        """Talk until one side ends it."""
        self.outbox.put(hello)
        reading = asyncio.create_task(self._read_frames())
        sending = asyncio.create_task(self.outbox.run())
        closing = asyncio.create_task(self._core.closing.wait())
        parts: set[asyncio.Future[Any]] = {reading, sending, closing, self._shut_out}
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            if self._shut_out.done():
                await self._close(POLICY, NO_TOKEN)
            elif reading.done():
                await self._end(reading)
            elif closing.done() and not sending.done():
                reading.cancel()
                await self._go_away()
        finally:
            tasks = [*parts, *self._running.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def shut_out(self) -> None:
        """End the connection: its token is no longer valid."""
        if not self._shut_out.done():
            self._shut_out.set_result(None)

    def hang_up(self) -> None:
        """Let go of what was opened for this client."""
        if self._forwarder is not None:
            self._forwarder.close()

    # Requests come in.

    async def _read_frames(self) -> None:
        most = NODE_REQUESTS_MAX if self._is_node else self._core.settings.requests_in_flight_max
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                return
            requests = await self._parse(message)
            if len(self._running) + len(requests) > most:
                raise Violation(POLICY, f"more than {most} requests without an answer")
            refusal = self._spend(len(requests))
            for number, command in requests:
                self._begin(number, refusal or command)

    def _spend(self, requests: int) -> MillstreamError | None:
        """Pay for a frame as so many requests are paid for; or why they are refused."""
        try:
            self._core.quota.spend(self.principal, max(1, requests))
        except Overloaded as error:
            return error
        return None

    async def _parse(self, message: Message) -> list[Request]:
        data, limits = message.get("bytes"), self._core.store.limits
        try:
            # A client may stay connected for days: its token is checked again with each frame.
            await self._core.tokens.confirm(self.principal)
            if data is None:
                raise Violation(REFUSED_TEXT, "frames are binary, this one is text")
            if self._is_node:
                return list(decode_internal(data))
            if is_small(data):
                return _checked(decode_requests(data), limits)
            async with self._core.quota.parsing(self.principal):
                return await asyncio.to_thread(_take_apart_weighed, data, limits)
        except Unauthenticated:
            raise Violation(POLICY, NO_TOKEN) from None
        except InvalidInput as error:
            raise Violation(NOT_A_FRAME, error.message) from error

    def _begin(self, number: int, command: Command[Any] | MillstreamError) -> None:
        if number in self._running:
            raise Violation(POLICY, f"request {number} again, before its answer")
        if isinstance(command, MillstreamError):
            self.outbox.answer(number, command)
            return
        self._running[number] = self._loop.create_task(self._execute(number, command))
        if waits(command):
            self._waiting.add(number)

    # Requests are carried out.

    async def _execute(self, number: int, command: Command[Any]) -> None:
        if command.traits.is_large:
            await self._reads.acquire()
            when_sent: Sent | None = self._reads.release
        else:
            when_sent = None
        found = await self._result(command)
        del self._running[number]
        self._waiting.discard(number)
        self.outbox.answer(number, found, when_sent)

    async def _result(self, command: Command[Any]) -> Any:
        core = self._core
        try:
            if core.seat is None:
                return await core.execute(
                    self.principal, command, self._holdings, traceparent=self._traceparent
                )
            if self._is_node:
                return await core.session.execute_here(command)
            return await core.answer_in_cluster(
                self.principal,
                command,
                self._holdings,
                self._forwarder,
                level=self._asker.read_level,
                traceparent=self._traceparent,
            )
        except MillstreamError as error:
            return error
        except Exception as error:
            note_failure(error, command=type(command).__name__)
            return MillstreamError("the server failed at this request; its log says where")

    # The end.

    async def _end(self, reading: asyncio.Task[None]) -> None:
        """Say why, if this side ended it."""
        try:
            await reading
        except Violation as error:
            await self._close(error.code, error.reason)

    async def _go_away(self) -> None:
        """The server stops: finish what was begun, but wait for nothing."""
        for number in self._waiting:
            self._running[number].cancel()
        begun = [task for number, task in self._running.items() if number not in self._waiting]
        try:
            async with asyncio.timeout(self._core.settings.stop_s * ENDING):
                if begun:
                    await asyncio.wait(begun)
                await self.outbox.drained()
        except TimeoutError:
            pass  # what is left has an unknown outcome, and the client knows that it has
        await self._close(GOING_AWAY, "the server is stopping")

    async def _close(self, code: int, reason: str) -> None:
        cut = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._send({"type": "websocket.close", "code": code, "reason": cut})
        except TimeoutError:
            self.is_cut = True


def is_small(data: bytes) -> bool:
    """Whether a frame may be taken apart on the event loop, since it takes little time."""
    if len(data) <= UNWEIGHED_BYTES_MAX:
        return True
    return len(data) <= INLINE_BYTES_MAX and weigh(data, INLINE_WEIGHT_MAX) <= INLINE_WEIGHT_MAX


def _take_apart_weighed(data: bytes, limits: Limits) -> list[Request]:
    """Look how many objects a frame would become, before it becomes them."""
    if weigh(data) > WEIGHT_MAX:
        raise Violation(TOO_BIG, "a frame of too many parts; send less at once, or blocks")
    return _checked(decode_at_once(lambda: decode_requests(data)), limits)


def _checked(requests: list[tuple[int, Command[Any]]], limits: Limits) -> list[Request]:
    found: list[Request] = []
    for number, command in requests:
        try:
            check_records(command, limits)
            found.append((number, command))
        except MillstreamError as error:
            # Its traceback would keep the frame's requests, in a circle.
            found.append((number, error.with_traceback(None)))
    return found


def _greeting(core: Core) -> bytes:
    instance: Instance = core.store.seen(STORE_KEY)
    return wire.encode_hello(
        wire.Hello(
            version=wire.VERSION,
            instance=instance.id,
            limits=core.store.limits,
            requests_max=core.settings.requests_in_flight_max,
            frame_bytes_max=core.settings.frame_bytes_max,
        )
    )


def _greeting_of_node(greeting: bytes, seat: Seat, *, is_for_node: bool) -> bytes:
    """The greeting, with where the leading node is; another node gets more credit."""
    hello = replace(wire.decode_hello(greeting), leader="" if seat.leads else seat.leader_address)
    if is_for_node:
        hello = replace(hello, requests_max=NODE_REQUESTS_MAX)
    return wire.encode_hello(hello)


async def _refuse(send: Send, why: str) -> None:
    """Answer a handshake that cannot become a conversation."""
    head = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "websocket.http.response.start", "status": 400, "headers": head})
    await send({"type": "websocket.http.response.body", "body": why.encode()})
