"""A schema becomes JSON Schema, Avro and columns of Spark, and comes back as it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from millstream.errors import InvalidInput
from millstream.schema.evolution import conflicts, conflicts_with, merged
from millstream.schema.model import (
    AnyOf,
    AnyType,
    BinaryType,
    DateType,
    DecimalType,
    EnumType,
    IntegerType,
    ListType,
    MapType,
    NumberType,
    SchemaField,
    StructType,
    TextType,
    TimestampType,
)
from millstream.schema.outputs import avro_of, json_schema_of
from millstream.schema.source import schema_of
from millstream.schema.spark_types import spark_ddl
from tests.unit.schema.schemas import STRUCTS

FULL = StructType(
    name="Order",
    fields=(
        SchemaField(name="id", type=IntegerType(), doc="its number"),
        SchemaField(name="count", type=IntegerType(bits=32, minimum=0), required=False, default=1),
        SchemaField(name="price", type=DecimalType(precision=10, scale=2)),
        SchemaField(name="note", type=TextType(nullable=True), required=False),
        SchemaField(name="state", type=EnumType(values=("new", "paid"))),
        SchemaField(name="level", type=EnumType(values=(1, 2))),
        SchemaField(name="tags", type=ListType(items=TextType())),
        SchemaField(name="sizes", type=MapType(values=NumberType(bits=32)), required=False),
        SchemaField(name="raw", type=BinaryType()),
        SchemaField(name="at", type=TimestampType(written="ms")),
        SchemaField(name="day", type=DateType(written="days")),
        SchemaField(name="more", type=AnyType(), required=False),
        SchemaField(
            name="to",
            type=StructType(name="To", fields=(SchemaField(name="zip", type=TextType()),)),
        ),
    ),
)


def test_the_columns_of_spark() -> None:
    assert spark_ddl(FULL) == (
        "`id` BIGINT NOT NULL, `count` INT, `price` DECIMAL(10,2) NOT NULL, `note` STRING, "
        "`state` STRING NOT NULL, `level` BIGINT NOT NULL, `tags` ARRAY<STRING> NOT NULL, "
        "`sizes` MAP<STRING, FLOAT>, `raw` BINARY NOT NULL, `at` TIMESTAMP NOT NULL, "
        "`day` DATE NOT NULL, `more` STRING, `to` STRUCT<`zip`: STRING NOT NULL> NOT NULL"
    )


def test_the_avro_schema() -> None:
    made = avro_of(FULL)
    types = {field["name"]: field["type"] for field in made["fields"]}
    assert made["name"] == "Order"
    assert types["id"] == "long"
    assert types["note"] == ["null", "string"]
    assert types["state"] == {"type": "enum", "name": "Order_state", "symbols": ["new", "paid"]}
    assert types["at"] == {"type": "long", "logicalType": "timestamp-millis"}
    assert types["to"] == {
        "type": "record",
        "name": "To",
        "fields": [{"name": "zip", "type": "string"}],
    }
    assert [f for f in made["fields"] if f["name"] == "count"] == [
        {"name": "count", "type": "int", "default": 1}
    ]


def test_avro_has_no_name_with_a_dash() -> None:
    with pytest.raises(InvalidInput, match="'my-field'"):
        avro_of(StructType(fields=(SchemaField(name="my-field", type=IntegerType()),)))


@given(STRUCTS)
def test_a_schema_comes_back_from_json_schema(schema: StructType) -> None:
    assert schema_of(json_schema_of(schema)) == schema


def test_times_and_days_as_numbers_come_back_from_json_schema() -> None:
    again = schema_of(json_schema_of(FULL))
    assert {field.name: field.type for field in again.fields} == {
        field.name: field.type for field in FULL.fields
    }


@given(STRUCTS)
def test_a_schema_in_avro_is_read_again(schema: StructType) -> None:
    made = avro_of(schema)
    assert avro_of(schema_of(made)) == made


def test_versions_are_merged_to_the_newest() -> None:
    old = StructType(
        fields=(
            SchemaField(name="a", type=IntegerType(bits=32)),
            SchemaField(name="gone", type=TextType()),
            SchemaField(
                name="s", type=StructType(fields=(SchemaField(name="x", type=IntegerType()),))
            ),
        )
    )
    new = StructType(
        closed=True,
        fields=(
            SchemaField(name="b", type=TextType()),
            SchemaField(name="a", type=NumberType()),
            SchemaField(
                name="s", type=StructType(fields=(SchemaField(name="y", type=IntegerType()),))
            ),
        ),
    )
    assert merged([old, new]) == StructType(
        fields=(
            SchemaField(name="b", type=TextType(), required=False),
            SchemaField(name="a", type=NumberType()),
            SchemaField(
                name="s",
                type=StructType(
                    fields=(
                        SchemaField(name="y", type=IntegerType(), required=False),
                        SchemaField(name="x", type=IntegerType(), required=False),
                    )
                ),
            ),
            SchemaField(name="gone", type=TextType(), required=False),
        )
    )
    assert merged([]) == StructType()


def of(kind: AnyOf | None) -> StructType:
    return StructType(fields=() if kind is None else (SchemaField(name="a", type=kind),))


def test_null_becomes_a_value_of_a_text_with_a_format() -> None:
    for text in (TextType(format="uuid"), TextType(format="time"), TextType(length_max=3)):
        assert conflicts(of(text), of(replace(text, nullable=True))) == []
    assert conflicts(of(TextType()), of(TextType(format="uuid"))) == [
        "$.a: text cannot become uuid text"
    ]


def test_a_field_that_returns_has_a_type_that_its_earlier_values_fit() -> None:
    def lists(kind: AnyOf | None) -> StructType:
        return of(ListType(items=MapType(values=of(kind))))

    past = [lists(IntegerType()), lists(None)]
    optional = StructType(fields=(SchemaField(name="a", type=TextType(), required=False),))
    again = of(ListType(items=MapType(values=optional)))
    assert conflicts_with(past, again) == ["$.a[...][...].a: integer cannot become text"]
    assert conflicts_with(past[1:], again) == []


def test_the_json_schema_is_plain_json() -> None:
    made: dict[str, Any] = json_schema_of(FULL)
    assert made["required"] == ["id", "price", "state", "level", "tags", "raw", "at", "day", "to"]
    assert made["properties"]["count"] == {
        "type": "integer",
        "format": "int32",
        "minimum": 0,
        "default": 1,
    }
    assert made["properties"]["note"] == {"type": ["string", "null"]}
