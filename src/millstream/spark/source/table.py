"""Tables of SQL: `CREATE TABLE … USING millstream OPTIONS (…)`.

Spark keeps the options of a table, and hands none of them to a Python source when the table is used.
What it does hand over is the table's columns with their notes; so when a table is made, its options
are noted at its first column. Secrets are not among them: a table names a file that holds the token.

Notes travel with rows. Where rows are written, the notes at hand may be those of the table that they
come from, so a write never believes them: it is told its options, or refused. A temporary view has its
options handed over in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from millstream.errors import InvalidInput
from millstream.spark.option_texts import NAMES
from millstream.spark.options import read_options, write_options
from millstream.spark.source.layout import schema_of, sink_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NOTE = "millstream.options"
_MADE_BY_SQL = ("provider", "owner")

Options = Mapping[str, str]
"""Options as Spark hands them over, their names in small letters."""


def columns_of(options: Options) -> StructType:
    """The columns of a read, or of what can be written; a table of SQL has its options noted."""
    if not all(name in options for name in _MADE_BY_SQL):
        return _columns_of(options)
    kept = {name: value for name in NAMES if (value := options.get(name.lower()))}
    if "token" in kept:
        raise InvalidInput(
            "option token: would be visible to all users of the catalog; name a file that holds "
            "it in the option tokenFile"
        )
    found = _columns_of({name.lower(): value for name, value in kept.items()})
    found.fields[0].metadata = {NOTE: msgspec.json.encode(kept).decode()}
    return found


def _columns_of(options: Options) -> StructType:
    writes = options.get("log") or options.get("topic")
    puts = options.get("queue") and not options.get("state")
    if (writes or puts) and not _subscribes(options):
        write_options(options)
        return sink_schema()
    return schema_of(read_options(options))


def _subscribes(options: Options) -> bool:
    is_assigned = options.get("assign", "").lstrip().startswith("{")  # a sink says true
    return bool(options.get("subscribe") or options.get("subscribepattern") or is_assigned)


def reading_of(options: Options, schema: StructType) -> dict[str, str]:
    """The options of a read: its table's, and those of this use of it, which come first."""
    found = dict(options)
    if not (found.get("path") or found.get("server")):
        noted = next((one.metadata[NOTE] for one in schema.fields if NOTE in one.metadata), "{}")
        kept = msgspec.json.decode(noted, type=dict[str, str])
        found = {name.lower(): value for name, value in kept.items()} | found
    if not found:
        raise InvalidInput(
            "Spark hands no options over: of a table that was made with a list of columns it "
            "forgets them. Make it without the list, or say them with each use: "
            "SELECT … FROM t WITH (path = '…', subscribe = '…')"
        )
    log = found.pop("log", "") or found.pop("topic", "")
    if log and not _subscribes(found):
        found["subscribe"] = log  # a table that is written to is read too
    return found


def check_target(options: Options) -> None:
    """Refuse a write without options; a table has none of its own."""
    if not options:
        raise InvalidInput(
            "Spark hands the options of a table to no write: say INSERT INTO t WITH (`path` = '…', "
            "`log` = '…') …, or insert into a temporary view, which keeps them"
        )
