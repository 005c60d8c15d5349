"""Comparisons at run time: tests that are true exactly when a comparison is.

Only like compares with like: strings by code point, numbers exactly (an integer and a float as the
numbers that they are, never rounded to each other), booleans for equality only. Everything else,
NaN included, is unknown, and then no test here is true. Hence `a <> b` is not `not a = b`.
A name against a literal, by far the commonest, gets a closure that does nothing else.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from millstream.filters import tree
from millstream.filters.arithmetic import FIELD_KEYS, NUMBERS, Getter, Row, getter
from millstream.filters.tree import ComparisonOperator, Constant, Value

Test: TypeAlias = Callable[[Row], bool]

OPPOSITE: Final[dict[ComparisonOperator, ComparisonOperator]] = {
    "=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">",
}  # fmt: skip
"""What is true when the comparison is false, and unknown when it is unknown."""

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


def comparison(symbol: ComparisonOperator, left: Value, right: Value) -> Test:
    """A test that is true exactly when the comparison is."""
    if isinstance(left, Constant) and not isinstance(right, Constant):
        left, right, symbol = right, left, MIRRORED[symbol]
    if isinstance(left, tree.Header | tree.Field) and isinstance(right, Constant):
        return _name_to_constant(symbol, _row_key(left), right.value)
    return _any_to_any(symbol, getter(left), getter(right))


def _row_key(name: tree.Name) -> str | int:
    return name.name if isinstance(name, tree.Header) else FIELD_KEYS[name.name]


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


def membership(value: Value, items: tuple[Constant, ...], *, wanted: bool) -> Test | None:
    """A test that `value IN (items)` is true, or with `wanted=False` that it is false.

    None if the items are not all strings or all numbers: then it is a chain of comparisons.
    """
    kinds = {tree.kind(item) for item in items}
    members = frozenset(item.value for item in items)
    get = getter(value)
    if kinds == {"string"}:
        if not wanted:
            return lambda row: type(found := get(row)) is str and found not in members
        if isinstance(value, tree.Header):
            key = value.name
            return lambda row: row.get(key) in members
        return lambda row: get(row) in members
    if kinds != {"number"}:
        return None
    if wanted:
        return lambda row: type(found := get(row)) in NUMBERS and found in members
    return lambda row: (
        type(found := get(row)) in NUMBERS and found == found and found not in members
    )
