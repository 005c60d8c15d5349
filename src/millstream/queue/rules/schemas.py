"""The schema of the messages that are put into a queue: that of its own logs, for now and for later."""

from __future__ import annotations

from millstream.format import keys
from millstream.log.commands import GetSchemas
from millstream.log.rules.schemas import delete_on_log, get_schemas, set_on_logs
from millstream.queue import schema_commands as c
from millstream.queue.model.own_logs import inbox_of, own_logs
from millstream.queue.model.spec import no_queue
from millstream.queue.model.state import QueueState
from millstream.schema.history import SchemaVersion
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View


def set_queue_schema(tx: WriteTransaction, command: c.SetQueueSchema) -> SchemaVersion:
    """Give the messages that are put into a queue a schema."""
    if not tx.entity(keys.queue(command.queue), QueueState).exists():
        raise no_queue(command.queue)
    logs = own_logs(command.queue)
    return set_on_logs(tx, logs, command.schema, mode=command.mode, force=command.force)


def delete_queue_schema(tx: WriteTransaction, command: c.DeleteQueueSchema) -> bool:
    """Forget the schema of a queue."""
    return sum(delete_on_log(tx, log) for log in own_logs(command.queue)) > 0


def get_queue_schemas(view: View, query: c.GetQueueSchemas) -> list[SchemaVersion]:
    """Return the versions of a queue's schema."""
    return get_schemas(view, GetSchemas(inbox_of(query.queue)))
