"""How many claims wait in a line, in the test's own process or at a server of it."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from millstream.queue.service.waiting import Lines
from millstream.store.store import Store


def lines_of(store: Store) -> list[Lines[Any]]:
    """The lines of a store whose first keeps watch."""
    waiters = [*store.watch._waiters.values()]
    wakes = [wake for some in waiters for wake in [*some] if isinstance(wake, partial)]
    found = {id(wake.func.__self__): wake.func.__self__ for wake in wakes}  # type: ignore[attr-defined]
    return [one for one in found.values() if isinstance(one, Lines)]


def standing(ms: Any, queue: str = "jobs") -> int:
    """How many claims wait for a queue whose first keeps watch; 0 while one looks."""
    return sum(len(lines._lines.get(queue, ())) for lines in lines_of(ms._session.store))


def until_standing(ms: Any, count: int, queue: str = "jobs") -> None:
    """Return when so many claims wait, and all is quiet."""
    pause = threading.Event()
    for _ in range(5_000):
        if standing(ms, queue) == count:
            return
        pause.wait(0.002)
    raise AssertionError(f"{standing(ms, queue)} claims wait, not {count}")
