"""Forks: a log that begins as another one is now, and can be merged into it again.

A fork costs nothing until it is written to: what it begins with stays where it is. Merging gives the
fork's own records to the parent, if that has not moved; the fork then goes on from there. If both have
moved, they have forked, and the caller says what is to become of it.

    refuse    `ForkDetected`, and nothing is changed
    longest   the longer one's records count. The parent's own, if they lose, are set aside in a fork of
              their own; the fork's, if they lose, stay where they are
    rebase    the fork's records are appended to the parent again, at other offsets. The fork keeps them
              at theirs, and remembers how far it was merged
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from millstream.errors import Conflict, ForkDetected, InvalidInput
from millstream.format import keys
from millstream.format.lineage import Fork
from millstream.log import commands as c
from millstream.log.model.head import Bounds, Head, LogTruncated
from millstream.log.model.metadata import MetadataState, Set
from millstream.log.model.names import check_name
from millstream.log.model.partitioned import check_plain
from millstream.log.reading.reader import fetch_blocks
from millstream.log.rules.ancestry import fork_of, put_fork
from millstream.log.rules.operations import check_free, need_log, not_owner
from millstream.record import Merged
from millstream.replica.chain import Parsed, parse
from millstream.replica.copies.adopting import put_records
from millstream.replica.forks.aside import (
    Passed,
    check_passed,
    fork_name,
    make_fork,
    set_tail_aside,
)
from millstream.replica.forks.moving import raise_point
from millstream.replica.metadata import adopt_metadata
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View
from millstream.store.store import Store

RULES = ("refuse", "longest", "rebase")

REBASE_BYTES = 4 * 1024 * 1024
"""Values that one commit of a rebase appends."""


def fork_log(tx: WriteTransaction, command: c.ForkLog) -> str:
    """Make a fork of a log, at its end; the fork's name."""
    parent_id, _ = need_log(tx, command.log)
    if command.name is None:
        name = fork_name(tx, command.log)
    else:
        name = check_name(command.name)
        check_plain(tx, name)
    log_id = make_fork(tx, parent_id, name)
    for key, meta in tx.entity(keys.metadata(parent_id), MetadataState).entries.items():
        tx.change(keys.metadata(log_id), Set(key, meta))
    return name


def get_parent(view: View, query: c.GetParent) -> str | None:
    """What a log was forked from, also if that was deleted since."""
    log_id, _ = need_log(view, query.log)
    fork = fork_of(view, log_id)
    return None if fork is None else view.entity(keys.head(fork.parent_id), Head).name or None


class Step(NamedTuple):
    """What one commit of a merge did."""

    moved: int = 0
    """Records that the parent has more."""
    ends: tuple[int, int] | None = None
    """Where the parent begins and ends, once all is done."""
    aside: str | None = None
    """The fork that holds what was the parent's own."""


class Sides(NamedTuple):
    """A fork and its parent, at one moment."""

    fork_id: int
    fork: Fork
    own: Bounds
    parent: Bounds

    @property
    def position(self) -> int:
        """The first record of the fork that the parent does not have."""
        return max(self.fork.point, self.fork.merged)

    @property
    def moved(self) -> bool:
        """Whether the parent has records that the fork does not have."""
        return self.parent.end != self.fork.point or self.fork.merged > self.fork.point


def merge_fork(store: Store, command: c.MergeFork, passed: Passed) -> Merged:
    """Bring a fork's records into its parent; each commit leaves both as they can be read."""
    if command.on_fork not in RULES:
        raise InvalidInput(f"on_fork is one of {', '.join(RULES)}, not {command.on_fork!r}")
    adopted, aside = 0, None
    while True:
        sides = store.view(lambda view: _sides(view, command.log))
        step = store.run(_next_step(store, sides, command.on_fork, passed))
        adopted += step.moved
        aside = step.aside or aside
        if step.ends is not None:
            start, end = step.ends
            parent = sides.parent.name
            return Merged(parent=parent, adopted=adopted, start=start, end=end, set_aside=aside)


def _next_step(
    store: Store, sides: Sides, on_fork: str, passed: Passed
) -> Callable[[WriteTransaction], Step]:
    """What the next commit of a merge does."""
    if not sides.moved:
        return partial(_adopt, sides=sides)
    if sides.position >= sides.own.end:
        return partial(_finish, sides=sides)
    at = _first_difference(store, sides)
    if at is None and sides.position < sides.parent.end:
        return partial(_note_merged, sides=sides)
    if at is None or on_fork == "rebase":
        return partial(_append_again, sides=sides, blocks=_own_blocks(store, sides))
    if on_fork == "refuse":
        parent, fork = sides.parent.name, sides.own.name
        raise ForkDetected(
            f"log {parent!r} has gone on since {fork!r} was forked from it: they differ from "
            f"offset {at} on. Merge with on_fork='rebase' to append the fork's records again, or "
            "'longest' to let the longer one count",
            log=parent,
            fork=fork,
            offset=at,
        )
    if sides.own.end <= sides.parent.end:
        return partial(_finish, sides=sides)
    return partial(_set_aside, sides=sides, at=at, passed=passed)


def _sides(view: View, name: str) -> Sides:
    log_id, own = need_log(view, name)
    fork = fork_of(view, log_id)
    if fork is None:
        raise InvalidInput(f"log {name!r} is no fork: there is nothing to merge it into")
    parent = view.entity(keys.head(fork.parent_id), Head)
    _check_parent(name, parent)
    return Sides(log_id, fork, own.view(), parent.view())


def _check_parent(fork: str, parent: Head) -> None:
    if not parent.exists() or parent.deleted:
        raise Conflict(
            f"log {parent.name!r}, which {fork!r} was forked from, was deleted: there is nothing "
            "to merge it into; the fork can be used as it is",
            log=parent.name,
        )


# Commits. Each looks whether the logs are still what they were when it was decided.


def _is_as_seen(tx: WriteTransaction, sides: Sides) -> bool:
    """Whether a step may go on; refuses where no step of this merge could."""
    own = tx.entity(keys.head(sides.fork_id), Head)
    parent = tx.entity(keys.head(sides.fork.parent_id), Head)
    _check_parent(sides.own.name, parent)
    if parent.owner:
        raise not_owner(parent)
    check_free(tx, parent, "")
    return (
        fork_of(tx, sides.fork_id) == sides.fork
        and own.setbacks == sides.own.setbacks
        and parent.setbacks == sides.parent.setbacks
        and not own.deleted
    )


def _adopt(tx: WriteTransaction, *, sides: Sides) -> Step:
    """Give records to a parent that has not moved."""
    parent = tx.entity(keys.head(sides.fork.parent_id), Head)
    if not _is_as_seen(tx, sides) or parent.end != sides.fork.point:
        return Step()
    own, moved = tx.entity(keys.head(sides.fork_id), Head), 0
    if sides.fork.point < own.end:
        moved = raise_point(tx, sides.fork_id, sides.fork)
    fork = fork_of(tx, sides.fork_id)
    assert fork is not None
    return Step(moved, _join(tx, sides) if fork.point >= own.end else None)


def _append_again(tx: WriteTransaction, *, sides: Sides, blocks: list[Parsed]) -> Step:
    """Append copies of a fork's records to its parent, and note how far the fork was merged."""
    if not _is_as_seen(tx, sides):
        return Step()
    parent = tx.entity(keys.head(sides.fork.parent_id), Head)
    if parent.end != sides.parent.end and sides.position >= sides.parent.end:
        return Step()  # it was to follow the parent's last record, and now follows another one
    for one in blocks:
        put_records(tx, sides.fork.parent_id, parent.end, one, at_ms=tx.wall_ms)
    merged = blocks[-1].stop if blocks else sides.own.end
    put_fork(tx, sides.fork_id, sides.fork._replace(merged=merged))
    done = merged >= tx.entity(keys.head(sides.fork_id), Head).end
    return Step(sum(one.count for one in blocks), _join(tx, sides) if done else None)


def _note_merged(tx: WriteTransaction, *, sides: Sides) -> Step:
    """The parent has the same records already."""
    if _is_as_seen(tx, sides):
        merged = min(sides.own.end, sides.parent.end)
        put_fork(tx, sides.fork_id, sides.fork._replace(merged=merged))
    return Step()


def _set_aside(tx: WriteTransaction, *, sides: Sides, at: int, passed: Passed) -> Step:
    """Make room in the parent for a fork that is longer."""
    parent = tx.entity(keys.head(sides.fork.parent_id), Head)
    if not _is_as_seen(tx, sides) or parent.end != sides.parent.end:
        return Step()
    name = fork_name(tx, parent.name)
    check_passed(tx, sides.fork.parent_id, at, passed)
    set_tail_aside(tx, sides.fork.parent_id, at, name)
    if at > sides.fork.point:
        put_fork(tx, sides.fork_id, sides.fork._replace(merged=at))
    return Step(aside=name)


def _finish(tx: WriteTransaction, *, sides: Sides) -> Step:
    """Nothing is left to be appended: join what else there is."""
    own = tx.entity(keys.head(sides.fork_id), Head)
    if not _is_as_seen(tx, sides) or own.end != sides.own.end:
        return Step()
    return Step(ends=_join(tx, sides))


def _join(tx: WriteTransaction, sides: Sides) -> tuple[int, int]:
    """Metadata by its stamps; the later start. Where the parent begins and ends then."""
    parent_id = sides.fork.parent_id
    own = tx.entity(keys.metadata(sides.fork_id), MetadataState).entries
    if own:
        adopt_metadata(tx, sides.parent.name, dict(own))
    start = tx.entity(keys.head(sides.fork_id), Head).start
    parent = tx.entity(keys.head(parent_id), Head)
    if parent.start < start <= parent.end:
        tx.change(keys.head(parent_id), LogTruncated(start))
    return parent.start, parent.end


# Reading, outside of the write lock.


def _own_blocks(store: Store, sides: Sides) -> list[Parsed]:
    start = max(sides.position, sides.own.start)
    if start >= sides.own.end:
        return []
    found = fetch_blocks(
        store,
        sides.fork_id,
        sides.own.name,
        start=start,
        stop=sides.own.end,
        bytes_max=REBASE_BYTES,
    )
    return [parse(block) for block in found]


def _first_difference(store: Store, sides: Sides) -> int | None:
    """The first offset at which both have a record, and not the same one."""
    position, stop = sides.position, min(sides.own.end, sides.parent.end)
    if position < max(sides.own.start, sides.parent.start):
        return position
    logs = ((sides.fork_id, sides.own.name), (sides.fork.parent_id, sides.parent.name))
    while position < stop:
        one, other = (_records(store, *log, position, stop) for log in logs)
        for mine, theirs in zip(one, other, strict=False):
            if mine != theirs:
                return position
            position += 1
    return None


def _records(
    store: Store, log_id: int, name: str, start: int, stop: int
) -> list[tuple[object, ...]]:
    return [
        (one.value, one.key, one.timestamp, one.appended, one.headers)
        for block in fetch_blocks(store, log_id, name, start=start, stop=stop)
        for one in block.records()
    ]
