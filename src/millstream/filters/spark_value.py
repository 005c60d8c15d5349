"""The values of a filter in Spark SQL.

A header has no type until a row is seen, so a value becomes up to four expressions, one per type,
of which at most one is not NULL in a row. Nothing here can raise, so ANSI mode makes no difference.
Two details carry the weight:

- `x % Infinity` is x for a finite x and NaN otherwise, and `nanvl` makes that NULL: the test names
  x once, so nested arithmetic does not double in size with every level;
- strings that are not plain are written as hexadecimal bytes, so neither a quote nor the session's
  rules for backslashes and variables can reach into them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from millstream.filters import tree
from millstream.filters.tree import ArithmeticOperator, Value

_NULL_DOUBLE: Final = "CAST(NULL AS DOUBLE)"
_INFINITY: Final = "CAST('Infinity' AS DOUBLE)"
_INT64_MIN: Final = "CAST('-9223372036854775808' AS BIGINT)"
_PLAIN: Final = re.compile(r"[A-Za-z0-9 _.,:;/@+=-]*")
_TRY: Final = {"+": "try_add", "-": "try_subtract", "*": "try_multiply", "/": "try_divide"}


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of the columns that hold a message."""

    headers: str = "headers"
    key: str = "key"
    timestamp: str = "timestamp"
    log: str = "log"


@dataclass(frozen=True, slots=True)
class Typed:
    """One value as expressions by type; None where it can never have that type."""

    s: str | None = None
    i: str | None = None
    d: str | None = None
    b: str | None = None
    constant: int | float | None = None


def typed(node: Value, columns: Columns) -> Typed:
    """The value as expressions over the columns."""
    match node:
        case tree.Constant(value=value):
            return constant(value)
        case tree.Header(name=name):
            entry = header(name, columns)
            number = f"nanvl({entry}.d, {_NULL_DOUBLE})"
            return Typed(s=f"{entry}.s", i=f"{entry}.i", d=number, b=f"{entry}.b")
        case tree.Field(name="_key"):
            return Typed(s=f"try_validate_utf8(CAST({_identifier(columns.key)} AS STRING))")
        case tree.Field(name="_log"):
            return Typed(s=_identifier(columns.log))
        case tree.Field():
            return Typed(i=_identifier(columns.timestamp))
        case tree.Signed(sign=sign, operand=operand):
            return _arithmetic("-" if sign == "-" else "+", Typed(i="0L"), typed(operand, columns))
        case tree.Arithmetic(operator=operator, left=left, right=right):
            return _arithmetic(operator, typed(left, columns), typed(right, columns))


def header(name: str, columns: Columns) -> str:
    """The header's struct; NULL if there is none."""
    return f"try_element_at({_identifier(columns.headers)}, {string(name)})"


def _identifier(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def string(text: str) -> str:
    """A string literal that means the same under every setting of the session."""
    if _PLAIN.fullmatch(text):
        return f"'{text}'"
    return f"CAST(X'{text.encode().hex()}' AS STRING)"


def constant(value: str | int | float | bool) -> Typed:
    """A literal; a number is kept beside its text, for exact comparison."""
    match value:
        case bool():
            return Typed(b="TRUE" if value else "FALSE")
        case str():
            return Typed(s=string(value))
        case int():
            return Typed(i=bigint(value), constant=value)
        case float():
            return Typed(d=double(value), constant=value)


def bigint(value: int) -> str:
    """A literal of type bigint."""
    return _INT64_MIN if value == tree.INT64_MIN else f"{value}L"


def double(value: float) -> str:
    """A literal of type double."""
    return f"{value!r}D"


def _arithmetic(operator: ArithmeticOperator, left: Typed, right: Typed) -> Typed:
    integer = None
    if left.i is not None and right.i is not None:
        integer = _integer_arithmetic(operator, left.i, right)
    return Typed(i=integer, d=_double_arithmetic(operator, left, right))


def _integer_arithmetic(operator: ArithmeticOperator, left: str, right: Typed) -> str:
    if operator != "/":
        return f"{_TRY[operator]}({left}, {right.i})"
    match right.constant:
        case None:
            # Spark has no try_ form of `div`; a lambda names each operand once.
            pair = f"array(named_struct('n', {left}, 'm', {right.i}))"
            overflow = f"(p.m = -1L AND p.n = {_INT64_MIN})"
            quotient = f"CASE WHEN p.m = 0L OR {overflow} THEN NULL ELSE p.n div p.m END"
            return f"try_element_at(transform({pair}, p -> {quotient}), 1)"
        case 0:
            return "CAST(NULL AS BIGINT)"
        case -1:
            return f"try_subtract(0L, {left})"
        case _:
            return f"({left} div {right.i})"


def _double_arithmetic(operator: ArithmeticOperator, left: Typed, right: Typed) -> str | None:
    """NULL where both are integers: that case is the other expression's."""
    if left.d is None and right.d is None:
        return None
    if left.i is None or right.i is None:
        return _finite(operator, _as_double(left), _as_double(right))
    if left.d is None:
        return _finite(operator, _as_double(left), right.d)
    if right.d is None:
        return _finite(operator, left.d, _as_double(right))
    result = _finite(operator, _as_double(left), _as_double(right))
    return f"CASE WHEN {left.i} IS NULL OR {right.i} IS NULL THEN {result} END"


def _as_double(value: Typed) -> str | None:
    if value.i is None:
        return value.d
    cast = f"CAST({value.i} AS DOUBLE)"
    return cast if value.d is None else f"coalesce({value.d}, {cast})"


def _finite(operator: ArithmeticOperator, left: str | None, right: str | None) -> str | None:
    if left is None or right is None:
        return None
    return f"nanvl({_TRY[operator]}({left}, {right}) % {_INFINITY}, {_NULL_DOUBLE})"
