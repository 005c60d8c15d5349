"""What Spark's filters let us leave out: offsets, logs, and records by their times.

Every filter is also left to Spark, which looks again at what is read; so it is enough that nothing
is left out that a filter would keep. A filter that is not understood leaves out nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql import datasource as ds

from millstream.spark.bins import Range
from millstream.spark.topics import ANY, Topics

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES = ("timestamp", "appendTimestamp")

R = TypeVar("R", bound=Range)

Bounds = tuple[int, int]
"""The least and the greatest number that may be kept, both included."""

Times = dict[str, Bounds]
"""Bounds of times in microseconds, by the names of their columns."""

LEAST, MOST = ALL = (-(2**63), 2**63 - 1)


class Pushed(Struct):
    """What is to be kept."""

    offset: Bounds = ALL
    timestamp: Bounds = ALL
    """In microseconds."""
    appendTimestamp: Bounds = ALL  # noqa: N815  (the column's name)
    topics: Topics = ANY
    never: bool = False

    @property
    def times(self) -> Times:
        """The bounds of those times that have any."""
        found = {name: getattr(self, name) for name in _TIMES}
        return {name: bounds for name, bounds in found.items() if bounds != ALL}

    def kept(self, ranges: Iterable[R], shown: Callable[[str], tuple[str, int]]) -> Iterator[R]:
        """Of ranges of offsets, what may be kept; `shown` says the topic of a log."""
        low, high = self.offset
        for one in ranges:
            start, stop = max(one.start, low), min(one.stop, high + 1)
            if start < stop and self.topics.keeps(shown(one.log)[0]) and not self.never:
                yield replace(one, start=start, stop=stop)


def push(filters: Iterable[ds.Filter]) -> Pushed:
    """What a conjunction of filters lets us leave out."""
    pushed = Pushed()
    for one in filters:
        _push(pushed, one)
    return pushed


def _push(pushed: Pushed, one: ds.Filter) -> None:
    attribute = getattr(one, "attribute", None)
    if attribute is None or len(attribute) != 1:
        return
    (column,) = attribute
    if column == "topic":
        _push_topics(pushed, one)
    elif column == "partition" and isinstance(one, ds.EqualTo) and type(one.value) is int:
        pushed.never |= one.value != 0
    elif column == "offset" or column in _TIMES:
        bounds = _bounds(one, column)
        if bounds is not None:
            low, high = getattr(pushed, column)
            setattr(pushed, column, (max(low, bounds[0]), min(high, bounds[1])))


def _push_topics(pushed: Pushed, one: ds.Filter) -> None:
    """Conditions on names; Spark makes such texts of a LIKE, as far as it has no other wildcards."""
    topics = pushed.topics
    match one:
        case ds.EqualTo() | ds.EqualNullSafe():
            pushed.topics = topics.among([one.value])
        case ds.In():
            pushed.topics = topics.among(one.value)
        case ds.StringStartsWith():
            pushed.topics = replace(topics, starts=(*topics.starts, one.value))
        case ds.StringEndsWith():
            pushed.topics = replace(topics, ends=(*topics.ends, one.value))
        case ds.StringContains():
            pushed.topics = replace(topics, contains=(*topics.contains, one.value))


def _bounds(one: ds.Filter, column: str) -> Bounds | None:
    if isinstance(one, ds.In):
        numbers = [_number(value, column) for value in one.value]
        known = [number for number in numbers if number is not None]
        return (min(known), max(known)) if known and len(known) == len(numbers) else None
    number = _number(getattr(one, "value", None), column)
    if number is None:
        return None
    match one:
        case ds.EqualTo() | ds.EqualNullSafe():
            return number, number
        case ds.GreaterThan():
            return number + 1, MOST
        case ds.GreaterThanOrEqual():
            return number, MOST
        case ds.LessThan():
            return LEAST, number - 1
        case ds.LessThanOrEqual():
            return LEAST, number
    return None


def _number(value: Any, column: str) -> int | None:
    if column == "offset":
        return value if type(value) is int else None
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // timedelta(microseconds=1)
