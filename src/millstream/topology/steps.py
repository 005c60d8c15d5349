"""The commands that apply a plan, as the steps of one transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from millstream.format.packing import pack_many
from millstream.jobs import schedule as s
from millstream.limits import Limits
from millstream.log import commands as logs
from millstream.partitioning import pattern_of
from millstream.queue import commands as queues
from millstream.queue.model.own_logs import inbox_of
from millstream.queue.put_commands import put_one
from millstream.queue.runs import claims_of
from millstream.queue.schema_commands import SetQueueSchema
from millstream.rooms import commands as rooms
from millstream.server.auth.register import LOG, Revoked, Token, encode_entry
from millstream.server.auth.tokens import new_token
from millstream.threads.schedules import StoredSchedule
from millstream.topology.comparing import changed_entries, revised_schedule
from millstream.topology.model import (
    SCHEMA_KEYS,
    StoredTopology,
    Topology,
    TopologyChange,
    TopologyPlan,
)


class Secret(Struct, frozen=True):
    """The text of a new token, which the store does not keep."""

    name: str
    id: str
    text: str


class Work(Struct, frozen=True):
    """The steps of a plan, and the new secrets among them."""

    steps: list[Any] = field(default_factory=list)
    secrets: list[Secret] = field(default_factory=list)


def work_of(
    plan: TopologyPlan,
    target: Topology,
    stored: StoredTopology,
    *,
    limits: Limits,
    now_ms: int,
    leases_hold: bool = True,
) -> Work:
    """Return the steps of a plan. Logs come first: queues look at the partitions of their sources.

    `leases_hold` says whether workers hold the schedules that they have claimed. After the death of a
    worker its lease ends, and its schedules wait again.
    """
    work = Work()
    newly_partitioned = {
        change.name
        for change in plan.changes
        if change.kind == "log" and change.action == "create" and "partitions" in change.settings
    }
    entries: list[Token | Revoked] = []
    for change in plan.changes:
        match change.kind:
            case "log":
                work.steps.extend(_log_steps(change, target, stored))
            case "queue":
                work.steps.append(_queue_step(change, target, stored, newly_partitioned))
                work.steps.extend(_queue_schema_steps(change, target))
                work.steps.extend(_queue_metadata_steps(change, target, stored))
            case "room":
                work.steps.append(_room_step(change, target, stored))
            case "schedule":
                work.steps.extend(_schedule_steps(change, target, stored, limits, leases_hold))
            case "token":
                entries.append(_token_entry(change, target, stored, work.secrets, now_ms))
    if entries:
        texts = [encode_entry(entry) for entry in entries]
        keys = [entry.name if isinstance(entry, Token) else None for entry in entries]
        records = pack_many(texts, keys=keys, headers=None, timestamps=None, limits=limits)
        assert records is not None
        work.steps.append(logs.Append(LOG, records, expect_end=stored.register_end))
    if any(change.kind == "schedule" for change in plan.changes) and not stored.has_schedule_queue:
        work.steps.insert(0, queues.SpecifyQueue(s.QUEUE, s.queue_spec()))
    return work


def _log_steps(change: TopologyChange, target: Topology, stored: StoredTopology) -> Iterator[Any]:
    name = change.name
    if change.action == "delete":
        yield logs.DeleteLog(name)
        return
    log = (target.logs or {})[name]
    if log.partitions and (change.action == "create" or "partitions" in change.settings):
        yield logs.CreatePartitions(name, log.partitions, grows=change.action == "alter")
    elif change.action == "create":
        yield logs.CreateLog(name)
    # A server may give new logs a retention of its own, so the retention of a new log is always set.
    if change.action == "create" or "retention" in change.settings:
        yield logs.SetRetention(name, log.retention)
    before = stored.logs[name].metadata if name in stored.logs else {}
    yield from _metadata_steps(name, log.metadata, before)
    if log.schema is not None and _changes_schema(change):
        yield logs.SetSchema(name, log.schema.schema, log.schema.mode)


def _metadata_steps(
    log: str, wanted: dict[str, Any], stored: dict[str, Any]
) -> Iterator[logs.SetMetadata]:
    for key, value in changed_entries(wanted, stored).items():
        yield logs.SetMetadata(log, key, value)


def _changes_schema(change: TopologyChange) -> bool:
    return any(key.partition(".")[0] in SCHEMA_KEYS for key in change.settings)


def _queue_step(
    change: TopologyChange,
    target: Topology,
    stored: StoredTopology,
    newly_partitioned: Collection[str],
) -> Any:
    """Return the step that makes, alters or deletes a queue.

    An earlier step that gives a source partitions has already changed the spec of the queue.
    """
    if change.action == "delete":
        return queues.DeleteQueue(change.name)
    queue = (target.queues or {})[change.name]
    if change.action == "create":
        return queues.SpecifyQueue(change.name, queue.spec)
    before, spec = stored.queues[change.name].spec, queue.spec
    if not queue.has_start:
        spec = replace(spec, start=before.start, start_ms=before.start_ms)
    sources = (pattern_of(each) if each in newly_partitioned else each for each in before.sources)
    before = replace(before, sources=tuple(dict.fromkeys(sources)))
    return queues.SpecifyQueue(change.name, spec, before)


def _queue_schema_steps(change: TopologyChange, target: Topology) -> Iterator[Any]:
    if change.action == "delete" or not _changes_schema(change):
        return
    schema = (target.queues or {})[change.name].schema
    if schema is not None:
        yield SetQueueSchema(change.name, schema.schema, schema.mode)


def _queue_metadata_steps(
    change: TopologyChange, target: Topology, stored: StoredTopology
) -> Iterator[Any]:
    if change.action != "delete":
        wanted = (target.queues or {})[change.name].metadata
        before = stored.queue_metadata.get(change.name, {})
        yield from _metadata_steps(inbox_of(change.name), wanted, before)


def _room_step(change: TopologyChange, target: Topology, stored: StoredTopology) -> Any:
    if change.action == "delete":
        return rooms.DeleteRoom(change.name)
    before = stored.rooms[change.name].settings if change.action == "alter" else None
    return rooms.SpecifyRoom(change.name, (target.rooms or {})[change.name], before)


def _schedule_steps(
    change: TopologyChange,
    target: Topology,
    stored: StoredTopology,
    limits: Limits,
    leases_hold: bool,
) -> Iterator[Any]:
    """Yield the steps that end the message of a schedule and put its new message.

    A step fails if a worker fires the schedule meanwhile. The transaction then applies no change.
    """
    name = change.name
    schedule = None if change.action == "delete" else (target.schedules or {})[name]
    if change.action != "create":
        entry = stored.schedules[name]
        yield from _ending(entry, leases_hold)
        if schedule is not None:
            schedule = revised_schedule(entry.schedule, schedule)
    if schedule is not None:
        yield put_one(
            s.QUEUE,
            schedule.encoded(),
            key=None,
            headers=None,
            priority=None,
            group=None,
            dedup=name,
            delay=None,
            at=schedule.due_ms,
            producer=None,
            limits=limits,
        )


def _ending(entry: StoredSchedule, leases_hold: bool) -> Iterator[Any]:
    message = entry.message
    if entry.state == "in_flight" and leases_hold:
        queue, runs = claims_of(message)
        yield queues.FinishClaims(queue, runs, "nack", 0, "the schedule was changed")
    assert message.id is not None
    yield queues.CancelWaiting(message.queue, message.claim_id, message.id)


def _token_entry(
    change: TopologyChange,
    target: Topology,
    stored: StoredTopology,
    secrets: list[Secret],
    now_ms: int,
) -> Token | Revoked:
    """Return the entry for the register. An altered token keeps its id and its secret."""
    if change.action == "delete":
        return Revoked(id=stored.tokens[change.name].id)
    token = (target.tokens or {})[change.name]
    if change.action == "alter":
        before = stored.tokens[change.name]
        return replace(before, permissions=token.permissions, expires=token.expires_ms)
    made, text = new_token(change.name, token.permissions, created=now_ms, expires=token.expires_ms)
    secrets.append(Secret(change.name, made.id, text))
    return made
