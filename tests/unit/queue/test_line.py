"""The line of a queue: transcripts of who is told what, and days of random events."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.queue.model.line import Duty, Line

Duties = list[tuple[str, Duty]]


def line_of(*names: str) -> Line[str]:
    """A line in which each wants one message, and the first keeps watch."""
    line: Line[str] = Line()
    for name in names:
        line.join(name, 1)
    return line


# Transcripts.


def test_the_first_keeps_watch_and_the_others_sleep() -> None:
    line: Line[str] = Line()
    assert line.join("a", 1) == [("a", "watch")]
    assert line.join("b", 1) == []
    assert line.watches("a")
    assert not line.watches("b")


def test_a_change_is_looked_at_by_the_first_alone() -> None:
    line = line_of("a", "b", "c")
    assert line.change() == [("a", "look")]
    assert line.change() == []
    assert line.in_vain("a") == [("a", "watch")]


def test_the_next_keeps_watch_once_the_first_is_served() -> None:
    line = line_of("a", "b", "c")
    line.change()
    assert line.served("a") == [("b", "watch")]
    assert "a" not in line


def test_what_is_left_is_taken_in_the_order_of_the_line() -> None:
    line = line_of("a", "b", "c", "d")
    line.change()
    assert line.served("a", remaining=2) == [("b", "take"), ("c", "take")]
    assert line.served("c") == []
    assert line.served("b") == [("d", "watch")]


def test_a_waiter_that_wants_many_takes_what_is_left_alone() -> None:
    line: Line[str] = Line()
    for name, wanted in (("a", 1), ("b", 10), ("c", 1)):
        line.join(name, wanted)
    line.change()
    assert line.served("a", remaining=10) == [("b", "take")]
    assert line.served("b", remaining=1) == [("c", "take")]


def test_what_the_looking_will_take_is_not_promised_twice() -> None:
    line = line_of("a", "b", "c", "d", "e")
    line.change()
    assert line.served("a", remaining=2) == [("b", "take"), ("c", "take")]
    assert line.served("b", remaining=1) == []  # c takes that
    assert line.served("c", remaining=1) == [("d", "take")]


def test_a_waiter_that_others_overtook_keeps_its_place() -> None:
    line = line_of("a", "b", "c")
    line.change()
    line.served("a", remaining=1)
    assert line.in_vain("b") == [("b", "watch")]
    assert line.change() == [("b", "look")]


def test_the_watch_is_passed_on() -> None:
    line = line_of("a", "b", "c")
    assert line.leave("b") == []
    assert line.leave("a") == [("c", "watch")]
    assert line.leave("c") == []
    assert not line


def test_a_waiter_that_looks_leaves_when_it_has_looked() -> None:
    line = line_of("a", "b")
    line.change()
    assert line.leave("a") == []
    assert "a" in line
    assert line.in_vain("a") == [("b", "watch")]
    assert "a" not in line


def test_a_waiter_that_has_left_changes_nothing() -> None:
    line = line_of("a", "b")
    line.leave("b")
    assert line.leave("b") == []
    assert line.served("b") == [("a", "watch")]  # a glance too many does no harm
    assert line.watches("a")


# Random days: whatever happens when, no message lies there while somebody sleeps.


class World:
    """Messages, waiters, and the duties that they have not yet begun, done in any order."""

    def __init__(self) -> None:
        self.line: Line[int] = Line()
        self.messages = 0
        self.joined = 0
        self.wanted: dict[int, int] = {}
        self.armed: set[int] = set()
        self.pending: deque[tuple[int, Duty]] = deque()
        self.leaving: set[int] = set()
        self.looks = 0

    def put(self, count: int) -> None:
        self.messages += count
        self.tell_armed()

    def tell_armed(self) -> None:
        for _ in self.armed & {one for one in self.wanted if self.line.watches(one)}:
            self.pending += self.line.change()

    def join(self, wanted: int) -> None:
        waiter = self.joined = self.joined + 1
        self.wanted[waiter] = wanted
        self.pending += self.line.join(waiter, wanted)

    def leave(self, at: int) -> None:
        waiters = [one for one in self.wanted if one in self.line]
        if waiters:
            waiter = waiters[at % len(waiters)]
            self.armed.discard(waiter)
            self.leaving.add(waiter)
            self.pending += self.line.leave(waiter)

    def work(self, at: int, *, fails: bool = False) -> None:
        """Do one of the duties that wait."""
        if not self.pending:
            return
        self.pending.rotate(-at)
        waiter, duty = self.pending.popleft()
        if duty == "watch":
            if self.line.watches(waiter):
                self.armed.add(waiter)
                if self.messages:
                    self.pending += self.line.change()
            return
        self.armed.discard(waiter)
        self.looks += 1
        taken = min(self.messages, self.wanted[waiter])
        if fails:
            self.pending += self.line.served(waiter)
        elif taken:
            self.messages -= taken
            self.pending += self.line.served(waiter, self.messages)
        else:
            self.pending += self.line.in_vain(waiter)

    def settle(self) -> None:
        while self.pending:
            self.work(0)


EVENTS = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 5)),
    st.tuples(st.just("join"), st.integers(1, 3)),
    st.tuples(st.just("leave"), st.integers(0, 9)),
    st.tuples(st.just("work"), st.integers(0, 9)),
    st.tuples(st.just("fail"), st.integers(0, 9)),
    st.tuples(st.just("steal"), st.integers(1, 5)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENTS, max_size=60))
def test_no_order_of_events_loses_a_wake_up(events: list[tuple[str, int]]) -> None:
    world = World()
    for kind, number in events:
        if kind == "put":
            world.put(number)
        elif kind == "join":
            world.join(number)
        elif kind == "leave":
            world.leave(number)
        elif kind == "steal":
            world.messages -= min(number, world.messages)
        else:
            world.work(number, fails=kind == "fail")
    world.settle()
    waiting = [one for one in world.wanted if one in world.line]
    assert not (waiting and world.messages)
    assert not any(one in world.line for one in world.leaving)
    assert [one for one in waiting if world.line.watches(one)] == waiting[:1]
    assert world.armed >= set(waiting[:1])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=30), st.integers(1, 20))
def test_a_change_costs_as_many_looks_as_claims_get_messages(wanted: list[int], put: int) -> None:
    world = World()
    for count in wanted:
        world.join(count)
        world.settle()
    world.put(put)
    world.settle()
    served = len(wanted) - len(world.line)
    assert world.looks == served
    assert [one for one in world.wanted if one in world.line] == [*world.wanted][served:]
