"""Schemas over REST: show, set, check and delete the schema of the messages of a queue."""

from __future__ import annotations

from millstream.aio.queue import Queue
from millstream.errors import NotFound
from millstream.queue import schema_commands as c
from millstream.schema.history import check_mode
from millstream.schema.source import schema_of
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints
from millstream.server.rest.logs import Existed
from millstream.server.rest.schemas import (
    CheckBody,
    SchemaBody,
    SchemaConflicts,
    SchemaList,
    SchemaShown,
    shown,
)

endpoint = Endpoints("queues")


@endpoint("PUT /queues/{queue}/schema", errors=(404, 409))
async def set_queue_schema(ask: Ask, queue: str, body: SchemaBody) -> SchemaShown:
    """Give the messages that are put into a queue a schema, or another version of it.

    The rules are those of the schemas of logs. Messages that do not fit are refused when they are put;
    records of the queue's sources have the schemas of their logs.
    """
    schema, mode = schema_of(body.schema), check_mode(body.mode)
    return shown(await ask.execute(c.SetQueueSchema(queue, schema, mode, body.force)))


@endpoint("GET /queues/{queue}/schema", errors=(404,))
async def get_queue_schema(ask: Ask, queue: str) -> SchemaShown:
    """Show the newest version of the schema of the messages that are put into a queue."""
    versions = await ask.execute(c.GetQueueSchemas(queue))
    if not versions:
        raise NotFound(
            f"queue {queue!r} has no schema; PUT /queues/{queue}/schema gives it one", queue=queue
        )
    return shown(versions[-1])


@endpoint("GET /queues/{queue}/schemas")
async def list_queue_schemas(ask: Ask, queue: str) -> SchemaList:
    """Show all versions of the schema of a queue, the oldest first."""
    return SchemaList(
        versions=[shown(each) for each in await ask.execute(c.GetQueueSchemas(queue))]
    )


@endpoint("POST /queues/{queue}/schema/check")
async def check_queue_schema(ask: Ask, queue: str, body: CheckBody) -> SchemaConflicts:
    """Compare a schema with the versions of a queue's schema, and change nothing."""
    conflicts = await Queue(ask, queue).check_schema(body.schema)
    return SchemaConflicts(compatible=not conflicts, conflicts=conflicts)


@endpoint("DELETE /queues/{queue}/schema", errors=(404, 409))
async def delete_queue_schema(ask: Ask, queue: str) -> Existed:
    """Forget the schema of a queue with its versions: any value may be put."""
    return Existed(deleted=await ask.execute(c.DeleteQueueSchema(queue)))
