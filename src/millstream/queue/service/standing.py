"""Standing: how far an outside router has come in the logs of a queue."""

from __future__ import annotations

from msgspec import Struct

from millstream.command import Read, Traits, on_queue
from millstream.errors import NotFound
from millstream.format import keys
from millstream.log.head import Head
from millstream.queue.model.state import QueueState
from millstream.queue.rules.sources import find_sources, own_logs
from millstream.store.rows import View
from millstream.store.store import Store


class Standing(Struct, frozen=True, array_like=True):
    """Where a queue stands in one of its source logs."""

    log: str
    position: int
    """The next offset that it looks at."""
    start: int
    end: int


class ListStandings(Read[list[Standing]], frozen=True):
    """Where a queue stands in the logs that it takes from; not in those of its own."""

    traits = Traits(needs=(on_queue("read"),))

    queue: str


def list_standings(store: Store, query: ListStandings) -> list[Standing]:
    """The standings, in the order of the queue's sources."""

    def ask(view: View) -> list[Standing]:
        queue = view.entity(keys.queue(query.queue), QueueState)
        if not queue.exists():
            raise NotFound(f"there is no queue {query.queue!r}", name=query.queue)
        found = []
        for log_id in find_sources(view, query.queue, queue.spec):
            head = view.entity(keys.head(log_id), Head)
            if head.name not in own_logs(query.queue):
                position = head.next_at(queue.positions.get(log_id, 0))
                found.append(Standing(head.name, position, head.start, head.end))
        return found

    return store.view(ask)
