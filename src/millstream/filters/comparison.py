"""Comparisons at run time: a test for true and a test for false.

Only values of a kind compare: strings by code point, numbers exactly (an integer and a float are
never rounded to each other), booleans for equality only. Every other comparison of two present
values is false, including `<>`: hence `a <> b` is not `NOT a = b`. A comparison with NULL or NaN is
unknown, and both tests are false. The most frequent comparison, a name with a literal, gets a
closure of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from millstream.filters import tree
from millstream.filters.arithmetic import FIELD_KEYS, NUMBERS, Getter, Row, getter
from millstream.filters.tree import ComparisonOperator, Constant, Value

Test: TypeAlias = Callable[[Row], bool]

MIRRORED: Final[dict[ComparisonOperator, ComparisonOperator]] = {
    "=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<=",
}  # fmt: skip
"""The comparison after an exchange of its operands."""

_HOLDS: Final[dict[ComparisonOperator, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": lambda first, second: bool(first < second or first > second),  # false for NaN, unlike !=
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def never(row: Row) -> bool:
    """False of every row."""
    return False


def always(row: Row) -> bool:
    """True of every row."""
    return True


def comparison(
    symbol: ComparisonOperator, first_value: Value, second_value: Value
) -> tuple[Test, Test]:
    """Return a test for true, and a test for false: with both values, the comparison fails."""
    if isinstance(first_value, Constant) and not isinstance(second_value, Constant):
        first_value, second_value, symbol = second_value, first_value, MIRRORED[symbol]
    if isinstance(first_value, tree.Header | tree.Field) and isinstance(second_value, Constant):
        key = (
            first_value.name
            if isinstance(first_value, tree.Header)
            else FIELD_KEYS[first_value.name]
        )
        holds = _name_to_constant(symbol, key, second_value.value)
        return holds, _name_refuted(symbol, key, second_value.value, holds)
    first, second = getter(first_value), getter(second_value)
    holds = _any_to_any(symbol, first, second)
    return holds, lambda row: is_there(first(row)) and is_there(second(row)) and not holds(row)


def _any_to_any(symbol: ComparisonOperator, get_first: Getter, get_second: Getter) -> Test:
    compares = _HOLDS[symbol]
    alike = {str, bool} if symbol in ("=", "<>") else {str}

    def test(row: Row) -> bool:
        first, second = get_first(row), get_second(row)
        kind = type(first)
        if kind in NUMBERS:
            return type(second) in NUMBERS and compares(first, second)
        return kind in alike and type(second) is kind and compares(first, second)

    return test


def _name_to_constant(symbol: ComparisonOperator, key: Any, constant: Any) -> Test:
    if isinstance(constant, bool):
        return _name_to_boolean(symbol, key, constant)
    if symbol == "=":
        return _name_equals(key, constant)
    if isinstance(constant, str):
        return _name_to_string(symbol, key, constant)
    return _name_to_number(symbol, key, constant)


def _name_to_boolean(symbol: ComparisonOperator, key: Any, constant: bool) -> Test:
    if symbol not in ("=", "<>"):
        return never
    expected = constant if symbol == "=" else not constant
    return lambda row: row.get(key) is expected


def _name_equals(key: Any, constant: str | int | float) -> Test:
    if constant in (0, 1):  # False and True are equal to these in Python
        return lambda row: (value := row.get(key)) == constant and type(value) is not bool
    return lambda row: bool(row.get(key) == constant)


def _name_to_string(symbol: ComparisonOperator, key: Any, constant: str) -> Test:
    compares = _HOLDS[symbol]
    return lambda row: type(value := row.get(key)) is str and compares(value, constant)


def _name_to_number(symbol: ComparisonOperator, key: Any, constant: int | float) -> Test:
    match symbol:
        case "<":
            return lambda row: type(value := row.get(key)) in NUMBERS and value < constant
        case "<=":
            return lambda row: type(value := row.get(key)) in NUMBERS and value <= constant
        case ">":
            return lambda row: type(value := row.get(key)) in NUMBERS and value > constant
        case ">=":
            return lambda row: type(value := row.get(key)) in NUMBERS and value >= constant
        case _:
            compares = _HOLDS[symbol]
            return lambda row: type(value := row.get(key)) in NUMBERS and compares(value, constant)


def _name_refuted(symbol: ComparisonOperator, key: Any, constant: Any, holds: Test) -> Test:
    if symbol == "=" and constant not in (0, 1):
        return lambda row: (
            (value := row.get(key)) != constant and value is not None and value == value
        )
    return lambda row: is_there(row.get(key)) and not holds(row)


def is_there(value: Any) -> bool:
    """Whether a value is neither NULL nor NaN, with which nothing compares."""
    return value is not None and bool(value == value)


def membership(value: Value, items: tuple[Constant, ...]) -> tuple[Test, Test]:
    """Return the tests for true and false of `value IN (items)`; each is a single look-up."""
    get, contains = getter(value), _contains(items)
    return _is_member(
        value, items
    ), lambda row: is_there(member := get(row)) and not contains(member)


def _is_member(value: Value, items: tuple[Constant, ...]) -> Test:
    kinds, members, booleans = _members(items)
    if isinstance(value, tree.Header) and not booleans:
        key = value.name
        if kinds == {str}:
            return lambda row: type(member := row.get(key)) is str and member in members
        return lambda row: type(member := row.get(key)) in kinds and member in members
    get, contains = getter(value), _contains(items)
    return lambda row: contains(get(row))


def _contains(items: tuple[Constant, ...]) -> Callable[[Any], bool]:
    kinds, members, booleans = _members(items)
    if not booleans:
        return lambda member: type(member) in kinds and member in members

    def contains(member: Any) -> bool:
        kind = type(member)
        return member in booleans if kind is bool else kind in kinds and member in members

    return contains


def _members(
    items: tuple[Constant, ...],
) -> tuple[frozenset[type], frozenset[str | int | float], frozenset[bool]]:
    """The types that may be members, and the members; the booleans apart, as 1 is equal to True.

    Python's sets find numbers as exactly as its comparisons: 1 is 1.0, 2**53 + 1 is not 2.0**53.
    """
    values = [item.value for item in items]
    members = frozenset(value for value in values if not isinstance(value, bool))
    strings: set[type] = {str} if any(isinstance(member, str) for member in members) else set()
    numbers = NUMBERS if any(not isinstance(member, str) for member in members) else set()
    booleans = frozenset(value for value in values if isinstance(value, bool))
    return frozenset(strings | numbers), members, booleans
