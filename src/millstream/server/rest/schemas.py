"""Schemas over REST: show, set, check and delete the schema of a log."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from millstream.aio.log import Log
from millstream.errors import NotFound
from millstream.log import commands as c
from millstream.schema.history import SchemaMode, SchemaVersion, check_mode
from millstream.schema.source import schema_of
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints
from millstream.server.rest.logs import Existed


class SchemaBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A schema for a log."""

    schema: dict[str, Any] | str
    """A JSON Schema or an Avro schema: an object, or its text."""
    mode: SchemaMode = "enforce"
    """`enforce` refuses records that do not fit, `warn` stores, counts and logs them."""
    force: bool = False
    """Whether to accept a schema that is not compatible; needs `log:admin`."""


class CheckBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A schema to compare with that of a log."""

    schema: dict[str, Any] | str
    """A JSON Schema or an Avro schema: an object, or its text."""


class SchemaShown(Struct, kw_only=True):
    """A version of the schema of a log."""

    version: int
    """Counts from 1."""
    start: int
    """The offset of the first record that was checked against this version."""
    created: datetime
    mode: SchemaMode
    """What happens to records that do not fit: `enforce` or `warn`."""
    forced: bool
    """Whether it was set in spite of conflicts with the version before."""
    schema: dict[str, Any]
    """As JSON Schema, draft 2020-12."""
    spark: str
    """As the columns of Spark, in DDL."""


class SchemaList(Struct, kw_only=True):
    """The versions of the schema of a log, the oldest first."""

    versions: list[SchemaShown]
    """Empty if the log has no schema."""


class SchemaConflicts(Struct, kw_only=True):
    """Whether a log would take a schema without force."""

    compatible: bool
    """Whether there is no conflict."""
    conflicts: list[str]
    """A sentence for each change that is not compatible, with the path of its field."""


endpoint = Endpoints("logs")


@endpoint("PUT /logs/{log}/schema", errors=(409,))
async def set_schema(ask: Ask, log: str, body: SchemaBody) -> SchemaShown:
    """Give a log a schema, or another version of its schema.

    A version that the log has changes nothing but the mode. A schema that is not compatible with the
    newest version is refused with each conflict, unless `force` is true.
    """
    schema, mode = schema_of(body.schema), check_mode(body.mode)
    return shown(await ask.execute(c.SetSchema(log, schema, mode, body.force)))


@endpoint("GET /logs/{log}/schema", errors=(404,))
async def get_schema(ask: Ask, log: str) -> SchemaShown:
    """Show the newest version of the schema of a log."""
    version = await Log(ask, log).schema()
    if version is None:
        raise NotFound(f"log {log!r} has no schema; PUT /logs/{log}/schema gives it one", log=log)
    return shown(version)


@endpoint("GET /logs/{log}/schemas")
async def list_schemas(ask: Ask, log: str) -> SchemaList:
    """Show all versions of the schema of a log, the oldest first.

    A record was checked against the newest version whose `start` is at or before its offset.
    """
    return SchemaList(versions=[shown(each) for each in await Log(ask, log).schemas()])


@endpoint("POST /logs/{log}/schema/check")
async def check_schema(ask: Ask, log: str, body: CheckBody) -> SchemaConflicts:
    """Compare a schema with the newest version of a log's schema, and change nothing."""
    conflicts = await Log(ask, log).check_schema(body.schema)
    return SchemaConflicts(compatible=not conflicts, conflicts=conflicts)


@endpoint("DELETE /logs/{log}/schema", errors=(409,))
async def delete_schema(ask: Ask, log: str) -> Existed:
    """Forget the schema of a log with its versions: any value may be appended."""
    return Existed(deleted=await ask.execute(c.DeleteSchema(log)))


def shown(version: SchemaVersion) -> SchemaShown:
    """Return what an answer says of a version."""
    return SchemaShown(
        version=version.version,
        start=version.start,
        created=version.created,
        mode=version.mode,
        forced=version.forced,
        schema=version.json_schema(),
        spark=version.spark(),
    )
