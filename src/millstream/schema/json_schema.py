"""JSON Schema as a source and as an output (draft 2020-12, and what older drafts write alike).

A keyword that would be ignored in silence is refused instead, since records that the author believes to
be refused would be stored. Annotations (`title`, `description`, `examples`, …) say nothing about records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil, floor
from typing import Any, Literal

from msgspec.structs import replace

from millstream.errors import InvalidInput
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
    TypeCount,
)
from millstream.schema.python_types import no_pattern

OWN = "x-millstream"
"""The annotation for parts of a type that JSON Schema cannot express."""

ZONED, UNZONED = "timestamp zoned", "timestamp unzoned"

_BYTES = re.compile(r"bytes (_|\d{1,18}) to (_|\d{1,18})")

_ANNOTATIONS = frozenset(
    [
        "$schema",
        "$id",
        "$comment",
        "$anchor",
        "$defs",
        "definitions",
        "title",
        "description",
        "examples",
        "default",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$vocabulary",
        "example",
        "contentMediaType",
    ]
)

_OF_ALL = frozenset(["type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf", "nullable"])

_OF_TYPES: dict[str, frozenset[str]] = {
    "object": frozenset(["properties", "required", "additionalProperties"]),
    "array": frozenset(["items", "minItems", "maxItems"]),
    "string": frozenset(
        ["format", "minLength", "maxLength", "contentEncoding", "precision", "scale"]
    ),
    "integer": frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "format"]),
    "number": frozenset(
        [
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "format",
            "precision",
            "scale",
        ]
    ),
    "boolean": frozenset(),
    "null": frozenset(),
}

_KNOWN = _ANNOTATIONS.union(_OF_ALL, *_OF_TYPES.values())


def from_json_schema(document: Any) -> AnyOf:
    """Return the schema that a JSON Schema describes."""
    return JsonSchemaReader(document).schema(document, "$", 0, ())


class JsonSchemaReader:
    """The conversion of a document with definitions."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._bounds = TypeCount()

    def schema(self, node: Any, path: str, depth: int, around: tuple[str, ...]) -> AnyOf:
        """Return the type that a node describes; `around` are the references that led to it."""
        self._bounds.enter(path, depth)
        if node is True:
            return AnyType()
        if not isinstance(node, Mapping):
            raise InvalidInput(
                f"a JSON Schema is an object, not {node!r:.100}, at {path}", where=path
            )
        _check_keywords(node, path)
        if "$ref" in node:
            target = _text(node, "$ref", path)
            if target in around:
                raise InvalidInput(
                    f"the schema contains itself: {target!r:.100} at {path}; describe that part as any "
                    "value, {}",
                    where=path,
                )
            self._only(node, "$ref", path)
            schema = self.schema(self._target(target, path), path, depth, (*around, target))
            return _or_null(schema, node.get("nullable") is True)
        for keyword in ("anyOf", "oneOf", "allOf"):
            if keyword in node:
                self._only(node, keyword, path)
                schema = self._one_of(keyword, node[keyword], path, (depth, around))
                return _or_null(schema, node.get("nullable") is True)
        kind, nullable = _kind_of(node, path)
        return _or_null(self._typed(kind, node, path, (depth, around)), nullable)

    def _only(self, node: Mapping[str, Any], keyword: str, path: str) -> None:
        beside = [
            key for key in node if key not in _ANNOTATIONS and key not in (keyword, "nullable")
        ]
        if beside:
            raise InvalidInput(
                f"the schema has {beside[0]!r} beside {keyword!r} at {path}; write both as one schema",
                where=path,
            )

    def _target(self, reference: str, path: str) -> Any:
        """Return the node that a reference names, inside this document."""
        node = self._document
        if not reference.startswith("#") or (reference != "#" and not reference.startswith("#/")):
            raise InvalidInput(
                f"the reference {reference!r:.100} at {path} leads out of the schema; copy its target "
                "to $defs, and refer to '#/$defs/NAME'",
                where=path,
            )
        for step in reference[2:].split("/") if reference != "#" else ():
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, Mapping) or name not in node:
                raise InvalidInput(
                    f"the reference {reference!r:.100} at {path} leads nowhere", where=path
                )
            node = node[name]
        return node

    def _one_of(
        self, keyword: str, choices: Any, path: str, at: tuple[int, tuple[str, ...]]
    ) -> AnyOf:
        """Return a type of which null is a value as well; other unions have no column."""
        if not isinstance(choices, list) or not choices:
            raise InvalidInput(f"{keyword} at {path} is a list of schemas", where=path)
        non_null = [each for each in choices if not _is_null(each)]
        is_null = len(non_null) < len(choices)
        types = [self.schema(each, path, *at) for each in non_null]
        if {type(each) for each in types} == {IntegerType, NumberType}:
            types = [each for each in types if isinstance(each, NumberType)]
        if len(types) != 1 or (keyword == "allOf" and is_null):
            raise InvalidInput(
                f"{keyword} at {path} has {len(choices)} schemas; a schema has unions with null alone: "
                "use one type, or any value, {}",
                where=path,
            )
        return _or_null(types[0], is_null)

    def _typed(
        self, kind: str, node: Mapping[str, Any], path: str, at: tuple[int, tuple[str, ...]]
    ) -> AnyOf:
        _check_fit(kind, node, path)
        match kind:
            case "object":
                return self._object(node, path, at)
            case "array":
                return ListType(
                    items=self.schema(node.get("items", True), f"{path}[...]", at[0] + 1, at[1]),
                    length_min=_count(node, "minItems", path),
                    length_max=_count(node, "maxItems", path),
                )
            case "string":
                return _text_type(node, path)
            case "integer":
                return _integer_type(node, path)
            case "number":
                return _number_type(node, path)
            case "boolean":
                return BooleanType()
            case "enum":
                return _enum_type(node, path)
            case _:
                return AnyType()

    def _object(self, node: Mapping[str, Any], path: str, at: tuple[int, tuple[str, ...]]) -> AnyOf:
        properties = node.get("properties", {})
        required = node.get("required", [])
        if not isinstance(properties, Mapping):
            raise InvalidInput(f"properties at {path} is an object of schemas", where=path)
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise InvalidInput(f"required at {path} is a list of names", where=path)
        additional = node.get("additionalProperties", True)
        if not properties and not required and isinstance(additional, Mapping):
            return MapType(values=self.schema(additional, f"{path}[...]", at[0] + 1, at[1]))
        if isinstance(additional, Mapping) and additional:
            raise InvalidInput(
                f"the object at {path} has properties and a schema of additionalProperties; put the "
                "additional ones into a field of their own",
                where=path,
            )
        if unknown := [name for name in required if name not in properties]:
            properties = {**properties, **dict.fromkeys(unknown, True)}
        fields = []
        for name, inner in properties.items():
            schema = self.schema(inner, f"{path}.{name}", at[0] + 1, at[1])
            facts = inner if isinstance(inner, Mapping) else {}
            doc = facts.get("description", "")
            is_required = name in required
            fields.append(
                SchemaField(
                    name=name,
                    type=schema,
                    required=is_required,
                    default=None if is_required else facts.get("default"),
                    doc=doc if isinstance(doc, str) else "",
                )
            )
        title = node.get("title", "")
        return StructType(
            fields=tuple(fields),
            name=title if isinstance(title, str) else "",
            closed=additional is False,
        )


def _check_keywords(node: Mapping[str, Any], path: str) -> None:
    for keyword in node:
        if keyword == "pattern":
            raise no_pattern(path)
        if keyword not in _KNOWN and not str(keyword).startswith("x-"):
            raise InvalidInput(
                f"the schema has the keyword {keyword!r:.100} at {path}, which is not checked here; "
                "leave it out",
                where=path,
            )


def _check_fit(kind: str, node: Mapping[str, Any], path: str) -> None:
    """Refuse a keyword of another type, which would check nothing."""
    allowed = _OF_TYPES.get(kind, frozenset())
    for keyword in node:
        if keyword in _ANNOTATIONS or keyword in _OF_ALL or str(keyword).startswith("x-"):
            continue
        if keyword not in allowed:
            raise InvalidInput(
                f"the keyword {keyword!r} at {path} does not belong to the type {kind!r}; leave it out, "
                "or say the type that it belongs to",
                where=path,
            )


def _kind_of(node: Mapping[str, Any], path: str) -> tuple[str, bool]:
    """Return the type of a node, and whether null is a value."""
    nullable = node.get("nullable") is True
    kinds = node.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    is_text = isinstance(kinds, list) and all(isinstance(each, str) for each in kinds)
    if not is_text or not set(kinds) <= set(_OF_TYPES):
        raise InvalidInput(
            f"the type at {path} is one of {', '.join(_OF_TYPES)}, not {node['type']!r:.100}",
            where=path,
        )
    non_null = [each for each in kinds if each != "null"]
    nullable = nullable or len(non_null) < len(kinds)
    if set(non_null) == {"integer", "number"}:
        non_null = ["number"]
    if "enum" in node or "const" in node:
        return "enum", nullable
    if len(non_null) == 1:
        return non_null[0], nullable
    if len(non_null) > 1 or nullable:
        raise InvalidInput(
            f"the type at {path} is {kinds!r:.100}; a schema has unions with null alone: use one type, "
            "or any value, {}",
            where=path,
        )
    for kind in ("object", "array"):
        if _OF_TYPES[kind] & node.keys():
            return kind, False
    return "any", False


def _is_null(node: Any) -> bool:
    return isinstance(node, Mapping) and (
        node.get("type") == "null" or ("const" in node and node["const"] is None)
    )


def _or_null(schema: AnyOf, nullable: bool) -> AnyOf:
    if not nullable or schema.nullable or isinstance(schema, AnyType):
        return schema
    return replace(schema, nullable=True)


def _text(node: Mapping[str, Any], key: str, path: str) -> str:
    value = node[key]
    if not isinstance(value, str):
        raise InvalidInput(f"{key} at {path} is text, not {value!r:.100}", where=path)
    return value


def _count(node: Mapping[str, Any], key: str, path: str) -> int | None:
    value = node.get(key)
    if value is not None and (type(value) is not int or value < 0):
        raise InvalidInput(
            f"{key} at {path} is a whole number from 0, not {value!r:.100}", where=path
        )
    return value


def _bound(node: Mapping[str, Any], key: str, path: str) -> int | float | None:
    value = node.get(key)
    if value is not None and type(value) not in (int, float):
        raise InvalidInput(f"{key} at {path} is a number, not {value!r:.100}", where=path)
    return value


def _digits(node: Mapping[str, Any], path: str) -> DecimalType:
    digits = {key: _count(node, key, path) for key in ("precision", "scale") if key in node}
    return DecimalType(**digits)  # type: ignore[arg-type]


def _text_type(node: Mapping[str, Any], path: str) -> AnyOf:
    low, high = _count(node, "minLength", path), _count(node, "maxLength", path)
    encoding = node.get("contentEncoding")
    if encoding is not None and encoding != "base64":
        raise InvalidInput(
            f"contentEncoding at {path} is base64, not {encoding!r:.100}", where=path
        )
    form = _text(node, "format", path) if "format" in node else ""
    if encoding == "base64" or form in ("byte", "base64"):
        return _binary_type(node.get(OWN))
    match form:
        case "date-time":
            own = node.get(OWN)
            return TimestampType(zoned=True if own == ZONED else False if own == UNZONED else None)
        case "date":
            return DateType()
        case "decimal":
            return _digits(node, path)
        case "uuid" | "time" | "duration":
            return TextType(format=form)
        case _:  # JSON Schema calls a format an annotation
            return TextType(length_min=low, length_max=high)


def bytes_text(low: int | None, high: int | None) -> str:
    """Return the annotation of bytes with lengths, such as `bytes 1 to 16`; `_` is no bound."""
    return f"bytes {'_' if low is None else low} to {'_' if high is None else high}"


def _binary_type(own: Any) -> BinaryType:
    lengths = _BYTES.fullmatch(own) if isinstance(own, str) else None
    if lengths is None:
        return BinaryType()
    low, high = (None if text == "_" else int(text) for text in lengths.groups())
    return BinaryType(length_min=low, length_max=high)


def _integer_type(node: Mapping[str, Any], path: str) -> AnyOf:
    match node.get(OWN):
        case "timestamp ms":
            return TimestampType(written="ms")
        case "timestamp us":
            return TimestampType(written="us")
        case "date days":
            return DateType(written="days")
    low, high = _bound(node, "minimum", path), _bound(node, "maximum", path)
    above, below = _bound(node, "exclusiveMinimum", path), _bound(node, "exclusiveMaximum", path)
    lows = [ceil(low)] if low is not None else []
    highs = [floor(high)] if high is not None else []
    lows += [floor(above) + 1] if above is not None else []
    highs += [ceil(below) - 1] if below is not None else []
    bits: Literal[32, 64] = 32 if node.get("format") == "int32" else 64
    return IntegerType(bits=bits, minimum=max(lows, default=None), maximum=min(highs, default=None))


def _number_type(node: Mapping[str, Any], path: str) -> AnyOf:
    if node.get("format") == "decimal":
        return _digits(node, path)
    low, above = _bound(node, "minimum", path), _bound(node, "exclusiveMinimum", path)
    high, below = _bound(node, "maximum", path), _bound(node, "exclusiveMaximum", path)
    is_above = above is not None and (low is None or above >= low)
    is_below = below is not None and (high is None or below <= high)
    return NumberType(
        bits=32 if node.get("format") == "float" else 64,
        minimum=None if is_above else low,
        maximum=None if is_below else high,
        above=above if is_above else None,
        below=below if is_below else None,
    )


def _enum_type(node: Mapping[str, Any], path: str) -> AnyOf:
    values = node["enum"] if "enum" in node else [node["const"]]
    if not isinstance(values, list) or not values:
        raise InvalidInput(f"enum at {path} is a list of values, not {values!r:.100}", where=path)
    non_null = [value for value in values if value is not None]
    if non_null and all(type(value) is bool for value in non_null) and len(set(non_null)) == 2:
        return BooleanType(nullable=len(non_null) < len(values))
    return EnumType(values=tuple(non_null), nullable=len(non_null) < len(values))
