"""A filter as a closure over a message's headers.

Every condition is compiled to two plain tests: *holds* (is it true?) and *fails* (is it false?);
it is unknown when neither. So `NOT` costs nothing, and a match never handles three values. A test
takes one mapping and does not change it.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.filters import tree
from millstream.filters.arithmetic import getter
from millstream.filters.comparison import (
    Test,
    always,
    comparison,
    exclusion,
    is_there,
    membership,
    never,
    refutation,
)
from millstream.filters.like import compile_pattern
from millstream.filters.tree import Compare, Condition


def holds(node: Condition) -> Test:
    """A test that is true exactly when the condition is."""
    match node:
        case tree.Not(operand=operand):
            return fails(operand)
        case tree.And(operands=operands):
            return _all_of([holds(operand) for operand in operands])
        case tree.Or(operands=operands):
            return _any_of([holds(operand) for operand in operands])
        case tree.Between():
            return _all_of([holds(bound) for bound in _bounds(node)])
        case tree.Compare(operator=symbol, left=left, right=right):
            return comparison(symbol, left, right)
        case tree.In(value=value, items=items):
            return membership(value, items)
        case tree.Like(value=value, pattern=pattern):
            get, fits = getter(value), compile_pattern(pattern)
            return lambda row: type(text := get(row)) is str and fits(text)
        case tree.IsNull(value=value):
            get = getter(value)
            return lambda row: get(row) is None
        case tree.Header(name=name):
            return lambda row: row.get(name) is True
        case tree.Constant(value=constant):
            return always if constant is True else never


def fails(node: Condition) -> Test:
    """A test that is true exactly when the condition is false."""
    match node:
        case tree.Not(operand=operand):
            return holds(operand)
        case tree.And(operands=operands):
            return _any_of([fails(operand) for operand in operands])
        case tree.Or(operands=operands):
            return _all_of([fails(operand) for operand in operands])
        case tree.Between():
            return _any_of([fails(bound) for bound in _bounds(node)])
        case tree.Compare(operator=symbol, left=left, right=right):
            return refutation(symbol, left, right)
        case tree.In(value=value, items=items):
            return exclusion(value, items)
        case tree.Like(value=value, pattern=pattern):
            get, fits = getter(value), compile_pattern(pattern)
            return lambda row: not fits(text) if type(text := get(row)) is str else is_there(text)
        case tree.IsNull(value=value):
            get = getter(value)
            return lambda row: get(row) is not None
        case tree.Header(name=name):
            return lambda row: (
                (found := row.get(name)) is False or (found is not True and is_there(found))
            )
        case tree.Constant(value=constant):
            return always if constant is False else never


def _bounds(node: tree.Between) -> tuple[Compare, Compare]:
    return (
        Compare(node.at, ">=", node.value, node.low),
        Compare(node.at, "<=", node.value, node.high),
    )


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
            return _all_of([_all_of(part) for part in _quarters(tests)])


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
            return _any_of([_any_of(part) for part in _quarters(tests)])


def _quarters(tests: Sequence[Test]) -> list[Sequence[Test]]:
    """Four parts in order: so a thousand tests are five calls deep, not hundreds."""
    size = -(-len(tests) // 4)
    return [tests[first : first + size] for first in range(0, len(tests), size)]
