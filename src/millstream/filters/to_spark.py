"""A filter as a Spark SQL expression with the same answer for every row.

A comparison takes the first pair of like types that gives an answer; if there is none but both sides
are there, it is false. Spark's own three-valued logic does the rest. An integer and a double are compared as integers, after the double was rounded
towards the side that keeps the answer and its range checked: a cast of the integer to double would
lose bits. Nothing here can raise, so ANSI mode makes no difference.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Final

from millstream.filters import tree
from millstream.filters.comparison import MIRRORED
from millstream.filters.like import Pattern, Segment, literal
from millstream.filters.spark_value import (
    INT64_MIN,
    MessageColumns,
    Typed,
    bigint,
    double,
    header,
    once,
    string,
    typed,
)
from millstream.filters.tree import ComparisonOperator, Condition, Value

_NULL_BOOLEAN: Final = "CAST(NULL AS BOOLEAN)"
_NAN: Final = "CAST('NaN' AS DOUBLE)"
_TWO_TO_63: Final = "9.223372036854775808E18D"
_DOUBLE_EXACT_MAX: Final = 2**53
_GROUP_PARTS_MAX: Final = 50


def to_spark(node: Condition, columns: MessageColumns, *, exact: bool = True) -> str:
    """The condition as an expression of type boolean.

    With `exact=False` it may be NULL where the condition is false: shorter, and the same in a WHERE.
    """
    match node:
        case tree.Not(operand=operand):
            return f"(NOT {to_spark(operand, columns)})"
        case tree.And(operands=operands):
            parts = [to_spark(operand, columns, exact=exact) for operand in operands]
            return f"({' AND '.join(parts)})"
        case tree.Or(operands=operands):
            parts = [to_spark(operand, columns, exact=exact) for operand in operands]
            return f"({' OR '.join(parts)})"
        case tree.Compare(operator=operator, left=left, right=right):
            sides = (typed(left, columns), typed(right, columns))
            return once(sides, lambda one, other: _compare(operator, one, other, exact=exact))
        case tree.Between(value=value, low=low, high=high):
            return once(
                (typed(value, columns), typed(low, columns), typed(high, columns)),
                lambda middle, least, most: (
                    f"({_compare('>=', middle, least, exact=exact)} "
                    f"AND {_compare('<=', middle, most, exact=exact)})"
                ),
            )
        case tree.In(value=value, items=items):
            return _member(typed(value, columns), items, exact=exact)
        case tree.Like(value=value, pattern=pattern):
            found = typed(value, columns)
            answers = {} if found.s is None else {"s": _like(found.s, pattern)}
            return _first([*answers.values(), *_unlike(found, answers, exact=exact)])
        case tree.IsNull(value=value):
            return _is_null(value, columns)
        case tree.Header() | tree.Constant():
            found = typed(node, columns)
            answers = {} if found.b is None else {"b": found.b}
            return _first([*answers.values(), *_unlike(found, answers, exact=exact)])


def _compare(operator: ComparisonOperator, left: Typed, right: Typed, *, exact: bool) -> str:
    one, other = left.fields, right.fields
    both = [field for field in "sid" if field in one and field in other]
    answers = [f"{one[field]} {operator} {other[field]}" for field in both]
    if left.i is not None and right.d is not None:
        answers.append(_mixed(operator, left, right))
    if left.d is not None and right.i is not None:
        answers.append(_mixed(MIRRORED[operator], right, left))
    if left.b is not None and right.b is not None and operator in ("=", "<>"):
        answers.append(f"{left.b} {operator} {right.b}")
    if exact:
        answers.extend(_mismatch(operator, left, right))
    return _first(answers)


def _mismatch(operator: ComparisonOperator, left: Typed, right: Typed) -> list[str]:
    """What makes a comparison without an answer false, if both sides are there."""
    if left.fixed and not right.fixed:
        left, right = right, left
    one, other = _kinds(left), _kinds(right)
    alike = other if operator in ("=", "<>") else other - {"b"}
    if right.fixed:
        return _unlike(left, "".join(alike))
    if one == other == alike and len(alike) == 1:
        return []
    return [f"({_first(_unlike(left))} OR {_first(_unlike(right))})"]


def _kinds(value: Typed) -> set[str]:
    """What it may be: `s`, `id` for a number, `b`."""
    return {"id" if field in "id" else field for field in value.fields}


def _unlike(value: Typed, but: Collection[str] = (), *, exact: bool = True) -> list[str]:
    """For each type of the value but some: FALSE if the value has that type, NULL if not.

    Each compares with an end of its type: nothing lies before the least, or behind NaN.
    """
    if not exact:
        return []
    ends = {"s": "{} < ''", "i": f"{{}} < {INT64_MIN}", "d": f"{{}} > {_NAN}", "b": "{} < FALSE"}
    return [ends[field].format(text) for field, text in value.fields.items() if field not in but]


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
    if isinstance(left.number, int) and abs(left.number) <= _DOUBLE_EXACT_MAX:
        return f"{double(float(left.number))} {operator} {d}"
    if isinstance(right.number, float) and _is_small_integer(right.number):
        return f"{i} {operator} {bigint(int(right.number))}"
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


def _member(value: Typed, items: tuple[tree.Constant, ...], *, exact: bool) -> str:
    """One list for each type that the value may have: Spark makes a set of it."""
    listed: dict[str, dict[str, None]] = {"s": {}, "i": {}, "d": {}, "b": {}}
    for item in items:
        for field, text in _as_member(item.value):
            listed[field][text] = None
    answers = {}
    for field, found in value.fields.items():
        if texts := listed[field]:
            if field == "d" and "0.0D" in texts:
                found = f"({found} + 0.0D)"  # Spark's sets tell -0.0 from 0.0, and this is 0.0
            answers[field] = f"{found} IN ({', '.join(texts)})"
    return _first([*answers.values(), *_unlike(value, answers, exact=exact)])


def _as_member(value: str | int | float | bool) -> Iterator[tuple[str, str]]:
    """The fields of a header in which a literal may be found, and how it is written there."""
    match value:
        case str():
            yield "s", string(value)
        case bool():
            yield "b", "TRUE" if value else "FALSE"
        case _:
            if value == int(value) and tree.INT64_MIN <= value <= tree.INT64_MAX:
                yield "i", bigint(int(value))
            if value == float(value):
                yield "d", double(float(value) + 0.0)


def _is_null(value: Value, columns: MessageColumns) -> str:
    if isinstance(value, tree.Header):  # NaN is a value here, though nothing compares with it
        entry = header(value.name, columns)
        return f"({' AND '.join(f'{entry}.{field} IS NULL' for field in 'sidb')})"
    present = typed(value, columns).fields.values()
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
    found = _in_groups([f"(?>.*?{segment})" for segment in middle if segment])
    return rf"(?s)\A{first}{found}.*{last}\z"


def _regex_segment(segment: Segment) -> str:
    runs = groupby(segment, key=lambda each: each is None)
    return _in_groups([_regex_run(list(run)) for _, run in runs])


def _regex_run(run: Sequence[str | None]) -> str:
    """Either any characters, or these."""
    if run[0] is None:
        return f".{{{len(run)}}}"
    return "".join(rf"\x{{{ord(each):x}}}" for each in run if each is not None)


def _in_groups(parts: Sequence[str]) -> str:
    """Parts of which each matches in one way only, in a row.

    Java goes one call deeper with every part until the group around it ends, and its stack is short.
    """
    while len(parts) > _GROUP_PARTS_MAX:
        starts = range(0, len(parts), _GROUP_PARTS_MAX)
        parts = [f"(?>{''.join(parts[at : at + _GROUP_PARTS_MAX])})" for at in starts]
    return "".join(parts)
