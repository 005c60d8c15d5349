"""Comparisons at run time: tests that a comparison is true, and tests that it is false.

Only like compares with like: strings by code point, numbers exactly (an integer and a float as the
numbers that they are, never rounded to each other), booleans for equality only. Any other
comparison of two values that are there is false, also `<>`: hence `a <> b` is not `NOT a = b`. With
NULL or NaN on a side it is unknown, and then no test here is true. A name against a literal, by far
the commonest, gets a closure that does nothing else.
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
"""The same comparison with its sides exchanged."""

_HOLDS: Final[dict[ComparisonOperator, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": lambda left, right: bool(left < right or left > right),  # false for NaN, unlike !=
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


def comparison(symbol: ComparisonOperator, left: Value, right: Value) -> tuple[Test, Test]:
    """Two tests: that the comparison is true; and that it is false: both sides are there, yet it fails."""
    if isinstance(left, Constant) and not isinstance(right, Constant):
        left, right, symbol = right, left, MIRRORED[symbol]
    if isinstance(left, tree.Header | tree.Field) and isinstance(right, Constant):
        key = left.name if isinstance(left, tree.Header) else FIELD_KEYS[left.name]
        holds = _name_to_constant(symbol, key, right.value)
        return holds, _name_refuted(symbol, key, right.value, holds)
    first, second = getter(left), getter(right)
    holds = _any_to_any(symbol, first, second)
    return holds, lambda row: is_there(first(row)) and is_there(second(row)) and not holds(row)


def _any_to_any(symbol: ComparisonOperator, left: Getter, right: Getter) -> Test:
    compares = _HOLDS[symbol]
    alike = {str, bool} if symbol in ("=", "<>") else {str}

    def test(row: Row) -> bool:
        first, second = left(row), right(row)
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
    wanted = constant if symbol == "=" else not constant
    return lambda row: row.get(key) is wanted


def _name_equals(key: Any, constant: str | int | float) -> Test:
    if constant in (0, 1):  # False and True are equal to these in Python
        return lambda row: (found := row.get(key)) == constant and type(found) is not bool
    return lambda row: bool(row.get(key) == constant)


def _name_to_string(symbol: ComparisonOperator, key: Any, constant: str) -> Test:
    compares = _HOLDS[symbol]
    return lambda row: type(found := row.get(key)) is str and compares(found, constant)


def _name_to_number(symbol: ComparisonOperator, key: Any, constant: int | float) -> Test:
    match symbol:
        case "<":
            return lambda row: type(found := row.get(key)) in NUMBERS and found < constant
        case "<=":
            return lambda row: type(found := row.get(key)) in NUMBERS and found <= constant
        case ">":
            return lambda row: type(found := row.get(key)) in NUMBERS and found > constant
        case ">=":
            return lambda row: type(found := row.get(key)) in NUMBERS and found >= constant
        case _:
            compares = _HOLDS[symbol]
            return lambda row: type(found := row.get(key)) in NUMBERS and compares(found, constant)


def _name_refuted(symbol: ComparisonOperator, key: Any, constant: Any, holds: Test) -> Test:
    if symbol == "=" and constant not in (0, 1):
        return lambda row: (
            (found := row.get(key)) != constant and found is not None and found == found
        )
    return lambda row: is_there(row.get(key)) and not holds(row)


def is_there(found: Any) -> bool:
    """Whether a value is neither NULL nor NaN, with which nothing compares."""
    return found is not None and bool(found == found)


def membership(value: Value, items: tuple[Constant, ...]) -> tuple[Test, Test]:
    """Tests that `value IN (items)` is true, and that it is false: one look-up, however many items."""
    get, contains = getter(value), _contains(items)
    return _is_member(value, items), lambda row: is_there(found := get(row)) and not contains(found)


def _is_member(value: Value, items: tuple[Constant, ...]) -> Test:
    kinds, members, booleans = _members(items)
    if isinstance(value, tree.Header) and not booleans:
        key = value.name
        if kinds == {str}:
            return lambda row: type(found := row.get(key)) is str and found in members
        return lambda row: type(found := row.get(key)) in kinds and found in members
    get, contains = getter(value), _contains(items)
    return lambda row: contains(get(row))


def _contains(items: tuple[Constant, ...]) -> Callable[[Any], bool]:
    kinds, members, booleans = _members(items)
    if not booleans:
        return lambda found: type(found) in kinds and found in members

    def contains(found: Any) -> bool:
        kind = type(found)
        return found in booleans if kind is bool else kind in kinds and found in members

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
