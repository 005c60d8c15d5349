"""The client of a room: reads the frames that one client sends over a WebSocket, within its limits.

A frame is decoded and handed to the store as soon as it arrives, without a task per frame. Frames
of one client are stored in the order of arrival. A frame waits, and the connection is not read,
while
- the client's token must be confirmed by the store first,
- `STORING_MAX` frames of the client are being stored already,
- the client does not read the frames that the server sends (back-pressure), or
- the client pauses because too many of its frames were refused.
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
from millstream.rooms.model import RoomMessage, Sent
from millstream.rooms.presence_state import check_state
from millstream.server.admission import Call
from millstream.server.auth.need import Need
from millstream.server.journal import note_failure
from millstream.server.listen.refusals import TOO_MANY, RefusalCount, is_refusal
from millstream.server.listen.websocket import SocketConnection
from millstream.server.problems import InternalError, Malformed
from millstream.server.rooms.frames import PONG, ClientFrame, decode_client_frame
from millstream.server.rooms.hub import POLICY, Hub
from millstream.server.rooms.socket_listener import SocketListener

REFUSED_BINARY = 1003

FRAME_BYTES = 1024 * 1024
"""Largest frame of a client, in bytes; or twice the room's `message_bytes_max`, if that is
larger."""

STORING_MAX = 64
"""Most frames of one client that are stored at the same time; further frames wait."""


class RoomClient:
    """Reads the frames of one connection. Belongs to the event loop that serves the connection."""

    def __init__(
        self, hub: Hub, listener: SocketListener, state: dict[str, Any], receive: Receive
    ) -> None:
        self._hub = hub
        self._listener = listener
        self._socket: SocketConnection = state["socket"]
        self._count = state["count_received"]
        self._receive = receive
        self._allowance = 0.0
        self._counted_s: float | None = None
        self._storing: set[asyncio.Future[Sent]] = set()
        self._late: list[str] = []
        """Frames that could not be handled on arrival, in order. `_work` handles the first."""
        self._working: asyncio.Task[None] | None = None
        self._next_state: bytes | None = None
        """The state of the client's presence that is stored next."""
        self._is_storing_state = False
        self._patience = RefusalCount()
        self._pause_s = 0.0
        """How long the next frame must wait, because earlier frames were refused."""
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Read frames until the connection ends."""
        socket = self._socket
        try:
            while True:
                if socket.queue.empty():
                    # From here on the connection calls `on_text` directly. Texts that came earlier
                    # still wait in the queue of `receive`, and must be handled first.
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
        """Handle a frame now, or append it to the frames that wait."""
        if self._listener.is_cut:
            return
        admission = self._hub.core.admission
        if (
            self._working is None
            and self._listener.flowing.is_set()
            and len(self._storing) < STORING_MAX
            and admission.is_ready(self._listener.principal)
        ):
            self._take(text)
            if self._pause_s:
                self._begin_work()
            return
        self._late.append(text)
        self._begin_work()

    def _begin_work(self) -> None:
        if self._working is None:
            self._socket.pause_reading()
            self._working = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        """Handle the waiting frames in order, then resume reading."""
        listener = self._listener
        while self._late or self._pause_s:
            pause_s, self._pause_s = self._pause_s, 0.0
            if pause_s:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), pause_s)
                continue
            await listener.flowing.wait()
            while len(self._storing) >= STORING_MAX:
                await asyncio.wait(self._storing, return_when=asyncio.FIRST_COMPLETED)
            try:
                await self._hub.core.tokens.confirm(listener.principal)
            except MillstreamError:
                pass  # `_take` confirms again, and refuses the frame with the right error
            if not (listener.is_cut or listener.is_gone):
                self._take(self._late[0])
            del self._late[0]
        self._working = None
        self._socket.resume_reading()

    def _take(self, text: str) -> None:
        """Execute a frame, or refuse it."""
        listener, number = self._listener, None
        try:
            frame = self._decode(text)
            if frame.ping is not UNSET:
                listener.tell(PONG)
            if frame.send is not UNSET:
                number = None if frame.n is UNSET else frame.n
                self._send(frame, number)
            if frame.presence is not UNSET:
                self._take_state(bytes(frame.presence))
        except Unauthenticated:
            listener.close(POLICY, "the token has expired, or was revoked")
        except Exception as error:
            self._refuse(error, number)
            self._lose_patience(error)

    def _lose_patience(self, error: Exception) -> None:
        """Pause the client after many refused frames; end the connection after too many."""
        if not (is_refusal(error) or isinstance(error, Malformed)):
            return
        pause_s = self._patience.refuse(self._hub.core.store.clock.seconds())
        if pause_s == math.inf:
            self._listener.is_cut = True
            self._listener.close(POLICY, TOO_MANY)
        else:
            self._pause_s = pause_s

    def _decode(self, text: str) -> ClientFrame:
        chars_max = max(FRAME_BYTES, 2 * self._listener.room.settings.message_bytes_max)
        if len(text) > chars_max:
            raise TooLarge(
                f"a frame of {len(text):,} characters; the limit is {chars_max:,}",
                size=len(text),
                limit=chars_max,
            )
        try:
            return decode_client_frame(text)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"not a frame of a room: {error}") from error
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Malformed(f"a frame must be a JSON object: {error}") from error

    def _send(self, frame: ClientFrame, number: int | None) -> None:
        """Store the messages of a frame; conflated types with the next tick, the others at once.

        The frame is admitted as one command. Conflated messages count as answered when they are
        taken, because later ones may replace them before they are stored.
        """
        listener, room, admission = self._listener, self._listener.room, self._hub.core.admission
        assert frame.send is not UNSET
        messages = [sent.message() for sent in frame.send]
        admission.pay(listener.principal)
        command = room.command_of(listener, messages, number)
        call = admission.admit(listener.principal, command, is_counted=False)
        try:
            storing = self._begin_storing(messages, number)
        except BaseException as error:
            call.settle(error)
            raise
        if storing is None:
            call.settle(None)
            return
        self._storing.add(storing)
        storing.add_done_callback(partial(self._stored, call, number))

    def _begin_storing(
        self, messages: list[RoomMessage], number: int | None
    ) -> asyncio.Future[Sent] | None:
        """Hand the messages of an admitted frame to the room; None if every message is conflated."""
        listener, room = self._listener, self._listener.room
        if not messages:
            raise InvalidInput("there is no message to send")
        settings = room.settings
        self._spend(len(messages), settings.messages_per_second)
        conflated = settings.conflated_types
        later = [message for message in messages if message.type in conflated]
        at_once = messages
        if later:
            at_once = [message for message in messages if message.type not in conflated]
        storing = room.send_for(listener, at_once, number) if at_once else None
        if later:
            room.conflate(listener, later, None if at_once else number)
        return storing

    def _take_state(self, state: bytes) -> None:
        try:
            self._set_presence(state)
        except Unauthenticated:
            raise
        except MillstreamError as error:
            self._listener.refuse_state(error)
            self._lose_patience(error)

    def _set_presence(self, state: bytes) -> None:
        """Store the state of the client's presence soon; a later state replaces a waiting one."""
        listener, hub = self._listener, self._hub
        if not listener.user:
            raise InvalidInput("a client without a user has no presence; join with a user")
        hub.core.admission.pay(listener.principal)
        hub.core.admission.require(listener.principal, Need("room", "write", listener.room.name))
        check_state(state)
        self._spend(1, listener.room.settings.messages_per_second)
        self._next_state = state
        if not self._is_storing_state:
            self._is_storing_state = True
            hub.context.begin(self._store_states())

    async def _store_states(self) -> None:
        listener = self._listener
        while self._next_state is not None and not listener.is_gone:
            state, self._next_state = self._next_state, None
            try:
                await self._hub.attendance.set_state(listener, state)
            except MillstreamError as error:
                if not listener.is_gone:
                    listener.refuse_state(error)
        self._is_storing_state = False

    def _stored(self, call: Call[int], number: int | None, storing: asyncio.Future[Sent]) -> None:
        self._storing.discard(storing)
        if storing.cancelled():
            call.cancel()
            return
        error = storing.exception()
        call.settle(error or storing.result().offset)
        if isinstance(error, Exception):
            self._refuse(error, number)
            self._lose_patience(error)
            if self._pause_s and not self._listener.is_gone:
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
        burst, now_s = max(1.0, rate), self._hub.core.store.clock.seconds()
        if self._counted_s is None:
            self._allowance = burst
        else:
            self._allowance = min(burst, self._allowance + (now_s - self._counted_s) * rate)
        self._counted_s = now_s
        if messages > self._allowance:
            raise Overloaded(
                f"{messages} messages, but this connection may send only {rate:g} per second; "
                "wait, or send less (the room's setting messages_per_second)",
                messages_per_second=rate,
            )
        self._allowance -= messages
