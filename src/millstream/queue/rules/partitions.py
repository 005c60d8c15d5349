"""Queues on logs with partitions: the spec stores such a source as a pattern of partition names.

So a queue takes from all partitions as from several logs, including partitions made later.
"""

from __future__ import annotations

from msgspec.structs import replace

from millstream.errors import Conflict, InvalidInput
from millstream.format import keys
from millstream.log.model.partitioned import count_partitions
from millstream.partitioning import pattern_of
from millstream.queue.model.queue_changes import Specified
from millstream.queue.model.spec import QueueSpec
from millstream.queue.rules.lookup import all_queues
from millstream.store.commit.transaction import WriteTransaction


def take_new_partitions(tx: WriteTransaction, log: str) -> None:
    """Let the queues that name a log take from each partition that it has now."""
    for queue in list(all_queues(tx.view)):
        if log in (queue.spec.dead_letter, queue.spec.changes):
            records = "failed messages" if log == queue.spec.dead_letter else "changes"
            raise Conflict(
                f"queue {queue.name!r} publishes {records} to log {log!r}, which can have no "
                "partitions; choose another name",
                name=queue.name,
            )
        if log in queue.spec.sources:
            spec = with_partitions(tx, queue.spec)
            renewed = Specified(queue.queue_id, queue.name, spec, queue.created_ms, queue.next)
            tx.change(keys.queue(queue.name), renewed)


def with_partitions(tx: WriteTransaction, spec: QueueSpec) -> QueueSpec:
    """Return the spec with patterns in place of sources that have partitions."""
    if spec.dead_letter and count_partitions(tx, spec.dead_letter):
        raise InvalidInput(
            f"the dead-letter log {spec.dead_letter!r} has partitions; name a log that has none"
        )
    if spec.changes and count_partitions(tx, spec.changes):
        raise InvalidInput(
            f"the log of changes {spec.changes!r} has partitions; name a log that has none"
        )
    names = [
        pattern_of(source) if count_partitions(tx, source) else source for source in spec.sources
    ]
    sources = tuple(dict.fromkeys(names))
    return spec if sources == spec.sources else replace(spec, sources=sources)
