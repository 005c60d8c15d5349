"""Schemas as the columns of Spark.

Any value is a column of text with JSON, because Spark's own variant type is not in all its versions.
"""

from __future__ import annotations

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
    StructType,
    TimestampType,
)


def spark_ddl(schema: StructType) -> str:
    """Return the fields of a schema as Spark's DDL, such as `id BIGINT NOT NULL, note STRING`."""
    return ", ".join(
        f"{_quoted(field.name)} {spark_type(field.type)}"
        + ("" if not field.required or _takes_null(field.type) else " NOT NULL")
        for field in schema.fields
    )


def spark_type(schema: AnyOf) -> str:
    """Return a type in Spark's DDL."""
    match schema:
        case StructType():
            inside = ", ".join(
                f"{_quoted(field.name)}: {spark_type(field.type)}"
                + ("" if not field.required or _takes_null(field.type) else " NOT NULL")
                for field in schema.fields
            )
            return f"STRUCT<{inside}>"
        case ListType():
            return f"ARRAY<{spark_type(schema.items)}>"
        case MapType():
            return f"MAP<STRING, {spark_type(schema.values)}>"
        case BooleanType():
            return "BOOLEAN"
        case IntegerType():
            return "INT" if schema.bits == 32 else "BIGINT"
        case NumberType():
            return "FLOAT" if schema.bits == 32 else "DOUBLE"
        case BinaryType():
            return "BINARY"
        case TimestampType():
            return "TIMESTAMP"
        case DateType():
            return "DATE"
        case DecimalType():
            return f"DECIMAL({schema.precision},{schema.scale})"
        case EnumType():
            return "STRING" if isinstance(schema.values[0], str) else "BIGINT"
        case _:
            return "STRING"


def _takes_null(schema: AnyOf) -> bool:
    return schema.nullable or isinstance(schema, AnyType)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
