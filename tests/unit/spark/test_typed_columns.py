"""Promise: the fields of a schema become columns whose types survive every change that is compatible."""

from __future__ import annotations

import datetime
import json

import pyarrow as pa
import pytest

from millstream.errors import InvalidInput
from millstream.schema import model as m
from millstream.spark.archive.partitioning import NULL, PartitionBy, escaped, partition_by
from millstream.spark.archive.typed_columns import (
    CORRUPT,
    as_schema,
    typed_columns,
    union,
)


def schema(**types: m.AnyOf) -> m.StructType:
    return m.StructType(
        fields=tuple(
            m.SchemaField(name=name, type=kind, required=False) for name, kind in types.items()
        )
    )


def rows(*values: object) -> pa.RecordBatch:
    encoded = [
        value if isinstance(value, bytes | None) else json.dumps(value).encode() for value in values
    ]
    return pa.record_batch(
        {
            "value": pa.array(encoded, pa.binary()),
            "offset": pa.array(range(len(encoded)), pa.int64()),
        }
    )


def test_each_field_is_a_column_and_a_misfit_is_reported() -> None:
    columns = typed_columns(
        schema(
            id=m.IntegerType(bits=32),
            total=m.NumberType(bits=32),
            tags=m.ListType(items=m.TextType()),
            more=m.MapType(values=m.IntegerType()),
            at=m.TimestampType(),
            inner=schema(x=m.IntegerType()),
        )
    )
    given = {
        "id": 1,
        "total": 2.5,
        "tags": ["a"],
        "more": {"k": 1},
        "at": "2026-01-02T03:04:05Z",
        "inner": {"x": 7},
    }
    found = columns.added_to(rows(given, None, {"id": "one"}, b"\xff")).to_pylist()
    assert found[0] == {
        "value": json.dumps(given).encode(),
        "offset": 0,
        "id": 1,
        "total": 2.5,
        "tags": ["a"],
        "more": [("k", 1)],
        "at": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        "inner": {"x": 7},
        CORRUPT: None,
    }
    assert [one["id"] for one in found] == [1, None, None, None]
    assert [one[CORRUPT] for one in found] == [
        None,
        None,
        '{"id": "one"}',
        "\N{REPLACEMENT CHARACTER}",
    ]


def test_numbers_that_widen_keep_their_columns() -> None:
    narrow = schema(n=m.IntegerType(bits=32), d=m.NumberType(bits=32))
    wide = schema(n=m.IntegerType(), d=m.NumberType(), new=m.TextType())
    before, after = typed_columns(narrow).fields(), typed_columns(wide).fields()
    assert union([before, after]).names == ["n", "d", CORRUPT, "new"]


def test_structs_grow_and_rows_of_before_have_nulls() -> None:
    old = typed_columns(schema(s=schema(x=m.IntegerType())))
    new = typed_columns(schema(s=schema(x=m.IntegerType(), y=m.TextType()), z=m.BooleanType()))
    both = union([old.fields(), new.fields()])
    batch = old.added_to(rows({"s": {"x": 1}})).select(["s", CORRUPT])
    assert as_schema(batch, both).to_pylist() == [
        {"s": {"x": 1, "y": None}, CORRUPT: None, "z": None}
    ]


def test_a_type_that_changes_is_refused_by_name() -> None:
    before = typed_columns(schema(id=m.IntegerType())).fields()
    after = typed_columns(schema(id=m.TextType())).fields()
    with pytest.raises(InvalidInput, match=r"column .id. has the type int64 already, .* string"):
        union([before, after])


def test_names_that_are_taken_get_a_prefix() -> None:
    fields = ("key", "Offset", "id", "ID", "value_key", "value", "plain")
    columns = typed_columns(schema(**{name: m.TextType() for name in fields}))
    assert columns.names == (
        *("value_key", "value_Offset", "id", "value_ID", "value_value_key", "value_value", "plain"),
    )
    (found,) = columns.added_to(rows({"key": "k", "ID": "i"})).to_pylist()
    assert (found["value_key"], found["value_ID"], found["id"]) == ("k", "i", None)


def test_what_parquet_cannot_hold_has_no_column() -> None:
    nothing = schema()
    columns = typed_columns(schema(a=nothing, b=m.ListType(items=nothing), c=schema(d=nothing)))
    assert [field.name for field in columns.fields()] == [CORRUPT]
    assert columns.added_to(rows({}, None)).column(CORRUPT).null_count == 2


def test_rows_are_split_by_values_and_by_days() -> None:
    day = 86_400_000_000
    times = pa.array([-1, 0, day, None, day - 1], pa.timestamp("us", tz="UTC"))
    batch = pa.record_batch(
        {
            "at": times,
            "n": pa.array([1, None, 1, 2, 2], pa.int64()),
            "b": [True, False, True, None, None],
            "day": pa.array([0, 1, 0, None, 1], pa.date32()),
            "number": pa.array(range(5)),
        }
    )

    def split(by: PartitionBy) -> dict[str, list[int]]:
        return {value: part.column("number").to_pylist() for value, part in by.split(batch)}

    assert split(partition_by("at", batch.schema)) == {
        "1969-12-31": [0],
        "1970-01-01": [1, 4],
        "1970-01-02": [2],
        NULL: [3],
    }
    assert split(partition_by("day", batch.schema)) == {
        "1970-01-01": [0, 2],
        "1970-01-02": [1, 4],
        NULL: [3],
    }
    assert split(partition_by("n", batch.schema)) == {"1": [0, 2], NULL: [1], "2": [3, 4]}
    assert split(partition_by("b", batch.schema)) == {"true": [0, 2], "false": [1], NULL: [3, 4]}


def test_any_value_names_a_directory() -> None:
    by = PartitionBy("land", by_day=False)
    assert by.directory("DE/Köln=1") == "by_land=DE%2FKöln%3D1"
    assert by.directory("") == by.directory(NULL)  # readers of directories refuse an empty value
    long = by.directory("ü" * 5_000)
    assert len(long.encode()) <= 200
    assert long != by.directory("ü" * 5_001)
    assert escaped("log", "a") == "log=a"


def test_a_column_that_cannot_make_partitions_is_refused() -> None:
    made = pa.schema([("d", pa.float64()), ("n", pa.int64())])
    with pytest.raises(InvalidInput, match=r"column .d. is double; partitions are by"):
        partition_by("d", made)
    with pytest.raises(
        InvalidInput, match=r"there is no column .x. to partition by; .* one of d, n"
    ):
        partition_by("x", made)
    assert partition_by("", made) == partition_by("date", made) == PartitionBy()
