"""Forks: a log that begins as another log is now, and can be merged into it again.

A fork costs nothing until it is written to: its first records stay in the parent. A merge gives the
fork's own records to the parent if the parent has not grown; the fork continues behind them. If
both have grown, the caller's rule decides.

    refuse    raise `ForkDetected`, and change nothing
    longest   the records of the longer log count. The parent's own records, if they lose, are set aside in
              a new fork; the fork's records, if they lose, stay in the fork
    rebase    append the fork's records to the parent again, at new offsets. The fork keeps its records at
              their offsets, and remembers how far it was merged
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from millstream.errors import Conflict, ForkDetected, InvalidInput
from millstream.format import keys
from millstream.format.lineage import Fork
from millstream.log import commands as c
from millstream.log.model.block import RecordBlock
from millstream.log.model.head import Bounds, Head, LogTruncated
from millstream.log.model.metadata import SCHEMA_KEY, Meta, MetadataState, Set
from millstream.log.model.names import check_name
from millstream.log.model.partitioned import check_plain
from millstream.log.reading.reader import fetch_blocks
from millstream.log.rules.ancestry import fork_of, parent_of, put_merged
from millstream.log.rules.operations import check_free, need_log, not_owner
from millstream.log.rules.schema_check import check_values
from millstream.record import Merged
from millstream.replica.chain import Parsed, parse
from millstream.replica.copies.adoption import put_records
from millstream.replica.forks.setting_aside import (
    Readers,
    check_passed,
    fork_name,
    make_fork,
    set_tail_aside,
)
from millstream.replica.forks.transfer import raise_point
from millstream.replica.metadata import adopt_metadata
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View
from millstream.store.store import Store

RULES = ("refuse", "longest", "rebase")

REBASE_BYTES = 4 * 1024 * 1024
"""Values in a commit of a rebase."""


def fork_log(tx: WriteTransaction, command: c.ForkLog) -> str:
    """Make a fork at the end of a log, and return its name."""
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
    """Return the name of a fork's parent, even of a deleted one; None if the log is no fork."""
    log_id, head = need_log(view, query.log)
    fork = parent_of(view, log_id)
    if fork is None:
        return head.former_name or None
    return view.entity(keys.head(fork.parent_id), Head).name or None


class Step(NamedTuple):
    """The result of one commit of a merge."""

    moved: int = 0
    """Records that the parent gained."""
    ends: tuple[int, int] | None = None
    """The start and the end of the parent, once the merge is complete."""
    aside: str | None = None
    """The fork that holds the parent's former tail."""


class ForkPair(NamedTuple):
    """A snapshot of a fork and its parent."""

    fork_id: int
    fork: Fork
    log: Bounds
    parent: Bounds
    is_stored_in_parent: bool
    """Whether the parent holds the fork's records below the fork point. Then the parent can take over
    the rows of the fork; otherwise the records are appended again."""

    @property
    def position(self) -> int:
        """Return the offset of the fork's first record that the parent does not have."""
        return max(self.fork.point, self.fork.merged)

    @property
    def moved(self) -> bool:
        """Whether the parent has records that the fork does not have."""
        return self.parent.end != self.fork.point or self.fork.merged > self.fork.point


def merge_fork(store: Store, command: c.MergeFork, readers: Readers) -> Merged:
    """Merge a fork into its parent in several commits; every commit leaves both logs readable."""
    if command.on_fork not in RULES:
        raise InvalidInput(f"on_fork is one of {', '.join(RULES)}, not {command.on_fork!r}")
    adopted, aside = 0, None
    while True:
        pair = store.view(lambda view: _pair(view, command.log))
        step = store.run(_next_step(store, pair, command.on_fork, readers))
        adopted += step.moved
        aside = step.aside or aside
        if step.ends is not None:
            start, end = step.ends
            parent = pair.parent.name
            return Merged(parent=parent, adopted=adopted, start=start, end=end, set_aside=aside)


def _next_step(
    store: Store, pair: ForkPair, on_fork: str, readers: Readers
) -> Callable[[WriteTransaction], Step]:
    """Return the function that the next commit of a merge runs."""
    if not pair.moved and pair.is_stored_in_parent:
        return partial(_adopt, pair=pair)
    if pair.position >= pair.log.end:
        return partial(_finish, pair=pair)
    at = _first_difference(store, pair)
    if at is None and pair.position < pair.parent.end:
        return partial(_note_merged, pair=pair)
    if at is None or on_fork == "rebase":
        stored = _own_blocks(store, pair)
        has_schema = store.view(partial(_schema_to_fit, pair=pair)) is not None
        values = [value for block in stored for value in block.values()] if has_schema else []
        blocks = [parse(block) for block in stored]
        return partial(_append_again, pair=pair, blocks=blocks, values=values)
    if on_fork == "refuse":
        parent, fork = pair.parent.name, pair.log.name
        raise ForkDetected(
            f"log {parent!r} has gone on since {fork!r} was forked from it: they differ from "
            f"offset {at} on. Merge with on_fork='rebase' to append the fork's records again, or "
            "'longest' to let the longer one count",
            log=parent,
            fork=fork,
            offset=at,
        )
    if pair.log.end <= pair.parent.end:
        return partial(_finish, pair=pair)
    return partial(_set_aside, pair=pair, at=at, readers=readers)


def _pair(view: View, name: str) -> ForkPair:
    log_id, fork_head = need_log(view, name)
    fork = parent_of(view, log_id)
    if fork is None and fork_head.former_name:
        raise _parent_deleted(name, fork_head.former_name)
    if fork is None:
        raise InvalidInput(f"log {name!r} is no fork: there is nothing to merge it into")
    parent = view.entity(keys.head(fork.parent_id), Head)
    _check_parent(name, parent)
    stored = fork_of(view, log_id)
    is_stored_in_parent = stored is not None and stored.parent_id == fork.parent_id
    return ForkPair(log_id, fork, fork_head.view(), parent.view(), is_stored_in_parent)


def _check_parent(fork: str, parent: Head) -> None:
    if not parent.exists() or parent.deleted:
        raise _parent_deleted(fork, parent.name)


def _parent_deleted(fork: str, parent: str) -> Conflict:
    return Conflict(
        f"log {parent!r}, which {fork!r} was forked from, was deleted: there is nothing "
        "to merge it into; the fork can be used as it is",
        log=parent,
    )


# The commits of a merge. Each checks first that the logs have not changed since the decision: the
# decision reads records, and reading under the write lock would hold up all appends.


def _is_as_seen(tx: WriteTransaction, pair: ForkPair) -> bool:
    """Whether both logs are unchanged. Raises if no commit of this merge could succeed."""
    fork_head = tx.entity(keys.head(pair.fork_id), Head)
    parent = tx.entity(keys.head(pair.fork.parent_id), Head)
    _check_parent(pair.log.name, parent)
    if parent.owner:
        raise not_owner(parent)
    check_free(tx, parent, "")
    return (
        not fork_head.deleted
        and fork_head.name == pair.log.name
        and parent_of(tx, pair.fork_id) == pair.fork
    )


def _adopt(tx: WriteTransaction, *, pair: ForkPair) -> Step:
    """Give records to a parent that has not grown."""
    parent = tx.entity(keys.head(pair.fork.parent_id), Head)
    if not _is_as_seen(tx, pair) or parent.end != pair.fork.point:
        return Step()
    fork_head, moved = tx.entity(keys.head(pair.fork_id), Head), 0
    if pair.fork.point < fork_head.end:
        moved = raise_point(tx, pair.fork_id, pair.fork)
    fork = fork_of(tx, pair.fork_id)
    assert fork is not None
    return Step(moved, _join(tx, pair) if fork.point >= fork_head.end else None)


def _schema_to_fit(view: View, *, pair: ForkPair) -> Meta | None:
    """Return the entry with the schema that records of a fork must fit, which they may not do yet.

    The merged log has the schema that was set last. If that is the fork's, its records were checked.
    """
    entries = view.entity(keys.metadata(pair.fork.parent_id), MetadataState).entries
    meta = entries.get(SCHEMA_KEY)
    of_fork = view.entity(keys.metadata(pair.fork_id), MetadataState).entries.get(SCHEMA_KEY)
    if meta is None or not meta.present or (of_fork is not None and of_fork.stamp >= meta.stamp):
        return None
    return meta


def _append_again(
    tx: WriteTransaction, *, pair: ForkPair, blocks: list[Parsed], values: list[bytes | None]
) -> Step:
    """Append copies of a fork's records to its parent, and note how far the fork was merged."""
    if not _is_as_seen(tx, pair):
        return Step()
    parent = tx.entity(keys.head(pair.fork.parent_id), Head)
    if parent.end != pair.parent.end and pair.position >= pair.parent.end:
        return (
            Step()
        )  # the records were to follow the parent's last record, which is another record now
    meta = _schema_to_fit(tx.view, pair=pair)
    if meta is not None and blocks and not values:
        return Step()  # the parent has got a schema since the records were read
    if meta is not None:
        check_values(tx, pair.fork.parent_id, parent, meta, values)
    for block in blocks:
        put_records(tx, pair.fork.parent_id, parent.end, block, at_ms=tx.wall_ms)
    merged = blocks[-1].stop if blocks else pair.log.end
    put_merged(tx, pair.fork_id, merged)
    done = merged >= tx.entity(keys.head(pair.fork_id), Head).end
    return Step(sum(block.count for block in blocks), _join(tx, pair) if done else None)


def _note_merged(tx: WriteTransaction, *, pair: ForkPair) -> Step:
    """Note that the parent has the same records already."""
    if _is_as_seen(tx, pair):
        put_merged(tx, pair.fork_id, min(pair.log.end, pair.parent.end))
    return Step()


def _set_aside(tx: WriteTransaction, *, pair: ForkPair, at: int, readers: Readers) -> Step:
    """Set the parent aside, so that the records of the longer fork can follow the common records."""
    parent = tx.entity(keys.head(pair.fork.parent_id), Head)
    if not _is_as_seen(tx, pair) or parent.end != pair.parent.end:
        return Step()
    name = fork_name(tx, parent.name)
    check_passed(tx, pair.fork.parent_id, at, readers.passed)
    set_tail_aside(tx, pair.fork.parent_id, at, name, readers.follow)
    if at > pair.fork.point:
        put_merged(tx, pair.fork_id, at)
    return Step(aside=name)


def _finish(tx: WriteTransaction, *, pair: ForkPair) -> Step:
    """Complete a merge that has no records left to append."""
    fork_head = tx.entity(keys.head(pair.fork_id), Head)
    if not _is_as_seen(tx, pair) or fork_head.end != pair.log.end:
        return Step()
    return Step(ends=_join(tx, pair))


def _join(tx: WriteTransaction, pair: ForkPair) -> tuple[int, int]:
    """Join the metadata by its stamps, keep the later start, and return the parent's start and end."""
    parent_id = pair.fork.parent_id
    entries = tx.entity(keys.metadata(pair.fork_id), MetadataState).entries
    if entries:
        adopt_metadata(tx, pair.parent.name, dict(entries))
    start = tx.entity(keys.head(pair.fork_id), Head).start
    parent = tx.entity(keys.head(parent_id), Head)
    if parent.start < start <= parent.end:
        tx.change(keys.head(parent_id), LogTruncated(start))
    return parent.start, parent.end


# Reads outside of the write lock.


def _own_blocks(store: Store, pair: ForkPair) -> list[RecordBlock]:
    start = max(pair.position, pair.log.start)
    if start >= pair.log.end:
        return []
    return fetch_blocks(
        store,
        pair.fork_id,
        pair.log.name,
        start=start,
        stop=pair.log.end,
        bytes_max=REBASE_BYTES,
    )


def _first_difference(store: Store, pair: ForkPair) -> int | None:
    """Return the first offset at which both logs have a record, and the records differ."""
    position, stop = pair.position, min(pair.log.end, pair.parent.end)
    if position < max(pair.log.start, pair.parent.start):
        return position
    logs = ((pair.fork_id, pair.log.name), (pair.fork.parent_id, pair.parent.name))
    while position < stop:
        fork_records, parent_records = (_records(store, *log, position, stop) for log in logs)
        for mine, theirs in zip(fork_records, parent_records, strict=False):
            if mine != theirs:
                return position
            position += 1
    return None


def _records(
    store: Store, log_id: int, name: str, start: int, stop: int
) -> list[tuple[object, ...]]:
    return [
        (record.value, record.key, record.timestamp, record.appended, record.headers)
        for block in fetch_blocks(store, log_id, name, start=start, stop=stop)
        for record in block.records()
    ]
