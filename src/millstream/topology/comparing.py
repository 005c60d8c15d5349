"""Comparing a file with a store: the plan of changes, and the changes that are not allowed. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from millstream.errors import MillstreamError
from millstream.jobs.schedule import Schedule, revise
from millstream.partitioning import pattern_of
from millstream.queue.model.alteration import check_alteration
from millstream.queue.model.spec import QueueSpec
from millstream.record import Retention, moment
from millstream.rooms.settings import RoomSettings
from millstream.topology.model import (
    TABLES,
    Kind,
    StoredLog,
    StoredTopology,
    Topology,
    TopologyChange,
    TopologyPlan,
    WantedLog,
    WantedQueue,
    WantedSchema,
    WantedToken,
)
from millstream.topology.schemas import schema_differences, schema_refusal
from millstream.topology.writing import (
    log_table,
    metadata_table,
    named_sources,
    queue_table,
    retention_table,
    room_table,
    schedule_table,
    setting_value,
    token_table,
)

Settings = dict[str, tuple[Any, Any]]


def compare(target: Topology, stored: StoredTopology, *, prune: bool, now_ms: int) -> TopologyPlan:
    """Return the changes that make a store have what a file describes.

    With `prune` things that the file does not name are deleted, in the tables that the file has.
    """
    plan = TopologyPlan()
    partitioned = stored.partitioned() | {
        name for name, log in (target.logs or {}).items() if log.partitions
    }
    for name, log in (target.logs or {}).items():
        _compare_log(name, log, stored.logs.get(name), plan)
    for name, queue in (target.queues or {}).items():
        _compare_queue(name, queue, stored, partitioned, plan)
    for name, room in (target.rooms or {}).items():
        info = stored.rooms.get(name)
        _compare_room(name, room, None if info is None else info.settings, plan)
    for name, schedule in (target.schedules or {}).items():
        entry = stored.schedules.get(name)
        _compare_schedule(name, schedule, None if entry is None else entry.schedule, plan)
    for name, token in (target.tokens or {}).items():
        _compare_token(name, token, stored, now_ms, plan)
    if prune:
        plan.changes.extend(_deletions(target, stored))
    return plan


def _created(kind: Kind, name: str, table: dict[str, Any]) -> TopologyChange:
    settings: Settings = {key: (None, value) for key, value in table.items()}
    return TopologyChange(action="create", kind=kind, name=name, settings=settings)


def _altered(kind: Kind, name: str, settings: Settings, loses: str = "") -> list[TopologyChange]:
    if not settings:
        return []
    return [TopologyChange(action="alter", kind=kind, name=name, settings=settings, loses=loses)]


def _differences(before: dict[str, Any], after: dict[str, Any]) -> Settings:
    return {
        key: (before.get(key), after.get(key))
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    }


def _compare_log(
    name: str, target: WantedLog, stored: StoredLog | None, plan: TopologyPlan
) -> None:
    if stored is None:
        table = log_table(target.partitions, target.retention, target.metadata)
        plan.changes.append(_created("log", name, table | _created_schema(target.schema)))
        return
    count = stored.info.partitions
    refusal = _partitions_refusal(name, count, target.partitions) or schema_refusal(
        f"log {name!r}", target.schema, stored.schemas
    )
    if refusal:
        plan.refusals.append(refusal)
        return
    settings: Settings = {}
    if target.partitions != count:
        settings["partitions"] = (count, target.partitions)
    if target.retention != stored.info.retention:
        rules = stored.info.retention, target.retention
        before, after = (retention_table(each) if each else None for each in rules)
        settings["retention"] = (before, after)
    settings |= _metadata_differences(target.metadata, stored.metadata)
    settings |= schema_differences(target.schema, stored.schemas)
    plan.changes.extend(_altered("log", name, settings, _log_loss(name, target.retention, stored)))


def _metadata_differences(wanted: dict[str, Any], stored: dict[str, Any]) -> Settings:
    return {
        f"metadata.{key}": (stored.get(key), value)
        for key, value in changed_entries(wanted, stored).items()
    }


def changed_entries(wanted: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a file that the store lacks, or has with another value."""
    return {
        key: value for key, value in wanted.items() if key not in stored or stored[key] != value
    }


def _created_schema(wanted: WantedSchema | None) -> dict[str, Any]:
    """Return the settings of a schema of a log or queue that the store does not have yet."""
    return {key: after for key, (_, after) in schema_differences(wanted, []).items()}


def _partitions_refusal(name: str, count: int, target: int) -> str:
    """Return why the number of partitions cannot change; an empty text if the change is allowed."""
    if count and not target:
        return (
            f"log {name!r} has {count} partitions, and the file names none: a log with partitions "
            f"stays so; write partitions = {count}"
        )
    if target and not count:
        return (
            f"log {name!r} has no partitions, and the file asks for {target}: append its records to a "
            "new log with partitions, under another name"
        )
    if target < count:
        return (
            f"log {name!r} has {count} partitions, and the file asks for {target}: the number can be "
            f"raised, never lowered; write partitions = {count}"
        )
    return ""


def _log_loss(name: str, target: Retention, stored: StoredLog) -> str:
    """Return what a new retention may delete; empty if no rule is stricter than before."""
    before = stored.info.retention
    if not len(stored.info):
        return ""
    limits = [
        (before.age_ms, target.age_ms),
        (before.bytes, target.bytes),
        (before.count, target.count),
    ]
    is_stricter = any(new is not None and (old is None or new < old) for old, new in limits) or (
        target.consumed and not before.consumed
    )
    return f"records of log {name!r} that its new retention does not keep" if is_stricter else ""


def _compare_queue(
    name: str,
    target: WantedQueue,
    topology: StoredTopology,
    partitioned: set[str],
    plan: TopologyPlan,
) -> None:
    stored = topology.queues.get(name)
    schemas = topology.queue_schemas.get(name, [])
    sources = (pattern_of(each) if each in partitioned else each for each in target.spec.sources)
    spec = replace(target.spec, sources=tuple(dict.fromkeys(sources)))
    for purpose, log in (("dead-letter log", spec.dead_letter), ("log of changes", spec.changes)):
        if log in partitioned:
            plan.refusals.append(
                f"queue {name!r}: the {purpose} {log!r} has partitions; name a log that has none"
            )
            return
    if stored is None:
        table = queue_table(spec, partitioned) | metadata_table(target.metadata)
        if isinstance(spec.start, int):
            table["start"] = spec.start
        plan.changes.append(_created("queue", name, table | _created_schema(target.schema)))
        return
    if refusal := schema_refusal(f"queue {name!r}", target.schema, schemas):
        plan.refusals.append(refusal)
        return
    if not target.has_start:
        spec = replace(spec, start=stored.spec.start, start_ms=stored.spec.start_ms)
    try:
        waiting = stored.available + stored.delayed
        in_flight = stored.in_flight
        check_alteration(name, stored.spec, spec, available=waiting, in_flight=in_flight)
    except MillstreamError as error:
        plan.refusals.append(str(error))
        return
    settings = _spec_differences(stored.spec, spec)
    if "sources" in settings:
        # If a source gets partitions, the store changes the spec itself. The file names the same log.
        before, after = (named_sources(each, partitioned) for each in (stored.spec, spec))
        settings["sources"] = before, after
        if before == after:
            del settings["sources"]
    settings |= _metadata_differences(target.metadata, topology.queue_metadata.get(name, {}))
    settings |= schema_differences(target.schema, schemas)
    plan.changes.extend(_altered("queue", name, settings))


def _spec_differences(before: QueueSpec, after: QueueSpec) -> Settings:
    differing = [
        field
        for field in QueueSpec.__struct_fields__
        if getattr(before, field) != getattr(after, field)
    ]
    return {
        field: tuple(setting_value(field, getattr(spec, field)) for spec in (before, after))
        for field in differing
    }


def _compare_room(
    name: str, target: RoomSettings, stored: RoomSettings | None, plan: TopologyPlan
) -> None:
    if stored is None:
        plan.changes.append(_created("room", name, room_table(target)))
        return
    settings = _differences(room_table(stored), room_table(target))
    gone = sorted(stored.retained_types - target.retained_types)
    loses = f"the retained values of {', '.join(gone)} in room {name!r}" if gone else ""
    plan.changes.extend(_altered("room", name, settings, loses))


def _compare_schedule(
    name: str, target: Schedule, stored: Schedule | None, plan: TopologyPlan
) -> None:
    if stored is None:
        plan.changes.append(_created("schedule", name, schedule_table(target)))
        return
    if revised_schedule(stored, target) != stored:
        settings = _differences(schedule_table(stored), schedule_table(target))
        plan.changes.extend(_altered("schedule", name, settings))


def revised_schedule(stored: Schedule, target: Schedule) -> Schedule:
    """Return a stored schedule with the definition of a file; its next tick and pause stay."""
    change = revise(stored, replace(target, declared=stored.declared))
    assert change.schedule is not None
    return change.schedule


def _compare_token(
    name: str, target: WantedToken, stored: StoredTopology, now_ms: int, plan: TopologyPlan
) -> None:
    token = stored.tokens.get(name)
    if token is not None:
        after = replace(token, permissions=target.permissions, expires=target.expires_ms)
        settings = _differences(token_table(token), token_table(after))
        plan.changes.extend(_altered("token", name, settings))
        return
    if target.expires_ms is not None and target.expires_ms <= now_ms:
        plan.refusals.append(
            f"token {name!r} would have expired already; name a later time, or remove the token from "
            "the file"
        )
        return
    table: dict[str, Any] = {"permissions": target.permissions}
    if target.expires_ms is not None:
        table["expires"] = moment(target.expires_ms)
    plan.changes.append(_created("token", name, table))


def _deletions(target: Topology, stored: StoredTopology) -> Iterable[TopologyChange]:
    for table, kind in reversed(TABLES.items()):
        named = getattr(target, table)
        if named is None:
            continue
        kept = set(named) | (_logs_of_queues(target, stored) if kind == "log" else set())
        for name in sorted(set(getattr(stored, table)) - kept):
            loses = f"the {kind} {name!r}"
            if kind in ("log", "queue", "room"):
                loses += " with all its messages" if kind != "log" else " with all its records"
            yield TopologyChange(action="delete", kind=kind, name=name, loses=loses)


def _logs_of_queues(target: Topology, stored: StoredTopology) -> set[str]:
    """Return the dead-letter logs and the logs of changes of the queues that remain: they are part of
    their queue.
    """
    if target.queues is None:
        specs = [queue.spec for queue in stored.queues.values()]
    else:
        specs = [queue.spec for queue in target.queues.values()]
    return {log for spec in specs for log in (spec.dead_letter, spec.changes) if log}
