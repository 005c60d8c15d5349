"""The change of a queue's record, which holds its attributes, tags and permissions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from millstream.command import Transact
from millstream.errors import Conflict
from millstream.log.commands import SetMetadata
from millstream.queue import commands as c
from millstream.queue.model.own_logs import inbox_of
from millstream.server.gateways.sqs.call import SqsCall
from millstream.server.gateways.sqs.catalog import KnownQueue
from millstream.server.gateways.sqs.errors import no_queue
from millstream.server.gateways.sqs.settings import METADATA, altered_spec, text_of

TRIES_MAX = 5
"""How often a change of attributes is tried again that another client overtook."""


async def change_record(
    call: SqsCall, queue: KnownQueue, alter: Any, changes: Mapping[str, str] | None = None
) -> None:
    """Replace the record of a queue, and its spec if attributes change that the spec holds."""
    async with call.catalog.turn(queue.stored):
        call.catalog.forget(queue.name)
        current = await call.catalog.need(queue.name)
        await _change_record(call, current, alter, changes or {})


async def _change_record(
    call: SqsCall, queue: KnownQueue, alter: Any, changes: Mapping[str, str]
) -> None:
    for tries_left in reversed(range(TRIES_MAX)):
        record = alter(queue.record)
        if not record.seed:
            record = replace(record, seed=queue.seed)
        spec = altered_spec(queue.spec, record, changes, home=call.home)
        log = inbox_of(queue.stored)
        steps: list[Any] = [
            SetMetadata(log, METADATA, text_of(record), expect=queue.text, compare=True)
        ]
        if spec != queue.spec:
            steps.append(c.SpecifyQueue(queue.stored, spec, queue.spec))
        try:
            await call.execute(Transact(steps))
            call.catalog.forget(queue.name)
            return
        except Conflict:
            if not tries_left:
                raise
        fresh = await call.catalog.freshly(queue.name)
        if fresh is None:
            raise no_queue()
        queue = fresh
