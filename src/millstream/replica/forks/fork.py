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
from millstream.log.ancestry import fork_of, put_fork
from millstream.log.head import Head, Truncated
from millstream.log.metadata import MetadataState, Set
from millstream.log.names import check_name
from millstream.log.operations import check_free, need_log, not_owner
from millstream.log.reader import fetch_blocks
from millstream.record import Merged
from millstream.replica.chain import Parsed, parse
from millstream.replica.commands import AdoptMetadata
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
from millstream.store.rows import View
from millstream.store.store import Store
from millstream.store.transaction import Transaction

RULES = ("refuse", "longest", "rebase")

REBASE_BYTES = 4 * 1024 * 1024
"""Values that one commit of a rebase appends."""


def fork_log(tx: Transaction, command: c.ForkLog) -> str:
    """Make a fork of a log, at its end; the fork's name."""
    parent_id, _ = need_log(tx, command.log)
    name = fork_name(tx, command.log) if command.name is None else check_name(command.name)
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


class Sides(NamedTuple):
    """A fork and its parent, at one moment."""

    fork_id: int
    name: str
    fork: Fork
    own_start: int
    own_end: int
    parent: str
    parent_start: int
    parent_end: int
    setbacks: tuple[int, int]

    @property
    def position(self) -> int:
        """The first record of the fork that the parent does not have."""
        return max(self.fork.point, self.fork.merged)

    @property
    def moved(self) -> bool:
        """Whether the parent has records that the fork does not have."""
        return self.parent_end != self.fork.point or self.fork.merged > self.fork.point


def merge_fork(store: Store, command: c.MergeFork, passed: Passed) -> Merged:
    """Bring a fork's records into its parent; each commit leaves both as they can be read."""
    if command.on_fork not in RULES:
        raise InvalidInput(f"on_fork is one of {', '.join(RULES)}, not {command.on_fork!r}")
    merging = Merging(store, command.log, command.on_fork, passed)
    while (found := merging.step()) is None:
        pass
    return found


class Merging:
    """One merge on its way: some commits, after each of which both logs are sound."""

    def __init__(self, store: Store, name: str, on_fork: str, passed: Passed) -> None:
        self._store = store
        self._name = name
        self._on_fork = on_fork
        self._passed = passed
        self._adopted = 0
        self._aside: str | None = None

    def step(self) -> Merged | None:
        """One commit at most; None if there is more to do."""
        sides = self._store.view(lambda view: _sides(view, self._name))
        if not sides.moved:
            return self._commit(sides, partial(_adopt, sides=sides))
        if sides.position >= sides.own_end:
            return self._commit(sides, partial(_finish, sides=sides))
        at = _first_difference(self._store, sides)
        if at is None and sides.position < sides.parent_end:
            return self._commit(sides, partial(_note_merged, sides=sides))
        if at is None or self._on_fork == "rebase":
            blocks = _own_blocks(self._store, sides)
            return self._commit(sides, partial(_append_again, sides=sides, blocks=blocks))
        if self._on_fork == "refuse":
            raise ForkDetected(
                f"log {sides.parent!r} has gone on since {sides.name!r} was forked from it: they "
                f"differ from offset {at} on. Merge with on_fork='rebase' to append the fork's "
                "records again, or 'longest' to let the longer one count",
                log=sides.parent,
                fork=sides.name,
                offset=at,
            )
        if sides.own_end <= sides.parent_end:
            return self._commit(sides, partial(_finish, sides=sides))
        self._aside = self._store.run(partial(_set_aside, sides=sides, at=at, passed=self._passed))
        return None

    def _commit(self, sides: Sides, operation: Callable[[Transaction], Step]) -> Merged | None:
        step = self._store.run(operation)
        self._adopted += step.moved
        if step.ends is None:
            return None
        start, end = step.ends
        return Merged(
            parent=sides.parent,
            adopted=self._adopted,
            start=start,
            end=end,
            set_aside=self._aside,
        )


def _sides(view: View, name: str) -> Sides:
    log_id, own = need_log(view, name)
    fork = fork_of(view, log_id)
    if fork is None:
        raise InvalidInput(f"log {name!r} is no fork: there is nothing to merge it into")
    parent = view.entity(keys.head(fork.parent_id), Head)
    _check_parent(name, parent)
    return Sides(
        fork_id=log_id,
        name=name,
        fork=fork,
        own_start=own.start,
        own_end=own.end,
        parent=parent.name,
        parent_start=parent.start,
        parent_end=parent.end,
        setbacks=(own.setbacks, parent.setbacks),
    )


def _check_parent(fork: str, parent: Head) -> None:
    if not parent.exists() or parent.deleted:
        raise Conflict(
            f"log {parent.name!r}, which {fork!r} was forked from, was deleted: there is nothing "
            "to merge it into; the fork can be used as it is",
            log=parent.name,
        )


# Commits. Each looks whether the logs are still what they were when it was decided.


def _is_as_seen(tx: Transaction, sides: Sides) -> bool:
    """Whether a step may go on; refuses where no step of this merge could."""
    own = tx.entity(keys.head(sides.fork_id), Head)
    parent = tx.entity(keys.head(sides.fork.parent_id), Head)
    _check_parent(sides.name, parent)
    if parent.owner:
        raise not_owner(parent)
    check_free(tx, parent, "")
    return (
        fork_of(tx, sides.fork_id) == sides.fork
        and (own.setbacks, parent.setbacks) == sides.setbacks
        and not own.deleted
    )


def _adopt(tx: Transaction, *, sides: Sides) -> Step:
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


def _append_again(tx: Transaction, *, sides: Sides, blocks: list[Parsed]) -> Step:
    """Append copies of a fork's records to its parent, and note how far the fork was merged."""
    if not _is_as_seen(tx, sides):
        return Step()
    parent = tx.entity(keys.head(sides.fork.parent_id), Head)
    if parent.end != sides.parent_end and sides.position >= sides.parent_end:
        return Step()  # it was to follow the parent's last record, and now follows another one
    for one in blocks:
        put_records(tx, sides.fork.parent_id, parent.end, one, at_ms=tx.wall_ms)
    merged = blocks[-1].stop if blocks else sides.own_end
    put_fork(tx, sides.fork_id, sides.fork._replace(merged=merged))
    done = merged >= tx.entity(keys.head(sides.fork_id), Head).end
    return Step(sum(one.count for one in blocks), _join(tx, sides) if done else None)


def _note_merged(tx: Transaction, *, sides: Sides) -> Step:
    """The parent has the same records already."""
    if _is_as_seen(tx, sides):
        merged = min(sides.own_end, sides.parent_end)
        put_fork(tx, sides.fork_id, sides.fork._replace(merged=merged))
    return Step()


def _set_aside(tx: Transaction, *, sides: Sides, at: int, passed: Passed) -> str | None:
    """Make room in the parent for a fork that is longer."""
    parent = tx.entity(keys.head(sides.fork.parent_id), Head)
    if not _is_as_seen(tx, sides) or parent.end != sides.parent_end:
        return None
    name = fork_name(tx, sides.parent)
    check_passed(tx, sides.fork.parent_id, at, passed)
    set_tail_aside(tx, sides.fork.parent_id, at, name)
    if at > sides.fork.point:
        put_fork(tx, sides.fork_id, sides.fork._replace(merged=at))
    return name


def _finish(tx: Transaction, *, sides: Sides) -> Step:
    """Nothing is left to be appended: join what else there is."""
    own = tx.entity(keys.head(sides.fork_id), Head)
    if not _is_as_seen(tx, sides) or own.end != sides.own_end:
        return Step()
    return Step(ends=_join(tx, sides))


def _join(tx: Transaction, sides: Sides) -> tuple[int, int]:
    """Metadata by its stamps; the later start. Where the parent begins and ends then."""
    parent_id = sides.fork.parent_id
    own = tx.entity(keys.metadata(sides.fork_id), MetadataState).entries
    if own:
        adopt_metadata(tx, AdoptMetadata(sides.parent, dict(own)))
    start = tx.entity(keys.head(sides.fork_id), Head).start
    parent = tx.entity(keys.head(parent_id), Head)
    if parent.start < start <= parent.end:
        tx.change(keys.head(parent_id), Truncated(start))
    return parent.start, parent.end


# Reading, outside of the write lock.


def _own_blocks(store: Store, sides: Sides) -> list[Parsed]:
    start = max(sides.position, sides.own_start)
    if start >= sides.own_end:
        return []
    found = fetch_blocks(
        store, sides.fork_id, sides.name, start=start, stop=sides.own_end, bytes_max=REBASE_BYTES
    )
    return [parse(block) for block in found]


def _first_difference(store: Store, sides: Sides) -> int | None:
    """The first offset at which both have a record, and not the same one."""
    position, stop = sides.position, min(sides.own_end, sides.parent_end)
    if position < max(sides.own_start, sides.parent_start):
        return position
    parent = sides._replace(fork_id=sides.fork.parent_id, name=sides.parent)
    while position < stop:
        one, other = (_records(store, side, position, stop) for side in (sides, parent))
        for mine, theirs in zip(one, other, strict=False):
            if mine != theirs:
                return position
            position += 1
    return None


def _records(store: Store, side: Sides, start: int, stop: int) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for block in fetch_blocks(store, side.fork_id, side.name, start=start, stop=stop):
        found += [
            (one.value, one.key, one.timestamp, one.appended, one.headers)
            for one in block.records()
        ]
    return found
