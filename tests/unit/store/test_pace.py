"""Commits that cost a request: callers that come one by one share them, and no other caller waits.

The clock stands still unless a test moves it: a caller that waited for it would wait for ever.
"""

from __future__ import annotations

import threading
from typing import Any

from millstream.engine.memory.engine import MemoryEngine
from millstream.engine.protocol import pace_of
from millstream.store.commit.ticket import Ticket
from millstream.store.commit.transactor import PACED_MIN, Transactor
from millstream.testing import SimulatedClock

PATIENCE_S = 60


class Groups:
    """Commits nothing, and notes which groups came; the first waits until it is let go."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.held = threading.Event()
        self.begun = threading.Event()

    def commit_group(self, group: list[Ticket[Any]], *, waits: bool = True) -> bool:
        self.sizes.append(len(group))
        if len(self.sizes) == 1:
            self.begun.set()
            assert self.held.wait(PATIENCE_S)
        return True


def made() -> tuple[Transactor, Groups, SimulatedClock]:
    groups, clock = Groups(), SimulatedClock()
    return (
        Transactor(groups, clock, waiting_max=1_000, group_max=1_000, pace_s=1.0),
        groups,
        clock,
    )


def handed_in(transactor: Transactor, count: int) -> list[threading.Event]:
    """Operations of coroutines, each with an event for its answer."""
    done = [threading.Event() for _ in range(count)]
    for one in done:
        transactor.submit([Ticket(lambda tx: None, lambda _ticket, one=one: one.set())])
    return done


def answered(events: list[threading.Event]) -> None:
    for one in events:
        assert one.wait(PATIENCE_S), "a caller waits for ever"


def test_a_caller_alone_never_waits() -> None:
    transactor, groups, _ = made()
    groups.held.set()
    for _ in range(5):
        transactor.run(lambda tx: None)
    for _ in range(5):
        answered(handed_in(transactor, 1))
    assert groups.sizes == [1] * 10


def test_callers_that_came_during_a_commit_wait_for_more() -> None:
    transactor, groups, _ = made()
    first = handed_in(transactor, 1)
    assert groups.begun.wait(PATIENCE_S)
    second = handed_in(transactor, 3)
    groups.held.set()
    answered(first)
    third = handed_in(transactor, 1)
    answered(second + third)  # four, as many as were there when the first commit ended
    assert groups.sizes == [1, 4]


def test_the_wait_ends_with_the_time() -> None:
    transactor, groups, clock = made()
    first = handed_in(transactor, 1)
    assert groups.begun.wait(PATIENCE_S)
    second = handed_in(transactor, 3)
    groups.held.set()
    answered(first)
    assert not any(one.is_set() for one in second)
    clock.advance(1)
    answered(second)
    assert groups.sizes == [1, 3]


def test_many_callers_do_not_wait_for_more() -> None:
    transactor, groups, _ = made()
    first = handed_in(transactor, 1)
    assert groups.begun.wait(PATIENCE_S)
    second = handed_in(transactor, PACED_MIN)
    groups.held.set()
    answered(first + second)
    assert groups.sizes == [1, PACED_MIN]


def test_an_engine_on_a_disk_knows_no_pace() -> None:
    assert pace_of(MemoryEngine()) == 0.0
