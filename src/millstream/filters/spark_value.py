"""The values of a filter in Spark SQL.

A header has no type until a row is seen, so a value becomes up to four expressions, one per type,
of which at most one is not NULL in a row. Nothing here can raise, so ANSI mode makes no difference.
Four details carry the weight:

- `x % Infinity` is x for a finite x and NaN otherwise, and `nanvl` makes that NULL: the test names
  x once, so nested arithmetic does not double in size with every level;
- where an operand would have to be named again and again, a lambda over an array of one element
  names it once (`once`): Spark SQL has no other way to name a value inside an expression;
- long arithmetic is a list of steps that `aggregate` takes on a stack: it neither nests nor grows
  faster than the filter, but Spark interprets it;
- strings that are not plain are written as hexadecimal bytes, so neither a quote nor the session's
  rules for backslashes and variables can reach into them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from millstream.filters import tree
from millstream.filters.tree import ArithmeticOperator, Value

_HEADERS_PLAIN_MAX: Final = 4
"""Each may be an integer or a float, and the expression grows with the square of their number."""

_DEPTH_PLAIN_MAX: Final = 12
"""Of arithmetic: Spark's parser takes some hundred calls within calls, and a level makes three."""

_NULL_DOUBLE: Final = "CAST(NULL AS DOUBLE)"
_NULL_BIGINT: Final = "CAST(NULL AS BIGINT)"
_NUMBER: Final = "named_struct('i', {}, 'd', {})"
_NO_NUMBERS: Final = "CAST(array() AS ARRAY<STRUCT<i: BIGINT, d: DOUBLE>>)"
_STEP: Final = "named_struct('o', {}, 'i', {}, 'd', {})"
_INFINITY: Final = "CAST('Infinity' AS DOUBLE)"
INT64_MIN: Final = "CAST('-9223372036854775808' AS BIGINT)"
_PLAIN: Final = re.compile(r"[A-Za-z0-9 _.,:;/@+=-]*")
_TRY: Final = {"+": "try_add", "-": "try_subtract", "*": "try_multiply", "/": "try_divide"}


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """The names of the columns that hold a message."""

    headers: str = "headers"
    key: str = "key"
    timestamp: str = "timestamp"
    log: str = "log"
    value: str = "value"


@dataclass(frozen=True, slots=True)
class Typed:
    """One value as expressions by type; None where it can never have that type."""

    s: str | None = None
    i: str | None = None
    d: str | None = None
    b: str | None = None
    fixed: bool = False
    """Whether it is a literal: of one type, and never NULL."""
    number: int | float | None = None
    """What a literal is, if it is a number."""
    headers: int = 0
    """How many headers went into it, if it may be an integer or a float."""
    whole: str | None = None
    """A struct that has the expressions by type as its fields, if they were made from one."""

    @property
    def fields(self) -> dict[str, str]:
        """The expressions, by the types that it may have."""
        found = {"s": self.s, "i": self.i, "d": self.d, "b": self.b}
        return {kind: text for kind, text in found.items() if text is not None}


def once(values: Sequence[Typed], body: Callable[..., str]) -> str:
    """`body(*values)`, which may name each value many times, without growing with their size."""
    if sum(value.headers for value in values) <= _HEADERS_PLAIN_MAX:
        return body(*values)
    named = [f"'v{number}', {_struct(value)}" for number, value in enumerate(values)]
    inside = [value if value.fixed else _inside(value, f"p.v{n}") for n, value in enumerate(values)]
    one = f"array(named_struct({', '.join(named)}))"
    return f"try_element_at(transform({one}, p -> {body(*inside)}), 1)"


def _struct(value: Typed) -> str:
    if value.whole is not None:
        return value.whole
    named = [f"'{field}', {text}" for field, text in value.fields.items()]
    return f"named_struct({', '.join(named)})"


def _inside(value: Typed, name: str) -> Typed:
    """The value where its struct has this name."""
    return Typed(**{field: f"{name}.{field}" for field in value.fields})  # type: ignore[arg-type]


def typed(node: Value, columns: MessageColumns) -> Typed:
    """The value as expressions over the columns."""
    match node:
        case tree.Constant(value=value):
            return constant(value)
        case tree.Header(name=name):
            entry = header(name, columns)
            number = f"nanvl({entry}.d, {_NULL_DOUBLE})"
            return Typed(s=f"{entry}.s", i=f"{entry}.i", d=number, b=f"{entry}.b", headers=1)
        case tree.Field(name="_key"):
            return Typed(s=f"try_validate_utf8(CAST({_identifier(columns.key)} AS STRING))")
        case tree.Field(name="_log"):
            return Typed(s=_identifier(columns.log))
        case tree.Field(name="_value"):
            return Typed(s=_identifier(columns.value))  # only ever compared with NULL
        case tree.Field():
            return Typed(i=_identifier(columns.timestamp))
        case tree.Signed() | tree.Arithmetic() if not _is_plain(node):
            return _computed_in_steps(node, columns)
        case tree.Signed(sign=sign, operand=operand):
            return _arithmetic("-" if sign == "-" else "+", Typed(i="0L"), typed(operand, columns))
        case tree.Arithmetic(operator=operator, left=left, right=right):
            return _arithmetic(operator, typed(left, columns), typed(right, columns))


def header(name: str, columns: MessageColumns) -> str:
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
            return Typed(b="TRUE" if value else "FALSE", fixed=True)
        case str():
            return Typed(s=string(value), fixed=True)
        case int():
            return Typed(i=bigint(value), fixed=True, number=value)
        case float():
            return Typed(d=double(value), fixed=True, number=value)


def bigint(value: int) -> str:
    """A literal of type bigint."""
    return INT64_MIN if value == tree.INT64_MIN else f"{value}L"


def double(value: float) -> str:
    """A literal of type double."""
    return f"{value!r}D"


def _is_plain(node: tree.Signed | tree.Arithmetic) -> bool:
    headers = depth_max = 0
    for each, depth in tree.walk(node):
        headers += isinstance(each, tree.Header)
        depth_max = max(depth_max, depth)
    return headers <= _HEADERS_PLAIN_MAX and depth_max <= _DEPTH_PLAIN_MAX


def _arithmetic(operator: ArithmeticOperator, left: Typed, right: Typed) -> Typed:
    integer = None
    if left.i is not None and right.i is not None:
        integer = _integer_arithmetic(operator, left.i, right)
    double = _double_arithmetic(operator, left, right)
    either = integer is not None and double is not None
    return Typed(i=integer, d=double, headers=left.headers + right.headers if either else 0)


def _integer_arithmetic(operator: ArithmeticOperator, left: str, right: Typed) -> str:
    if operator != "/":
        return f"{_TRY[operator]}({_kept_apart(left)}, {_kept_apart(str(right.i))})"
    match right.number:
        case None:
            # Spark has no try_ form of `div`; a lambda names each operand once.
            pair = f"array(named_struct('n', {left}, 'm', {right.i}))"
            overflow = f"(p.m = -1L AND p.n = {INT64_MIN})"
            quotient = f"CASE WHEN p.m = 0L OR {overflow} THEN NULL ELSE p.n div p.m END"
            return f"try_element_at(transform({pair}, p -> {quotient}), 1)"
        case 0:
            return _NULL_BIGINT
        case -1:
            return f"try_subtract(0L, {left})"
        case _:
            return f"({left} div {right.i})"


def _kept_apart(operand: str) -> str:
    """A sum or product that Spark computes before it goes on.

    Spark's optimizer (`ReorderAssociativeOperator`, 4.3) takes a literal out of nested sums or
    products, also of `try_add` and `try_multiply`: `0 * (a * 9e18)` is 0 then, although the inner
    product overflows. An operator of another kind between them, which changes nothing, prevents that.
    """
    return f"({operand} | 0L)" if operand.startswith(("try_add(", "try_multiply(")) else operand


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


def _computed_in_steps(node: tree.Signed | tree.Arithmetic, columns: MessageColumns) -> Typed:
    steps = [_step(each, columns) for each in _operands_first(node)]
    operators = sorted({step.operator for step in steps if step.operator is not None})
    listed = ", ".join(step.sql for step in steps)
    pushed = f"concat(array({_NUMBER.format('p.i', 'p.d')}), t)"
    popped = f"concat(array({_top_two(operators)}), slice(t, 3, {len(steps)}))"
    taken = f"(t, p) -> CASE WHEN p.o IS NULL THEN {pushed} ELSE {popped} END"
    whole = f"aggregate(array({listed}), {_NO_NUMBERS}, {taken}, t -> try_element_at(t, 1))"
    return Typed(i=f"{whole}.i", d=f"{whole}.d", headers=len(steps), whole=whole)


@dataclass(frozen=True, slots=True)
class _SqlStep:
    """Either a number to put on the stack, or an operator for the two on top of it."""

    operator: ArithmeticOperator | None
    sql: str


def _operands_first(node: Value) -> list[Value]:
    """The nodes of arithmetic in postfix order."""
    found: list[Value] = []
    waiting: list[Value] = [node]
    while waiting:
        each = waiting.pop()
        found.append(each)
        match each:
            case tree.Signed(operand=operand):
                waiting += [tree.Constant(each.at, 0), operand]
            case tree.Arithmetic(left=left, right=right):
                waiting += [left, right]
    return found[::-1]


def _step(node: Value, columns: MessageColumns) -> _SqlStep:
    match node:
        case tree.Signed(sign=operator) | tree.Arithmetic(operator=operator):
            fields = (f"'{operator}'", _NULL_BIGINT, _NULL_DOUBLE)
            return _SqlStep(operator, _STEP.format(*fields))
        case _:
            found = typed(node, columns)
            fields = ("CAST(NULL AS STRING)", found.i or _NULL_BIGINT, found.d or _NULL_DOUBLE)
            return _SqlStep(None, _STEP.format(*fields))


def _top_two(operators: Sequence[ArithmeticOperator]) -> str:
    """What the operator of a step makes of the two numbers on top."""
    left, right = (
        Typed(i=f"{number}.i", d=f"{number}.d")
        for number in ("try_element_at(t, 2)", "try_element_at(t, 1)")
    )
    results = {operator: _arithmetic(operator, left, right) for operator in operators}
    integers = " ".join(f"WHEN '{name}' THEN {result.i}" for name, result in results.items())
    doubles = " ".join(f"WHEN '{name}' THEN {result.d}" for name, result in results.items())
    return _NUMBER.format(f"CASE p.o {integers} END", f"CASE p.o {doubles} END")
