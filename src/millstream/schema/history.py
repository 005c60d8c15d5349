"""The history of a log's schema: the versions, and the offsets from which records were checked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from millstream.errors import InvalidInput, TooLarge
from millstream.schema.evolution import conflicts_with
from millstream.schema.model import StructType
from millstream.schema.outputs import avro_of, json_schema_of
from millstream.schema.spark_types import spark_ddl

SchemaMode = Literal["enforce", "warn"]
"""Whether records that do not fit are refused, or counted and stored."""

MODES: tuple[SchemaMode, ...] = ("enforce", "warn")

HISTORY_BYTES_MAX = 256 * 1024
"""Bytes of all versions of a log: the store keeps them in one row, in memory while the log is in use."""


class SchemaVersion(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version of the schema of a log."""

    version: int
    """Counts from 1."""
    start: int
    """The offset of the first record that was checked against this version."""
    created: datetime
    mode: SchemaMode = "enforce"
    forced: bool = False
    """Whether the version was set in spite of conflicts with the version before."""
    schema: StructType

    def json_schema(self) -> dict[str, Any]:
        """Return the schema as JSON Schema, draft 2020-12."""
        return json_schema_of(self.schema)

    def avro(self) -> dict[str, Any]:
        """Return the schema as an Avro schema; raises `InvalidInput` for names that Avro does not have."""
        return avro_of(self.schema)

    def spark(self) -> str:
        """Return the schema as the columns of Spark, such as `id BIGINT NOT NULL, note STRING`."""
        return spark_ddl(self.schema)


def check_mode(mode: str) -> SchemaMode:
    """Return a mode; raise for other texts."""
    for valid_mode in MODES:
        if mode == valid_mode:
            return valid_mode
    raise InvalidInput(f"schema_mode is 'enforce' or 'warn', not {mode!r:.100}")


def version_at(versions: Sequence[SchemaVersion], offset: int) -> SchemaVersion | None:
    """Return the version against which the record at an offset was checked; None before the first."""
    return next((each for each in reversed(versions) if each.start <= offset), None)


def with_schema(
    versions: Sequence[SchemaVersion],
    schema: StructType,
    *,
    log: str,
    mode: SchemaMode,
    end: int,
    start: int,
    now: datetime,
    force: bool = False,
) -> list[SchemaVersion]:
    """Return the history after a schema was set; a schema of the history adds no version.

    Programs are replaced in turns, and old programs set the earlier version again: only the mode changes.
    With `force` the earlier version becomes the newest version again.
    """
    if not versions:
        return [SchemaVersion(version=1, start=end, created=now, mode=mode, schema=schema)]
    newest = versions[-1]
    is_known = any(each.schema == schema for each in versions)
    if newest.schema == schema or (is_known and not force):
        return [*versions[:-1], replace(newest, mode=mode)]
    breaks = conflicts_with([each.schema for each in versions], schema)
    if breaks and not force:
        raise incompatible(log, newest.version, breaks)
    version = SchemaVersion(
        version=newest.version + 1,
        start=end,
        created=now,
        mode=mode,
        forced=bool(breaks),
        schema=schema,
    )
    return _bounded([*versions, version], log=log, start=start)


def incompatible(log: str, version: int, breaks: Sequence[str]) -> InvalidInput:
    """Return the error that names the conflicts of a schema with a version."""
    shown = "; ".join(breaks[:10]) + (f"; and {len(breaks) - 10} more" if len(breaks) > 10 else "")
    return InvalidInput(
        f"the schema does not fit version {version} of log {log!r}: {shown}. Nothing was changed; add "
        "optional fields and widen types, or say force=True",
        log=log,
        version=version,
        conflicts=list(breaks),
    )


def _bounded(versions: list[SchemaVersion], *, log: str, start: int) -> list[SchemaVersion]:
    """Forget the oldest versions without records, if the history has grown too large."""
    while (size := len(msgspec.json.encode(versions))) > HISTORY_BYTES_MAX:
        if len(versions) < 3 or versions[1].start > start:
            raise TooLarge(
                f"the schemas of log {log!r} would have {size:,} bytes; the limit is "
                f"{HISTORY_BYTES_MAX:,}: truncate the records of its oldest version, or begin a new log",
                size=size,
                limit=HISTORY_BYTES_MAX,
            )
        del versions[0]
    return versions
