"""What one client of a room sends: frames that are heard as they come, within the client's limits.

A frame is decoded and handed to the store when it comes, without a task of its own. Frames wait if
the client's token has to be looked at first, if many of its frames are being stored already, if the
client does not read what it is told, or if it was refused often; the connection is not read
meanwhile. Frames of one client are stored in the order in which they came.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.types import Receive

from millstream.errors import InvalidInput, MillstreamError, Overloaded, TooLarge, Unauthenticated
from millstream.rooms.model import Sent
from millstream.server.auth.need import Need
from millstream.server.journal import note_failure
from millstream.server.listen.refusals import TOO_MANY, RefusalCount, is_refusal
from millstream.server.listen.websocket import SocketConnection
from millstream.server.problems import InternalError, Malformed
from millstream.server.rooms.frames import PONG, Heard, decode_heard
from millstream.server.rooms.hub import POLICY, Hub
from millstream.server.rooms.socket_listener import SocketListener

REFUSED_BINARY = 1003

FRAME_BYTES = 1024 * 1024
"""A client's frame has up to so many bytes, or as many as two of the room's largest messages."""

STORING_MAX = 64
"""Frames of one client that are being stored at once; the next one is heard when one is."""


class Conversing:
    """One client's side of a connection; belongs to the event loop that serves it."""

    def __init__(
        self, hub: Hub, listener: SocketListener, state: dict[str, Any], receive: Receive
    ) -> None:
        self._hub = hub
        self._listener = listener
        self._socket: SocketConnection = state["socket"]
        self._count = state["count_received"]
        self._receive = receive
        self._need = Need("room", "write", listener.room.name)
        self._allowance = 0.0
        self._counted_s: float | None = None
        self._storing: set[asyncio.Future[Sent]] = set()
        self._late: list[str] = []
        """Frames that could not be taken when they came; the first is being looked at."""
        self._working: asyncio.Task[None] | None = None
        self._patience = RefusalCount()
        self._rest_s = 0.0
        """How long no frame is taken, because frames before it were refused."""
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Hear frames until the connection ends."""
        socket = self._socket
        try:
            while True:
                if socket.queue.empty():  # from here on texts do not come by `receive`
                    socket.on_text = self._hear_and_count
                message = await self._receive()
                if message["type"] == "websocket.disconnect":
                    return
                text = message.get("text")
                if text is not None:
                    self.hear(text)
                else:
                    self._listener.close(
                        REFUSED_BINARY, "frames of a room are text, this one is binary"
                    )
        finally:
            socket.on_text = None
            if self._working is not None:
                self._ended.set()
                self._listener.flowing.set()
                await asyncio.wait([self._working])

    def _hear_and_count(self, text: str) -> None:
        self._count(len(text))
        self.hear(text)

    def hear(self, text: str) -> None:
        """Take a frame now, or behind frames that wait."""
        if self._listener.is_cut:
            return
        tokens = self._hub.core.tokens
        if (
            self._working is None
            and self._listener.flowing.is_set()
            and len(self._storing) < STORING_MAX
            and tokens.is_fresh(self._listener.principal)
        ):
            self._take(text)
            if self._rest_s:
                self._begin_work()
            return
        self._late.append(text)
        self._begin_work()

    def _begin_work(self) -> None:
        if self._working is None:
            self._socket.pause_reading()
            self._working = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        """Take the frames that wait, one after the other, and read on."""
        listener = self._listener
        while self._late or self._rest_s:
            rest_s, self._rest_s = self._rest_s, 0.0
            if rest_s:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), rest_s)
                continue
            await listener.flowing.wait()
            while len(self._storing) >= STORING_MAX:
                await asyncio.wait(self._storing, return_when=asyncio.FIRST_COMPLETED)
            try:
                await self._hub.core.tokens.confirm(listener.principal)
            except MillstreamError:
                pass  # taking the frame finds out as well
            if not (listener.is_cut or listener.is_gone):
                self._take(self._late[0])
            del self._late[0]
        self._working = None
        self._socket.resume_reading()

    def _take(self, text: str) -> None:
        """Do what a frame asks for, or refuse it."""
        listener, number = self._listener, None
        try:
            heard = self._decode(text)
            if heard.ping is not UNSET:
                listener.tell(PONG)
            if heard.send is not UNSET:
                number = None if heard.n is UNSET else heard.n
                self._send(heard, number)
        except Unauthenticated:
            listener.close(POLICY, "the token has expired, or was revoked")
        except Exception as error:
            self._refuse(error, number)
            self._lose_patience(error)

    def _lose_patience(self, error: Exception) -> None:
        """Take no frame for a while, once many were refused; in the end, end the connection."""
        if not (is_refusal(error) or isinstance(error, Malformed)):
            return
        pause_s = self._patience.refuse(self._hub.core.store.clock.seconds())
        if pause_s == math.inf:
            self._listener.is_cut = True
            self._listener.close(POLICY, TOO_MANY)
        else:
            self._rest_s = pause_s

    def _decode(self, text: str) -> Heard:
        most = max(FRAME_BYTES, 2 * self._listener.room.settings.message_bytes_max)
        if len(text) > most:
            raise TooLarge(
                f"a frame of {len(text):,} characters; the limit is {most:,}",
                size=len(text),
                limit=most,
            )
        try:
            return decode_heard(text)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"no frame of a room: {error}") from error
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Malformed(f"a frame is a JSON object: {error}") from error

    def _send(self, heard: Heard, number: int | None) -> None:
        """Store what a frame brings; conflated types with the next tick, the others at once."""
        listener, room, core = self._listener, self._listener.room, self._hub.core
        assert heard.send is not UNSET
        core.tokens.confirm_at_once(listener.principal).require(self._need)
        messages = [one.message() for one in heard.send]
        if not messages:
            raise InvalidInput("there is no message to send")
        core.quota.spend(listener.principal)
        settings = room.settings
        self._spend(len(messages), settings.messages_per_second)
        conflated = settings.conflated_types
        later = [one for one in messages if one.type in conflated]
        at_once = messages
        if later:
            at_once = [one for one in messages if one.type not in conflated]
        if at_once:
            storing = room.send_for(listener, at_once, number)
            self._storing.add(storing)
            storing.add_done_callback(partial(self._stored, number))
            number = None
        if later:
            room.conflate(listener, later, number)

    def _stored(self, number: int | None, storing: asyncio.Future[Sent]) -> None:
        self._storing.discard(storing)
        error = None if storing.cancelled() else storing.exception()
        if isinstance(error, Exception):
            self._refuse(error, number)
            self._lose_patience(error)
            if self._rest_s and not self._listener.is_gone:
                self._begin_work()

    def _refuse(self, error: Exception, number: int | None) -> None:
        listener = self._listener
        if not isinstance(error, MillstreamError):
            note_failure(error, room=listener.room.name)
            error = InternalError("the server failed at this frame; its log says where")
        listener.refuse(error, number)

    def _spend(self, messages: int, rate: float) -> None:
        """Refuse more messages than the room allows a connection per second."""
        if not rate:
            return
        most, now_s = max(1.0, rate), self._hub.core.store.clock.seconds()
        if self._counted_s is None:
            self._allowance = most
        else:
            self._allowance = min(most, self._allowance + (now_s - self._counted_s) * rate)
        self._counted_s = now_s
        if messages > self._allowance:
            raise Overloaded(
                f"{messages} messages, and this connection may send {rate:g} per second; "
                "wait, or send less (the room's setting messages_per_second)",
                messages_per_second=rate,
            )
        self._allowance -= messages
