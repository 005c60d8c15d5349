"""A relation of a store: columns, a key, the comparisons that narrow a scan, and a source of rows.

A source may use the comparisons of a `Scan` to read less. It may also return too many rows: SQLite
checks every condition again. So a comparison that a source cannot use is simply left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec

from millstream.header import Headers
from millstream.record import moment
from millstream.threads.database import Millstream

SqlValue = None | int | float | bytes | str

Operator = Literal["=", ">", ">=", "<", "<="]

EQUAL: frozenset[Operator] = frozenset({"="})
RANGE: frozenset[Operator] = frozenset({"=", ">", ">=", "<", "<="})

_FIRST, _LAST = -(2**63), 2**63 - 1


class Column(NamedTuple):
    """A column of a relation."""

    name: str
    type: str
    """The declared type of SQLite; empty for a column of several types."""
    get: Callable[[Any], SqlValue]
    """Returns the value of the column from a row of the source."""


class Condition(NamedTuple):
    """A comparison of a column with a value."""

    column: str
    operator: Operator
    value: SqlValue


@dataclass(frozen=True, slots=True)
class Scan:
    """One pass over a relation, as SQLite asked for it."""

    conditions: tuple[Condition, ...] = ()
    columns: frozenset[str] = frozenset()
    """The columns that the statement uses."""
    order: Literal["", "ascending", "descending"] = ""
    """The required order of the rows; empty if the order is free."""

    @property
    def is_empty(self) -> bool:
        """Whether no row can match: a comparison with NULL is never true."""
        return any(condition.value is None for condition in self.conditions)

    def text(self, column: str) -> str | None:
        """Return the text that a column must be equal to; None without an equality condition."""
        for name, operator, value in self.conditions:
            if name == column and operator == "=" and isinstance(value, str):
                return value
        return None

    def integers(self, column: str) -> range:
        """Return a range that holds every whole number that the conditions on a column allow."""
        low, high = _FIRST, _LAST
        for name, operator, value in self.conditions:
            if name != column or not isinstance(value, int | float) or not math.isfinite(value):
                continue
            if operator in ("=", ">", ">="):
                low = max(low, math.floor(value) + 1 if operator == ">" else math.ceil(value))
            if operator in ("=", "<", "<="):
                high = min(high, math.ceil(value) - 1 if operator == "<" else math.floor(value))
        return range(low, max(low, high + 1))

    def values(self, column: str) -> Iterator[tuple[Operator, SqlValue]]:
        """Yield the operators and values of the conditions on a column."""
        for name, operator, value in self.conditions:
            if name == column:
                yield operator, value


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation of a store."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    """The columns that identify a row. SQLite needs them to unite the rows of an OR."""
    searched: Mapping[str, frozenset[Operator]]
    """The comparisons that narrow a scan, by column."""
    scan: Callable[[Millstream, Scan], Iterator[Any]]
    """Yields the rows of a scan."""
    order_by: str = ""
    """The column by which the source can order the rows of one `order_within`."""
    order_within: str = ""

    @property
    def declaration(self) -> str:
        """The statement by which SQLite learns the columns."""
        columns = ", ".join(f"{column.name} {column.type}".strip() for column in self.columns)
        return f"CREATE TABLE {self.name} ({columns}, PRIMARY KEY ({', '.join(self.key)})) WITHOUT ROWID"


def text_or_bytes(data: bytes | None) -> SqlValue:
    """Return bytes as TEXT if they are UTF-8 without a zero character, else as a BLOB.

    Functions of SQLite end a text at its first zero character.
    """
    if data is None or b"\0" in data:
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def headers_text(headers: Headers) -> str | None:
    """Return headers as a JSON object (pairs if a name is repeated); NULL without headers."""
    return msgspec.json.encode(headers.shown()).decode() if headers else None


def time_text(time: int | datetime | None) -> str | None:
    """Return a time as SQLite's functions write it, in UTC, to the millisecond."""
    if time is None:
        return None
    utc = moment(time) if isinstance(time, int) else time
    return utc.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
