"""Values at run time: how a filter reads them from a row, and arithmetic on them.

Integers are int64 and stay integers, also in division, which drops the fraction as in Java; a float
among the operands makes the result a float64. The result is None if the operands are not numbers,
on overflow, on division by zero, and for an infinite result or NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, Final, Protocol, TypeAlias

from millstream.filters import tree
from millstream.filters.tree import INT64_MAX, INT64_MIN, ArithmeticOperator, Sign, Value


class Row(Protocol):
    """A message's headers, and its own fields under `FIELD_KEYS` if the filter names any."""

    def get(self, key: Any, /) -> Any:
        """Return the value of a name, or None."""


Getter: TypeAlias = Callable[[Row], Any]
Number: TypeAlias = int | float

FIELD_KEYS: Final[dict[str, int]] = {"_key": 0, "_timestamp": 1, "_log": 2, "_value": 3}
"""Header names are strings, so no header collides with these."""

NUMBERS: Final = frozenset({int, float})
"""Of exact types: bool is an int to Python, but no number to a filter."""


def getter(value: Value) -> Getter:
    """A function from a row to what the value is there; None is NULL."""
    match value:
        case tree.Constant(value=constant):
            return lambda row: constant
        case tree.Header(name=name):
            return lambda row: row.get(name)
        case tree.Field(name=field):
            key = FIELD_KEYS[field]
            return lambda row: row.get(key)
        case tree.Signed(sign=sign, operand=operand):
            return _signed(sign, getter(operand))
        case tree.Arithmetic(operator=operator, left=left, right=right):
            if isinstance(left, tree.Arithmetic):
                return _chain(value)
            return _computed(operator, getter(left), getter(right))


def _signed(sign: Sign, get: Getter) -> Getter:
    factor = -1 if sign == "-" else 1

    def signed(row: Row) -> Number | None:
        number = get(row)
        return _within(factor * number) if type(number) in NUMBERS else None

    return signed


def _computed(operator: ArithmeticOperator, get_left: Getter, get_right: Getter) -> Getter:
    compute = _COMPUTE[operator]

    def computed(row: Row) -> Number | None:
        first, second = get_left(row), get_right(row)
        if type(first) not in NUMBERS or type(second) not in NUMBERS:
            return None
        try:
            return _within(compute(first, second))
        except OverflowError:  # an integer that no header may hold, as a float
            return None

    return computed


def _chain(value: tree.Arithmetic) -> Getter:
    """Arithmetic from left to right in a loop: a chain of hundreds takes no stack."""
    steps: list[tuple[Callable[[Any, Any], Number | None], Getter]] = []
    first: Value = value
    while isinstance(first, tree.Arithmetic):
        steps.append((_COMPUTE[first.operator], getter(first.right)))
        first = first.left
    steps.reverse()
    begin = getter(first)

    def computed(row: Row) -> Number | None:
        result = begin(row)
        if type(result) not in NUMBERS:
            return None
        for compute, get in steps:
            operand = get(row)
            if type(operand) not in NUMBERS:
                return None
            try:
                result = _within(compute(result, operand))
            except OverflowError:  # an integer that no header may hold, as a float
                return None
            if result is None:
                return None
        return result  # type: ignore[no-any-return]

    return computed


def _within(number: Number | None) -> Number | None:
    """The number, unless it is no int64 and no finite float64."""
    if type(number) is float:
        return number if isfinite(number) else None
    return number if number is not None and INT64_MIN <= number <= INT64_MAX else None


def _divide(dividend: Number, divisor: Number) -> Number | None:
    if divisor == 0:
        return None
    if type(dividend) is float or type(divisor) is float:
        return dividend / divisor
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


_COMPUTE: Final[dict[ArithmeticOperator, Callable[[Any, Any], Number | None]]] = {
    "+": lambda first, second: first + second,
    "-": lambda first, second: first - second,
    "*": lambda first, second: first * second,
    "/": _divide,
}
