"""A filter, ready to be asked: the text, its tree, and the tests compiled from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream.filters import evaluate, tree
from millstream.filters.arithmetic import FIELD_KEYS, Row
from millstream.filters.comparison import Test
from millstream.filters.parser import parse_tree
from millstream.filters.tree import Condition, Scalar
from millstream.header import HeaderMapping, Headers, visible

_KEY, _TIMESTAMP, _LOG = FIELD_KEYS["_key"], FIELD_KEYS["_timestamp"], FIELD_KEYS["_log"]
_VALUE = FIELD_KEYS["_value"]


def parse(text: str) -> Filter:
    """Parse a filter; raise `InvalidFilter` with the position, or `TooLarge` with the limit."""
    return Filter(text)


Anchor = tuple[str, frozenset[str]]
"""The name of a header, and the texts of which it must be one."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition over a message's headers and fields; filters with equal texts are equal.

    `names` holds the headers that the filter names, `fields` the subset of `_key`, `_timestamp`,
    `_log` and `_value`. A message has a value unless the caller says that its value is null.
    """

    text: str
    tree: Condition = field(init=False, compare=False, repr=False)
    names: frozenset[str] = field(init=False, compare=False, repr=False)
    fields: frozenset[str] = field(init=False, compare=False, repr=False)
    anchor: Anchor | None = field(init=False, compare=False, repr=False)
    """A header and its possible texts: a message without these texts cannot match."""
    _holds: Test = field(init=False, compare=False, repr=False)
    _fails: Test = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        root = parse_tree(self.text)
        nodes = [node for node, _ in tree.walk(root)]
        headers = frozenset(node.name for node in nodes if isinstance(node, tree.Header))
        fields = frozenset(node.name for node in nodes if isinstance(node, tree.Field))
        object.__setattr__(self, "tree", root)
        object.__setattr__(self, "names", headers)
        object.__setattr__(self, "fields", fields)
        object.__setattr__(self, "anchor", _anchor(root))
        holds, fails = evaluate.tests(root)
        object.__setattr__(self, "_holds", holds)
        object.__setattr__(self, "_fails", fails)

    def matches(
        self,
        headers: HeaderMapping,
        key: bytes | str | None = None,
        timestamp: int | None = None,
        log: str | None = None,
        *,
        has_value: bool = True,
    ) -> bool:
        """Whether the condition is true; false and unknown are both no match."""
        return self._holds(self._row(headers, key, timestamp, log, has_value))

    def evaluate(
        self,
        headers: HeaderMapping,
        key: bytes | str | None = None,
        timestamp: int | None = None,
        log: str | None = None,
        *,
        has_value: bool = True,
    ) -> bool | None:
        """True, False, or None for unknown."""
        row = self._row(headers, key, timestamp, log, has_value)
        if self._holds(row):
            return True
        return False if self._fails(row) else None

    def _row(
        self,
        headers: HeaderMapping,
        key: bytes | str | None,
        timestamp: int | None,
        log: str | None,
        has_value: bool,
    ) -> Row:
        """What the tests look at: the headers, and the fields if the filter names any."""
        visible_headers = _seen(headers)
        if not self.fields:
            return visible_headers
        return {**_row(visible_headers, key, timestamp, log), _VALUE: has_value or None}

    def match_many(
        self,
        headers: Sequence[Mapping[str, Scalar]],
        *,
        keys: Sequence[bytes | str | None] | None = None,
        timestamps: Sequence[int | None] | None = None,
        log: str | None = None,
        valid: Sequence[bool] | None = None,
    ) -> list[bool]:
        """Return `matches` for each message of a batch from one log; a missing field is NULL.

        `valid` tells the values that are not null; by default no value is null. Headers must be in
        the form that a filter sees: distinct names, and no bytes.
        """
        if not self.fields:
            return list(map(self._holds, headers))
        absent = [None] * len(headers)
        columns = zip(headers, keys or absent, timestamps or absent, strict=True)
        rows = [_row(each, key, at, log) for each, key, at in columns]
        if "_value" in self.fields:
            for row, yes in zip(rows, [True] * len(rows) if valid is None else valid, strict=True):
                row[_VALUE] = yes or None
        return list(map(self._holds, rows))

    def count_unknown(
        self,
        headers: Sequence[Mapping[str, Scalar]],
        *,
        keys: Sequence[bytes | str | None],
        timestamps: Sequence[int | None],
        log: str | None,
        valid: Sequence[bool] | None = None,
    ) -> int:
        """For how many messages that do not match the condition is not false either."""
        present = [True] * len(headers) if valid is None else valid
        columns = zip(headers, keys, timestamps, present, strict=True)
        return sum(
            self.evaluate(each, key, at, log, has_value=yes) is None
            for each, key, at, yes in columns
        )

    def __reduce__(self) -> tuple[Callable[[str], Filter], tuple[str]]:
        # Spark carries filters to its workers; the closures are compiled again there.
        return parse, (self.text,)


def _anchor(node: Condition) -> Anchor | None:
    """A header that is one of some texts wherever a condition is true; of several, the fewest."""
    match node:
        case tree.Compare(
            operator="=", left=tree.Header(name=name), right=tree.Constant(value=str(text))
        ):
            return name, frozenset((text,))
        case tree.In(value=tree.Header(name=name), items=items):
            texts = [item.value for item in items if isinstance(item.value, str)]
            return (name, frozenset(texts)) if len(texts) == len(items) else None
        case tree.And(operands=operands):
            anchors = [anchor for anchor in map(_anchor, operands) if anchor is not None]
            return min(anchors, key=lambda anchor: len(anchor[1]), default=None)
        case _:
            return None


def _seen(headers: HeaderMapping) -> Mapping[str, Scalar]:
    """The last value of each name, and NULL in place of bytes."""
    if type(headers) is Headers:  # which is several times as fast as to ask a mapping
        return headers.visible()
    return visible(headers) if bytes in map(type, headers.values()) else headers  # type: ignore[return-value]


def _row(
    headers: Mapping[str, Scalar],
    key: bytes | str | None,
    timestamp: int | None,
    log: str | None,
) -> dict[Any, Scalar]:
    return {**headers, _KEY: _text(key), _TIMESTAMP: timestamp, _LOG: log}


def _text(key: bytes | str | None) -> str | None:
    if not isinstance(key, bytes):
        return key
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None
