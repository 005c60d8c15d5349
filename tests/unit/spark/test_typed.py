"""Values with a schema as columns: the check, Arrow's parser and single decoding give the same arrays."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.errors import CorruptionError, InvalidInput
from millstream.format import keys
from millstream.schema.validation import validator_of
from millstream.testing import Probe
from millstream.testing.probe import corrupt

pytestmark = pytest.mark.requires("spark")

SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "small": {"type": "integer", "format": "int32"},
        "name": {"type": ["string", "null"]},
        "ok": {"type": "boolean", "default": True},
        "ratio": {"type": "number"},
        "kind": {"enum": ["a", "b"]},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"sku": {"type": "string"}, "n": {"type": "integer"}},
                "required": ["sku"],
            },
        },
    },
    "required": ["id"],
}

SCALARS = ("id", "small", "name", "ok", "ratio", "kind")
"""Fields whose columns are made of what the check decodes."""


def some_value(random_: random.Random) -> dict[str, Any]:
    """Make a value that fits; most of its fields are missing now and then."""
    value = {
        "small": random_.randint(-(2**31), 2**31 - 1),
        "name": random_.choice([None, "", 'é\n"\\', "𝄞", "2026-01-01", "null"]),
        "ok": random_.random() < 0.5,
        "ratio": random_.choice([0, -1, 1e300, 0.1, 12345678901234567890, -0.0]),
        "kind": random_.choice("ab"),
        "at": random_.choice(
            ["2026-05-04T03:02:01Z", "1969-12-31T23:59:59.5+02:00", "2026-05-04T03:02:01.123456Z"]
        ),
        "day": random_.choice(["2026-05-04", "1900-01-01"]),
        "lines": [
            {"sku": "x", **({"n": number} if number else {})}
            for number in range(random_.randrange(3))
        ],
        "unknown": {"deep": [1, {}]},
    }
    kept = {name: item for name, item in value.items() if random_.random() < 0.8}
    return {"id": random_.randint(-(2**63), 2**63 - 1), **kept}


def kind_of(schema: Any) -> Any:
    from pyspark.sql.pandas.types import to_arrow_type

    from millstream.spark.source.typed_rows import spark_struct

    return to_arrow_type(spark_struct(schema), timezone="UTC")


@pytest.mark.parametrize("seed", range(6))
def test_all_ways_make_the_same_arrays(seed: int) -> None:
    from millstream.schema.source import schema_of
    from millstream.spark.source import typed

    random_ = random.Random(seed)
    schema = schema_of(SCHEMA)
    values: list[bytes | None] = [
        None
        if random_.random() < 0.1
        else json.dumps(some_value(random_), indent=random_.choice([None, 1])).encode()
        for _ in range(50)
    ]
    kind = kind_of(schema)
    parsed = typed.parsed_values(values, schema, kind)
    assert parsed is not None
    rows = [None if value is None else typed.decoded_row(schema, value) for value in values]
    assert parsed.to_pylist() == typed.pa.array(rows, kind).to_pylist()
    assert typed.typed_values(values, schema, kind).column.equals(parsed)
    scalars = typed.pa.struct([field for field in kind if field.name in SCALARS])
    checked = typed.checked_values(validator_of(schema), values, schema, scalars)
    assert checked is not None
    assert checked.equals(typed.parsed_values(values, schema, scalars))
    checked.validate(full=True)
    assert typed.checked_values(validator_of(schema), [*values, b"{}"], schema, scalars) is None
    assert typed.checked_values(validator_of(schema), values, schema, kind) is None


def test_a_value_that_does_not_fit_is_null_and_named_and_others_are_not_affected() -> None:
    from millstream.schema.source import schema_of
    from millstream.spark.source.typed import texts_of_misfits, typed_values

    schema = schema_of(SCHEMA)
    values = [b'{"id": 1}', b"junk \xff", None, b'{"id": "x"}', b"[]", b'{"id": 2, "at": null}']
    typed = typed_values([*values, b'{"id": 3}'], schema, kind_of(schema))
    assert typed.misfits == [1, 3, 4, 5]
    assert [row and row["id"] for row in typed.column.to_pylist()] == [1, *[None] * 5, 3]
    texts = texts_of_misfits([*values, b""], typed.misfits, 7).to_pylist()
    assert texts[1] == "junk \ufffd"
    assert [number for number, text in enumerate(texts) if text] == [1, 3, 4, 5]


def test_types_that_arrow_does_not_parse_are_decoded() -> None:
    from millstream.schema.source import schema_of
    from millstream.spark.source.typed import typed_values

    record = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "raw", "type": "bytes"},
            {"name": "tags", "type": {"type": "map", "values": "long"}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        ],
    }
    schema = schema_of(record)
    value = b'{"raw": "AAH/", "tags": {"a": 1}, "at": 1500, "day": 1}'
    late = b'{"raw": "", "tags": {}, "at": 9223372036854775807, "day": 1}'
    typed = typed_values([value, late], schema, kind_of(schema))
    (row, nothing) = typed.column.to_pylist()
    assert (row["raw"], row["tags"]) == (b"\x00\x01\xff", [("a", 1)])
    assert row["at"] == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert row["day"] == date(1970, 1, 2)
    assert (nothing, typed.misfits) == (None, [1])  # no time of Spark is as late


def test_fields_that_the_schema_does_not_name_are_not_decoded() -> None:
    """Also where values are decoded one by one, as all of a block with a misfit are."""
    from millstream.schema.model import AnyType, SchemaField, StructType
    from millstream.schema.source import schema_of
    from millstream.spark.source.typed import typed_values

    schema = schema_of(SCHEMA)
    known = (
        b'{"id": 1, "lines": [{"sku": "x", "far": 1e999}], "far": 1e999, "deep": {"a": [1e999]}}'
    )
    typed = typed_values([known, b'{"id": "x"}'], schema, kind_of(schema))
    row, nothing = typed.column.to_pylist()
    assert (row["id"], row["ok"], row["lines"]) == (1, True, [{"sku": "x", "n": None}])
    assert (nothing, typed.misfits) == (None, [1])
    free = StructType(fields=(SchemaField(name="free", type=AnyType()),))
    texts = typed_values([b'{"free": {"a": 1e999}}', b'{"free": [1, null]}'], free, kind_of(free))
    assert [row["free"] for row in texts.column.to_pylist()] == ['{"a": 1e999}', "[1,null]"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("an integer", b'{"n": "x"}'),
        ("digits", b'{"n": 1, "d": "a lot"}'),
        ("no object", b"[]"),
        ("no JSON", b"{"),
        ("nesting", b'{"free": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    ],
)
def test_what_cannot_be_decoded_ends_no_read(name: str, value: bytes) -> None:
    from millstream.schema.model import AnyType, DecimalType, IntegerType, SchemaField, StructType
    from millstream.spark.source.typed import decoded_row

    schema = StructType(
        fields=(
            SchemaField(name="n", type=IntegerType()),
            SchemaField(name="d", type=DecimalType(precision=10, scale=2)),
            SchemaField(name="free", type=AnyType()),
        )
    )
    assert decoded_row(schema, value) is None, name


def test_a_misfit_does_not_depend_on_the_columns_of_a_query() -> None:
    import pyarrow as pa

    from millstream.schema.source import schema_of
    from millstream.spark.source.typed import typed_values

    time = {"type": "long", "logicalType": "timestamp-millis"}
    nested = {"type": "record", "name": "N", "fields": [{"name": "at", "type": time}]}
    for kind, late in ((time, b"%d"), (nested, b'{"at": %d}')):
        fields = [{"name": "id", "type": "long"}, {"name": "t", "type": kind}]
        schema = schema_of({"type": "record", "name": "R", "fields": fields})
        values = [b'{"id": %d, "t": %s}' % (n, late % n) for n in (1, 2**63 - 1)]
        chosen = pa.struct([kind_of(schema).field("id")])
        for wanted in (kind_of(schema), chosen):
            assert typed_values(values, schema, wanted).misfits == [1]


def test_decimals_keep_their_digits() -> None:
    from millstream.schema.model import DecimalType, SchemaField, StructType
    from millstream.spark.source.typed import typed_values

    schema = StructType(fields=(SchemaField(name="d", type=DecimalType(precision=10, scale=2)),))
    typed = typed_values([b'{"d": "1234.5"}', b'{"d": 0.25}'], schema, kind_of(schema))
    assert [row["d"] for row in typed.column.to_pylist()] == [Decimal("1234.50"), Decimal("0.25")]


def test_decimals_that_are_numbers_keep_all_digits() -> None:
    from millstream.schema.model import DecimalType, SchemaField, StructType
    from millstream.spark.source.typed import typed_values

    schema = StructType(fields=(SchemaField(name="d", type=DecimalType(precision=38, scale=18)),))
    numbers = [
        "1234567890123456.789",
        "12345678901234567890",
        "1e3",
        "-0.000",
        "1.50000000000000000000",
    ]
    values = [b'{"d": %s}' % number.encode() for number in numbers]
    typed = typed_values(values, schema, kind_of(schema))
    assert [row["d"] for row in typed.column.to_pylist()] == list(map(Decimal, numbers))
    long = b'{"d": 1234567890123456.7890123456789012345}'
    assert typed_values([long], schema, kind_of(schema)).misfits == [0]


TEXT, DAY, TIME = {"type": "string"}, {"format": "date"}, {"format": "date-time"}
INT, SMALL, NUMBER = {"type": "integer"}, {"type": "integer", "format": "int32"}, {"type": "number"}
CHANGES = {
    "a time becomes text": (TEXT | TIME, TEXT, "2026-05-04T03:02:01Z"),
    "a day becomes text": (TEXT | DAY, TEXT, "2026-05-04"),
    "a small integer becomes large": (SMALL, INT, 2**40),
    "an integer becomes text": (INT, TEXT, "7"),
    "a boolean becomes text": ({"type": "boolean"}, TEXT, "yes"),
    "text becomes an integer": (TEXT, INT, 7),
    "an integer becomes a number": (INT, NUMBER, 1.5),
    "a number becomes an integer": (NUMBER, INT, 2**53 + 1),
    "an integer becomes any value": (INT, {}, "7"),
    "text becomes a list": (TEXT, {"type": "array", "items": TEXT}, ["a"]),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("nesting", ["none", "struct", "list", "map"])
def test_columns_planned_for_an_older_schema_are_refused(
    tmp_path: Path, change: str, nesting: str
) -> None:
    from millstream.spark.source.source import MillstreamSource

    old, new, item = CHANGES[change]

    def nested(inner: dict[str, Any]) -> dict[str, Any]:
        outer = {
            "none": inner,
            "struct": {"type": "object", "properties": {"in": inner}},
            "list": {"type": "array", "items": inner},
            "map": {"type": "object", "additionalProperties": inner},
        }
        return {"type": "object", "properties": {"id": INT, "x": outer[nesting]}}

    value = {"none": item, "struct": {"in": item}, "list": [item], "map": {"in": item}}[nesting]
    place = str(tmp_path / "rows.db")
    with millstream.open(place) as ms:
        log = ms.log("orders", schema=nested(old))
        source = MillstreamSource({"path": place, "subscribe": "orders", "columns": "true"})
        planned = source.schema()
        log.set_schema(nested(new), force=True)
        log.append({"id": 1, "x": value})
    reader = source.reader(planned)
    (partition,) = reader.partitions()
    with pytest.raises(
        InvalidInput, match=r"log 'orders': values cannot be read as .* load the log again"
    ):
        list(reader.read(partition))


def test_small_numbers_are_read_into_columns_planned_for_small_numbers() -> None:
    from millstream.schema.source import schema_of
    from millstream.spark.source.typed import typed_values

    def schema(kind: dict[str, Any]) -> Any:
        return schema_of({"type": "object", "properties": {"x": kind}})

    typed = typed_values([b'{"x": 7}', b'{"x": -1}'], schema(INT), kind_of(schema(SMALL)))
    assert [row["x"] for row in typed.column.to_pylist()] == [7, -1]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A log whose schema got a field with a default, beside records that never fitted."""
    place = str(tmp_path / "rows.db")
    old = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    new = {**old, "properties": {**old["properties"], "n": {"type": "integer", "default": 5}}}
    with millstream.open(place) as ms:
        ms.log("plain").append(b"x")
        log = ms.log("orders")
        log.append_many([b"junk", b'{"id": 0}'])
        log.set_schema(old)
        log.append({"id": 1})
        log.set_schema(new)
        log.append_many([{"id": 2}, {"id": 3, "n": 7}])
        log.append(None)
    return place


def read(path: str, *columns: str, **options: str) -> list[dict[str, Any]]:
    from pyspark.sql.types import StructType

    from millstream.spark.source.source import MillstreamSource

    source = MillstreamSource({"path": path, "subscribe": "orders"} | options)
    schema = source.schema()
    chosen = StructType([field for field in schema if not columns or field.name in columns])
    reader = source.reader(chosen)
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def test_all_versions_are_read_as_the_newest(path: str) -> None:
    rows = read(path, "offset", "value", "_corrupt")
    assert [row["value"] for row in rows] == [
        None,
        {"id": 0, "n": 5},
        {"id": 1, "n": 5},
        {"id": 2, "n": 5},
        {"id": 3, "n": 7},
        None,
    ]
    assert [row["_corrupt"] for row in rows] == ["junk", *[None] * 5]


def test_fields_are_columns_and_only_those_of_the_query_are_made(path: str) -> None:
    assert [row["n"] for row in read(path, "n", columns="true")] == [None, 5, 5, 5, 7, None]
    assert set(read(path, "n", "offset", columns="true")[0]) == {"n", "offset"}
    assert [set(row) for row in read(path, "_corrupt", columns="true")] == [{"_corrupt"}] * 6


def test_a_query_without_fields_reads_no_payload(path: str) -> None:
    with millstream.open(path) as ms:
        ms.fold()
        engine = Probe(ms).store.engine
        kind = (
            bytes((keys.VERSION, keys.PAYLOAD_BLOCK)),
            bytes((keys.VERSION, keys.PAYLOAD_BLOCK + 1)),
        )
        with engine.read() as snapshot:
            payloads = [key for key, _ in snapshot.scan(*kind, limit=100)]
        for key in payloads:
            corrupt(engine, key)
    assert [row["offset"] for row in read(path, "offset", columns="true")] == list(range(6))
    with pytest.raises(CorruptionError, match="orders"):
        read(path, "n", columns="true")


def test_small_logs_share_a_batch(tmp_path: Path) -> None:
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    from millstream.spark.source.source import MillstreamSource

    place = str(tmp_path / "rows.db")
    with millstream.open(place) as ms:
        for name in "ab":
            log = ms.log(name, schema={"type": "object", "properties": {"id": {"type": "integer"}}})
            log.append_many([{"id": number} for number in range(3)])
    source = MillstreamSource({"path": place, "subscribe": "a,b", "columns": "true"})
    fields = [StructField("topic", StringType()), StructField("id", LongType())]
    reader = source.reader(StructType(fields))
    (partition,) = reader.partitions()
    (batch,) = reader.read(partition)
    assert [*batch.to_pydict().values()] == [["a"] * 3 + ["b"] * 3, [0, 1, 2] * 2]


def test_the_mode_says_what_becomes_of_a_record_that_does_not_fit(path: str) -> None:
    kept = read(path, "offset", mode="dropmalformed")
    assert [row["offset"] for row in kept] == [1, 2, 3, 4, 5]
    with pytest.raises(InvalidInput, match="record 0 of log 'orders' does not fit"):
        read(path, mode="FAILFAST")
    with pytest.raises(InvalidInput, match="option mode: expected one of PERMISSIVE"):
        read(path, mode="lenient")
    named = read(path, columnNameOfCorruptRecord="broken")
    assert named[0]["broken"] == "junk"


def test_bytes_are_read_by_an_option_by_a_schema_and_of_logs_that_differ(path: str) -> None:
    assert read(path, "value", rawValues="true")[0]["value"] == b"junk"
    mixed = read(path, "value", subscribe="orders,plain")
    assert mixed[-1]["value"] == b"x"
    with pytest.raises(InvalidInput, match="one and the same schema"):
        read(path, subscribe="orders,plain", columns="true")
    with pytest.raises(InvalidInput, match="only one of them"):
        read(path, rawValues="true", columns="true")


def test_a_mode_is_refused_where_values_are_bytes(path: str) -> None:
    for columns in (("value",), ("offset",)):
        with pytest.raises(InvalidInput, match="option mode: expected logs with one and the same"):
            read(path, *columns, subscribe="orders,plain", mode="FAILFAST")
    with pytest.raises(InvalidInput, match="rawValues and mode"):
        read(path, rawValues="true", mode="DROPMALFORMED")
    with pytest.raises(InvalidInput, match="option mode: is for the values"):
        read(path, metadataOnly="true", mode="DROPMALFORMED")


def test_fields_of_many_named_logs_are_columns(tmp_path: Path) -> None:
    place, names = str(tmp_path / "rows.db"), [f"log {number}" for number in range(101)]
    with millstream.open(place) as ms:
        for name in names:
            ms.log(name, schema={"type": "object", "properties": {"id": {"type": "integer"}}})
            ms.log(name).append({"id": 1})
    rows = read(place, "id", subscribe=",".join(names), columns="true")
    assert [row["id"] for row in rows] == [1] * 101


def test_the_column_of_misfits_has_a_name_of_its_own(path: str) -> None:
    with pytest.raises(InvalidInput, match="'offset' is a column of all logs"):
        read(path, columnNameOfCorruptRecord="offset")


def test_batches_whose_records_are_all_left_out_are_joined(tmp_path: Path) -> None:
    place = str(tmp_path / "rows.db")
    with millstream.open(place) as ms:
        for name in "ab":
            ms.log(name).append_many([b"junk", b"[]"])
            ms.log(name).set_schema({"type": "object", "properties": {"id": {"type": "integer"}}})
    assert read(place, subscribe="a,b", columns="true", mode="DROPMALFORMED") == []


def test_a_filter_chooses_typed_records(path: str) -> None:
    with millstream.open(path) as ms:
        ms.log("orders").append({"id": 9}, headers={"region": "eu"})
    assert [row["value"]["id"] for row in read(path, "value", filter="region = 'eu'")] == [9]


def test_a_field_with_the_name_of_a_column_is_told(tmp_path: Path) -> None:
    place = str(tmp_path / "store.db")
    with millstream.open(place) as ms:
        ms.log("orders").set_schema({"type": "object", "properties": {"key": {"type": "string"}}})
        ms.log("orders").append({"key": "k"})
    assert read(place)[0]["value"] == {"key": "k"}
    with pytest.raises(InvalidInput, match="'key' has the name of a column"):
        read(place, columns="true")
    with millstream.open(place) as ms:
        ms.log("places").set_schema(
            {"type": "object", "properties": {"Offset": {"type": "integer"}}}
        )
    with pytest.raises(InvalidInput, match="'Offset' has the name of a column"):
        read(place, columns="true", subscribe="places")
