"""Random schemas, and random JSON values that fit them or nearly do."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

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

LEAVES: st.SearchStrategy[AnyOf] = st.sampled_from(
    [
        BooleanType(),
        IntegerType(),
        IntegerType(bits=32),
        IntegerType(minimum=0, maximum=9),
        NumberType(),
        NumberType(bits=32),
        NumberType(above=0.0, maximum=1.5),
        TextType(),
        TextType(length_min=1, length_max=3),
        TextType(format="uuid"),
        BinaryType(),
        BinaryType(length_max=3),
        TimestampType(),
        TimestampType(zoned=True),
        DateType(),
        DecimalType(precision=5, scale=2),
        EnumType(values=("a", "b")),
        EnumType(values=(1, 2)),
        AnyType(),
    ]
)

NAMES = st.sampled_from(["a", "b", "c", "d", "long_name"])


def _extended(inner: st.SearchStrategy[AnyOf]) -> st.SearchStrategy[AnyOf]:
    return st.one_of(
        inner.map(lambda each: ListType(items=each)),
        inner.map(lambda each: MapType(values=each)),
        structs_of(inner),
    )


def nullable(inner: st.SearchStrategy[AnyOf]) -> st.SearchStrategy[AnyOf]:
    return st.tuples(inner, st.booleans()).map(
        lambda pair: replace(pair[0], nullable=pair[1] and not isinstance(pair[0], AnyType))
    )


def structs_of(inner: st.SearchStrategy[AnyOf]) -> st.SearchStrategy[StructType]:
    field = st.builds(SchemaField, name=NAMES, type=nullable(inner), required=st.booleans())
    return st.builds(
        StructType,
        fields=st.lists(field, max_size=4, unique_by=lambda each: each.name).map(tuple),
        closed=st.booleans(),
    )


TYPES: st.SearchStrategy[AnyOf] = st.recursive(LEAVES, _extended, max_leaves=6)

STRUCTS: st.SearchStrategy[StructType] = structs_of(TYPES).map(
    lambda schema: schema if schema.fields else replace(schema, fields=(FIELD,))
)

FIELD = SchemaField(name="a", type=IntegerType())

SCALARS: dict[type, list[Any]] = {
    BooleanType: [True, False],
    IntegerType: [0, 5, 9],
    NumberType: [1, 0.5],
    BinaryType: ["", "YWI="],
    TimestampType: ["2026-05-04T12:00:00Z", "2026-05-04T12:00:00.25+02:00"],
    DateType: ["2026-05-04"],
    DecimalType: ["1.5", "999.99", 3],
    AnyType: [None, 1, "x", [1, {"y": None}]],
}

ODD: list[Any] = [None, True, 0, -1, 2**40, 10**30, 0.25, "", "abcd", "a", "12.345", [], {}, [None]]


def values_of(schema: AnyOf, odd: bool = False) -> st.SearchStrategy[Any]:
    """Values that fit a schema; with `odd`, parts of them may be anything."""
    made = _values(schema, odd)
    if schema.nullable:
        made = st.none() | made
    return made | st.sampled_from(ODD) if odd else made


def _values(schema: AnyOf, odd: bool) -> st.SearchStrategy[Any]:
    match schema:
        case StructType():
            needed = {f.name: values_of(f.type, odd) for f in schema.fields if f.required}
            others = {f.name: values_of(f.type, odd) for f in schema.fields if not f.required}
            made = st.fixed_dictionaries(needed, optional=others)
            if odd:
                extra = st.dictionaries(
                    st.sampled_from(["a", "zz"]), st.sampled_from(ODD), max_size=1
                )
                return st.tuples(made, extra).map(lambda pair: {**pair[0], **pair[1]})
            return made
        case ListType():
            return st.lists(values_of(schema.items, odd), max_size=3)
        case MapType():
            return st.dictionaries(NAMES, values_of(schema.values, odd), max_size=2)
        case EnumType():
            return st.sampled_from(list(schema.values))
        case TextType(format="uuid"):
            return st.just("12345678-1234-5678-1234-567812345678")
        case TextType():
            return st.text("abé", min_size=schema.length_min or 0, max_size=schema.length_max or 5)
        case _:
            return st.sampled_from(SCALARS[type(schema)])
