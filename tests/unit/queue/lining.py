"""Until so many claims wait in a line, in the test's own process or at a server of it."""

from __future__ import annotations

from millstream import Millstream
from millstream.testing import Probe


def standing(ms: Millstream, queue: str = "jobs") -> int:
    """How many claims wait for a queue whose first keeps watch; 0 while one looks."""
    return Probe(ms).claims_waiting(queue)


def until_standing(ms: Millstream, count: int, queue: str = "jobs") -> None:
    """Return when so many claims wait, and all is quiet."""
    Probe(ms).until(lambda: standing(ms, queue) == count)
