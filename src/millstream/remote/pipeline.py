"""The pipeline: requests on their way to a server, as a state machine without I/O.

    waiting ──next_frame──► in flight ──answered──► settled
       ▲                        │
       ├────── asked again ─────┼──lost──► settled with `OutcomeUnknown`
       ├─ by another node ─ `NotLeader`
       └── after a pause ── `NoQuorum`

Never more is in flight than the server allows. Requests that wait for something to happen have a
queue of their own, with half of that: however many wait, there is room for what they wait for.

A cluster without a quorum carries nothing out, and says so. All that writes is held back then, for a
pause that grows from one refusal to the next; reads that need no quorum go on.
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

FRAME_BYTES = 1 << 20
"""A frame is sent once it holds so much: the server can begin with it."""

FRAME_OVERHEAD_BYTES = 8
REQUEST_OVERHEAD_BYTES = 16
"""More than MessagePack needs around a frame, and around a request and its id."""

WAIT_MS = 20_000
CONTENDED_WAIT_MS = 500
"""How long a waiting request stays with the server before it is asked anew: a while; or not long,
if there are more of them than may be in flight."""

REPEATS_MAX = 10
"""Connections that may be lost over one request before it is given up."""

FOLLOW_S = 30.0
"""For how long a request looks for the leading node of a cluster, or for its quorum, unless a caller
says otherwise."""

Outcome = Raw | MillstreamError

_seconds = SystemClock().seconds


class Asked(ABC):
    """One command on its way, and the caller that waits for its answer."""

    __slots__ = (
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
        self.sent = False
        """Whether it may ever have reached a server."""
        self.number = 0
        """Under which it was last sent; later requests have higher ones."""
        self.first_sent_s = 0.0
        """When it was first sent, once it was."""
        self.losses = 0
        """Connections that were lost while it was in flight."""
        self.refused_s: float | None = None
        """When a node first said that it does not lead, or that there is no quorum."""

    def encode(self, command: Command[Any]) -> Raw:
        """The command's bytes; what a server would not take is refused here."""
        return wire.encode_command(command)

    @abstractmethod
    def is_wanted(self) -> bool:
        """Whether the caller still waits for the answer: not once it is settled."""

    @abstractmethod
    def settle(self, outcome: Outcome) -> None:
        """Hand over the answer; a second one, which may follow an interrupt, does not count."""


class Pipeline:
    """Requests that wait, and requests that were sent and not answered."""

    def __init__(self, *, waiting_max: int, follow_s: float = FOLLOW_S) -> None:
        self.waiting_max = waiting_max
        self.refusal: NotLeader | None = None
        """Why nothing more is sent over this connection: its node does not lead."""
        self._follow_s = follow_s
        self._ready: deque[Asked] = deque()
        self._waits: deque[Asked] = deque()
        self._held: deque[Asked] = deque()
        """What is held back until `_resumes_s`, in order."""
        self._resumes_s = 0.0
        """Until when nothing that writes is sent; 0 if nothing is held back."""
        self._pauses = 0
        """How many such pauses there were since a write was last carried out."""
        self._in_flight: dict[int, Asked] = {}
        self._waits_in_flight = 0
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._ready) + len(self._waits) + len(self._held) + len(self._in_flight)

    @property
    def _lanes(self) -> tuple[deque[Asked], ...]:
        """What waits to be sent."""
        return self._held, self._ready, self._waits

    @property
    def has_waiting(self) -> bool:
        """Whether requests wait to be sent."""
        return bool(self._ready or self._waits)

    @property
    def is_landed(self) -> bool:
        """Whether everything that was sent is answered, but for waits."""
        return len(self._in_flight) == self._waits_in_flight

    def add(self, asked: Asked) -> None:
        """Take a request in; too many are refused with `Overloaded`."""
        lane = self._waits if asked.waits else self._ready
        if len(lane) + len(self._held) >= self.waiting_max:
            asked.settle(Overloaded(f"{len(lane):,} requests wait to be sent; slow down"))
        else:
            lane.append(asked)

    def next_frame(self, hello: wire.Hello) -> bytes | None:
        """What can be sent now, as one frame; None if there is nothing, or no credit."""
        if self.refusal is not None:
            return None
        if self._resumes_s and _seconds() >= self._resumes_s:
            self._release()
        requests: list[tuple[int, Raw]] = []
        size = FRAME_OVERHEAD_BYTES
        for asked in self._sendable(hello):
            needed = len(asked.body) + REQUEST_OVERHEAD_BYTES
            if needed + FRAME_OVERHEAD_BYTES > hello.frame_bytes_max:
                asked.settle(_too_large(needed, hello.frame_bytes_max))
                continue
            if requests and size + needed > min(FRAME_BYTES, hello.frame_bytes_max):
                break
            requests.append((self._launch(asked), asked.body))
            size += needed
        return wire.encode_requests(requests) if requests else None

    def wait_ms(self, hello: wire.Hello) -> int:
        """How long a waiting request may stay with the server, as things are."""
        held = len(self._waits) + self._waits_in_flight
        return WAIT_MS if held < _waits_max(hello) < hello.requests_max else CONTENDED_WAIT_MS

    def pause_s(self) -> float | None:
        """In how many seconds what is held back may be sent; None if nothing is."""
        return max(0.0, self._resumes_s - _seconds()) if self._held else None

    def answered(self, answers: list[tuple[int, Outcome]]) -> None:
        """Hand over answers; one without a request is ignored."""
        for number, outcome in answers:
            asked = self._in_flight.get(number)
            if asked is None:
                continue
            # It stays in flight until it is settled: what an interrupt leaves is left to `lost`.
            if type(outcome) is NotLeader:
                self._refused(asked, outcome)
            elif type(outcome) is NoQuorum:
                self._put_off(asked, outcome)
            else:
                asked.settle(outcome)
                if self._pauses and asked.command.writes:
                    self._pauses = 0
            self._land(number, asked)

    def _refused(self, asked: Asked, refusal: NotLeader) -> None:
        """A node does not lead, and did nothing: another one is asked, for as long as we may."""
        now_s = _seconds()
        if asked.refused_s is None:
            asked.refused_s = now_s
        if now_s - asked.refused_s >= self._follow_s:
            asked.settle(refusal)
            return
        self.refusal = refusal
        self._ask_again(asked, refusal)

    def _put_off(self, asked: Asked, refusal: NoQuorum) -> None:
        """The cluster has no quorum, and nothing was done: ask again after a pause, while we may."""
        now_s = _seconds()
        if asked.refused_s is None:
            asked.refused_s = now_s
        if now_s - asked.first_sent_s >= self._follow_s:
            asked.settle(refusal)
            return
        if now_s >= self._resumes_s:  # requests that were refused together share one pause
            self._pauses += 1
            self._resumes_s = now_s + delay_s(
                self._pauses, random.random(), most_s=QUORUM_DELAY_S_MAX
            )
        self._ask_again(asked, refusal)

    def _ask_again(self, asked: Asked, refusal: MillstreamError) -> None:
        """Nothing of a request was done: queue it, or hand a wait back to its caller."""
        asked.sent = asked.losses > 0
        if asked.waits:
            asked.settle(Interrupted(refusal.message, refusal=refusal))
        else:
            self._queue_again(asked)

    def _release(self) -> None:
        """The pause is over: what was held back goes out before all that came later."""
        self._resumes_s = 0.0
        while self._held:
            asked = self._held.pop()
            (self._waits if asked.waits else self._ready).appendleft(asked)

    def _hold(self, lane: deque[Asked]) -> bool:
        """Hold the first request of a lane back, if it is to wait for a quorum."""
        asked = lane[0]
        if not self._resumes_s or not (asked.command.writes or asked.refused_s is not None):
            return False
        self._held.append(asked)
        lane.popleft()
        return True

    def lost(self, why: str) -> None:
        """The connection is lost: queue what can be repeated, in order, and fail the others.

        A second call does what an interrupted first left undone.
        """
        self.refusal = None
        queued = {id(asked) for lane in self._lanes for asked in lane}
        for number, asked in reversed([*self._in_flight.items()]):
            if asked.is_wanted() and id(asked) not in queued:
                self._lose(asked, why)
            self._land(number, asked)
        self._waits_in_flight = 0

    def _lose(self, asked: Asked, why: str) -> None:
        fate = fate_of(asked.command)
        asked.losses += 1
        if asked.losses > REPEATS_MAX:
            error = CannotOpen(f"{why}, {asked.losses} times at {type(asked.command).__name__}")
            asked.settle(unreachable(asked.command, sent=True, why=error))
        elif fate is RepeatFate.ASK_AGAIN:
            self._queue_again(asked)
        elif fate is RepeatFate.WAIT_AGAIN:
            asked.settle(Interrupted(why))
        else:
            asked.settle(unknown(asked.command, why))

    def _queue_again(self, asked: Asked) -> None:
        """Queue what was sent before: in its order, and before all that was not."""
        place = 0
        for other in self._ready:
            if not 0 < other.number < asked.number:
                break
            place += 1
        self._ready.insert(place, asked)

    def _land(self, number: int, asked: Asked) -> None:
        """A request is in flight no more."""
        self._in_flight.pop(number, None)
        self._waits_in_flight -= asked.waits

    def give_up(self, why: MillstreamError) -> None:
        """The server stays away, or the session ends: settle everything."""
        for asked in [*self._in_flight.values(), *chain(*self._lanes)]:
            asked.settle(unreachable(asked.command, sent=asked.sent, why=why))
        self._in_flight.clear()
        self._waits_in_flight = 0
        for lane in self._lanes:
            lane.clear()

    def forget_sent(self, why: str) -> None:
        """Another store answers now: writes sent to the former one are not repeated."""
        for lane in self._lanes:
            for asked in [*lane]:
                if asked.sent and asked.command.writes:
                    asked.settle(unknown(asked.command, why))
                    lane.remove(asked)

    def drop_waiting(self, why: MillstreamError) -> None:
        """Settle what was never sent, and every wait; what else is in flight stays."""
        waits = [number for number, asked in self._in_flight.items() if asked.waits]
        in_flight = [self._in_flight[number] for number in waits]
        for asked in [*chain(*self._lanes), *in_flight]:
            asked.settle(unreachable(asked.command, sent=asked.sent, why=why))
        for number in waits:
            del self._in_flight[number]
        self._waits_in_flight = 0
        for lane in self._lanes:
            lane.clear()

    def _sendable(self, hello: wire.Hello) -> Iterator[Asked]:
        """Requests in the order in which they go out, for as long as there is credit.

        Each stays in its lane until it is launched: an interrupt finds it in one place at least.
        """
        while len(self._in_flight) < hello.requests_max and self._ready:
            if self._hold(self._ready):
                continue
            if (asked := self._ready[0]).is_wanted():
                yield asked
            self._ready.popleft()
        waits_max = _waits_max(hello)
        while (
            len(self._in_flight) < hello.requests_max
            and self._waits_in_flight < waits_max
            and self._waits
        ):
            if self._hold(self._waits):
                continue
            if (asked := self._waits[0]).is_wanted():
                yield asked
            self._waits.popleft()

    def _launch(self, asked: Asked) -> int:
        self._next_id += 1
        self._in_flight[self._next_id] = asked
        self._waits_in_flight += asked.waits
        asked.sent = True
        if not asked.number:
            asked.first_sent_s = _seconds()
        asked.number = self._next_id
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
