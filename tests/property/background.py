"""Models hold the background back where what they look at depends on it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from millstream import Millstream
from millstream.queue.model.message import Message
from millstream.testing import Probe


def at_rest(handles: Iterable[Millstream]) -> ExitStack:
    """A block in which nothing is committed but by its own calls."""
    found = ExitStack()
    for handle in handles:
        found.enter_context(Probe(handle).pause_keeper())
    return found


def peek_and_route(ms: Millstream, queue: str, count: int) -> list[Message]:
    """What a peek shows once it has routed all; while the background rests.

    If so much is unfolded that the next commit has to fold, a peek routes for its answer alone.
    """
    found = ms.queue(queue).peek(count)
    if _unrouted(ms, queue):
        ms.fold()
        found = ms.queue(queue).peek(count)
        assert not _unrouted(ms, queue)
    return found


def _unrouted(ms: Millstream, queue: str) -> int:
    info = ms.queue(queue).info()
    assert info is not None
    return info.unrouted
