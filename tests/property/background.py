"""Models hold the background back where what they look at depends on it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from millstream import Millstream
from millstream.queue.model.message import Message
from millstream.queue.service.bulk_reads import ListUnrouted, Unrouted, list_unrouted
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
    found = _peek_waiting(ms, queue, count)
    if _unrouted(ms, queue):
        ms.fold()
        found = _peek_waiting(ms, queue, count)
        assert not _unrouted(ms, queue)
    return found


def _peek_waiting(ms: Millstream, queue: str, count: int) -> list[Message]:
    """What waits, whether it is due or delayed."""
    noun = ms.queue(queue)
    return [*noun.peek(count), *noun.peek(count, state="delayed")]


def _unrouted(ms: Millstream, queue: str) -> list[Unrouted]:
    """Return the unrouted ranges, also of messages that were put: `QueueInfo` counts these as placed."""
    return list_unrouted(Probe(ms).store, ListUnrouted(queue))
