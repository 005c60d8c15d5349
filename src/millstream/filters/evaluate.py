"""A filter as a closure over a message's headers.

The compiler turns every condition into two plain tests: *holds* (the condition is true) and *fails*
(the condition is false). A condition is unknown if both tests are false. So `NOT` costs nothing,
and a match never handles three values. A test takes a mapping and does not change it.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.filters import tree
from millstream.filters.arithmetic import getter
from millstream.filters.comparison import (
    Test,
    always,
    comparison,
    is_there,
    membership,
    never,
)
from millstream.filters.like import compile_pattern
from millstream.filters.tree import Condition


def tests(node: Condition) -> tuple[Test, Test]:
    """Two tests: one is true exactly when the condition is, the other exactly when it is false."""
    match node:
        case tree.Not(operand=operand):
            holds, fails = tests(operand)
            return fails, holds
        case tree.And(operands=operands):
            pairs = [tests(operand) for operand in operands]
            return _all_of([holds for holds, _ in pairs]), _any_of([fails for _, fails in pairs])
        case tree.Or(operands=operands):
            pairs = [tests(operand) for operand in operands]
            return _any_of([holds for holds, _ in pairs]), _all_of([fails for _, fails in pairs])
        case tree.Between(at=at, value=value, low=low, high=high):
            bounds = tree.Compare(at, ">=", value, low), tree.Compare(at, "<=", value, high)
            return tests(tree.And(at, bounds))
        case tree.Compare(operator=symbol, left=left, right=right):
            return comparison(symbol, left, right)
        case tree.In(value=value, items=items):
            return membership(value, items)
        case tree.Like(value=value, pattern=pattern):
            get, fits = getter(value), compile_pattern(pattern)
            return (
                lambda row: type(text := get(row)) is str and fits(text),
                lambda row: not fits(text) if type(text := get(row)) is str else is_there(text),
            )
        case tree.IsNull(value=value):
            get = getter(value)
            return lambda row: get(row) is None, lambda row: get(row) is not None
        case tree.Header(name=name):
            return (
                lambda row: row.get(name) is True,
                lambda row: (
                    (flag := row.get(name)) is False or (flag is not True and is_there(flag))
                ),
            )
        case tree.Constant(value=constant):
            return (always, never) if constant is True else (never, always)


def _all_of(tests: Sequence[Test]) -> Test:
    # Written out for the usual few: a loop over the tests would take half as long again.
    match tests:
        case [a]:
            return a
        case [a, b]:
            return lambda row: a(row) and b(row)
        case [a, b, c]:
            return lambda row: a(row) and b(row) and c(row)
        case [a, b, c, d]:
            return lambda row: a(row) and b(row) and c(row) and d(row)
        case _:
            return _all_of([_all_of(quarter) for quarter in _quarters(tests)])


def _any_of(tests: Sequence[Test]) -> Test:
    match tests:
        case [a]:
            return a
        case [a, b]:
            return lambda row: a(row) or b(row)
        case [a, b, c]:
            return lambda row: a(row) or b(row) or c(row)
        case [a, b, c, d]:
            return lambda row: a(row) or b(row) or c(row) or d(row)
        case _:
            return _any_of([_any_of(quarter) for quarter in _quarters(tests)])


def _quarters(tests: Sequence[Test]) -> list[Sequence[Test]]:
    """Four parts in order: so a thousand tests are five calls deep, not hundreds."""
    size = -(-len(tests) // 4)
    return [tests[first : first + size] for first in range(0, len(tests), size)]
