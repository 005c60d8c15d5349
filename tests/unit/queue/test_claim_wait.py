"""The wait of a claim: transcripts of its steps and their answers, without threads and clocks."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.queue.commands import ClaimMessages
from millstream.queue.model.line import Duty, Line
from millstream.queue.model.message import Label, Lot
from millstream.queue.service.claim_wait import (
    NOTHING,
    Delivery,
    LineSleep,
    Served,
    WaitingClaim,
    WaitStep,
    wait_in_line,
)

END_S = 20.0
ASLEEP = LineSleep(END_S)


def lot(value: bytes) -> Lot:
    return Lot(Label("jobs", "events", 1, 0, 1, 0, None, b""), [value])


A = lot(b"a")


class Transcript:
    """A wait whose steps the test answers one by one."""

    def __init__(self) -> None:
        self._steps = wait_in_line(END_S)
        self.step: WaitStep | None = next(self._steps)
        self.lots: list[Lot] | None = None

    def answer(self, answer: Any) -> WaitStep | None:
        """Answer the last step, and return the next one; None at the end of the wait."""
        try:
            self.step = self._steps.send(answer)
        except StopIteration as end:
            self.step, self.lots = None, end.value
        return self.step


def test_a_claim_sleeps_until_it_has_a_duty() -> None:
    assert Transcript().step == ASLEEP


def test_the_first_in_line_watches_and_sleeps_on() -> None:
    wait = Transcript()
    assert wait.answer("watch") == "watch"
    assert wait.answer(inf) == ASLEEP


def test_messages_that_a_commit_claimed_end_the_wait() -> None:
    wait = Transcript()
    assert wait.answer(([A], 3)) == Served(3)
    assert wait.answer(None) is None
    assert wait.lots == [A]


@pytest.mark.parametrize("delivery", ["look", "take", NOTHING])
def test_a_look_and_a_commit_in_vain_lead_to_a_claim(delivery: Delivery) -> None:
    wait = Transcript()
    assert wait.answer(delivery) == "claim"
    assert wait.answer(([A], 2)) == Served(2)
    assert wait.answer(None) is None
    assert wait.lots == [A]


def test_a_claim_in_vain_stays_in_line() -> None:
    wait = Transcript()
    assert wait.answer("look") == "claim"
    assert wait.answer(NOTHING) == "in vain"
    assert wait.answer(True) == ASLEEP


def test_a_message_that_becomes_due_is_a_change_of_the_queue() -> None:
    wait = Transcript()
    wait.answer("watch")
    assert wait.answer(5.0) == LineSleep(END_S, 5.0)
    assert wait.answer("due") == "change"
    assert wait.answer(None) == ASLEEP, "the look comes as a duty, for the first in line"


def test_a_second_watch_without_news_keeps_the_due_time() -> None:
    wait = Transcript()
    wait.answer("watch")
    wait.answer(5.0)
    assert wait.answer("watch") == "watch"
    assert wait.answer(None) == LineSleep(END_S, 5.0)


def test_a_look_forgets_the_due_time() -> None:
    wait = Transcript()
    wait.answer("watch")
    wait.answer(5.0)
    wait.answer("look")
    wait.answer(NOTHING)
    assert wait.answer(True) == ASLEEP


def test_the_end_of_the_time_ends_the_wait() -> None:
    wait = Transcript()
    assert wait.answer(None) == "leave"
    assert wait.answer(True) is None
    assert wait.lots == []


def test_a_waiter_that_looks_at_the_end_of_its_time_waits_for_its_look() -> None:
    """The look was assigned just now, or a commit makes the claim."""
    wait = Transcript()
    assert wait.answer(None) == "leave"
    assert wait.answer(False) == LineSleep(inf)
    assert wait.answer(([A], 0)) == Served(0)
    wait.answer(None)
    assert wait.lots == [A]


def test_a_last_look_in_vain_ends_the_wait() -> None:
    wait = Transcript()
    wait.answer(None)
    wait.answer(False)
    assert wait.answer(NOTHING) == "claim"
    assert wait.answer(NOTHING) == "in vain"
    assert wait.answer(False) is None
    assert wait.lots == []


# The deliveries of a waiter that leaves.


class Left:
    """A waiter, and the messages that it gave back."""

    def __init__(self, *, pop: bool = False) -> None:
        self.returned: list[Lot] = []
        query = ClaimMessages("jobs", 1, None, "", 0, [], pop)
        self.waiter = WaitingClaim(query, lambda _, lots: self.returned.extend(lots))


@pytest.mark.parametrize("is_early", [True, False])
def test_messages_for_a_waiter_that_has_left_are_given_back(*, is_early: bool) -> None:
    left = Left()
    if is_early:
        left.waiter.leave()
    left.waiter.deliver("look")
    left.waiter.deliver(([A], 0))
    if not is_early:
        assert left.returned == []
        left.waiter.leave()
    assert left.returned == [A]
    left.waiter.leave()
    assert left.returned == [A], "each message goes back once"


def test_popped_messages_are_not_given_back() -> None:
    left = Left(pop=True)
    left.waiter.deliver(([A], 0))
    left.waiter.leave()
    assert left.returned == []


# Random days: whatever happens when, no message lies there while a claim sleeps.


class Hall:
    """A line, waits whose steps are carried out in any order, and messages."""

    def __init__(self) -> None:
        self.line: Line[int] = Line()
        self.messages = self.joined = 0
        self.armed: set[int] = set()
        self.waits: dict[int, Transcript] = {}
        self.delivered: dict[int, list[Delivery]] = {}
        self.served = 0

    def join(self) -> None:
        self.joined += 1
        self.waits[self.joined], self.delivered[self.joined] = Transcript(), []
        self.tell(self.line.join(self.joined, 1))

    def tell(self, duties: list[tuple[int, Duty]]) -> None:
        for waiter, duty in duties:
            if waiter in self.waits:
                self.delivered[waiter].append(duty)

    def put(self) -> None:
        """Append a message elsewhere; the watcher is told."""
        self.messages += 1
        if self.armed:
            self.change()

    def put_here(self) -> None:
        """Append a message by a commit that serves the watcher, or finds that others were faster."""
        self.messages += 1
        if self.armed:
            for waiter, _ in self.line.change():
                self.armed.discard(waiter)
                self.delivered[waiter].append(self.claimed())

    def claimed(self) -> tuple[list[Lot], int]:
        got = min(self.messages, 1)
        self.messages -= got
        return [A] * got, self.messages

    def change(self) -> None:
        duties = self.line.change()
        self.armed -= {waiter for waiter, _ in duties}
        self.tell(duties)

    def pick(self, at: int) -> int | None:
        return [*self.waits][at % len(self.waits)] if self.waits else None

    def cancel(self, waiter: int) -> None:
        """Cancel a wait; a report to the line is not interrupted."""
        while self.waits[waiter].step not in ("watch", "claim") and not self.sleeps(waiter):
            self.work(waiter)
            if waiter not in self.waits:
                return
        del self.waits[waiter]
        self.report(waiter, Served())
        for delivery in self.delivered.pop(waiter):
            if not isinstance(delivery, str) and delivery[0]:
                self.put()

    def time_out(self, waiter: int) -> None:
        if self.sleeps(waiter) and not self.delivered[waiter]:
            self.go_on(waiter, None)

    def sleeps(self, waiter: int) -> bool:
        return isinstance(self.waits[waiter].step, LineSleep)

    def work(self, waiter: int) -> bool:
        """Carry out the next step of a waiter; return False if it sleeps."""
        step = self.waits[waiter].step
        if isinstance(step, LineSleep):
            if self.delivered[waiter]:
                self.go_on(waiter, self.delivered[waiter].pop(0))
            elif step.is_due_first and step.due_s == 0:
                self.go_on(waiter, "due")
            else:
                return False
        elif step == "watch":
            self.go_on(waiter, self.watch(waiter))
        elif step == "claim":
            self.go_on(waiter, self.claimed())
        elif step is not None:
            self.go_on(waiter, self.report(waiter, step))
        return True

    def watch(self, waiter: int) -> float | None:
        if waiter in self.armed or not self.line.watches(waiter):
            return None
        self.armed.add(waiter)
        return 0.0 if self.messages else inf

    def report(self, waiter: int, step: WaitStep) -> bool:
        if step == "change":
            self.change()
        elif step == "in vain":
            self.tell(self.line.in_vain(waiter))
            return waiter in self.line
        elif isinstance(step, Served):
            self.armed.discard(waiter)
            self.tell(self.line.served(waiter, step.remaining))
        else:
            self.armed.discard(waiter)
            self.tell(self.line.leave(waiter))
        return waiter not in self.line

    def go_on(self, waiter: int, answer: Any) -> None:
        if self.waits[waiter].answer(answer) is None:
            self.served += len(self.waits.pop(waiter).lots or [])
            assert not self.delivered.pop(waiter)

    def settle(self) -> None:
        while sum(self.work(waiter) for waiter in [*self.waits]):
            pass


KINDS = ["join", "put", "put_here", "cancel", "time_out", "steal", "work", "work", "work"]
EVENTS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 9)), max_size=80)


@settings(max_examples=300, deadline=None)
@given(EVENTS)
def test_no_order_of_steps_loses_a_message_or_a_wake_up(events: list[tuple[str, int]]) -> None:
    hall, put, stolen = Hall(), 0, 0
    for kind, at in events:
        waiter = hall.pick(at)
        if kind == "join":
            hall.join()
        elif kind in ("put", "put_here"):
            put += 1
            getattr(hall, kind)()
        elif kind == "steal":
            stolen += len(hall.claimed()[0])
        elif waiter is not None:
            getattr(hall, kind)(waiter)
    hall.settle()
    asleep = [*hall.waits]
    assert not (asleep and hall.messages)
    assert hall.served + stolen + hall.messages == put
    assert len(hall.line) == len(asleep)
    assert hall.armed == set(asleep[:1])
