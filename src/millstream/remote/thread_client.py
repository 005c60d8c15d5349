"""The exchange: one connection to a server, shared by threads that write and read it themselves.

A caller sends its request on its own thread, together with what others ask for just then. While it
waits for its answer it reads the connection for all; a caller that finds another one reading sleeps
until its answer is there, or until it is its turn to read. No thread is handed anything on the way of
a single call. When the connection is lost, the caller that reads dials again, at once and then at
growing, uneven intervals; `repeats.py` says what becomes of requests meanwhile.
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
from millstream.remote.codec import Goodbye, LineLost
from millstream.remote.dialing import OpenPlug, dial_plug_any, dial_plug_leading
from millstream.remote.loop_client import FINISH_S, LANDING_S, Patience
from millstream.remote.nodes import Nodes
from millstream.remote.pipeline import Outcome, Pipeline
from millstream.remote.repeats import DELAY_S_MAX, delay_s
from millstream.remote.thread_calls import Call, return_of
from millstream.wire import commands as wire

PARTING_S = 1.0
"""How long a server may take to hang up on a client whose claim was interrupted."""

CLOSING_S = 0.05
"""How long a session that is closed reads before it looks whether all is answered."""


class Exchange:
    """One store behind one server or several, for any number of threads."""

    def __init__(self, nodes: Nodes, patience: Patience) -> None:
        opened = dial_plug_any(nodes, timeout_s=patience.connect_timeout_s)
        self.hello = opened.hello
        self._nodes = nodes
        self._patience = patience
        self._clock = SystemClock()
        self._open: OpenPlug | None = opened
        self._by_websocket = opened.is_websocket
        self._since_s = self._clock.seconds()
        """Since when the connection stands, or the server is away."""
        self._is_resting = False
        """Whether the server stayed away, and nobody has asked since."""
        self._attempt = 0
        """Attempts to connect since the server last answered anything, or stood for a while."""
        self._refused_s = 0.0
        """When the node said that it does not lead, if it did."""
        self._pipeline = Pipeline(
            waiting_max=opened.hello.limits.waiting_operations_max, follow_s=patience.retry_for_s
        )
        self._callers: dict[Call, None] = {}
        self._reader: object = None
        """What reads, or dials, for all: a call, or this session as it looks or closes."""
        self._lost: list[OpenPlug] = []
        """Connections that are over, and whose sockets are to be given back."""
        self._lock = threading.Lock()
        """Of everything above."""
        self._sending = threading.Lock()
        """Of the thread that sends. A socket is given back by the reader, under this lock."""
        self._closing = threading.Event()
        self._closed = threading.Event()

    def call(self, command: Command[Any]) -> Raw:
        """The answer to a command."""
        call = Call(command)
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
        """How frames travel: `frames` on a bare connection, or `websocket`."""
        return "websocket" if self._by_websocket else "frames"

    def wait_ms(self) -> int:
        """How long a request that waits may stay with the server."""
        with self._lock:
            return self._pipeline.wait_ms(self.hello)

    @property
    def retry_for_s(self) -> float:
        """For how long a wait that is refused is asked again."""
        return self._patience.retry_for_s

    def close(self) -> None:
        """Hear the answers to what was sent, for a while, and hang up. A second call waits too."""
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
        """In a child, let go of the parent's connection without a word to the server."""
        if self._open is not None:
            self._open.plug.close()

    # Waiting for an answer.

    def _await(self, call: Call) -> None:
        while not call.is_done:
            if self._begin_reading(call):
                while not call.is_done:
                    self._hear()
            else:
                call.sleep()

    def _leave(self, call: Call) -> None:
        """A caller goes; if it has read for all, the next one does."""
        with self._lock:
            self._callers.pop(call, None)
        self._end_reading(call)

    def _withdraw(self, call: Call, claim: ClaimMessages) -> None:
        """The thread of a claim was interrupted: what it has got, or gets yet, goes back at once.

        A caller that waits hears the answer. If there is none, no thread would: so this connection
        ends, and with it the claim; an answer that is on its way is read first.
        """
        with self._lock:
            call.refuse(partial(self._give_back, claim))
            has_reader = any(one is not call and not one.is_done for one in self._callers)
        if not (call.is_done or has_reader) and self._begin_reading(call):
            self._part(call)
            if self._open is None and self._pipeline.has_waiting:
                self._dial_again()
        self._flush()

    def _give_back(self, claim: ClaimMessages, outcome: Outcome) -> None:
        """Have messages claimed by others that reached no consumer; called under the lock."""
        if (returned := return_of(claim, outcome)) is not None:
            self._pipeline.add(returned)

    def _part(self, call: Call) -> None:
        """End the connection over which a request was sent, and hear what is answered until then."""
        opened = self._open
        if opened is None or not call.sent:
            return
        with self._sending:
            opened.plug.say_goodbye()
        until_s = self._clock.seconds() + PARTING_S
        while self._open is opened and (left_s := until_s - self._clock.seconds()) > 0:
            if opened.plug.wait(left_s):
                self._receive(opened)
        self._lose(opened)

    def _begin_reading(self, reader: object) -> bool:
        """Whether something is to read for all now: not if another does."""
        with self._lock:
            other = self._reader
            # A caller that was interrupted twice may have left without a word.
            if other is None or (isinstance(other, Call) and other not in self._callers):
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
        """Notice, before something is sent, that an idle connection has ended meanwhile."""
        opened, token = self._open, object()
        if opened is None or len(self._pipeline):
            return
        try:
            if self._begin_reading(token):
                while self._open is opened and opened.plug.wait(0):
                    self._receive(opened)
        finally:
            self._end_reading(token)

    # One connection.

    def _flush(self) -> None:
        """Send what can be sent now."""
        while True:
            with self._sending:
                opened = self._open
                if opened is None:
                    return  # the caller that reads dials, and sends then
                try:
                    with self._lock:
                        frame = self._pipeline.next_frame(opened.hello)
                    if frame is None:
                        return
                    opened.plug.send(frame)
                except LineLost:
                    self._lose(opened)
                except BaseException:  # interrupted: nobody knows how much of it went out
                    self._lose(opened)
                    raise

    def _hear(self, timeout_s: float | None = None) -> None:
        """Read once, or dial if there is no connection; by the one that reads for all.

        Without a time it waits until the server was silent for too long.
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

    def _listen(self, opened: OpenPlug, timeout_s: float | None) -> None:
        """Read once, or send what is due by now; a server that was silent for long is asked."""
        wait_s = opened.plug.ping_s if timeout_s is None else timeout_s
        with self._lock:
            pause_s = self._pipeline.pause_s()
        is_short = pause_s is not None and pause_s < wait_s
        if opened.plug.wait(pause_s if is_short and pause_s is not None else wait_s):
            self._receive(opened)
        elif is_short:
            self._flush()
        elif timeout_s is None:
            self._ask_whether_there(opened)

    def _receive(self, opened: OpenPlug) -> None:
        """Take what came, and hand on the answers."""
        try:
            for frame in opened.plug.receive():
                answers = wire.decode_answers(frame)
                with self._lock:
                    was_refused = self._pipeline.refusal is not None
                    self._pipeline.answered(answers)
                    if self._pipeline.refusal is None:
                        self._attempt = 0
                    elif not was_refused:
                        self._refused_s = self._clock.seconds()
            if opened.plug.replies:
                with self._sending:
                    opened.plug.reply()
        except (LineLost, Goodbye):
            self._lose(opened)
        except InvalidInput as error:
            shown = self._nodes.shown
            self._lose(opened, f"{shown} sent something strange: {error.message}")
        except BaseException:  # interrupted: what came may be lost
            self._lose(opened)
            raise
        if self._pipeline.has_waiting:
            self._flush()

    def _await_landing(self, opened: OpenPlug) -> None:
        """The node does not lead: hear what else was sent to it, for a moment, and leave it."""
        left_s = self._refused_s + LANDING_S - self._clock.seconds()
        if not self._pipeline.is_landed and left_s > 0:
            if opened.plug.wait(left_s):
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

    def _ask_whether_there(self, opened: OpenPlug) -> None:
        """The server has said nothing for long: ask; if it was asked, it is gone."""
        try:
            if opened.plug.is_asked:
                raise LineLost
            with self._sending:
                opened.plug.ping()
        except LineLost:
            self._lose(opened)

    def _lose(self, opened: OpenPlug, why: str = "") -> None:
        """The connection is lost: what can be repeated waits for the next, the rest is told."""
        try:
            self._lose_once(opened, why)
        except BaseException:  # interrupted: a second call does what is left
            self._lose_once(opened, why)
            raise

    def _lose_once(self, opened: OpenPlug, why: str) -> None:
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
        opened.plug.cut()

    def _bury(self) -> None:
        """Give back the sockets of connections that are over; by the one that reads."""
        with self._sending:
            while self._lost:
                self._lost.pop().plug.close()

    # Between connections.

    def _dial_again(self) -> None:
        """Make one attempt to connect, after a pause; settle all if the server stays away."""
        if self._closing.wait(delay_s(self._nodes.round_of(self._attempt), random.random())):
            return  # the thread that closes settles what is left
        if self._is_resting:
            self._is_resting, self._since_s = False, self._clock.seconds()
        self._attempt += 1
        try:
            opened = dial_plug_leading(
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
                opened.plug.close()
                return
            if opened.hello.instance != self.hello.instance:
                self._pipeline.forget_sent(f"another store answers at {self._nodes.shown} now")
            self._open, self.hello = opened, opened.hello
            self._since_s = self._clock.seconds()
        self._flush()

    # The end.

    def _finish(self) -> None:
        """Read what is still answered; then nobody may wait any more, and the socket goes."""
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
                opened.plug.say_goodbye()
            opened.plug.cut()
            self._lost.append(opened)
        if self._begin_reading(self):
            self._bury()  # else the caller that reads does, as it leaves

    def _was_closed(self) -> Closed:
        return Closed(f"the connection to {self._nodes.shown} was closed here")
