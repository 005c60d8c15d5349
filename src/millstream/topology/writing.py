"""Writing a topology: a store as a document, with the settings that differ from their defaults."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, get_type_hints

from msgspec import NODEFAULT, Struct, to_builtins
from msgspec.structs import fields

from millstream.jobs.schedule import Schedule
from millstream.jobs.ticks import Cron
from millstream.partitioning import PARTITIONS_KEY, pattern_of, whole_of
from millstream.queue.model.spec import QueueSettings, QueueSpec
from millstream.record import Retention, Seconds, moment
from millstream.rooms.settings import RoomOptions, RoomSettings
from millstream.server.auth.register import Token
from millstream.topology.model import TABLES, Document, StoredTopology
from millstream.topology.schemas import schema_table
from millstream.topology.toml_file import key_text, plain, table_text, value_text
from millstream.units import duration_text, size_text

_DURATIONS = {
    name
    for settings in (QueueSettings, RoomOptions)
    for name, hint in get_type_hints(settings).items()
    if hint == Seconds
}


def document_of(stored: StoredTopology, wall_ms: int) -> Document:
    """Return the contents of a store as a document, in the order of names."""
    partitioned = stored.partitioned()
    return {
        "logs": {
            name: log_table(log.info.partitions, log.info.retention, log.metadata)
            | schema_table(log.schemas)
            for name, log in sorted(stored.logs.items())
        },
        "queues": {
            name: queue_table(info.spec, partitioned)
            | metadata_table(stored.queue_metadata.get(name, {}))
            | schema_table(stored.queue_schemas.get(name, []))
            for name, info in sorted(stored.queues.items())
        },
        "rooms": {name: room_table(info.settings) for name, info in sorted(stored.rooms.items())},
        "schedules": {
            name: schedule_table(each.schedule) for name, each in sorted(stored.schedules.items())
        },
        "tokens": {
            name: token_table(token)
            for name, token in sorted(stored.tokens.items())
            if not token.has_expired(wall_ms)
        },
    }


def toml_of(document: Document) -> str:
    """Return a document as TOML."""
    texts = []
    for kind in TABLES:
        for name, table in document.get(kind, {}).items():
            lines = [f"{key_text(key)} = {value_text(value)}" for key, value in table.items()]
            texts.append("\n".join([table_text((kind, name)), *lines, ""]))
    return "\n".join(texts)


def log_table(partitions: int, retention: Retention, metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a log."""
    table: dict[str, Any] = {"partitions": partitions} if partitions else {}
    if retention:
        table["retention"] = retention_table(retention)
    return table | metadata_table(metadata)


def metadata_table(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the setting of metadata; an empty table without entries."""
    entries = {
        key: plain(value) for key, value in sorted(metadata.items()) if key != PARTITIONS_KEY
    }
    return {"metadata": entries} if entries else {}


def retention_table(retention: Retention) -> dict[str, Any]:
    """Return the rules of a log by the names of the parameters of `retain`."""
    table: dict[str, Any] = {}
    if retention.age_ms is not None:
        table["age"] = duration_text(retention.age_ms / 1000)
    if retention.bytes is not None:
        table["bytes"] = size_text(retention.bytes)
    if retention.count is not None:
        table["count"] = retention.count
    return {**table, "consumed": True} if retention.consumed else table


def queue_table(spec: QueueSpec, partitioned: Collection[str]) -> dict[str, Any]:
    """Return the settings of a queue. A source with partitions is named as its log.

    A start at an offset is left out, because the offsets of two stores differ.
    """
    table = _differing(spec)
    if spec.sources:
        table["sources"] = named_sources(spec, partitioned)
    if isinstance(spec.start, int) and spec.start:
        del table["start"]
    return table


def named_sources(spec: QueueSpec, partitioned: Collection[str]) -> list[str]:
    """Return the sources of a queue; the partitions of a log are named as the log."""
    return [_named(source, partitioned) for source in spec.sources]


def _named(source: str, partitioned: Collection[str]) -> str:
    log = source.removesuffix(pattern_of(""))
    return log if log != source and log in partitioned and whole_of(log) == log else source


def room_table(settings: RoomSettings) -> dict[str, Any]:
    """Return the settings of a room."""
    return _differing(settings)


def _differing(settings: Struct) -> dict[str, Any]:
    """Return the fields that differ from their defaults, with units."""
    table = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        default = field.default_factory() if field.default is NODEFAULT else field.default
        if value != default:
            table[field.name] = setting_value(field.name, value)
    return table


def setting_value(name: str, value: Any) -> Any:
    """Return the value of a setting as a file has it."""
    if value is not None and name in _DURATIONS:
        return duration_text(value)
    if name.endswith("bytes_max"):
        return size_text(value)
    return to_builtins(value)


def schedule_table(schedule: Schedule) -> dict[str, Any]:
    """Return the settings of a schedule. Whether it is paused is no setting."""
    ticks, job = schedule.ticks, schedule.job
    table: dict[str, Any] = {"task": job.task}
    table |= {key: plain(value) for key, value in to_builtins(job).items() if key != "task"}
    if isinstance(ticks, Cron):
        table["every"] = ticks.expression
        if ticks.zone != "UTC":
            table["tz"] = ticks.zone
    else:
        table["every"] = duration_text(ticks.every_ms / 1000)
    return table if schedule.missed == "once" else {**table, "missed": schedule.missed}


def token_table(token: Token) -> dict[str, Any]:
    """Return the permissions and the expiry of a token."""
    table: dict[str, Any] = {"permissions": list(token.permissions)}
    return table if token.expires is None else {**table, "expires": moment(token.expires)}
