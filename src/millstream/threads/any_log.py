# Generated from src/millstream/aio/any_log.py by `make generate`: change that file, not this one.

"""What a log and a log with partitions have in common, as threads hold them."""

from __future__ import annotations

from typing import Any, Literal

from millstream.command import Session
from millstream.errors import InvalidInput
from millstream.log import commands as c
from millstream.numbers import checked_numbers
from millstream.record import LogInfo, Retention, Seconds, retention_of, to_ms
from millstream.rooms.commands import BrowserRight, MintBrowserTicket
from millstream.rooms.model import NounTicket
from millstream.schema.evolution import conflicts_with
from millstream.schema.history import SchemaMode, SchemaVersion, check_mode
from millstream.schema.source import schema_of


@checked_numbers
class AnyLog:
    """A name and a session; what is asked of a log with partitions is asked of each of them."""

    def __init__(self, session: Session, name: str) -> None:
        self.name = name
        self._session = session

    def __bool__(self) -> bool:
        """Always True, also of an empty log: `log or other` asks whether there is a handle.

        Without it `__len__` would decide, by a question to the store. `is_empty` asks for records.
        """
        return True

    def info(self) -> LogInfo | None:
        """Return the line of a listing, summed over all partitions; None if the log does not exist."""
        return self._session.execute(c.DescribeLog(self.name))

    def retention(self) -> Retention:
        """Return the retention of the log, or of each partition."""
        info = self.info()
        return Retention() if info is None else info.retention

    def retain(
        self,
        *,
        age: Seconds | None = None,
        bytes: int | None = None,
        count: int | None = None,
        consumed: bool = False,
    ) -> None:
        """Set the rules by which the log deletes records, from the oldest on, and replace the earlier rules.

        A record goes as soon as one rule lets it go: if it is older than `age` (seconds or a
        `timedelta`, by the time of its append), if the log has more than `bytes` or more than `count`
        records, or if `consumed` is True and every durable cursor and queue has passed it. None (the
        default) is no rule of that kind: a call of `retain()` keeps every record. The first call creates the log.
        Of a log with partitions, `bytes` and `count` are those of one partition.
        """
        self._set(retention_of(age=age, bytes=bytes, count=count, consumed=consumed))

    def _set(self, rules: Retention) -> None:
        self._session.execute(c.SetRetention(self.name, rules))

    def schema(self) -> SchemaVersion | None:
        """Return the newest version of the log's schema; None without a schema."""
        versions = self.schemas()
        return versions[-1] if versions else None

    def schemas(self) -> list[SchemaVersion]:
        """Return the versions of the log's schema, the oldest first.

        A record was checked against the newest version whose `start` is at or before its offset. For a
        log with partitions the offsets are those of the first partition.
        """
        return self._session.execute(c.GetSchemas(self.name))

    def set_schema(
        self, schema: Any, *, mode: SchemaMode = "enforce", force: bool = False
    ) -> SchemaVersion:
        """Give the log a schema, or its schema another version, and return the newest version.

        `schema` is a msgspec struct, a dataclass, a TypedDict, a JSON Schema or an Avro schema (as a
        dict or text). From then on each record must be JSON that fits, else `InvalidInput` names the
        field; with `mode="warn"` such a record is stored, counted and logged. A version of the log that
        is set again changes nothing but the mode. A change that is not compatible raises `InvalidInput`
        with each conflict, unless `force` is True. docs/SCHEMAS.md has the rules.
        """
        command = c.SetSchema(self.name, schema_of(schema), check_mode(mode), force)
        return self._session.execute(command)

    def check_schema(self, schema: Any) -> list[str]:
        """Return a sentence for each conflict of a schema with that of the log; nothing is changed."""
        versions = self.schemas()
        return conflicts_with([version.schema for version in versions], schema_of(schema))

    def delete_schema(self) -> bool:
        """Forget the schema and its versions: any value may be appended; False without a schema."""
        return self._session.execute(c.DeleteSchema(self.name))

    def enforce_retention(self) -> int:
        """Forget now what may be forgotten, rather than in the background; how many went."""
        return self._session.execute(c.EnforceRetention(self.name))

    def ticket(self, can: Literal["read", "write"] = "read", expires: Seconds = 60) -> NounTicket:
        """Return a ticket by which a browser uses this log, without a token.

        `can` is "read" (the default) or "write", which appends too. `expires` is the time until the
        ticket ends: 60 seconds by default, an hour at most.
        """
        seconds = to_ms(expires, "expires") / 1000
        right: BrowserRight = "log:write" if can == "write" else "log:read"
        if can not in ("read", "write"):
            raise InvalidInput(f"a ticket of a log can 'read' or 'write', not {can!r:.100}")
        return self._session.execute(MintBrowserTicket(self.name, right, seconds))
