"""Evolution: the changes of a schema that its records and readers survive.

A new version is compatible if every record that fits the old version fits the new one, and if readers of
the old version find the fields that they require. So fields may be added if they are not required, and
types may only widen. `conflicts` names each change that is not compatible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

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
    name_of,
)


def conflicts(old: AnyOf, new: AnyOf, path: str = "$") -> list[str]:
    """Return a sentence for each change that is not compatible."""
    if isinstance(new, AnyType):
        return []
    breaks = []
    if (old.nullable or isinstance(old, AnyType)) and not new.nullable:
        breaks.append(f"{path}: null was a value, and is none any more")
    match old, new:
        case (StructType(), StructType()):
            return breaks + _of_fields(old, new, path)
        case (ListType(), ListType()):
            breaks += _of_lengths(old, new, path, "items")
            return breaks + conflicts(old.items, new.items, f"{path}[...]")
        case (MapType(), MapType()):
            return breaks + conflicts(old.values, new.values, f"{path}[...]")
        case (EnumType(), EnumType()):
            gone = [value for value in old.values if value not in new.values]
            if gone:
                breaks.append(f"{path}: the enum loses {', '.join(map(repr, gone[:5]))}")
            return breaks
        case (IntegerType() | NumberType(), IntegerType() | NumberType()):
            if _widens(old, new):
                return breaks + _of_bounds(old, new, path)
        case (TextType(), TextType()) if new.format in ("", old.format):
            return breaks + _of_lengths(old, new, path, "length")
        case (BinaryType(), BinaryType()):
            return breaks + _of_lengths(old, new, path, "length")
        case _:
            if _widens(old, new):
                return breaks
    return [*breaks, f"{path}: {name_of(old)} cannot become {name_of(new)}"]


def _widens(old: AnyOf, new: AnyOf) -> bool:
    """Return whether each value of the old type is a value of the new one, bounds left aside."""
    match new:
        case IntegerType():
            return isinstance(old, IntegerType) and old.bits <= new.bits
        case NumberType():
            return isinstance(old, IntegerType) or (
                isinstance(old, NumberType) and old.bits <= new.bits
            )
        case DecimalType():
            whole_digits = new.precision - new.scale
            if isinstance(old, DecimalType):
                return old.scale <= new.scale and old.precision - old.scale <= whole_digits
            return isinstance(old, IntegerType) and whole_digits >= (10 if old.bits == 32 else 19)
        case TimestampType() if isinstance(old, TimestampType):
            return old.written == new.written and new.zoned in (None, old.zoned)
        case TextType():
            bounded = new.length_min is not None or new.length_max is not None
            return _is_text(old) and not new.format and not bounded
        case _:
            return replace(old, nullable=False) == replace(new, nullable=False)


def _is_text(schema: AnyOf) -> bool:
    match schema:
        case EnumType():
            return all(isinstance(value, str) for value in schema.values)
        case DateType() | TimestampType():
            return schema.written == "text"
        case _:
            return isinstance(schema, TextType)


def _of_bounds(
    old: IntegerType | NumberType, new: IntegerType | NumberType, path: str
) -> list[str]:
    breaks = []
    for bound_name, sign in (("minimum", 1), ("maximum", -1)):
        before, after = _bound(old, bound_name), _bound(new, bound_name)
        if after is None:
            continue
        limit, is_open = after
        is_tighter = (
            before is None
            or sign * limit > sign * before[0]
            or (limit == before[0] and is_open and not before[1])
        )
        if is_tighter:
            breaks.append(f"{path}: the {bound_name} becomes {limit:,}")
    return breaks


def _bound(schema: IntegerType | NumberType, bound_name: str) -> tuple[float, bool] | None:
    """Return a bound, and whether it is exclusive; None without a bound."""
    exclusive = None
    if isinstance(schema, NumberType):
        exclusive = schema.above if bound_name == "minimum" else schema.below
    if exclusive is not None:
        return exclusive, True
    inclusive = schema.minimum if bound_name == "minimum" else schema.maximum
    return None if inclusive is None else (inclusive, False)


def _of_lengths(
    old: TextType | BinaryType | ListType,
    new: TextType | BinaryType | ListType,
    path: str,
    noun: str,
) -> list[str]:
    breaks = []
    if (new.length_min or 0) > (old.length_min or 0):
        breaks.append(f"{path}: the fewest {noun} become {new.length_min:,}")
    if new.length_max is not None and (old.length_max is None or new.length_max < old.length_max):
        breaks.append(f"{path}: the most {noun} become {new.length_max:,}")
    return breaks


def _of_fields(old: StructType, new: StructType, path: str) -> list[str]:
    breaks = []
    before = {field.name: field for field in old.fields}
    after = {field.name: field for field in new.fields}
    for name, field in before.items():
        at = f"{path}.{name}"
        if name not in after:
            if field.required:
                breaks.append(f"{at}: a required field is removed")
            elif new.closed:
                breaks.append(f"{at}: the field is removed, and unknown fields are refused")
            continue
        if after[name].required and not field.required:
            breaks.append(f"{at}: the field becomes required")
        breaks += conflicts(field.type, after[name].type, at)
    for name, field in after.items():
        if name not in before and field.required:
            breaks.append(f"{path}.{name}: a required field is added; make it optional")
    if new.closed and not old.closed:
        breaks.append(f"{path}: unknown fields are refused from now on")
    return breaks


def conflicts_with(versions: Sequence[StructType], new: StructType) -> list[str]:
    """Return the conflicts of a schema with the newest version, and with fields of earlier versions.

    A field that a version removed may return, with a type that its earlier values fit.
    """
    if not versions:
        return []
    newest = versions[-1]
    return conflicts(newest, new) + _of_returning(newest, merged(versions), new, "$")


def _of_returning(newest: AnyOf, past: AnyOf, new: AnyOf, path: str) -> list[str]:
    match newest, past, new:
        case (ListType(), ListType(), ListType()):
            return _of_returning(newest.items, past.items, new.items, f"{path}[...]")
        case (MapType(), MapType(), MapType()):
            return _of_returning(newest.values, past.values, new.values, f"{path}[...]")
        case (StructType(), StructType(), StructType()):
            return _of_returning_fields(newest, past, new, path)
    return []


def _of_returning_fields(
    newest: StructType, past: StructType, new: StructType, path: str
) -> list[str]:
    breaks = []
    now = {field.name: field.type for field in newest.fields}
    before = {field.name: field.type for field in past.fields}
    for field in new.fields:
        at = f"{path}.{field.name}"
        current, earlier = now.get(field.name), before.get(field.name)
        if earlier is None:
            continue
        if current is None:
            breaks += conflicts(earlier, field.type, at)
        else:
            breaks += _of_returning(current, earlier, field.type, at)
    return breaks


def merged(versions: Iterable[StructType]) -> StructType:
    """Return one type for the records of all versions, for readers with columns.

    The newest version decides about its fields. Fields that only earlier versions have come behind, and
    a field that a version lacks is not required.
    """
    result: StructType | None = None
    for schema in versions:
        result = schema if result is None else _merged_struct(result, schema)
    return StructType() if result is None else result


def _merged(old: AnyOf, new: AnyOf) -> AnyOf:
    match old, new:
        case (StructType(), StructType()):
            made: AnyOf = _merged_struct(old, new)
        case (ListType(), ListType()):
            made = replace(new, items=_merged(old.items, new.items))
        case (MapType(), MapType()):
            made = replace(new, values=_merged(old.values, new.values))
        case _:
            made = new
    return replace(made, nullable=True) if old.nullable and not made.nullable else made


def _merged_struct(old: StructType, new: StructType) -> StructType:
    before = {field.name: field for field in old.fields}
    names = {field.name for field in new.fields}
    fields: list[SchemaField] = []
    for field in new.fields:
        earlier = before.get(field.name)
        if earlier is None:
            fields.append(replace(field, required=False))
        else:
            kind = _merged(earlier.type, field.type)
            required = field.required and earlier.required
            fields.append(replace(field, type=kind, required=required))
    fields += [replace(field, required=False) for field in old.fields if field.name not in names]
    return replace(new, fields=tuple(fields), closed=False)
