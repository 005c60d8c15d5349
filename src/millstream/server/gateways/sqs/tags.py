"""The actions on the tags of queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from millstream.queue import commands as c
from millstream.server.gateways.sqs import shapes
from millstream.server.gateways.sqs.call import SqsCall
from millstream.server.gateways.sqs.errors import invalid, missing
from millstream.server.gateways.sqs.records import change_record
from millstream.server.gateways.sqs.settings import QueueRecord

TAGS_MAX = 50


async def tag_queue(call: SqsCall, request: shapes.TagQueueRequest) -> None:
    """Add tags, or replace their values."""
    queue = await call.queue(request.queue_url)
    tags = request.tags
    if not tags:
        raise missing("Tags")

    def alter(record: QueueRecord) -> QueueRecord:
        check_tags({**record.tags, **tags}, queue.name.name)
        return replace(record, tags={**record.tags, **tags})

    await change_record(call, queue, alter)


async def untag_queue(call: SqsCall, request: shapes.UntagQueueRequest) -> None:
    """Remove tags."""
    queue = await call.queue(request.queue_url)
    if not request.tag_keys:
        raise invalid("Tag keys must be between 1 and 128 characters in length.")
    gone = frozenset(request.tag_keys)

    def alter(record: QueueRecord) -> QueueRecord:
        tags = {key: value for key, value in record.tags.items() if key not in gone}
        return replace(record, tags=tags)

    await change_record(call, queue, alter)


async def list_queue_tags(call: SqsCall, request: shapes.QueueRequest) -> dict[str, Any]:
    """Return the tags of a queue."""
    queue = await call.queue(request.queue_url)
    await call.execute(c.DescribeQueue(queue.stored))
    return {"Tags": queue.record.tags} if queue.record.tags else {}


def check_tags(tags: Mapping[str, str], name: str) -> None:
    """Refuse too many tags, and tags with wrong keys or values."""
    if len(tags) > TAGS_MAX:
        raise invalid(f"Too many tags added for queue {name}.")
    for key, value in tags.items():
        if not 1 <= len(key) <= 128 or len(value) > 256:
            raise invalid(
                "Tag keys must be between 1 and 128 characters in length, and tag values up to 256."
            )
        if key.lower().startswith("aws:"):
            raise invalid(f"The tag key {key!r} begins with 'aws:', which is reserved.")
