"""Tables of SQL: `CREATE TABLE … USING millstream OPTIONS (…)`.

Spark keeps the options of a table, and hands none of them to a Python source when the table is used.
What it does hand over is the table's columns with their notes; so when a table is made, its options
are noted at its first column. Secrets are not among them: a table names a file that holds the token.

Notes travel with rows. Where rows are written, the notes at hand may be those of the table that they
come from, so a write never believes them: it is told its options, or refused. A temporary view has its
options handed over in both directions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

import msgspec

from millstream.errors import InvalidInput
from millstream.spark.layout import SINK, schema_of, types_of
from millstream.spark.options import NAMES, read_options, write_options

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

NOTE = "millstream.options"
_MADE_BY_SQL = ("provider", "owner")


def is_table(options: Mapping[str, str]) -> bool:
    """Whether a table of SQL is being made."""
    return all(name in options for name in _MADE_BY_SQL)


def table_schema(options: Mapping[str, str]) -> StructType:
    """The columns of a table, with its options noted at the first."""
    from pyspark.sql.types import StructField, StructType

    kept = {name: options[name] for name in NAMES if options.get(name)}
    if "token" in kept:
        raise InvalidInput(
            "option token: would be visible to all users of the catalog; name a file that holds "
            "it in the option tokenFile"
        )
    found = [(name, _type(kind)) for name, kind in types_of(columns_of(kept)).items()]
    note = {NOTE: msgspec.json.encode(kept).decode()}
    return StructType(
        [
            StructField(name, kind, nullable=True, metadata=None if at else note)
            for at, (name, kind) in enumerate(found)
        ]
    )


def columns_of(options: Mapping[str, str]) -> str:
    """The columns of a table or view, as Spark's DDL: of a read, or of what can be written."""
    found = {name.lower(): value for name, value in options.items()}
    writes = found.get("log") or found.get("topic")
    puts = found.get("queue") and not found.get("state")
    if (writes or puts) and not found.get("subscribe") and not found.get("subscribepattern"):
        write_options(found)
        return SINK
    return schema_of(read_options(found))


def options_of(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """The options of a table that is read, and those of this use of it, which come first."""
    given = {name.lower(): value for name, value in options.items()}
    if given.get("path") or given.get("server"):
        return given
    merged = {name.lower(): value for name, value in _noted(schema).items()} | given
    return merged or _refuse()


def target_of(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a write; a table has none of its own."""
    given = {name.lower(): value for name, value in options.items()}
    if not given:
        raise InvalidInput(
            "Spark hands the options of a table to no write: say INSERT INTO t WITH (`path` = '…', "
            "`log` = '…') …, or insert into a temporary view, which keeps them"
        )
    return given


def _noted(schema: StructType) -> dict[str, str]:
    noted = next((field.metadata[NOTE] for field in schema.fields if NOTE in field.metadata), "{}")
    return msgspec.json.decode(noted, type=dict[str, str])


def _refuse() -> NoReturn:
    raise InvalidInput(
        "Spark hands no options over: of a table that was made with a list of columns it forgets "
        "them. Make it without the list, or say them with each use: "
        "SELECT … FROM t WITH (path = '…', subscribe = '…')"
    )


def reading_of(options: Mapping[str, str]) -> dict[str, str]:
    """The options to read with: of a table that is written to, its log."""
    found = {name.lower(): value for name, value in options.items()}
    log = found.pop("log", "") or found.pop("topic", "")
    if log and not found.get("subscribe") and not found.get("subscribepattern"):
        found["subscribe"] = log
    return found


def _type(kind: str) -> DataType:
    from pyspark.sql import types as t

    plain: dict[str, DataType] = {
        "binary": t.BinaryType(),
        "string": t.StringType(),
        "int": t.IntegerType(),
        "bigint": t.LongType(),
        "double": t.DoubleType(),
        "boolean": t.BooleanType(),
        "timestamp": t.TimestampType(),
    }
    if kind in plain:
        return plain[kind]
    outer = re.fullmatch(r"(array|map|struct)<(.*)>", kind)
    assert outer is not None, kind
    what, inside = outer.groups()
    if what == "array":
        return t.ArrayType(_type(inside))
    if what == "map":
        key, _, value = inside.partition(",")
        return t.MapType(_type(key), _type(value))
    fields = [one.split(":") for one in inside.split(",")]
    return t.StructType([t.StructField(name, _type(one)) for name, one in fields])
