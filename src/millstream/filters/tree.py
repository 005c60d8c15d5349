"""The tree of a filter: what a condition is made of, apart from its evaluation.

Two families that never mix: *values* (literals, names, arithmetic) and *conditions* (comparisons,
tests and the logic over them). A name may stand for a condition too, since a header may be boolean.
The position of a node in the text (`at`) lets an error point to the node. Parentheses leave
no node; `a AND b AND c` is one node with three operands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from millstream.errors import TooLarge
from millstream.filters.like import Pattern

Scalar: TypeAlias = str | int | float | bool | None
"""What a header may hold; integers are int64, floats are float64."""

ComparisonOperator: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">="]
ArithmeticOperator: TypeAlias = Literal["+", "-", "*", "/"]
Sign: TypeAlias = Literal["+", "-"]
FieldName: TypeAlias = Literal["_key", "_timestamp", "_log", "_value"]
Kind: TypeAlias = Literal["string", "number", "boolean", "any", "presence", "condition"]

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

TEXT_BYTES_MAX: Final = 16 * 1024
"""In UTF-8. A filter is stored in every queue's spec, whose text fields are short."""

NODES_MAX: Final = 2_000
"""Bounds the work per message."""

DEPTH_MAX: Final = 100
"""The limit on the depth of the tree and of nested parentheses.

Parser and compiler recurse. A chain of `AND`, of `OR` or of arithmetic is a single level.
"""

FIELD_KINDS: Final[dict[str, Kind]] = {
    "_key": "string",
    "_timestamp": "number",
    "_log": "string",
    "_value": "presence",
}
"""The record's own fields. A header of the same name is reached in quotes: `"_key"`.

Of the value a filter knows only whether there is one: values are not read to choose messages.
"""


@dataclass(frozen=True, slots=True)
class FilterNode:
    """A part of a filter that begins `at` this character of its text."""

    at: int = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Constant(FilterNode):
    """A string, a number, TRUE or FALSE."""

    value: str | int | float | bool


@dataclass(frozen=True, slots=True)
class Header(FilterNode):
    """The value of a header; NULL for a missing header."""

    name: str


@dataclass(frozen=True, slots=True)
class Field(FilterNode):
    """One of the record's own fields."""

    name: FieldName


@dataclass(frozen=True, slots=True)
class Signed(FilterNode):
    """A number with a sign before it."""

    sign: Sign
    operand: Value


@dataclass(frozen=True, slots=True)
class Arithmetic(FilterNode):
    """Arithmetic on two numbers."""

    operator: ArithmeticOperator
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Compare(FilterNode):
    """A comparison of two values."""

    operator: ComparisonOperator
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Between(FilterNode):
    """`low <= value AND value <= high`."""

    value: Value
    low: Value
    high: Value


@dataclass(frozen=True, slots=True)
class In(FilterNode):
    """`value = item OR value = item …`."""

    value: Value
    items: tuple[Constant, ...]


@dataclass(frozen=True, slots=True)
class Like(FilterNode):
    """A string against a pattern."""

    value: Value
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class IsNull(FilterNode):
    """Whether there is no value; never unknown itself."""

    value: Value


@dataclass(frozen=True, slots=True)
class Not(FilterNode):
    """True and false swapped; unknown stays unknown."""

    operand: Condition


@dataclass(frozen=True, slots=True)
class And(FilterNode):
    """False if an operand is false, else unknown if one is unknown, else true."""

    operands: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or(FilterNode):
    """True if an operand is true, else unknown if one is unknown, else false."""

    operands: tuple[Condition, ...]


Value: TypeAlias = Constant | Header | Field | Signed | Arithmetic
Condition: TypeAlias = Compare | Between | In | Like | IsNull | Not | And | Or | Header | Constant
"""A header is one if it is boolean, a constant only as TRUE or FALSE."""

AnyNode: TypeAlias = Value | Condition


def kind(node: AnyNode) -> Kind:
    """What is known about a node before any message is seen; `any` is a header."""
    match node:
        case Header():
            return "any"
        case Field(name=name):
            return FIELD_KINDS[name]
        case Signed() | Arithmetic():
            return "number"
        case Constant(value=bool()):
            return "boolean"
        case Constant(value=str()):
            return "string"
        case Constant():
            return "number"
        case _:
            return "condition"


def children(node: AnyNode) -> tuple[AnyNode, ...]:
    """The nodes directly below, left to right."""
    nodes: list[Any] = []
    for name in type(node).__slots__:
        child = getattr(node, name)
        if isinstance(child, FilterNode):
            nodes.append(child)
        elif isinstance(child, tuple):
            nodes += child
    return tuple(nodes)


def walk(root: AnyNode) -> Iterator[tuple[AnyNode, int]]:
    """Every node with its depth, the root's being 1; without recursion, as no cap holds yet."""
    waiting = [(root, 1)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        waiting.extend((child, depth + 1) for child in children(node))


def check_size(root: AnyNode) -> None:
    """Refuse a tree over the caps with `TooLarge`."""
    nodes = depth_max = 0
    waiting = [(root, 1)]
    while waiting:
        node, depth = waiting.pop()
        nodes += 1
        depth_max = max(depth_max, depth)
        for child in children(node):
            waiting.append((child, depth if _goes_on(node, child) else depth + 1))
    if nodes > NODES_MAX:
        message = f"the filter has {nodes} parts; at most {NODES_MAX} are allowed"
        raise TooLarge(message, limit=NODES_MAX, size=nodes)
    check_depth(depth_max)


def _goes_on(node: AnyNode, child: AnyNode) -> bool:
    """Whether a chain of arithmetic goes on: `a + b - c` is one level deep, and is read in a loop."""
    return isinstance(node, Arithmetic) and isinstance(child, Arithmetic) and child is node.left


def check_depth(depth: int) -> None:
    """Refuse nesting over the cap with `TooLarge`."""
    if depth > DEPTH_MAX:
        message = f"the filter is nested {depth} deep; at most {DEPTH_MAX} is allowed"
        raise TooLarge(message, limit=DEPTH_MAX, size=depth)
