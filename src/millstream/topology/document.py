"""Documents: a topology as a file has it, parsed into checked values.

The keys are not listed here: they are the fields of `QueueSpec`, `RoomSettings` and `ScheduledJob`, and
the parameters of `retain`. A `Mistake` has the table, the key and a sentence. A file is read to its end,
and all mistakes are told.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path as PathOfFile
from typing import Any, TypeVar, get_type_hints

from msgspec import Struct, ValidationError, convert

from millstream.errors import InvalidInput, InvalidName
from millstream.format.packing import check_json
from millstream.jobs.chores import CHORES
from millstream.jobs.continuation import GROUP_LOG
from millstream.jobs.schedule import QUEUE as SCHEDULE_QUEUE
from millstream.jobs.schedule import Schedule, ScheduledJob, define
from millstream.jobs.task_names import check_task_name
from millstream.log.model.names import PRIVATE, check_name, did_you_mean
from millstream.log.model.partitioned import check_whole_name
from millstream.log.rules.ancestry import FORK_NAME
from millstream.partitioning import PARTITION, PARTITIONS_KEY, PARTITIONS_MAX
from millstream.queue.model.alteration import FIXED, check_changes, check_dead_letter
from millstream.queue.model.backoff import Backoff, backoff_of_text
from millstream.queue.model.spec import QueueSettings, QueueSpec
from millstream.queue.model.spec import altered as queue_altered
from millstream.record import Retention, Seconds, retention_of, wall_ms_of
from millstream.rooms.names import log_of
from millstream.rooms.settings import DEFAULTS, RoomOptions, RoomSettings
from millstream.rooms.settings import altered as room_altered
from millstream.server.auth.permission import parse_permissions
from millstream.topology.model import (
    SCHEMA_KEYS,
    TABLES,
    Topology,
    WantedLog,
    WantedQueue,
    WantedToken,
)
from millstream.topology.schemas import Load, loader, wanted_schema
from millstream.topology.toml_file import Path, from_plain, key_text
from millstream.units import is_duration, parse_duration, parse_size

T = TypeVar("T")

OWN_QUEUES = (SCHEDULE_QUEUE, CHORES)
"""Queues that Millstream makes for itself."""

_QUEUE_HINTS = get_type_hints(QueueSettings)
_ROOM_HINTS = get_type_hints(RoomOptions)
_RETENTION_KEYS = tuple(inspect.signature(retention_of).parameters)
_SCHEDULE_KEYS = (*ScheduledJob.__struct_fields__, "every", "tz", "missed")
_LOG_KEYS = ("partitions", "retention", "metadata", *SCHEMA_KEYS)
_QUEUE_KEYS = (*QueueSpec.__struct_fields__, "metadata", *SCHEMA_KEYS)
_TOKEN_KEYS = ("permissions", "expires")

SYNONYMS = {
    "table": {"topics": "logs", "streams": "logs", "channels": "rooms", "jobs": "schedules"},
    "log": {"retain": "retention", "ttl": "retention"},
    "retention": {"days": "age", "time": "age", "size": "bytes", "records": "count"},
    "queue": {
        "log": "sources",
        "logs": "sources",
        "from": "sources",
        "retries": "max_attempts",
        "timeout": "lease",
        "visibility_timeout": "lease",
        "dlq": "dead_letter",
    },
    "schedule": {"cron": "every", "timezone": "tz", "kwargs": "arguments", "args": "arguments"},
    "token": {"allow": "permissions", "scopes": "permissions", "rights": "permissions"},
}
"""Names that other systems have for our settings, by noun; a message suggests ours."""


class Mistake(Struct, frozen=True):
    """A mistake in a file: the tables and the key, and a sentence."""

    path: Path
    text: str

    def __str__(self) -> str:
        """Return the sentence with its table."""
        table = ".".join(map(key_text, self.path[:2]))
        return f"[{table}]: {self.text}" if table else self.text


class MistakeList:
    """Collects the mistakes of a file."""

    def __init__(self) -> None:
        self.found_so_far: list[Mistake] = []

    def add(self, path: Path, text: str) -> None:
        """Note a mistake."""
        self.found_so_far.append(Mistake(path, text))

    @contextmanager
    def at(self, *path: str) -> Iterator[None]:
        """Catch `InvalidInput` in the block, and note it as a mistake at a path of the file."""
        try:
            yield
        except InvalidInput as error:
            self.add(path, " ".join(str(error).split()))

    def unknown(
        self, path: Path, noun: str, table: Mapping[str, Any], keys: Collection[str]
    ) -> bool:
        """Note the keys of a table that are no settings; return True if the table has an unknown key."""
        unknown = [key for key in table if key not in keys]
        for key in unknown:
            self.add((*path, key), f"a {noun} has no setting {key!r}{_suggestion(noun, key, keys)}")
        return bool(unknown)


def _suggestion(noun: str, key: str, keys: Collection[str]) -> str:
    """Return the end of a message about an unknown key: our name for it, or the known keys."""
    synonym = SYNONYMS.get(noun, {}).get(key)
    return f": did you mean {synonym!r}?" if synonym else did_you_mean(key, keys)


def parse(
    document: Mapping[str, Any], now_ms: int, folder: PathOfFile = PathOfFile()
) -> tuple[Topology, list[Mistake]]:
    """Return the topology of a document, and all mistakes in the document.

    The paths of schemas begin at a folder, by default the working folder.
    """
    load = loader(folder)
    mistakes = MistakeList()
    tables: dict[str, Any] = {}
    parsers: dict[str, Callable[[str, dict[str, Any]], Any]] = {
        "logs": lambda name, table: _log(name, table, mistakes, load),
        "queues": lambda name, table: _queue(name, table, mistakes, load),
        "rooms": lambda name, table: _room(name, table, mistakes),
        "schedules": lambda name, table: _schedule(name, table, mistakes, now_ms),
        "tokens": lambda name, table: _token(name, table, mistakes),
    }
    for kind, entries in document.items():
        if kind not in TABLES:
            mistakes.add((kind,), _no_table(kind))
        elif not isinstance(entries, dict):
            mistakes.add(
                (kind,),
                f"{kind} must be a table of names, such as [{kind}.NAME], not {entries!r:.100}",
            )
        else:
            tables[kind] = _entries(kind, entries, parsers[kind], mistakes)
    return Topology(**tables), mistakes.found_so_far


def _no_table(kind: str) -> str:
    if kind in ("backup", "backups"):
        return "backups are a setting of the server: write [backup] into millstream.toml"
    if kind == "serve":
        return "[serve] has settings of the server: write it into millstream.toml"
    return f"a topology has no table {kind!r}{_suggestion('table', kind, TABLES)}"


def _entries(
    kind: str,
    entries: dict[str, Any],
    parser: Callable[[str, dict[str, Any]], T | None],
    mistakes: MistakeList,
) -> dict[str, T]:
    parsed: dict[str, T] = {}
    for name, table in entries.items():
        if not isinstance(table, dict):
            mistakes.add((kind, name), f"{name!r} must be a table of settings, not {table!r:.100}")
            continue
        with mistakes.at(kind, name):
            value = parser(name, table)
            if value is not None:
                parsed[name] = value
    return parsed


def _log(name: str, table: dict[str, Any], mistakes: MistakeList, load: Load) -> WantedLog | None:
    path = ("logs", name)
    check_log_name(name)
    if mistakes.unknown(path, "log", table, _LOG_KEYS):
        return None
    partitions = table.get("partitions", 0)
    if type(partitions) is not int or not 0 <= partitions <= PARTITIONS_MAX:
        raise InvalidInput(f"partitions is from 1 to {PARTITIONS_MAX:,}, not {partitions!r:.100}")
    if partitions:
        check_whole_name(name)
    retention = _retention_table(table.get("retention", {}))
    metadata = _metadata(table)
    if mistakes.unknown((*path, "retention"), "retention", retention, _RETENTION_KEYS):
        return None
    return WantedLog(
        partitions=partitions,
        retention=_retention(retention),
        metadata=metadata,
        schema=wanted_schema(table, load),
    )


def _metadata(table: dict[str, Any]) -> dict[str, Any]:
    """Return the checked entries of the metadata of a log or queue."""
    metadata: dict[str, Any] = _json("metadata", _table_of("metadata", table))
    for key in metadata:
        check_name(key, "metadata")
    if PARTITIONS_KEY in metadata:
        raise InvalidInput(
            f"the metadata {PARTITIONS_KEY!r} is the store's own; write partitions = 4"
        )
    return metadata


def check_log_name(name: str) -> None:
    """Refuse the name of a log that belongs to a queue, a room, a partitioned log or the store."""
    check_name(name)
    if not is_public_log(name):
        raise InvalidName(
            f"the log {name!r} belongs to a queue, a room, a job, another log or the store; "
            "name the queue, the room or the other log instead",
            name=name,
        )


def is_public_log(name: str) -> bool:
    """Return whether a log is part of a topology, and not made by Millstream."""
    return (
        not name.startswith((*PRIVATE, GROUP_LOG))
        and FORK_NAME not in name
        and PARTITION not in name
    )


def _retention_table(value: Any) -> dict[str, Any]:
    """Return the rules of a retention; a text is an age, a size with a unit, or `consumed`."""
    if isinstance(value, dict):
        return value
    text = value.strip() if isinstance(value, str) else ""
    if text == "consumed":
        return {"consumed": True}
    if text[-1:] in ("b", "B"):
        return {"bytes": text}
    if is_duration(text) and not text.isdecimal():
        return {"age": text}
    raise InvalidInput(
        'retention is an age such as "7d", a size such as "10GiB", "consumed", or a table such as '
        f'{{ age = "7d", count = 1000 }}, not {value!r:.100}'
    )


def _retention(table: dict[str, Any]) -> Retention:
    values = {"age": None, "bytes": None, "count": None, "consumed": False, **table}
    if isinstance(values["age"], str):
        values["age"] = parse_duration(values["age"])
    if isinstance(values["bytes"], str):
        values["bytes"] = parse_size(values["bytes"])
    for name in ("bytes", "count"):
        value = values[name]
        if value is not None and (type(value) is not int or value < 0):
            raise InvalidInput(f"retention by {name} is a whole number from 0, not {value!r:.100}")
    if type(values["consumed"]) is not bool:
        raise InvalidInput(f"consumed is true or false, not {values['consumed']!r:.100}")
    rules = retention_of(**values)
    if rules.age_ms is not None and rules.age_ms < 0:
        raise InvalidInput(f"retention by age is a duration such as 7d, not {values['age']!r:.100}")
    return rules


def _queue(
    name: str, table: dict[str, Any], mistakes: MistakeList, load: Load
) -> WantedQueue | None:
    check_name(name, "queue")
    if name in OWN_QUEUES:
        raise InvalidName(f"the queue {name!r} is made by Millstream; leave it out", name=name)
    if mistakes.unknown(("queues", name), "queue", table, _QUEUE_KEYS):
        return None
    settings = {key: value for key, value in table.items() if key in QueueSpec.__struct_fields__}
    settings = _with_units(settings, _QUEUE_HINTS)
    if "backoff" in settings:
        settings["backoff"] = _backoff(settings["backoff"])
    spec = queue_altered(QueueSpec(), settings)
    spec.check()
    check_dead_letter(name, spec)
    check_changes(name, spec)
    has_start = any(key in table for key in FIXED)
    return WantedQueue(
        spec=spec,
        has_start=has_start,
        metadata=_metadata(table),
        schema=wanted_schema(table, load),
    )


def _backoff(value: Any) -> Any:
    if isinstance(value, str):
        return backoff_of_text(value)
    if isinstance(value, list):
        return [parse_duration(wait) if isinstance(wait, str) else wait for wait in value]
    if not isinstance(value, dict):
        return value
    for key in value:
        if key not in Backoff.__struct_fields__:
            keys = did_you_mean(key, Backoff.__struct_fields__)
            raise InvalidInput(f"a backoff has no setting {key!r}{keys}")
    try:
        return convert(value, Backoff)
    except ValidationError as error:
        raise InvalidInput(f"backoff: {error}") from None


def _room(name: str, table: dict[str, Any], mistakes: MistakeList) -> RoomSettings | None:
    log_of(name)  # checks the name
    if FORK_NAME in name:
        raise InvalidName(f"a room name has no {FORK_NAME!r} in it: {name!r}", name=name)
    if mistakes.unknown(("rooms", name), "room", table, RoomSettings.__struct_fields__):
        return None
    settings = room_altered(DEFAULTS, _with_units(table, _ROOM_HINTS))
    settings.check()
    return settings


def _with_units(table: dict[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with durations and sizes as numbers; `hints` name the type of each setting."""
    settings = dict(table)
    for name, value in table.items():
        if isinstance(value, str) and hints[name] == Seconds:
            settings[name] = parse_duration(value)
        elif isinstance(value, str) and name.endswith("bytes_max"):
            settings[name] = parse_size(value)
    return settings


def _schedule(
    name: str, table: dict[str, Any], mistakes: MistakeList, now_ms: int
) -> Schedule | None:
    check_name(name, "schedule")
    if mistakes.unknown(("schedules", name), "schedule", table, _SCHEDULE_KEYS):
        return None
    for key in ("task", "every"):
        if key not in table:
            raise InvalidInput(f"a schedule needs {key!r}")
    job = {
        key: _json(key, value)
        for key, value in table.items()
        if key in ScheduledJob.__struct_fields__
    }
    check_task_name(job["task"])
    try:
        scheduled = convert(job, ScheduledJob)
    except ValidationError as error:
        raise InvalidInput(f"schedule {name!r}: {error}") from None
    every = table["every"]
    if isinstance(every, str) and is_duration(every):
        every = parse_duration(every)
    tz, missed = table.get("tz", "UTC"), table.get("missed", "once")
    return define(name, scheduled, every, tz=tz, missed=missed, now_ms=now_ms)


def _token(name: str, table: dict[str, Any], mistakes: MistakeList) -> WantedToken | None:
    check_name(name, "token")
    if mistakes.unknown(("tokens", name), "token", table, _TOKEN_KEYS):
        return None
    permissions = table.get("permissions", [])
    if not isinstance(permissions, list) or not all(isinstance(text, str) for text in permissions):
        raise InvalidInput(f"permissions are a list of texts, not {permissions!r:.100}")
    allowed = [str(permission) for permission in parse_permissions(permissions)]
    return WantedToken(permissions=allowed, expires_ms=_expiry(table.get("expires")))


def _expiry(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            pass  # refused below
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidInput(
            f"expires is a time with a zone such as 2027-01-31T00:00:00Z, not {value!s:.100}"
        )
    return wall_ms_of(value)


def _table_of(key: str, table: dict[str, Any]) -> dict[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise InvalidInput(f"{key} must be a table, not {value!r:.100}")
    return value


def _json(key: str, value: Any) -> Any:
    """Return a JSON value of a file; refuse times and other values that JSON does not have."""
    try:
        return check_json(from_plain(value))
    except ValueError as error:
        raise InvalidInput(f"{key}: {error}") from None
