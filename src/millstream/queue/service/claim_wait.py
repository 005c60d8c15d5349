"""The wait of a claim in the line of its queue, written once for threads and event loops.

`wait_in_line` is a generator without I/O, clock or lock: it yields steps and receives their answers.
A shell carries the steps out: `thread_lines` on the thread of the caller, `embedded.loop.loop_lines`
in the task of the caller. `model.line` decides which waiter gets which duty; this module decides what
a waiter does with its duty, with messages that a commit claimed for it, and with the end of its time.

A shell answers each step:

| step                        | what the shell does                     | answer                      |
|-----------------------------|-----------------------------------------|-----------------------------|
| `LineSleep(until_s, due_s)` | sleep until a delivery or a time        | a delivery, "due", or None  |
| `"watch"`                   | glance at the queue, and watch it       | next due time, None: as before |
| `"claim"`                   | claim without waiting                   | lots, number that remain    |
| `"change"`                  | report that a message may be claimable  |                             |
| `"in vain"`                 | report that the claim got nothing       | whether the waiter stays    |
| `"leave"`                   | give up                                 | False: the waiter looks     |
| `Served(n)`                 | leave with messages or an error, n remain |                           |
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from math import inf
from queue import Empty, SimpleQueue
from typing import Any, Literal

from msgspec import Struct

from millstream.queue.commands import ClaimMessages
from millstream.queue.model.line import Duty
from millstream.queue.model.message import Lot

Claimed = tuple[list[Lot], int]
"""Claimed messages, and the number of messages that remain claimable."""

NOTHING: Claimed = [], 0
"""The outcome of a claim that failed or got no messages."""

Delivery = Duty | Claimed | Literal["broken"]
"""A duty of a waiter, the messages that the commit of another caller claimed for it, or the end of
the wait because another thread has broken it off (`store.wait_breaker`)."""


class LineSleep(Struct, frozen=True, gc=False):
    """Sleep until a delivery comes, or until one of two times by the store's clock."""

    until_s: float
    """The end of the wait. A sleep does not end before the clock shows it."""
    due_s: float = inf
    """When time alone may make a message claimable. A simulated clock may stand still, so the sleep
    also ends after as many seconds of the machine: a look too many does no harm.
    """

    @property
    def end_s(self) -> float:
        """The first of both times."""
        return min(self.until_s, self.due_s)

    @property
    def is_due_first(self) -> bool:
        """Whether the sleep ends with "due", not with None."""
        return self.due_s <= self.until_s


class Served(Struct, frozen=True, gc=False):
    """Leave the line with messages or an error; `remaining` messages stay claimable."""

    remaining: int = 0


LineStep = Served | Literal["change", "in vain", "leave"]
"""A report to the line."""

WaitStep = LineSleep | Literal["watch", "claim"] | LineStep


def wait_in_line(until_s: float) -> Generator[WaitStep, Any, list[Lot]]:
    """Yield the steps of a claim that stands in line; return its messages, or [] after the timeout.

    A wait ends at any step if the step fails or its caller is interrupted or cancelled. The shell then
    carries out `Served()`, which passes the duty of the waiter on, and calls `WaitingClaim.leave`.
    """
    due_s = inf
    while True:
        delivery = yield LineSleep(until_s, due_s)
        if delivery == "watch":
            next_due_s = yield "watch"
            due_s = due_s if next_due_s is None else next_due_s
        elif delivery == "due":
            due_s = inf
            yield "change"
        elif delivery is not None:
            due_s = inf
            lots, remaining = NOTHING if isinstance(delivery, str) else delivery
            if not lots:
                # The commit that should have served this waiter failed, or others were faster.
                lots, remaining = yield "claim"
            if lots:
                yield Served(remaining)
                return lots
            if not (yield "in vain"):
                return []
        elif (yield "leave"):
            return []
        else:
            until_s = (
                inf  # the duty that was assigned just now, or the outcome of a commit, will come
            )


class WaitingClaim:
    """A claim in a line, with the deliveries that it has not received yet.

    Any thread may deliver. No delivery is lost when the waiter leaves: the next in line gets its
    duties, and messages that a commit claimed for it are given back.
    """

    __slots__ = ("_deliveries", "_give_back", "_has_left", "query")

    def __init__(
        self, query: ClaimMessages, give_back: Callable[[ClaimMessages, Sequence[Lot]], None]
    ) -> None:
        self.query = query
        self._give_back = give_back
        self._deliveries: SimpleQueue[Delivery] = SimpleQueue()
        self._has_left = False

    def deliver(self, delivery: Delivery) -> None:
        """Deliver a duty, or claimed messages; must be quick, because a committing thread may call."""
        self._deliveries.put(delivery)
        if self._has_left:
            self._return_unreceived()

    def leave(self) -> None:
        """Stop waiting for any reason; deliveries that come later are given back as well."""
        self._has_left = True
        self._return_unreceived()

    def _return_unreceived(self) -> None:
        """Give back delivered messages; the waiter and the delivering thread may both call this."""
        with suppress(Empty):
            while True:
                delivery = self._deliveries.get_nowait()
                # Popped messages are done: a pop delivers at most once.
                if not isinstance(delivery, str) and delivery[0] and not self.query.pop:
                    self._give_back(self.query, delivery[0])
