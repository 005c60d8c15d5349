"""Every kind of source becomes the same model, and hostile sources get one sentence."""

from __future__ import annotations

import enum
import uuid
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pytest
from msgspec import Meta, Struct

from millstream.errors import InvalidInput, TooLarge
from millstream.schema.model import (
    AnyOf,
    AnyType,
    BinaryType,
    BooleanType,
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
from millstream.schema.source import schema_of


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Item(Struct):
    sku: str
    count: Annotated[int, Meta(ge=1)] = 1


class Order(Struct, rename="camel"):
    order_id: int
    items: list[Item]
    note: str | None = None
    colour: Colour = Colour.RED


@dataclass
class Point:
    x: float
    tags: list[str] = field(default_factory=list)


class Address(TypedDict):
    street: str
    zip: NotRequired[str]


def fields_of(source: Any) -> dict[str, AnyOf]:
    return {each.name: each.type for each in schema_of(source).fields}


def test_a_struct_has_its_encoded_names_defaults_and_bounds() -> None:
    item = StructType(
        name="Item",
        fields=(
            SchemaField(name="sku", type=TextType()),
            SchemaField(name="count", type=IntegerType(minimum=1), required=False, default=1),
        ),
    )
    assert schema_of(Order) == StructType(
        name="Order",
        fields=(
            SchemaField(name="orderId", type=IntegerType()),
            SchemaField(name="items", type=ListType(items=item)),
            SchemaField(name="note", type=TextType(nullable=True), required=False),
            SchemaField(
                name="colour",
                type=EnumType(values=("red", "blue")),
                required=False,
                default="red",
            ),
        ),
    )


class Tagged(Struct):
    tags: tuple[str, ...] = ("new",)
    seen: set[int] = set()
    inner: Any = (1, (2,))
    far: float = float("inf")


def test_defaults_are_kept_as_json_has_them() -> None:
    schema = schema_of(Tagged)
    assert [field.default for field in schema.fields] == [["new"], [], [1, [2]], None]
    assert msgspec.json.decode(msgspec.json.encode(schema), type=StructType) == schema


def test_a_dataclass_and_a_typed_dict_have_fields() -> None:
    assert schema_of(Point).fields == (
        SchemaField(name="x", type=NumberType()),
        SchemaField(name="tags", type=ListType(items=TextType()), required=False, default=[]),
    )
    assert schema_of(Address).fields == (
        SchemaField(name="street", type=TextType()),
        SchemaField(name="zip", type=TextType(), required=False),
    )


PYTHON_TYPES: list[tuple[Any, AnyOf]] = [
    (bool, BooleanType()),
    (int, IntegerType()),
    (Annotated[int, Meta(gt=0, lt=10)], IntegerType(minimum=1, maximum=9)),
    (float, NumberType()),
    (Annotated[float, Meta(gt=0, le=1)], NumberType(above=0, maximum=1)),
    (int | float, NumberType()),
    (int | float | None, NumberType(nullable=True)),
    (str, TextType()),
    (Annotated[str, Meta(min_length=1, max_length=3)], TextType(length_min=1, length_max=3)),
    (bytes, BinaryType()),
    (datetime, TimestampType()),
    (Annotated[datetime, Meta(tz=True)], TimestampType(zoned=True)),
    (date, DateType()),
    (time, TextType(format="time")),
    (timedelta, TextType(format="duration")),
    (uuid.UUID, TextType(format="uuid")),
    (Decimal, DecimalType()),
    (
        Annotated[Decimal, Meta(extra_json_schema={"precision": 10, "scale": 2})],
        DecimalType(precision=10, scale=2),
    ),
    (Literal[1, 2], EnumType(values=(1, 2))),
    (Literal["a", None], EnumType(values=("a",), nullable=True)),
    (list[int | None], ListType(items=IntegerType(nullable=True))),
    (set[int], ListType(items=IntegerType())),
    (tuple[int, ...], ListType(items=IntegerType())),
    (dict[str, list[int]], MapType(values=ListType(items=IntegerType()))),
    (Any, AnyType()),
]


@pytest.mark.parametrize(("kind", "expected"), PYTHON_TYPES, ids=[str(k) for k, _ in PYTHON_TYPES])
def test_a_python_type_becomes_a_type_of_the_model(kind: Any, expected: AnyOf) -> None:
    assert fields_of(msgspec.defstruct("Made", [("a", kind)])) == {"a": expected}


JSON_TYPES: list[tuple[Any, AnyOf]] = [
    ({"type": "boolean"}, BooleanType()),
    ({"enum": [True, False]}, BooleanType()),
    ({"type": "integer"}, IntegerType()),
    ({"type": "integer", "format": "int32"}, IntegerType(bits=32)),
    ({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 9}, IntegerType(minimum=1, maximum=8)),
    ({"type": "number"}, NumberType()),
    ({"type": "number", "format": "float"}, NumberType(bits=32)),
    ({"type": "number", "minimum": 1, "exclusiveMinimum": 1}, NumberType(above=1)),
    ({"type": "number", "maximum": 1, "exclusiveMaximum": 2}, NumberType(maximum=1)),
    ({"type": ["integer", "number", "null"]}, NumberType(nullable=True)),
    ({"type": "string"}, TextType()),
    ({"type": "string", "format": "email", "minLength": 3}, TextType(length_min=3)),
    ({"type": "string", "format": "date-time"}, TimestampType()),
    ({"type": "string", "format": "date"}, DateType()),
    ({"type": "string", "format": "uuid"}, TextType(format="uuid")),
    (
        {"type": "string", "format": "decimal", "precision": 5, "scale": 1},
        DecimalType(precision=5, scale=1),
    ),
    ({"type": "string", "contentEncoding": "base64"}, BinaryType()),
    ({"type": ["string", "null"]}, TextType(nullable=True)),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, TextType(nullable=True)),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, NumberType()),
    ({"allOf": [{"type": "string"}]}, TextType()),
    ({"enum": ["a", "b", None]}, EnumType(values=("a", "b"), nullable=True)),
    ({"const": 3}, EnumType(values=(3,))),
    ({"type": "array", "items": {}, "maxItems": 3}, ListType(items=AnyType(), length_max=3)),
    ({"type": "object", "additionalProperties": {"type": "string"}}, MapType(values=TextType())),
    ({"$ref": "#/$defs/name"}, TextType()),
    ({"$ref": "#/$defs/name", "description": "the name"}, TextType()),
    (True, AnyType()),
    ({}, AnyType()),
    ({"title": "Any", "x-own": 1, "examples": [1]}, AnyType()),
]


@pytest.mark.parametrize(("node", "expected"), JSON_TYPES, ids=[str(n) for n, _ in JSON_TYPES])
def test_a_node_of_json_schema_becomes_a_type_of_the_model(node: Any, expected: AnyOf) -> None:
    document = {
        "type": "object",
        "properties": {"a": node},
        "$defs": {"name": {"type": "string"}},
    }
    assert fields_of(document) == {"a": expected}
    assert fields_of(msgspec.json.encode(document).decode()) == {"a": expected}


def test_required_fields_closed_objects_and_descriptions_of_json_schema() -> None:
    document = {
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "integer", "description": "its number"}, "n": {"default": 3}},
        "required": ["id", "extra"],
        "additionalProperties": False,
    }
    assert schema_of(document) == StructType(
        name="Order",
        closed=True,
        fields=(
            SchemaField(name="id", type=IntegerType(), doc="its number"),
            SchemaField(name="n", type=AnyType(), required=False, default=3),
            SchemaField(name="extra", type=AnyType()),
        ),
    )


AVRO_TYPES: list[tuple[Any, AnyOf]] = [
    ("boolean", BooleanType()),
    ("int", IntegerType(bits=32)),
    ("long", IntegerType()),
    ("float", NumberType(bits=32)),
    ({"type": "double"}, NumberType()),
    ("bytes", BinaryType()),
    ("string", TextType()),
    (["null", "string"], TextType(nullable=True)),
    (["long", "null"], IntegerType(nullable=True)),
    (["string"], TextType()),
    ({"type": "array", "items": "int"}, ListType(items=IntegerType(bits=32))),
    ({"type": "map", "values": ["null", "long"]}, MapType(values=IntegerType(nullable=True))),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, EnumType(values=("A", "B"))),
    ({"type": "fixed", "name": "F", "size": 16}, BinaryType(length_min=16, length_max=16)),
    ({"type": "long", "logicalType": "timestamp-millis"}, TimestampType(written="ms")),
    ({"type": "long", "logicalType": "timestamp-micros"}, TimestampType(written="us")),
    ({"type": "int", "logicalType": "date"}, DateType(written="days")),
    ({"type": "string", "logicalType": "uuid"}, TextType(format="uuid")),
    ({"type": "long", "logicalType": "unheard-of"}, IntegerType()),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        DecimalType(precision=9, scale=2),
    ),
]


@pytest.mark.parametrize(("node", "expected"), AVRO_TYPES, ids=[str(n) for n, _ in AVRO_TYPES])
def test_an_avro_type_becomes_a_type_of_the_model(node: Any, expected: AnyOf) -> None:
    document = {"type": "record", "name": "R", "fields": [{"name": "a", "type": node}]}
    assert fields_of(document) == {"a": expected}
    assert fields_of(msgspec.json.encode(document)) == {"a": expected}


def test_names_defaults_and_namespaces_of_avro() -> None:
    inner = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}
    document = {
        "type": "record",
        "name": "R",
        "namespace": "org.example",
        "fields": [
            {"name": "a", "type": inner, "doc": "the first"},
            {"name": "b", "type": "P"},
            {"name": "c", "type": ["null", "org.example.P"], "default": None},
            {"name": "d", "type": "int", "default": 7},
        ],
    }
    point = StructType(name="P", fields=(SchemaField(name="x", type=IntegerType(bits=32)),))
    assert schema_of(document).fields == (
        SchemaField(name="a", type=point, doc="the first"),
        SchemaField(name="b", type=point),
        SchemaField(name="c", type=msgspec.structs.replace(point, nullable=True), required=False),
        SchemaField(name="d", type=IntegerType(bits=32), required=False, default=7),
    )


class Recursive(Struct):
    inner: Recursive | None = None


class Positional(Struct, array_like=True):
    a: int


def of(node: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": node}}


def avro(node: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": node}]}


def nested(depth: int) -> Any:
    node: Any = {"type": "integer"}
    for _ in range(depth):
        node = of(node)
    return node


DOUBLING = {
    **{
        f"d{n}": {"type": "object", "properties": {k: {"$ref": f"#/$defs/d{n + 1}"} for k in "ab"}}
        for n in range(25)
    },
    "d25": {},
}

HOSTILE: dict[str, tuple[Any, str]] = {
    "nothing": (None, "not None"),
    "a number": (1, "not 1"),
    "a list of Python": ([], "not []"),
    "no JSON": ("{", "both in JSON"),
    "text of Avro's null": ('"null"', "null alone"),
    "no object": ('{"type": "string"}', "not text"),
    "an object or null": ({**of({}), "type": ["object", "null"]}, "not object or null"),
    "a map": (dict[str, int], "not map of integer"),
    "a function": (lambda: 0, "is no schema"),
    "a complex number": (msgspec.defstruct("C", [("z", complex)]), "$.z"),
    "two types": (msgspec.defstruct("C", [("z", int | str)]), "$.z"),
    "a pattern": (msgspec.defstruct("C", [("z", Annotated[str, Meta(pattern="a+")])]), "pattern"),
    "multiples": (msgspec.defstruct("C", [("z", Annotated[int, Meta(multiple_of=2)])]), "multiple"),
    "digits of text": (
        msgspec.defstruct(
            "C", [("z", Annotated[Decimal, Meta(extra_json_schema={"precision": "x"})])]
        ),
        "not 'x' and 18",
    ),
    "integer keys": (msgspec.defstruct("C", [("z", dict[int, int])]), "keys of int"),
    "itself": (Recursive, "contains itself, at $.inner"),
    "an array": (Positional, "array_like"),
    "an unknown keyword": (of({"type": "string", "foo": 1}), "'foo' at $.a"),
    "a pattern in JSON": (of({"type": "string", "pattern": "(a+)+$"}), "pattern"),
    "a keyword of another type": (of({"type": "string", "minimum": 1}), "does not belong"),
    "a bound without a type": (of({"minimum": 1}), "does not belong"),
    "an unknown type": (of({"type": "weird"}), "'weird'"),
    "a type that is no text": (of({"type": {"a": 1}}), "$.a"),
    "several types": (of({"type": ["string", "integer"]}), "unions with null alone"),
    "several schemas": (of({"anyOf": [{"type": "string"}, {"type": "integer"}]}), "anyOf"),
    "a reference outside": (of({"$ref": "https://example.org/a"}), "leads out"),
    "a reference to nowhere": (of({"$ref": "#/$defs/b"}), "leads nowhere"),
    "a reference to itself": (of({"$ref": "#"}), "contains itself"),
    "a reference that is no text": (of({"$ref": 5}), "is text"),
    "an empty enum": (of({"enum": []}), "list of values"),
    "an enum of fractions": (of({"enum": [1.5]}), "whole numbers of 64 bits"),
    "an enum of two kinds": (of({"enum": [1, "a"]}), "whole numbers of 64 bits"),
    "an enum of objects": (of({"enum": [{"a": 1}, [1]]}), "whole numbers of 64 bits"),
    "a default of another type": (of({"type": "integer", "default": "x"}), "$.a is no value"),
    "a default inside": (
        of({"type": "array", "items": of({"format": "date", "type": "string", "default": "now"})}),
        "$.a[...].a is no value",
    ),
    "a bound of text": (of({"type": "integer", "minimum": "1"}), "is a number"),
    "a bound of 100 bits": (of({"type": "integer", "minimum": 2**100}), "64 bits"),
    "a length below 0": (of({"type": "string", "minLength": -1}), "from 0"),
    "properties of a list": ({"type": "object", "properties": []}, "object of schemas"),
    "required of a number": ({"type": "object", "required": 1}, "list of names"),
    "an empty name": ({"type": "object", "properties": {"": {}}}, "1 to 255"),
    "half a character": ({"type": "object", "properties": {"\ud800": {}}}, "is JSON"),
    "too many digits": (of({"type": "string", "format": "decimal", "precision": 99}), "38"),
    "deep": (nested(40), "deeper than 32"),
    "deeper than a parser": ("[" * 50_000, "nested too deeply"),
    "doubling": ({"$defs": DOUBLING, "$ref": "#/$defs/d0"}, "2,000 types"),
    "wide": ({"type": "object", "properties": {f"f{n}": {} for n in range(2_001)}}, "2,000 types"),
    "large": ({"type": "object", "description": "x" * 70_000}, "65,536 bytes"),
    "a name of Avro twice": (
        {
            "type": "record",
            "name": "R",
            "fields": [
                {"name": "a", "type": {"type": "fixed", "name": "F", "size": 1}},
                {"name": "b", "type": {"type": "fixed", "name": "F", "size": 1}},
            ],
        },
        "defined twice",
    ),
    "Avro in itself": (avro("R"), "contains itself"),
    "Avro without fields": ({"type": "record", "name": "R"}, "list of fields"),
    "Avro without a name": ({"type": "record", "fields": []}, "needs a name"),
    "Avro with a bad name": ({"type": "record", "name": "1a", "fields": []}, "needs a name"),
    "Avro with an unknown type": (avro("weird"), "'weird' at $.a"),
    "Avro with null": (avro("null"), "null alone"),
    "Avro with a union": (avro(["int", "string"]), "union at $.a"),
    "Avro with an array of nothing": (avro({"type": "array"}), "has no items"),
    "Avro with a type of a number": (avro({"type": 5}), "is not known"),
    "Avro with a bad field": ({"type": "record", "name": "R", "fields": [5]}, "a field"),
    "Avro with a bad size": (avro({"type": "fixed", "name": "F", "size": -1}), "size from 0"),
    "Avro with symbols that are no texts": (
        avro({"type": "enum", "name": "E", "symbols": [["x"]]}),
        "whole numbers of 64 bits",
    ),
    "Avro with a bad default": (
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "bytes", "default": "ÿ"}]},
        "expected text in base64 at $.a",
    ),
    "Avro with bad digits": (avro({"type": "bytes", "logicalType": "decimal"}), "precision"),
}


@pytest.mark.parametrize(("source", "words"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_schema_gets_one_clear_sentence(source: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        schema_of(source)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_a_schema_at_each_bound_is_accepted() -> None:
    assert schema_of(nested(31))
    assert len(
        schema_of({"type": "object", "properties": {f"f{n}": {} for n in range(1_100)}}).fields
    )


def test_a_schema_whose_model_is_larger_than_its_text_is_refused() -> None:
    document = {"type": "object", "properties": {f"f{n}": {} for n in range(1_999)}}
    assert len(msgspec.json.encode(document)) < 65_536
    with pytest.raises(TooLarge):
        schema_of(document)
