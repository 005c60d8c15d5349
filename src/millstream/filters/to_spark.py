"""A filter as a Spark SQL expression with the same answer for every row.

A comparison takes the first pair of like types that gives an answer; Spark's own three-valued logic
does the rest. An integer and a double are compared as integers, after the double was rounded
towards the side that keeps the answer and its range checked: a cast of the integer to double would
lose bits. Nothing here can raise, so ANSI mode makes no difference.
"""

from __future__ import annotations

from typing import Final

from millstream.filters import tree
from millstream.filters.comparison import MIRRORED
from millstream.filters.like import Pattern, Segment, literal
from millstream.filters.spark_value import (
    Columns,
    Typed,
    bigint,
    constant,
    double,
    header,
    string,
    typed,
)
from millstream.filters.tree import ComparisonOperator, Condition, Value

_NULL_BOOLEAN: Final = "CAST(NULL AS BOOLEAN)"
_TWO_TO_63: Final = "9.223372036854775808E18D"
_DOUBLE_EXACT_MAX: Final = 2**53


def to_spark(node: Condition, columns: Columns) -> str:
    """The condition as an expression of type boolean."""
    match node:
        case tree.Not(operand=operand):
            return f"(NOT {to_spark(operand, columns)})"
        case tree.And(operands=operands):
            return f"({' AND '.join(to_spark(operand, columns) for operand in operands)})"
        case tree.Or(operands=operands):
            return f"({' OR '.join(to_spark(operand, columns) for operand in operands)})"
        case tree.Compare(operator=operator, left=left, right=right):
            return _compare(operator, typed(left, columns), typed(right, columns))
        case tree.Between(value=value, low=low, high=high):
            middle = typed(value, columns)
            above = _compare(">=", middle, typed(low, columns))
            return f"({above} AND {_compare('<=', middle, typed(high, columns))})"
        case tree.In(value=value, items=items):
            return _member(typed(value, columns), items)
        case tree.Like(value=value, pattern=pattern):
            text = typed(value, columns).s
            return _NULL_BOOLEAN if text is None else _like(text, pattern)
        case tree.IsNull(value=value):
            return _is_null(value, columns)
        case tree.Header() | tree.Constant():
            return typed(node, columns).b or _NULL_BOOLEAN


def _compare(operator: ComparisonOperator, left: Typed, right: Typed) -> str:
    answers = []
    if left.s is not None and right.s is not None:
        answers.append(f"{left.s} {operator} {right.s}")
    if left.i is not None and right.i is not None:
        answers.append(f"{left.i} {operator} {right.i}")
    if left.d is not None and right.d is not None:
        answers.append(f"{left.d} {operator} {right.d}")
    if left.i is not None and right.d is not None:
        answers.append(_mixed(operator, left, right))
    if left.d is not None and right.i is not None:
        answers.append(_mixed(MIRRORED[operator], right, left))
    if left.b is not None and right.b is not None and operator in ("=", "<>"):
        answers.append(f"{left.b} {operator} {right.b}")
    return _first(answers)


def _first(answers: list[str]) -> str:
    match answers:
        case []:
            return _NULL_BOOLEAN
        case [answer]:
            return f"({answer})"
        case _:
            return f"coalesce({', '.join(answers)})"


def _mixed(operator: ComparisonOperator, left: Typed, right: Typed) -> str:
    """The left as an integer, the right as a double."""
    i, d = left.i, right.d
    if isinstance(left.constant, int) and abs(left.constant) <= _DOUBLE_EXACT_MAX:
        return f"{double(float(left.constant))} {operator} {d}"
    if isinstance(right.constant, float) and _is_small_integer(right.constant):
        return f"{i} {operator} {bigint(int(right.constant))}"
    rounded = {
        "<": f"{i} < ceil({d})",
        "<=": f"{i} <= floor({d})",
        ">": f"{i} > floor({d})",
        ">=": f"{i} >= ceil({d})",
        "=": f"({i} >= ceil({d}) AND {i} <= floor({d}))",
        "<>": f"({i} < ceil({d}) OR {i} > floor({d}))",
    }[operator]
    if_above = "TRUE" if operator in ("<", "<=", "<>") else "FALSE"
    if_below = "TRUE" if operator in (">", ">=", "<>") else "FALSE"
    return (
        f"CASE WHEN {i} IS NULL THEN NULL WHEN {d} >= {_TWO_TO_63} THEN {if_above} "
        f"WHEN {d} < -{_TWO_TO_63} THEN {if_below} ELSE {rounded} END"
    )


def _is_small_integer(value: float) -> bool:
    return value.is_integer() and abs(value) <= _DOUBLE_EXACT_MAX


def _member(value: Typed, items: tuple[tree.Constant, ...]) -> str:
    if all(isinstance(item.value, str) for item in items):
        listed = ", ".join(string(str(item.value)) for item in items)
        return _NULL_BOOLEAN if value.s is None else f"({value.s} IN ({listed}))"
    return f"({' OR '.join(_compare('=', value, constant(item.value)) for item in items)})"


def _is_null(value: Value, columns: Columns) -> str:
    if isinstance(value, tree.Header):  # NaN is a value here, though nothing compares with it
        entry = header(value.name, columns)
        return f"({' AND '.join(f'{entry}.{field} IS NULL' for field in 'sidb')})"
    found = typed(value, columns)
    present = [each for each in (found.s, found.i, found.d, found.b) if each is not None]
    return f"({' AND '.join(f'{each} IS NULL' for each in present)})"


def _like(text: str, pattern: Pattern) -> str:
    match [literal(segment) for segment in pattern.segments]:
        case [str(whole)]:
            return f"({text} = {string(whole)})"
        case [str(prefix), ""]:
            return f"startswith({text}, {string(prefix)})"
        case ["", str(suffix)]:
            return f"endswith({text}, {string(suffix)})"
        case ["", str(part), ""]:
            return f"contains({text}, {string(part)})"
        case _:
            return f"({text} RLIKE {string(_regex(pattern.segments))})"


def _regex(segments: tuple[Segment, ...]) -> str:
    """Each `(?>…)` keeps its first match, so the steps are at most text times pattern."""
    if len(segments) == 1:
        return rf"(?s)\A{_regex_segment(segments[0])}\z"
    first, *middle, last = map(_regex_segment, segments)
    found = "".join(f"(?>.*?{segment})" for segment in middle if segment)
    return rf"(?s)\A{first}{found}.*{last}\z"


def _regex_segment(segment: Segment) -> str:
    return "".join("." if each is None else rf"\x{{{ord(each):x}}}" for each in segment)
