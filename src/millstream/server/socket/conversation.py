"""A conversation: one client's requests in flight, and its answers on their way.

Requests of one connection begin in the order in which they come, and are answered in the order in
which they are done. Everything that is kept for a connection is bounded: requests without an
answer, answers that are not read, messages that are claimed. A connection whose requests are refused
again and again is read more slowly, then closed.
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
from millstream.queue.commands import ClaimMessages
from millstream.server import direct
from millstream.server.auth.access import NODE, Principal
from millstream.server.claim_counts import Holdings
from millstream.server.cluster.forwarding import Forwarder
from millstream.server.cluster.role import ALONE, Asker
from millstream.server.core import Core
from millstream.server.journal import note_failure
from millstream.server.listen.refusals import TOO_MANY, RefusalCount, is_refusal, shared_by
from millstream.server.observe.tracing import traceparent_of
from millstream.server.socket.outbox import Outbox, Sent, Unsent
from millstream.server.socket.reading import (
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

NODE_REQUESTS_MAX = 16_384
NODE_READS_MAX = 64
"""Of a connection of another node, which asks for all of its rooms: requests and reads at once."""

READS_MAX = 4
"""Reads of one connection that run, or whose answers are not sent, at once: each may be large."""

ENDING = 0.5
"""The part of `stop_s` that what was begun gets to finish when the server ends the connection."""

CLOSE_S = 1.0
"""How long a close frame may wait behind answers that the client does not read."""

Listen = Callable[[Callable[[bytes], bool]], None]
"""Has frames handed over as they come, not only when they are asked for."""


class LostPatience(Violation):
    """Too many requests of a connection were refused: it ends behind the answers to the others."""


class Conversation:
    """One connection: its requests in flight, and its answers on their way."""

    def __init__(self, core: Core, scope: Scope, receive: Receive, send: Send) -> None:
        settings = core.settings
        write, soon = scope["state"].get("write"), core.session.after_answers
        self.outbox = Outbox(send, settings.send_bytes_max, write, soon=soon)
        self.is_cut = False
        """Whether the client does not even read that this is the end."""
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
        """Requests without an answer; those that a commit will answer have no task."""
        self._waiting: set[int] = set()
        """Running requests that may wait for something to happen."""
        self._unbegun = 0
        """Tasks that were made, and have not run yet: what comes behind them waits for its turn."""
        self._idle: asyncio.Event | None = None
        """Set once a server that stops has answered all that has no task."""
        self._is_over = False
        self._holdings = Holdings(settings.claims_open_max)
        self._is_node = self.principal is NODE
        self._reads = asyncio.Semaphore(NODE_READS_MAX if self._is_node else READS_MAX)
        self._asker: Asker = scope["state"].get("asker", ALONE)
        self._forwarder: Forwarder | None = None
        """How commands reach the leading node of the cluster; None where they go no further."""
        if core.seat is not None and not self._asker.is_handed_on:
            self._forwarder = Forwarder(core.seat, self._asker.credential)
        self._shut_out: asyncio.Future[None] = self._loop.create_future()
        self._refusals = RefusalCount(shared_by(settings.requests_in_flight_max))
        self._rest_until_s = 0.0
        """Until when no request is begun, because requests before it were refused."""
        self._is_slowed = False
        """Whether that is still to be waited for."""

    async def run(self, hello: bytes) -> None:
        """Talk until one side ends it."""
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
        """Let go of what was opened for this client."""
        if self._forwarder is not None:
            self._forwarder.close()

    # Requests come in.

    def take(self, data: bytes) -> bool:
        """Begin with the requests of a frame at once; False, and nothing done, if it must be read.

        So nothing is refused here: a frame that may not be taken is read, and refused there.
        """
        if self._is_over or self._unbegun or self._is_slowed or self._is_node:
            return False
        if not is_small(data) or not self._core.admission.is_confirmed(self.principal):
            return False
        try:
            requests = decode_requests(data)
        except InvalidInput:
            return False
        if not self._has_room(requests):
            return False
        if self._core.quota.is_limited and self._spend(len(requests)) is not None:
            return False
        for number, command in checked(requests, self._core.store.limits):
            self._begin(number, command)
        self._count_received(len(data))
        return True

    def _has_room(self, requests: list[tuple[int, Command[Any]]]) -> bool:
        """Whether requests are few enough, and none has a number that is in use."""
        running, most = self._running, self._core.settings.requests_in_flight_max
        if len(running) + len(requests) > most:
            return False
        if len(requests) == 1:
            return requests[0][0] not in running
        numbers = {number for number, _ in requests}
        return len(numbers) == len(requests) and numbers.isdisjoint(running)

    async def _read_frames(self) -> None:
        most = NODE_REQUESTS_MAX if self._is_node else self._core.settings.requests_in_flight_max
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                return
            if self._is_slowed:
                await self._rest()
            requests = await self._parse(message)
            if len(self._running) + len(requests) > most:
                raise Violation(POLICY, f"more than {most} requests without an answer")
            refusal = self._spend(len(requests))
            for number, command in requests:
                self._begin(number, refusal or command)

    def _spend(self, requests: int) -> MillstreamError | None:
        """Pay for a frame as so many requests are paid for; or why they are refused."""
        try:
            self._core.admission.pay(self.principal, max(1, requests))
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
        """Count a refusal; another node is not slowed, since it asks for all of its clients."""
        if self._is_node or not is_refusal(error):
            return
        now_s = self._loop.time()
        pause_s = self._refusals.refuse(now_s)
        if pause_s:
            self._is_slowed = True
            self._rest_until_s = max(self._rest_until_s, now_s + pause_s)

    async def _rest(self) -> None:
        """Wait because of refusals; raises `LostPatience` once there were too many."""
        while (left_s := self._rest_until_s - self._loop.time()) > 0:
            if left_s == math.inf:
                raise LostPatience(POLICY, TOO_MANY)
            await asyncio.sleep(left_s)
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
            self._holdings,
            partial(self._answer, number, command),
            traceparent=self._traceparent,
        )
        if not is_begun:
            del self._running[number]
        return is_begun

    def _answer(self, number: int, command: Command[Any], answer: Any) -> None:
        """Send the answer of a request that began without a task; or go on with it as one.

        The answer may come before that task knows it: then the task is not asked any more. If this
        node has lost its lead, nothing was done, and the leading node is asked instead.
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
        found = await self._result(command)
        del self._running[number]
        self._waiting.discard(number)
        self._send_answer(number, command, found, when_sent)

    def _send_answer(
        self, number: int, command: Command[Any], found: Any, when_sent: Sent | None = None
    ) -> None:
        """Send an answer soon; what was claimed goes back if it cannot be sent."""
        if isinstance(found, MillstreamError):
            self._count_refusal(found)
        unsent: Unsent | None = None
        if type(command) is ClaimMessages:
            unsent = partial(
                self._core.return_claims, self.principal, command, found, self._holdings
            )
            if self._is_over or self._is_gone():
                unsent()
                return
        if not self._is_over:
            self.outbox.answer(number, found, when_sent, unsent)

    async def _result(self, command: Command[Any]) -> Any:
        core = self._core
        try:
            if core.seat is None:
                return await core.execute(
                    self.principal, command, self._holdings, traceparent=self._traceparent
                )
            if self._is_node:
                return await core.session.execute_for_node(command)
            return await core.answer_in_cluster(
                self.principal,
                command,
                self._holdings,
                self._forwarder,
                level=self._asker.read_level,
                traceparent=self._traceparent,
            )
        except Exception as error:
            return _told(command, error)

    # The end.

    async def _end(self, reading: asyncio.Task[None]) -> None:
        """Say why, if this side ended it."""
        try:
            await reading
        except LostPatience as error:
            await self._finish(error.code, error.reason)
        except Violation as error:
            await self._close(error.code, error.reason)

    async def _finish(self, code: int, reason: str) -> None:
        """Finish what was begun, but wait for nothing, and close the connection."""
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
            pass  # what is left has an unknown outcome, and the client knows that it has
        await self._close(code, reason)

    async def _close(self, code: int, reason: str) -> None:
        cut = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._send({"type": "websocket.close", "code": code, "reason": cut})
        except TimeoutError:
            self.is_cut = True


def _told(command: Command[Any], error: Exception) -> MillstreamError:
    """The error that tells a client of an exception."""
    if isinstance(error, MillstreamError):
        return error
    note_failure(error, command=type(command).__name__)
    return MillstreamError("the server failed at this request; its log says where")
