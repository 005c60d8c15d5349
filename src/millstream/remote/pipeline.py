"""The pipeline: requests on their way to a server, as a state machine without I/O.

    waiting ──next_frame──► in flight ──answered──► settled
       ▲                        │
       ├────── asked again ─────┼──lost──► settled with `OutcomeUnknown`
       ├─ by another node ─ `NotLeader`
       └── after a pause ── `NoQuorum`

The server limits the number of requests in flight. Requests that wait for an event have a separate
queue with half of that credit: the requests that cause the event are then never blocked by waiting
ones.

A cluster without a quorum executes nothing, and answers so. The pipeline then holds back all
writes, for a pause that grows with every refusal; reads that need no quorum go on.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Any

from msgspec import Raw

from millstream.clock import SystemClock
from millstream.command import Command, waits
from millstream.errors import (
    CannotOpen,
    MillstreamError,
    NoQuorum,
    NotLeader,
    Overloaded,
    TooLarge,
)
from millstream.remote.repeats import (
    QUORUM_DELAY_S_MAX,
    Interrupted,
    RepeatFate,
    delay_s,
    fate_of,
    unknown,
    unreachable,
)
from millstream.wire import commands as wire
from millstream.wire.abilities import missing_ability, needed_abilities

FRAME_BYTES = 1 << 20
"""A larger frame is sent at once, so that the server can begin."""

FRAME_OVERHEAD_BYTES = 8
REQUEST_OVERHEAD_BYTES = 16
"""More than MessagePack needs around a frame, and around a request and its id."""

WAIT_MS = 20_000
CONTENDED_WAIT_MS = 500
"""How long a waiting request stays with the server before it is sent again: a long time, or a short
time if more requests wait than may be in flight."""

REPEATS_MAX = 10
"""How many connections may be lost with a request in flight before the request fails."""

FOLLOW_S = 30.0
"""How long a request looks for the leading node of a cluster, or for its quorum, by default."""

Outcome = Raw | MillstreamError

_seconds = SystemClock().seconds


class PendingRequest(ABC):
    """A command on its way, and the caller that waits for its answer."""

    __slots__ = (
        "abilities",
        "body",
        "command",
        "first_sent_s",
        "losses",
        "number",
        "refused_s",
        "sent",
        "waits",
    )

    def __init__(self, command: Command[Any]) -> None:
        self.command = command
        self.body = self.encode(command)
        self.waits = waits(command)
        self.abilities = needed_abilities(command)
        """The abilities that a server must have for the command."""
        self.sent = False
        """Whether the request may have reached a server."""
        self.number = 0
        """The number under which it was last sent; later requests have higher numbers."""
        self.first_sent_s = 0.0
        """When the request was first sent."""
        self.losses = 0
        """Connections that were lost while the request was in flight."""
        self.refused_s: float | None = None
        """When a node first answered that it does not lead, or that there is no quorum."""

    def encode(self, command: Command[Any]) -> Raw:
        """Encode the command; raises the errors that the server would raise."""
        return wire.encode_command(command)

    @abstractmethod
    def is_wanted(self) -> bool:
        """Whether the caller still waits for the answer: False once settled."""

    @property
    def is_refused(self) -> bool:
        """Whether the caller has left, and what the answer brings must be given back."""
        return False

    @abstractmethod
    def settle(self, outcome: Outcome) -> None:
        """Hand over the answer; a second answer, which may follow an interrupt, is ignored."""


class Pipeline:
    """Requests that wait to be sent, and requests that wait for their answers."""

    def __init__(self, *, waiting_max: int, follow_s: float = FOLLOW_S) -> None:
        self.waiting_max = waiting_max
        self.refusal: NotLeader | None = None
        """Why nothing more is sent over this connection: its node does not lead."""
        self._follow_s = follow_s
        self._ready: deque[PendingRequest] = deque()
        self._waits: deque[PendingRequest] = deque()
        self._held: deque[PendingRequest] = deque()
        """Requests that are held back until `_resumes_s`, in order."""
        self._resumes_s = 0.0
        """Until when no write is sent; 0 if nothing is held back."""
        self._pauses = 0
        """The number of such pauses since the last executed write."""
        self._in_flight: dict[int, PendingRequest] = {}
        self._waits_in_flight = 0
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._ready) + len(self._waits) + len(self._held) + len(self._in_flight)

    @property
    def _lanes(self) -> tuple[deque[PendingRequest], ...]:
        """The queues of requests to send."""
        return self._held, self._ready, self._waits

    @property
    def has_waiting(self) -> bool:
        """Whether requests wait to be sent."""
        return bool(self._ready or self._waits)

    @property
    def is_landed(self) -> bool:
        """Whether everything in flight is a wait."""
        return len(self._in_flight) == self._waits_in_flight

    def add(self, request: PendingRequest) -> None:
        """Add a request; too many requests are refused with `Overloaded`."""
        lane = self._waits if request.waits else self._ready
        if len(lane) + len(self._held) >= self.waiting_max:
            request.settle(Overloaded(f"{len(lane):,} requests wait to be sent; slow down"))
        else:
            lane.append(request)

    def next_frame(self, hello: wire.Hello) -> bytes | None:
        """Return a frame of requests that can be sent now; None without requests or credit."""
        if self.refusal is not None:
            return None
        if self._resumes_s and _seconds() >= self._resumes_s:
            self._release()
        requests: list[tuple[int, Raw]] = []
        size = FRAME_OVERHEAD_BYTES
        for request in self._sendable(hello):
            if request.abilities and not request.abilities.issubset(hello.abilities):
                missing = request.abilities.difference(hello.abilities)
                request.settle(missing_ability(missing, request.command, hello.release))
                continue
            needed = len(request.body) + REQUEST_OVERHEAD_BYTES
            if needed + FRAME_OVERHEAD_BYTES > hello.frame_bytes_max:
                request.settle(_too_large(needed, hello.frame_bytes_max))
                continue
            if requests and size + needed > min(FRAME_BYTES, hello.frame_bytes_max):
                break
            requests.append((self._launch(request), request.body))
            size += needed
        return wire.encode_requests(requests) if requests else None

    def wait_ms(self, hello: wire.Hello) -> int:
        """Return how long a waiting request may stay with the server at present."""
        held = len(self._waits) + self._waits_in_flight
        return WAIT_MS if held < _waits_max(hello) < hello.requests_max else CONTENDED_WAIT_MS

    def pause_s(self) -> float | None:
        """Return the seconds until held requests may be sent; None without held requests."""
        return max(0.0, self._resumes_s - _seconds()) if self._held else None

    def answered(self, answers: list[tuple[int, Outcome]]) -> None:
        """Hand over answers; an answer without a request is ignored."""
        for number, outcome in answers:
            request = self._in_flight.get(number)
            if request is None:
                continue
            # A request stays in flight until it is settled: `lost` then handles requests that an
            # interrupt left.
            if type(outcome) is NotLeader:
                self._refused(request, outcome)
            elif type(outcome) is NoQuorum:
                self._put_off(request, outcome)
            else:
                request.settle(outcome)
                if self._pauses and request.command.writes:
                    self._pauses = 0
            self._land(number, request)

    def _refused(self, request: PendingRequest, refusal: NotLeader) -> None:
        """Send a refused request to another node, within the time limit: nothing was executed."""
        now_s = _seconds()
        if request.refused_s is None:
            request.refused_s = now_s
        if now_s - request.refused_s >= self._follow_s:
            request.settle(refusal)
            return
        self.refusal = refusal
        self._ask_again(request, refusal)

    def _put_off(self, request: PendingRequest, refusal: NoQuorum) -> None:
        """Send a request again after a pause, within the time limit: the cluster has no quorum."""
        now_s = _seconds()
        if request.refused_s is None:
            request.refused_s = now_s
        if now_s - request.first_sent_s >= self._follow_s:
            request.settle(refusal)
            return
        if now_s >= self._resumes_s:  # requests that were refused together share a pause
            self._pauses += 1
            self._resumes_s = now_s + delay_s(
                self._pauses, random.random(), most_s=QUORUM_DELAY_S_MAX
            )
        self._ask_again(request, refusal)

    def _ask_again(self, request: PendingRequest, refusal: MillstreamError) -> None:
        """Queue a request that was not executed, or hand a wait back to its caller."""
        request.sent = request.losses > 0
        if request.waits:
            request.settle(Interrupted(refusal.message, refusal=refusal))
        else:
            self._queue_again(request)

    def _release(self) -> None:
        """Queue the held requests before all later requests: the pause is over."""
        self._resumes_s = 0.0
        while self._held:
            request = self._held.pop()
            (self._waits if request.waits else self._ready).appendleft(request)

    def _hold(self, lane: deque[PendingRequest]) -> bool:
        """Hold the first request of a lane back, if it must wait for a quorum."""
        request = lane[0]
        if not self._resumes_s or not (request.command.writes or request.refused_s is not None):
            return False
        self._held.append(request)
        lane.popleft()
        return True

    def lost(self, why: str) -> None:
        """Queue repeatable requests in order, and fail the others: the connection is lost.

        A second call completes the work of an interrupted first call.
        """
        self.refusal = None
        queued = {id(request) for lane in self._lanes for request in lane}
        for number, request in reversed([*self._in_flight.items()]):
            if request.is_wanted() and id(request) not in queued:
                self._lose(request, why)
            self._land(number, request)
        self._waits_in_flight = 0

    def _lose(self, request: PendingRequest, why: str) -> None:
        fate = fate_of(request.command)
        request.losses += 1
        if request.losses > REPEATS_MAX:
            error = CannotOpen(f"{why}, {request.losses} times at {type(request.command).__name__}")
            request.settle(unreachable(request.command, sent=True, why=error))
        elif fate is RepeatFate.ASK_AGAIN:
            self._queue_again(request)
        elif fate is RepeatFate.WAIT_AGAIN:
            request.settle(Interrupted(why))
        else:
            request.settle(unknown(request.command, why))

    def _queue_again(self, request: PendingRequest) -> None:
        """Queue a sent request in its order, before all requests that were never sent."""
        index = 0
        for queued in self._ready:
            if not 0 < queued.number < request.number:
                break
            index += 1
        self._ready.insert(index, request)

    def _land(self, number: int, request: PendingRequest) -> None:
        """Note that a request is no longer in flight."""
        self._in_flight.pop(number, None)
        self._waits_in_flight -= request.waits

    def give_up(self, why: MillstreamError) -> None:
        """Settle all requests: the server stays away, or the session ends."""
        for request in [*self._in_flight.values(), *chain(*self._lanes)]:
            request.settle(unreachable(request.command, sent=request.sent, why=why))
        self._in_flight.clear()
        self._waits_in_flight = 0
        for lane in self._lanes:
            lane.clear()

    def forget_sent(self, why: str) -> None:
        """Fail writes that were sent to a former store: another store answers now."""
        for lane in self._lanes:
            for request in [*lane]:
                if request.sent and request.command.writes:
                    request.settle(unknown(request.command, why))
                    lane.remove(request)

    def drop_waiting(self, why: MillstreamError) -> None:
        """Settle requests that were never sent, and waits; other requests stay in flight.

        So do waits whose answer may bring something that must be given back.
        """
        for request in chain(*self._lanes):
            request.settle(unreachable(request.command, sent=request.sent, why=why))
        for lane in self._lanes:
            lane.clear()
        self._drop_waits(why, also_refused=False)

    def drop_refused(self, why: MillstreamError) -> None:
        """Settle the waits that `drop_waiting` has left."""
        self._drop_waits(why, also_refused=True)

    def _drop_waits(self, why: MillstreamError, *, also_refused: bool) -> None:
        for number, request in [*self._in_flight.items()]:
            if request.waits and (also_refused or not request.is_refused):
                request.settle(unreachable(request.command, sent=request.sent, why=why))
                self._land(number, request)

    def _sendable(self, hello: wire.Hello) -> Iterator[PendingRequest]:
        """Yield requests in the order of sending, while there is credit.

        A request stays in its lane until it is launched, so that an interrupt loses no request.
        """
        while len(self._in_flight) < hello.requests_max and self._ready:
            if self._hold(self._ready):
                continue
            if (request := self._ready[0]).is_wanted():
                yield request
            self._ready.popleft()
        waits_max = _waits_max(hello)
        while (
            len(self._in_flight) < hello.requests_max
            and self._waits_in_flight < waits_max
            and self._waits
        ):
            if self._hold(self._waits):
                continue
            if (request := self._waits[0]).is_wanted():
                yield request
            self._waits.popleft()

    def _launch(self, request: PendingRequest) -> int:
        self._next_id += 1
        self._in_flight[self._next_id] = request
        self._waits_in_flight += request.waits
        request.sent = True
        if not request.number:
            request.first_sent_s = _seconds()
        request.number = self._next_id
        return self._next_id


def _waits_max(hello: wire.Hello) -> int:
    return max(1, hello.requests_max // 2)


def _too_large(size: int, limit: int) -> TooLarge:
    return TooLarge(
        f"a request of {size:,} bytes; the server takes frames of {limit:,}: "
        "send fewer records at once",
        size=size,
        limit=limit,
    )
