"""Queues on logs with partitions: the spec stores such a source as a pattern of partition names.

So a queue takes from all partitions as from several logs, including partitions made later.
"""

from __future__ import annotations

from msgspec.structs import replace

from millstream.errors import Conflict, InvalidInput
from millstream.format import keys
from millstream.log.commands import CreatePartitions
from millstream.log.model.partitioned import count_partitions
from millstream.log.rules.partitions import create_partitions as make_partitions
from millstream.partitioning import pattern_of
from millstream.queue.model.queue_changes import Specified
from millstream.queue.model.spec import QueueSpec
from millstream.queue.rules.lookup import all_queues
from millstream.store.commit.transaction import WriteTransaction


def create_partitions(tx: WriteTransaction, command: CreatePartitions) -> int:
    """Make a log with partitions, or raise their number. Queues that name the log take from each
    partition.
    """
    is_new = not count_partitions(tx, command.log)
    count = make_partitions(tx, command)
    if is_new:
        for queue in list(all_queues(tx.view)):
            if command.log in (queue.spec.dead_letter, queue.spec.changes):
                records = "failed messages" if command.log == queue.spec.dead_letter else "changes"
                raise Conflict(
                    f"queue {queue.name!r} publishes {records} to log {command.log!r}, which can have no "
                    "partitions; choose another name",
                    name=queue.name,
                )
            if command.log in queue.spec.sources:
                spec = with_partitions(tx, queue.spec)
                renewed = Specified(queue.queue_id, queue.name, spec, queue.created_ms, queue.next)
                tx.change(keys.queue(queue.name), renewed)
    return count


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
