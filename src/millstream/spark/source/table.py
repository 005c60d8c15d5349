"""Tables of SQL: `CREATE TABLE … USING millstream OPTIONS (…)`.

Spark keeps the options of a table, but passes none of them to a Python source when a query uses the
table. Spark does pass the columns with their metadata. So `CREATE TABLE` notes the options in the
metadata of the first column. Secrets are never noted: a table names a file that holds the token.

Notes travel with rows: rows of a write may carry the notes of the table that they were read from.
So a write ignores notes and needs options of its own. For a temporary view Spark passes the options
to reads and writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from millstream.errors import InvalidInput
from millstream.spark.option_texts import NAMES
from millstream.spark.options import read_options, write_options
from millstream.spark.source.layout import schema_of, sink_schema
from millstream.spark.source.typed_rows import value_fields

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NOTE = "millstream.options"
_MADE_BY_SQL = ("provider", "owner")

Options = Mapping[str, str]
"""Options as Spark hands them over, their names in small letters."""


def columns_of(options: Options) -> StructType:
    """Return the columns of a read or of a write; for a table of SQL, note the options in them."""
    if not all(name in options for name in _MADE_BY_SQL):
        return _columns_of(options)
    table_options = {name: value for name in NAMES if (value := options.get(name.lower()))}
    if "token" in table_options:
        raise InvalidInput(
            "option token: would be visible to all users of the catalog; name a file that holds "
            "it in the option tokenFile"
        )
    columns = _columns_of({name.lower(): value for name, value in table_options.items()})
    columns.fields[0].metadata = {NOTE: msgspec.json.encode(table_options).decode()}
    return columns


def _columns_of(options: Options) -> StructType:
    writes = options.get("log") or options.get("topic")
    puts = options.get("queue") and not options.get("state")
    if (writes or puts) and not _subscribes(options):
        write_options(options)
        return sink_schema()
    read = read_options(options)
    return schema_of(read, value_fields(read))


def _subscribes(options: Options) -> bool:
    is_assigned = options.get("assign", "").lstrip().startswith("{")  # a sink says true
    return bool(options.get("subscribe") or options.get("subscribepattern") or is_assigned)


def reading_of(options: Options, schema: StructType) -> dict[str, str]:
    """Return the options of a read: options of the query, then the noted options of the table."""
    read = dict(options)
    if not (read.get("path") or read.get("server")):
        noted = next(
            (field.metadata[NOTE] for field in schema.fields if NOTE in field.metadata), "{}"
        )
        table_options = msgspec.json.decode(noted, type=dict[str, str])
        read = {name.lower(): value for name, value in table_options.items()} | read
    if not read:
        raise InvalidInput(
            "Spark hands no options over: of a table that was made with a list of columns it "
            "forgets them. Make it without the list, or say them with each use: "
            "SELECT … FROM t WITH (path = '…', subscribe = '…')"
        )
    log = read.pop("log", "") or read.pop("topic", "")
    if log and not _subscribes(read):
        read["subscribe"] = log  # a table that is written to is read too
    return read


def check_target(options: Options) -> None:
    """Refuse a write without options, because Spark passes the options of a table to no write."""
    if not options:
        raise InvalidInput(
            "Spark hands the options of a table to no write: say INSERT INTO t WITH (`path` = '…', "
            "`log` = '…') …, or insert into a temporary view, which keeps them"
        )
