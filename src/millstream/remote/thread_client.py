"""The client of threads: a connection to a server, which the calling threads write and read.

A caller sends its request on its own thread, together with requests of other callers. A waiting
caller reads the connection for all callers; a second waiting caller sleeps until its answer
arrives, or until it must read. A single call needs no switch to another thread. When the connection
is lost, the reading caller dials again, at once and then at growing, uneven intervals; `repeats.py`
decides about the requests meanwhile.
"""

from __future__ import annotations

import random
import threading
from functools import partial
from typing import Any

from msgspec import Raw

from millstream.clock import SystemClock
from millstream.command import Command
from millstream.errors import CannotOpen, Closed, InvalidInput
from millstream.queue.commands import ClaimMessages
from millstream.remote.codec import ConnectionLost, Goodbye
from millstream.remote.dial import OpenThreadConnection, dial_thread_any, dial_thread_leading
from millstream.remote.loop_client import FINISH_S, LANDING_S, Patience
from millstream.remote.nodes import Nodes
from millstream.remote.pipeline import Outcome, Pipeline
from millstream.remote.repeats import DELAY_S_MAX, delay_s
from millstream.remote.thread_calls import ThreadRequest, return_of
from millstream.wire import commands as wire

PARTING_S = 1.0
"""How long a server may take to end the connection of an interrupted claim."""

CLOSING_S = 0.05
"""How long a closing session reads before it checks for missing answers."""


class ThreadClient:
    """A store behind one or several servers, for any number of threads."""

    def __init__(self, nodes: Nodes, patience: Patience) -> None:
        opened = dial_thread_any(nodes, timeout_s=patience.connect_timeout_s)
        self.hello = opened.hello
        self._nodes = nodes
        self._patience = patience
        self._clock = SystemClock()
        self._open: OpenThreadConnection | None = opened
        self._by_websocket = opened.is_websocket
        self._since_s = self._clock.seconds()
        """Since when the connection is open, or the server is away."""
        self._is_resting = False
        """Whether the server stayed away, and no request came since."""
        self._attempt = 0
        """Attempts to connect since the last answer, or since a connection of some duration."""
        self._refused_s = 0.0
        """When the node said that it does not lead."""
        self._pipeline = Pipeline(
            waiting_max=opened.hello.limits.waiting_operations_max, follow_s=patience.retry_for_s
        )
        self._callers: dict[ThreadRequest, None] = {}
        self._reader: object = None
        """The reader of the connection: a call, or this client while it looks or closes."""
        self._lost: list[OpenThreadConnection] = []
        """Lost connections whose sockets must still be closed."""
        self._lock = threading.Lock()
        """Guards all of the above."""
        self._sending = threading.Lock()
        """Held by the sending thread. The reader closes sockets under this lock."""
        self._closing = threading.Event()
        self._closed = threading.Event()

    def call(self, command: Command[Any]) -> Raw:
        """Return the answer to a command."""
        call = ThreadRequest(command)
        self._look()
        try:
            with self._lock:
                if self._closing.is_set():
                    raise self._was_closed()
                self._callers[call] = None
                self._pipeline.add(call)
            self._flush()
            self._await(call)
        except BaseException:
            if isinstance(command, ClaimMessages) and not command.pop:
                self._withdraw(call, command)
            else:
                call.abandon()
            raise
        finally:
            self._leave(call)
        return call.answer()

    @property
    def transport(self) -> str:
        """Return the transport of frames: `frames` on a bare connection, or `websocket`."""
        return "websocket" if self._by_websocket else "frames"

    def wait_ms(self) -> int:
        """Return how long a waiting request may stay with the server."""
        with self._lock:
            return self._pipeline.wait_ms(self.hello)

    @property
    def retry_for_s(self) -> float:
        """Return for how long a refused wait is sent again."""
        return self._patience.retry_for_s

    def close(self) -> None:
        """Wait a while for the pending answers, and close the connection. A second call waits too."""
        with self._lock:
            is_first = not self._closing.is_set()
            self._closing.set()
            if is_first:
                self._pipeline.drop_waiting(self._was_closed())
        if not is_first:
            self._closed.wait()
            return
        try:
            self._finish()
        finally:
            self._closed.set()

    def leave(self) -> None:
        """Close the parent's connection in a child process, without a message to the server."""
        if self._open is not None:
            self._open.connection.close()

    # Waiting for an answer.

    def _await(self, call: ThreadRequest) -> None:
        while not call.is_done:
            if self._begin_reading(call):
                while not call.is_done:
                    self._hear()
            else:
                call.sleep()

    def _leave(self, call: ThreadRequest) -> None:
        """Remove a caller; if it was the reader, wake the next reader."""
        with self._lock:
            self._callers.pop(call, None)
        self._end_reading(call)

    def _withdraw(self, call: ThreadRequest, claim: ClaimMessages) -> None:
        """Return the messages of an interrupted claim to the queue, also those that still arrive.

        Another waiting caller reads the answer. Without a caller, the answer would stay unread: so
        the connection is closed, and the claim with it; an answer that is on its way is read first.
        """
        with self._lock:
            call.refuse(partial(self._give_back, claim))
            has_reader = any(caller is not call and not caller.is_done for caller in self._callers)
        if not (call.is_done or has_reader) and self._begin_reading(call):
            self._part(call)
            if self._open is None and self._pipeline.has_waiting:
                self._dial_again()
        self._flush()

    def _give_back(self, claim: ClaimMessages, outcome: Outcome) -> None:
        """Return claimed messages that reached no consumer; under the lock."""
        if (returned := return_of(claim, outcome)) is not None:
            self._pipeline.add(returned)

    def _part(self, call: ThreadRequest) -> None:
        """End the connection of a sent request, and read the answers until then."""
        opened = self._open
        if opened is None or not call.sent:
            return
        with self._sending:
            opened.connection.say_goodbye()
        until_s = self._clock.seconds() + PARTING_S
        while self._open is opened and (left_s := until_s - self._clock.seconds()) > 0:
            if opened.connection.wait(left_s):
                self._receive(opened)
        self._lose(opened)

    def _begin_reading(self, reader: object) -> bool:
        """Make `reader` the reader if there is none; return whether `reader` reads now."""
        with self._lock:
            current = self._reader
            # A caller that was interrupted twice may have left silently.
            if current is None or (
                isinstance(current, ThreadRequest) and current not in self._callers
            ):
                self._reader = reader
            return self._reader is reader

    def _end_reading(self, reader: object) -> None:
        if self._reader is reader and self._lost:
            self._bury()
        with self._lock:
            if self._reader is reader:
                self._reader = None
            if self._reader is not None:
                return
            for heir in self._callers:
                if not heir.is_done:
                    heir.wake()
                    return

    def _look(self) -> None:
        """Notice, before sending, that an idle connection has ended."""
        opened, token = self._open, object()
        if opened is None or len(self._pipeline):
            return
        try:
            if self._begin_reading(token):
                while self._open is opened and opened.connection.wait(0):
                    self._receive(opened)
        finally:
            self._end_reading(token)

    # A connection.

    def _flush(self) -> None:
        """Send all requests that can be sent now."""
        while True:
            with self._sending:
                opened = self._open
                if opened is None:
                    return  # the reading caller dials, and then sends
                try:
                    with self._lock:
                        frame = self._pipeline.next_frame(opened.hello)
                    if frame is None:
                        return
                    opened.connection.send(frame)
                except ConnectionLost:
                    self._lose(opened)
                except BaseException:  # interrupted: it is unknown how many bytes were sent
                    self._lose(opened)
                    raise

    def _hear(self, timeout_s: float | None = None) -> None:
        """Read once as the reader, or dial without a connection.

        Without a timeout the call waits until the server was silent for too long.
        """
        if self._lost:
            self._bury()
        opened = self._open
        if opened is not None and self._pipeline.refusal is not None:
            self._await_landing(opened)
        elif opened is None:
            self._dial_again()
        else:
            self._listen(opened, timeout_s)

    def _listen(self, opened: OpenThreadConnection, timeout_s: float | None) -> None:
        """Read once, or send requests that are due; ping a server after a long silence."""
        wait_s = opened.connection.ping_s if timeout_s is None else timeout_s
        with self._lock:
            pause_s = self._pipeline.pause_s()
        is_short = pause_s is not None and pause_s < wait_s
        if opened.connection.wait(pause_s if is_short and pause_s is not None else wait_s):
            self._receive(opened)
        elif is_short:
            self._flush()
        elif timeout_s is None:
            self._ask_whether_there(opened)

    def _receive(self, opened: OpenThreadConnection) -> None:
        """Read frames, and hand over the answers."""
        try:
            for frame in opened.connection.receive():
                answers = wire.decode_answers(frame)
                with self._lock:
                    was_refused = self._pipeline.refusal is not None
                    self._pipeline.answered(answers)
                    if self._pipeline.refusal is None:
                        self._attempt = 0
                    elif not was_refused:
                        self._refused_s = self._clock.seconds()
            if opened.connection.replies:
                with self._sending:
                    opened.connection.reply()
        except (ConnectionLost, Goodbye):
            self._lose(opened)
        except InvalidInput as error:
            shown = self._nodes.shown
            self._lose(opened, f"{shown} sent something strange: {error.message}")
        except BaseException:  # interrupted: received bytes may be lost
            self._lose(opened)
            raise
        if self._pipeline.has_waiting:
            self._flush()

    def _await_landing(self, opened: OpenThreadConnection) -> None:
        """Leave a node that does not lead, after a moment for the pending answers."""
        left_s = self._refused_s + LANDING_S - self._clock.seconds()
        if not self._pipeline.is_landed and left_s > 0:
            if opened.connection.wait(left_s):
                self._receive(opened)
            return
        with self._lock:
            refusal = self._pipeline.refusal
        leading = None if refusal is None else self._nodes.leading(refusal.data.get("leader"))
        self._lose(opened)
        if leading is not None:
            self._nodes.go_to(leading)
        else:
            self._nodes.pass_on()

    def _ask_whether_there(self, opened: OpenThreadConnection) -> None:
        """Ping a silent server; a server that ignored a ping is gone."""
        try:
            if opened.connection.is_pinged:
                raise ConnectionLost
            with self._sending:
                opened.connection.ping()
        except ConnectionLost:
            self._lose(opened)

    def _lose(self, opened: OpenThreadConnection, why: str = "") -> None:
        """Give up a connection: repeatable requests wait for the next connection, others fail."""
        try:
            self._lose_once(opened, why)
        except BaseException:  # interrupted: a second call completes the work
            self._lose_once(opened, why)
            raise

    def _lose_once(self, opened: OpenThreadConnection, why: str) -> None:
        with self._lock:
            if self._open is not opened:
                return
            self._pipeline.lost(why or f"the connection to {self._nodes.shown} was lost")
            self._nodes.is_left = True
            self._lost.append(opened)
            now_s = self._clock.seconds()
            if now_s - self._since_s > DELAY_S_MAX:
                self._attempt = 0
            self._since_s = now_s
            self._open = None
        opened.connection.cut()

    def _bury(self) -> None:
        """Close the sockets of lost connections, as the reader."""
        with self._sending:
            while self._lost:
                self._lost.pop().connection.close()

    # Between connections.

    def _dial_again(self) -> None:
        """Try once to connect, after a pause; settle all requests if the server stays away."""
        if self._closing.wait(delay_s(self._nodes.round_of(self._attempt), random.random())):
            return  # the closing thread settles all requests
        if self._is_resting:
            self._is_resting, self._since_s = False, self._clock.seconds()
        self._attempt += 1
        try:
            opened = dial_thread_leading(
                self._nodes,
                timeout_s=self._patience.connect_timeout_s,
                attempt=self._attempt - 1,
                by_websocket=self._by_websocket,
            )
        except CannotOpen as error:
            away_s = self._clock.seconds() - self._since_s
            self._nodes.pass_on()
            may_do = error.again or self._attempt < len(self._nodes)
            if may_do and away_s < self._patience.retry_for_s:
                return
            with self._lock:
                self._pipeline.give_up(error)
                self._is_resting, self._attempt = True, 0
            return
        with self._lock:
            if self._closing.is_set():
                opened.connection.close()
                return
            if opened.hello.instance != self.hello.instance:
                self._pipeline.forget_sent(f"another store answers at {self._nodes.shown} now")
            self._open, self.hello = opened, opened.hello
            self._since_s = self._clock.seconds()
        self._flush()

    # The end.

    def _finish(self) -> None:
        """Read the pending answers; then settle all calls, and close the socket."""
        until_s = self._clock.seconds() + FINISH_S
        while self._open is not None and len(self._pipeline) and self._clock.seconds() < until_s:
            if self._begin_reading(self):
                self._hear(CLOSING_S)
            else:
                self._closed.wait(CLOSING_S)
        with self._lock:
            self._pipeline.give_up(self._was_closed())
            opened, self._open = self._open, None
        if opened is not None:
            with self._sending:
                opened.connection.say_goodbye()
            opened.connection.cut()
            self._lost.append(opened)
        if self._begin_reading(self):
            self._bury()  # else the reading caller closes the sockets at its end

    def _was_closed(self) -> Closed:
        return Closed(f"the connection to {self._nodes.shown} was closed here")
