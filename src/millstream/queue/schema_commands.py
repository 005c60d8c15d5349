"""The commands about the schemas of the messages that are put into queues."""

from __future__ import annotations

from millstream.command import Operation, Read, Traits, on_queue
from millstream.log.commands import SCHEMAS
from millstream.schema.history import SchemaVersion
from millstream.schema.model import StructType


class SetQueueSchema(Operation[SchemaVersion], frozen=True):
    """Give the messages that are put into a queue a schema; return its newest version."""

    traits = Traits(needs=(on_queue("admin"),), repeat="harmless", is_step=True, ability=SCHEMAS)

    queue: str
    schema: StructType
    mode: str = "enforce"
    force: bool = False


class DeleteQueueSchema(Operation[bool], frozen=True):
    """Forget the schema of a queue with its versions; return False if the queue has none."""

    traits = Traits(needs=(on_queue("admin"),), repeat="harmless", is_step=True, ability=SCHEMAS)

    queue: str


class GetQueueSchemas(Read[list[SchemaVersion]], frozen=True):
    """Return the versions of the schema of a queue, the oldest first; empty without a schema."""

    traits = Traits(needs=(on_queue("read"),), ability=SCHEMAS)

    queue: str
