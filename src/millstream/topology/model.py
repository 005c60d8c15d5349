"""The values of a topology: what a file wants, what a store has, and the changes between both."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from millstream.errors import InvalidInput
from millstream.jobs.schedule import Schedule
from millstream.queue.model.message import QueueInfo
from millstream.queue.model.spec import QueueSpec
from millstream.record import LogInfo, Retention
from millstream.rooms.model import RoomInfo
from millstream.rooms.settings import RoomSettings
from millstream.schema.history import SchemaMode, SchemaVersion
from millstream.schema.model import StructType
from millstream.server.auth.register import Token
from millstream.threads.schedules import StoredSchedule

Kind = Literal["log", "queue", "room", "schedule", "token"]
Action = Literal["create", "alter", "delete"]

TABLES: dict[str, Kind] = {
    "logs": "log",
    "queues": "queue",
    "rooms": "room",
    "schedules": "schedule",
    "tokens": "token",
}
"""The tables of a file, in the order in which they are written, and what an entry of each is."""

SCHEMA_KEYS = ("schema", "schema_mode")
"""The settings of logs and queues for their schemas."""

Document = dict[str, dict[str, dict[str, Any]]]
"""A topology as a file has it: tables, names, and the settings that differ from their defaults."""


class TopologyRefused(InvalidInput):
    """A topology that cannot be applied; nothing was changed. Data: `reasons`, a list of sentences."""


class WantedSchema(Struct, frozen=True):
    """A schema of a file."""

    schema: StructType
    mode: SchemaMode


class WantedLog(Struct, frozen=True, kw_only=True):
    """A log of a file."""

    partitions: int = 0
    """0: a plain log."""
    retention: Retention = Retention()
    metadata: dict[str, Any] = {}  # msgspec copies it
    """Entries that the log must have, beside entries of applications."""
    schema: WantedSchema | None = None
    """Without a schema in the file, the log keeps its schema."""


class WantedQueue(Struct, frozen=True, kw_only=True):
    """A queue of a file."""

    spec: QueueSpec
    has_start: bool
    """Whether the file names the start. Without a start in the file, an existing queue keeps its start."""
    metadata: dict[str, Any] = {}  # msgspec copies it
    """Entries that gateways have made, such as the attributes of a queue of SQS."""
    schema: WantedSchema | None = None
    """Without a schema in the file, the queue keeps its schema."""


class WantedToken(Struct, frozen=True, kw_only=True):
    """A token of a file."""

    permissions: list[str]
    expires_ms: int | None = None


class Topology(Struct, frozen=True, kw_only=True):
    """A checked file. A table that the file does not have is None."""

    logs: dict[str, WantedLog] | None = None
    queues: dict[str, WantedQueue] | None = None
    rooms: dict[str, RoomSettings] | None = None
    schedules: dict[str, Schedule] | None = None
    tokens: dict[str, WantedToken] | None = None


class StoredLog(Struct, frozen=True):
    """A log of a store."""

    info: LogInfo
    metadata: dict[str, Any]
    schemas: list[SchemaVersion] = []  # msgspec copies it
    """The versions of its schema."""


class StoredTopology(Struct, frozen=True, kw_only=True):
    """The contents of a store, as far as a topology describes them."""

    logs: dict[str, StoredLog] = field(default_factory=dict)
    queues: dict[str, QueueInfo] = field(default_factory=dict)
    queue_schemas: dict[str, list[SchemaVersion]] = field(default_factory=dict)
    queue_metadata: dict[str, dict[str, Any]] = field(default_factory=dict)
    rooms: dict[str, RoomInfo] = field(default_factory=dict)
    schedules: dict[str, StoredSchedule] = field(default_factory=dict)
    tokens: dict[str, Token] = field(default_factory=dict)
    has_schedule_queue: bool = False
    register_end: int = 0
    """The end of the log with the tokens, as it was read."""

    def partitioned(self) -> set[str]:
        """Return the names of the logs with partitions."""
        return {name for name, log in self.logs.items() if log.info.partitions}


class TopologyChange(Struct, frozen=True, kw_only=True):
    """A difference between a file and a store."""

    action: Action
    kind: Kind
    name: str
    settings: dict[str, tuple[Any, Any]] = {}  # msgspec copies it
    """The changed settings: the value before and the value after. None: the default, or no value."""
    loses: str = ""
    """What the change deletes, for the question to the user; empty if it deletes nothing."""


class TopologyPlan(Struct, frozen=True, kw_only=True):
    """All differences between a file and a store, in the order in which they are applied."""

    changes: list[TopologyChange] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """A sentence for each change that is not allowed."""

    def check(self) -> None:
        """Raise `TopologyRefused` if a change is not allowed."""
        if self.refusals:
            raise TopologyRefused("\n".join(self.refusals), reasons=self.refusals)
