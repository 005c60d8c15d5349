"""Sources of schemas: what a user hands in becomes a checked schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from millstream.errors import InvalidInput, TooLarge
from millstream.schema.avro import NAMED, from_avro
from millstream.schema.json_schema import from_json_schema
from millstream.schema.model import TEXT_BYTES_MAX, AnyOf, StructType, check_schema, inner_types
from millstream.schema.python_types import schema_of_type
from millstream.schema.validation import misfit


def schema_of(source: Any) -> StructType:
    """Return the schema of a source.

    A source is a Python type (msgspec struct, dataclass, TypedDict), a JSON Schema as a dict or text, an
    Avro schema as a dict or text, or a schema of the model itself.
    """
    if isinstance(source, StructType):
        schema: Any = source
    elif isinstance(source, str | bytes):
        schema = _of_document(_parsed(source))
    elif isinstance(source, Mapping):
        schema = _of_document(_parsed(_text_of(source)))
    elif isinstance(source, bool | int | float | list | tuple) or source is None:
        raise InvalidInput(
            "a schema is a type with fields (msgspec struct, dataclass, TypedDict), a JSON Schema, or an "
            f"Avro schema, not {source!r:.100}"
        )
    else:
        schema = schema_of_type(source)
    checked = check_schema(schema)
    assert isinstance(checked, StructType)
    if isinstance(source, str | bytes | Mapping):
        _check_defaults(checked, "$")
    check_size(len(msgspec.json.encode(checked)))
    return checked


def _check_defaults(schema: AnyOf, path: str) -> None:
    """Refuse a default that is no value of its field: readers could not show it as a column."""
    for field in schema.fields if isinstance(schema, StructType) else ():
        at = f"{path}.{field.name}"
        if field.default is not None and (place := misfit(field.type, field.default, at)):
            where, expected, given = place
            raise InvalidInput(
                f"the default of the field at {at} is no value of the field: expected {expected} at "
                f"{where}, given {given}",
                where=at,
            )
    for step, inner in inner_types(schema):
        _check_defaults(inner, path + step)


def check_size(size: int) -> None:
    """Refuse a schema of too many bytes."""
    if size > TEXT_BYTES_MAX:
        raise TooLarge(
            f"a schema has up to {TEXT_BYTES_MAX:,} bytes as JSON, not {size:,}; describe parts of it "
            "as any value",
            limit=TEXT_BYTES_MAX,
            size=size,
        )


def _text_of(document: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(document)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"a schema is JSON: {error}") from error


def _parsed(text: str | bytes) -> Any:
    check_size(len(text))
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidInput(
            f"a schema as text is a JSON Schema or an Avro schema, both in JSON: {error}"
        ) from error
    except RecursionError:
        raise InvalidInput("the text of the schema is nested too deeply") from None


def _of_document(document: Any) -> Any:
    """Return the schema of a document; the form of the document tells the language."""
    if isinstance(document, str | list):
        return from_avro(document)
    if isinstance(document, Mapping) and (
        document.get("type") in NAMED or isinstance(document.get("type"), Mapping)
    ):
        return from_avro(document)
    return from_json_schema(document)
