"""Merging: two copies of a log become one that has what either has. Pure.

    start      the greater: what was truncated stays so
    timestamp  the greater
    metadata   of each key the entry that counts (`stamp`)
    entries    both trimmed to the start, then the longer

For copies of one log this is a join: the order in which copies meet changes nothing, and meeting
twice neither. No offset ever changes its meaning: copies that hold different entries at the same
offset are a fork, and refused, unless the longer is asked for. Of two forks that are equally long
then the same is chosen by both sides, so that this is a join as well.
"""

from __future__ import annotations

from typing import Literal, overload

from millstream.errors import ForkDetected, InvalidInput
from millstream.replica.stamp import join
from millstream.replica.state import LogState, Run

OnFork = Literal["refuse", "longest"]


@overload
def merge(own: LogState, other: LogState | None, *, on_fork: OnFork = ...) -> LogState: ...
@overload
def merge(own: LogState | None, other: LogState, *, on_fork: OnFork = ...) -> LogState: ...
@overload
def merge(own: None, other: None, *, on_fork: OnFork = ...) -> None: ...
def merge(
    own: LogState | None, other: LogState | None, *, on_fork: OnFork = "refuse"
) -> LogState | None:
    """The join of two states; no state at all is less than any.

    Copies that differ below both ends raise `ForkDetected` with the first differing offset; with
    `on_fork="longest"` the longer one is taken.
    """
    for state in (own, other):
        if state is not None and not isinstance(state, LogState):
            raise InvalidInput(f"a state is a LogState, not {type(state).__name__}")
    if on_fork not in ("refuse", "longest"):
        raise InvalidInput(f'on_fork is "refuse" or "longest", not {on_fork!r}')
    if own is None or other is None or own is other:
        return own if other is None else other
    start = max(own.start, other.start)
    mine, theirs = (
        own.entries.trimmed(start - own.start),
        other.entries.trimmed(start - other.start),
    )
    where = mine.difference(theirs)
    if where is not None and on_fork == "refuse":
        raise ForkDetected(
            f"the two copies differ at offset {start + where}, below both ends",
            offset=start + where,
        )
    return LogState(
        _longer(mine, theirs, differ=where is not None),
        join(own.metadata, other.metadata),
        max(own.timestamp, other.timestamp),
        start,
    )


def _longer(mine: Run, theirs: Run, *, differ: bool) -> Run:
    if len(mine) != len(theirs):
        return mine if len(mine) > len(theirs) else theirs
    return theirs if differ and theirs.is_above(mine) else mine
