"""A conversation: the requests of a socket that are running, and the answers that are being sent.

Requests of a connection begin in the order of their arrival; answers go out as they are ready. There
are bounds on running requests, unread answers and claimed messages. Many refusals slow a connection
down, and close it in the end.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from millstream.command import Command, waits
from millstream.errors import (
    InvalidInput,
    MillstreamError,
    NotLeader,
    Overloaded,
    Unauthenticated,
)
from millstream.limits import MiB
from millstream.queue.commands import ClaimMessages
from millstream.queue.runs import lots_within
from millstream.server import direct
from millstream.server.auth.access import NODE, Principal
from millstream.server.claim_counts import ClaimCounts
from millstream.server.cluster.forwarder import Forwarder
from millstream.server.cluster.role import ALONE, Asker
from millstream.server.core import Core
from millstream.server.journal import note_failure
from millstream.server.listen.refusals import TOO_MANY, RefusalCount, is_refusal, shared_by
from millstream.server.observe.tracing import traceparent_of
from millstream.server.socket.outbox import Outbox, Sent, Unsent
from millstream.server.socket.requests import (
    Request,
    Violation,
    checked,
    is_small,
    take_apart_weighed,
)
from millstream.wire.commands import decode_internal, decode_requests

GOING_AWAY = 1001
REFUSED_TEXT = 1003
NOT_A_FRAME = 1007
POLICY = 1008

NO_TOKEN = "the token has expired, or was revoked"

REASON_BYTES_MAX = 123
"""Of a close frame's reason, by RFC 6455."""

CLAIM_BYTES_MAX = 16 * MiB
"""Values in the answer to a claim; further messages go back. An answer has one message at least."""

NODE_REQUESTS_MAX = 16_384
NODE_READS_MAX = 64
"""Running requests and reads of another node's connection, which carries all of its rooms."""

READS_MAX = 4
"""Reads of a connection that run or whose answers are unsent: an answer may be large."""

ENDING = 0.5
"""The share of `stop_s` in which running requests may finish when the server ends a connection."""

CLOSE_S = 1.0
"""How long a close frame may wait behind unread answers."""

Listen = Callable[[Callable[[bytes], bool]], None]
"""Registers a function that takes frames as they come, without `receive`."""


class LostPatience(Violation):
    """Too many refusals: the connection ends after the answers to its running requests."""


class Conversation:
    """The running requests and unsent answers of one connection."""

    def __init__(self, core: Core, scope: Scope, receive: Receive, send: Send) -> None:
        settings = core.settings
        write, soon = scope["state"].get("write"), core.session.after_answers
        self.outbox = Outbox(send, settings.send_bytes_max, write, soon=soon)
        self.is_cut = False
        """Whether the client does not read our close frame."""
        self.principal: Principal = scope["state"]["principal"]
        self._traceparent = traceparent_of(scope)
        self._core = core
        self._receive = receive
        self._count_received: Callable[[int], None] = scope["state"]["count_received"]
        self._listen: Listen | None = scope["state"].get("listen")
        self._is_gone: Callable[[], bool] = scope["state"].get("is_gone", lambda: False)
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._running: dict[int, asyncio.Task[Any] | None] = {}
        """Requests without an answer, by number; requests on the taskless road have no task."""
        self._waiting: set[int] = set()
        """Numbers of running requests that may wait for an event."""
        self._unbegun = 0
        """Tasks that have not started yet; later requests must not overtake them."""
        self._idle: asyncio.Event | None = None
        """Set once a stopping server has answered all requests without a task."""
        self._is_over = False
        self.claims = ClaimCounts(settings.claims_open_max)
        """The messages that the client has claimed."""
        self._is_node = self.principal is NODE
        self._reads = asyncio.Semaphore(NODE_READS_MAX if self._is_node else READS_MAX)
        self._asker: Asker = scope["state"].get("asker", ALONE)
        self._forwarder: Forwarder | None = None
        """Asks the leading node of the cluster; None if commands go no further."""
        if core.seat is not None and not self._asker.is_handed_on:
            self._forwarder = Forwarder(core.seat, self._asker.credential)
        self._shut_out: asyncio.Future[None] = self._loop.create_future()
        self._refusals = RefusalCount(shared_by(settings.requests_in_flight_max))
        self._rest_until_s = 0.0
        """When the next request may begin, after refusals."""
        self._is_slowed = False
        """Whether the connection must rest before its next request."""

    async def run(self, hello: bytes) -> None:
        """Serve the connection until a side ends it."""
        self.outbox.put(hello)
        if self._listen is not None:
            self._listen(self.take)
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
                await self._finish(GOING_AWAY, "the server is stopping")
        finally:
            self._is_over = True
            tasks = [*parts, *filter(None, self._running.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.outbox.close()

    def shut_out(self) -> None:
        """End the connection: its token is no longer valid."""
        if not self._shut_out.done():
            self._shut_out.set_result(None)

    def hang_up(self) -> None:
        """Close the link to the leading node."""
        if self._forwarder is not None:
            self._forwarder.close()

    # Requests come in.

    def take(self, data: bytes) -> bool:
        """Begin the requests of a frame without a task; False, with nothing done, if that fails.

        Refuses nothing: the reading task gets the frame then, and refuses it.
        """
        if self._is_over or self._unbegun or self._is_slowed or self._is_node:
            return False
        if not is_small(data) or not self._core.admission.is_confirmed(self.principal):
            return False
        try:
            requests = decode_requests(data)
        except InvalidInput:
            return False
        if not self._fits(requests):
            return False
        if self._core.quota.is_limited and self._spend(len(requests)) is not None:
            return False
        for number, command in checked(requests, self._core.store.limits):
            self._begin(number, command)
        self._count_received(len(data))
        return True

    def _fits(self, requests: list[tuple[int, Command[Any]]]) -> bool:
        """Whether the client has credit for the requests, and their numbers are unused."""
        running, credit = self._running, self._core.settings.requests_in_flight_max
        if len(running) + len(requests) > credit:
            return False
        if len(requests) == 1:
            return requests[0][0] not in running
        numbers = {number for number, _ in requests}
        return len(numbers) == len(requests) and numbers.isdisjoint(running)

    async def _read_frames(self) -> None:
        credit = NODE_REQUESTS_MAX if self._is_node else self._core.settings.requests_in_flight_max
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                return
            if self._is_slowed:
                await self._rest()
            requests = await self._parse(message)
            if len(self._running) + len(requests) > credit:
                raise Violation(POLICY, f"more than {credit} requests without an answer")
            refusal = self._spend(len(requests))
            for number, command in requests:
                self._begin(number, refusal or command)

    def _spend(self, requests: int) -> MillstreamError | None:
        """Pay for the requests of a frame; return the error of a refusal."""
        try:
            self._core.admission.pay(self.principal, max(1, requests))
        except Overloaded as error:
            return error
        return None

    async def _parse(self, message: Message) -> list[Request]:
        data, limits = message.get("bytes"), self._core.store.limits
        try:
            # A client may stay connected for days, so each frame checks the token again.
            await self._core.tokens.confirm(self.principal)
            if data is None:
                raise Violation(REFUSED_TEXT, "frames are binary, this one is text")
            if self._is_node:
                return list(decode_internal(data))
            if is_small(data):
                return checked(decode_requests(data), limits)
            async with self._core.quota.parsing(self.principal):
                return await asyncio.to_thread(take_apart_weighed, data, limits)
        except Unauthenticated:
            raise Violation(POLICY, NO_TOKEN) from None
        except InvalidInput as error:
            raise Violation(NOT_A_FRAME, error.message) from error

    def _begin(self, number: int, command: Command[Any] | MillstreamError) -> None:
        if number in self._running:
            raise Violation(POLICY, f"request {number} again, before its answer")
        if isinstance(command, MillstreamError):
            self._count_refusal(command)
            self.outbox.answer(number, command)
            return
        if command.traits.waits is not None and waits(command):
            self._waiting.add(number)
        if not self._unbegun and self._begin_direct(number, command):
            return
        self._begin_task(number, command)

    def _begin_task(self, number: int, command: Command[Any]) -> None:
        self._unbegun += 1
        self._running[number] = self._loop.create_task(self._execute(number, command))

    # Requests are refused.

    def _count_refusal(self, error: MillstreamError) -> None:
        """Count a refusal; nodes are never slowed, because a node asks for many clients."""
        if self._is_node or not is_refusal(error):
            return
        now_s = self._loop.time()
        pause_s = self._refusals.refuse(now_s)
        if pause_s:
            self._is_slowed = True
            self._rest_until_s = max(self._rest_until_s, now_s + pause_s)

    async def _rest(self) -> None:
        """Wait because of refusals; raises `LostPatience` after too many refusals."""
        while (pause_s := self._rest_until_s - self._loop.time()) > 0:
            if pause_s == math.inf:
                raise LostPatience(POLICY, TOO_MANY)
            await asyncio.sleep(pause_s)
        self._is_slowed = False

    # Requests are carried out.

    def _begin_direct(self, number: int, command: Command[Any]) -> bool:
        """Begin a request without a task, if one commit of this process can answer it."""
        if self._is_node:
            return False
        self._running[number] = None
        is_begun = direct.begin(
            self._core,
            self.principal,
            command,
            self.claims,
            partial(self._answer, number, command),
            traceparent=self._traceparent,
        )
        if not is_begun:
            del self._running[number]
        return is_begun

    def _answer(self, number: int, command: Command[Any], answer: Any) -> None:
        """Send the answer of a request on the taskless road, or watch the task that continues it.

        The answer may come before the task ends; the result of the task is ignored then. If this
        node has lost its lead, nothing was done, and the conversation asks the leading node.
        """
        if isinstance(answer, asyncio.Task):
            if self._is_over:
                answer.cancel()
                return
            self._running[number] = answer
            answer.add_done_callback(partial(self._answer_of_task, number, command))
            return
        if isinstance(answer, NotLeader) and self._forwarder is not None and not self._is_over:
            self._begin_task(number, command)
            return
        del self._running[number]
        self._waiting.discard(number)
        if isinstance(answer, Exception):
            answer = _told(command, answer)
        self._send_answer(number, command, answer)
        if self._idle is not None and None not in self._running.values():
            self._idle.set()

    def _answer_of_task(self, number: int, command: Command[Any], task: asyncio.Task[Any]) -> None:
        if self._running.get(number) is task and not task.cancelled():
            self._answer(number, command, task.exception() or task.result())

    async def _execute(self, number: int, command: Command[Any]) -> None:
        self._unbegun -= 1
        if command.traits.is_large:
            await self._reads.acquire()
            when_sent: Sent | None = self._reads.release
        else:
            when_sent = None
        answer = await self._result(command)
        del self._running[number]
        self._waiting.discard(number)
        self._send_answer(number, command, answer, when_sent)

    def _send_answer(
        self, number: int, command: Command[Any], answer: Any, when_sent: Sent | None = None
    ) -> None:
        """Send an answer soon; claims of an answer that cannot be sent go back."""
        if isinstance(answer, MillstreamError):
            self._count_refusal(answer)
        unsent: Unsent | None = None
        if type(command) is ClaimMessages:
            if isinstance(answer, list) and not command.pop:
                answer, surplus = lots_within(answer, CLAIM_BYTES_MAX)
                if surplus:
                    self._core.return_claims(self.principal, command, surplus, self.claims)
            unsent = partial(self._core.return_claims, self.principal, command, answer, self.claims)
            if self._is_over or self._is_gone():
                unsent()
                return
        if not self._is_over:
            self.outbox.answer(number, answer, when_sent, unsent)

    async def _result(self, command: Command[Any]) -> Any:
        core = self._core
        try:
            if core.seat is None:
                return await core.execute(
                    self.principal, command, self.claims, traceparent=self._traceparent
                )
            if self._is_node:
                return await core.session.execute_for_node(command)
            return await core.answer_in_cluster(
                self.principal,
                command,
                self.claims,
                self._forwarder,
                level=self._asker.read_level,
                traceparent=self._traceparent,
            )
        except Exception as error:
            return _told(command, error)

    # The end.

    async def _end(self, reading: asyncio.Task[None]) -> None:
        """Send the reason, if the server ended the connection."""
        try:
            await reading
        except LostPatience as error:
            await self._finish(error.code, error.reason)
        except Violation as error:
            await self._close(error.code, error.reason)

    async def _finish(self, code: int, reason: str) -> None:
        """Finish running requests, cancel waiting requests, and close the connection."""
        for number in self._waiting:
            if (waiting := self._running[number]) is not None:
                waiting.cancel()
        begun = [task for number, task in self._running.items() if number not in self._waiting]
        self._idle = asyncio.Event()
        if None not in begun:
            self._idle.set()
        try:
            async with asyncio.timeout(self._core.settings.stop_s * ENDING):
                await self._idle.wait()
                if tasks := [task for task in begun if task is not None]:
                    await asyncio.wait(tasks)
                await self.outbox.drained()
        except TimeoutError:
            pass  # the client knows that unanswered requests have an unknown outcome
        await self._close(code, reason)

    async def _close(self, code: int, reason: str) -> None:
        cut = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._send({"type": "websocket.close", "code": code, "reason": cut})
        except TimeoutError:
            self.is_cut = True


def _told(command: Command[Any], error: Exception) -> MillstreamError:
    """Return the error that a client gets for an exception."""
    if isinstance(error, MillstreamError):
        return error
    note_failure(error, command=type(command).__name__)
    return MillstreamError("the server failed at this request; its log says where")
