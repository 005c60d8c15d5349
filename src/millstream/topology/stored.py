"""Reading the topology of a store, a file's or a server's."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from msgspec.structs import replace

from millstream.errors import Denied, InvalidInput
from millstream.jobs.schedule import QUEUE
from millstream.log.commands import SCHEMAS, GetMetadata, GetSchemas
from millstream.queue.model.own_logs import inbox_of
from millstream.queue.schema_commands import GetQueueSchemas
from millstream.schema.history import SchemaVersion
from millstream.server.auth.register import Registrar
from millstream.threads.database import Millstream
from millstream.threads.schedules import ScheduleStore
from millstream.topology.document import OWN_QUEUES, is_public_log
from millstream.topology.model import TABLES, StoredLog, StoredTopology

Leave = Callable[[str, Denied], None]
"""Is told of a table that the token may not read."""


def read_stored(
    ms: Millstream, tables: Collection[str] = tuple(TABLES), *, leave_out: Leave | None = None
) -> StoredTopology:
    """Return the contents of a store, for some tables.

    Without `leave_out`, a table that the token may not read raises `Denied`.
    """
    stored = StoredTopology()
    readers = {
        "logs": _read_logs,
        "queues": _read_queues,
        "rooms": _read_rooms,
        "schedules": _read_schedules,
        "tokens": _read_tokens,
    }
    if "queues" in tables and "logs" not in tables:
        stored = _read_logs(ms, stored)  # a queue's source may have partitions
    for table, reader in readers.items():
        if table in tables:
            try:
                stored = reader(ms, stored)
            except Denied as error:
                if leave_out is None:
                    raise
                leave_out(table, error)
    return stored


def _read_logs(ms: Millstream, stored: StoredTopology) -> StoredTopology:
    logs: dict[str, StoredLog] = {}
    for info in ms.logs():
        if is_public_log(info.name):
            metadata = ms.session.execute(GetMetadata(info.name))
            logs[info.name] = StoredLog(info, metadata, _schemas(ms, GetSchemas(info.name)))
    return replace(stored, logs=logs)


def _read_queues(ms: Millstream, stored: StoredTopology) -> StoredTopology:
    queues = {info.name: info for info in ms.queues() if info.name not in OWN_QUEUES}
    schemas = {name: _schemas(ms, GetQueueSchemas(name)) for name in queues}
    metadata = {name: _queue_metadata(ms, name) for name in queues}
    return replace(stored, queues=queues, queue_schemas=schemas, queue_metadata=metadata)


def _queue_metadata(ms: Millstream, queue: str) -> dict[str, Any]:
    """Return the entries of a queue; none for a token that may read the queue and not its log."""
    try:
        return ms.session.execute(GetMetadata(inbox_of(queue)))
    except Denied:
        return {}


def _schemas(ms: Millstream, query: GetSchemas | GetQueueSchemas) -> list[SchemaVersion]:
    """Return the versions of a schema; none from a server of an earlier version, which has no schemas."""
    try:
        return ms.session.execute(query)
    except InvalidInput as error:
        if SCHEMAS in getattr(error, "abilities", ()):
            return []
        raise


def _read_rooms(ms: Millstream, stored: StoredTopology) -> StoredTopology:
    return replace(stored, rooms={info.name: info for info in ms.rooms()})


def _read_schedules(ms: Millstream, stored: StoredTopology) -> StoredTopology:
    has_queue = ms.queue(QUEUE).exists()
    entries = ScheduleStore(ms.session).stored() if has_queue else []
    schedules = {entry.schedule.name: entry for entry in entries}
    return replace(stored, schedules=schedules, has_schedule_queue=has_queue)


def _read_tokens(ms: Millstream, stored: StoredTopology) -> StoredTopology:
    registrar = Registrar(ms)
    tokens = {token.name: token for token in registrar.tokens()}
    return replace(stored, tokens=tokens, register_end=registrar.position)
