"""Copying, in the store that gives: marks and hashes of logs, and their blocks.

A chain is computed on request, in bounded slices outside of the write lock; each slice stores its
marks in a small commit, so that appends are not held up. The hash state at the end of a log is
cached: the next request then hashes only newer records.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from threading import Lock
from typing import NamedTuple

from millstream.errors import CorruptionError, NotFound, OutOfRange, TooLarge, Truncated
from millstream.format import keys
from millstream.log.model.block import RecordBlock
from millstream.log.model.head import Head
from millstream.log.model.metadata import MetadataState
from millstream.log.model.names import check_integer, check_name
from millstream.log.reading.reader import fetch_blocks
from millstream.log.rules.ancestry import fork_of
from millstream.log.rules.operations import find_log
from millstream.replica import commands as c
from millstream.replica.chain import ZERO, Chain, Mark, Run
from millstream.replica.copies.marks import (
    add_marks,
    last_mark,
    mark_at,
    prune_marks,
    read_marks,
)
from millstream.replica.copies.pattern import takes
from millstream.replica.metadata import digest_of
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.hypothetical import Reading
from millstream.store.state.instance import Instance
from millstream.store.state.view import View
from millstream.store.store import Store

READ_BYTES = 4 * 1024 * 1024
"""Values read at once to be hashed."""

MARKS_PER_COMMIT = 1_024
CHAINS_KEPT = 1_000
NAMES_PER_STEP = 1_000
TRIES = 100
"""How often a chain is computed again while its log is set aside, truncated or deleted."""


class CopyExtent(NamedTuple):
    """The bounds of a log and its last mark, at one moment."""

    log_id: int
    name: str
    start: int
    end: int
    last: Mark | None
    """None if the log has no chain."""


class Chains:
    """A cache of the hash states at the ends of the most recently used logs."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, Chain] = OrderedDict()
        self._lock = Lock()

    def find(self, extent: CopyExtent) -> Chain | None:
        """Return a cached chain that continues from a log's last mark."""
        with self._lock:
            chain = self._entries.get(extent.log_id)
            if chain is None or chain.last != extent.last or chain.end > extent.end:
                return None
            return chain.copy()

    def keep(self, extent: CopyExtent, chain: Chain) -> None:
        """Cache a chain."""
        with self._lock:
            self._entries[extent.log_id] = chain.copy()
            self._entries.move_to_end(extent.log_id)
            if len(self._entries) > CHAINS_KEPT:
                self._entries.popitem(last=False)


def chains_of(store: Store) -> Chains:
    """Return the cached chains of a store."""
    return store.caches.of(Chains)


# The extent of a log.


def find_extent(reading: Reading, name: str) -> CopyExtent | None:
    """Return the extent of a log; None if the log does not exist."""

    def ask(view: View) -> CopyExtent | None:
        log = find_log(view, name)
        if log is None:
            return None
        log_id, head = log
        last = last_mark(view, log_id)
        return CopyExtent(log_id, head.name, head.start, head.end, last)

    return reading.view(ask)


def need_extent(reading: Reading, name: str) -> CopyExtent:
    """Return the extent of a log. Raises `NotFound` for an unknown log."""
    extent = find_extent(reading, name)
    if extent is None:
        raise NotFound(f"there is no log {name!r}", name=name)
    return extent


# Chains.


def advance(reading: Reading, name: str) -> tuple[CopyExtent, Chain]:
    """Compute a log's chain up to its end, store its marks, and return the hash state at the end."""
    for _ in range(TRIES):
        extent = need_extent(reading, name)
        try:
            return _advance(reading, extent)
        except _Changed:
            continue
        except CorruptionError:
            if _is_same(extent, find_extent(reading, name)):
                raise  # otherwise the records were deleted during the read
    raise NotFound(f"log {name!r} changes all the time; ask again", name=name)


def _is_same(earlier: CopyExtent, later: CopyExtent | None) -> bool:
    """Whether a log can have changed by appends only."""
    return later is not None and later._replace(end=earlier.end, last=earlier.last) == earlier


def _advance(reading: Reading, extent: CopyExtent) -> tuple[CopyExtent, Chain]:
    """Try once. Raises `_Changed` if the log changed other than by an append meanwhile."""
    if extent.last is None:
        extent = _with_marks(reading, extent, [Mark(extent.start, ZERO)])
    chain = chains_of(reading.store).find(extent)
    while chain is None and (inherited := _inherited(reading, extent)):
        extent = _with_marks(reading, extent, inherited)
    if chain is None:
        assert extent.last is not None
        chain = Chain(extent.last)
    new: list[Mark] = []
    for block in _blocks(reading, extent, chain.end, extent.end):
        new += chain.extend(block)
        if len(new) >= MARKS_PER_COMMIT:
            extent, new = _with_marks(reading, extent, new), []
    if new:
        extent = _with_marks(reading, extent, new)
    chains_of(reading.store).keep(extent, chain)
    return extent, chain


class _Changed(Exception):  # never leaves this module
    """The log is no longer the log whose chain was computed."""


def _with_marks(reading: Reading, extent: CopyExtent, marks: list[Mark]) -> CopyExtent:
    """Store marks, and return the extent with the new last mark."""
    if not reading.run(partial(_note, extent=extent, marks=marks)):
        raise _Changed
    return extent._replace(last=marks[-1])


def _inherited(reading: Reading, extent: CopyExtent) -> list[Mark]:
    """Return marks that a fork's parent has computed, as far as they hold for the fork too."""

    def ask(view: View) -> list[Mark]:
        fork = fork_of(view, extent.log_id)
        last = extent.last
        if fork is None or last is None or last.offset >= fork.point:
            return []
        marks: list[Mark] = []
        for mark in read_marks(view, fork.parent_id, start=last.offset):
            if mark.offset > fork.point or len(marks) > MARKS_PER_COMMIT:
                break
            marks.append(mark)
        return marks[1:] if marks[:1] == [last] else []

    return reading.view(ask)


def _blocks(reading: Reading, extent: CopyExtent, start: int, stop: int) -> Iterator[RecordBlock]:
    while start < stop:
        for block in fetch_blocks(
            reading.store,
            extent.log_id,
            extent.name,
            start=start,
            stop=stop,
            bytes_max=READ_BYTES,
        ):
            yield block
            start = block.offsets.stop


def _note(tx: WriteTransaction, *, extent: CopyExtent, marks: list[Mark]) -> bool:
    """Write marks behind the last mark; False if the log is no longer the hashed one."""
    head = tx.entity(keys.head(extent.log_id), Head)
    if not head.exists() or head.deleted or head.name != extent.name:
        return False
    if last_mark(tx.view, extent.log_id) != extent.last:
        return False
    if extent.last is None and head.start != extent.start:
        return False
    if marks[-1].offset > head.end:
        return False
    add_marks(tx, extent.log_id, marks)
    anchor = mark_at(tx.view, extent.log_id, head.dropped)
    if anchor is not None:
        prune_marks(tx, extent.log_id, anchor.offset)
    return True


# Answers to the commands of a sync.


def get_store_id(store: Store, _: c.GetStoreId) -> str:
    """Return the id of the store."""
    instance: Instance = store.seen(keys.STORE_KEY)
    return instance.id


def summarize_log(store: Store, query: c.SummarizeLog) -> c.Summary | None:
    """Summarize one log; None if the log does not exist."""
    for _ in range(TRIES):
        reading = Reading(store)
        try:
            extent, chain = advance(reading, query.log)
        except NotFound:
            return None
        summary = reading.view(partial(_summary, extent=extent, digest=chain.digest()))
        if summary is not None:
            return summary
    return None


def summarize_logs(store: Store, query: c.SummarizeLogs) -> list[c.Summary]:
    """Summarize logs in the order of their names."""
    summaries: list[c.Summary] = []
    after = query.after
    while len(summaries) < query.limit:
        names = store.view(partial(_names, after=after, limit=NAMES_PER_STEP))
        for name in names:
            if takes(query.pattern, name) and len(summaries) < query.limit:
                summary = summarize_log(store, c.SummarizeLog(name))
                if summary is not None:
                    summaries.append(summary)
        if len(names) < NAMES_PER_STEP:
            break
        after = names[-1]
    return summaries


def summarize_named(store: Store, query: c.SummarizeNamed) -> list[c.Summary]:
    """Summarize the logs of given names, for a party that gives or takes only these."""
    if len(query.names) > c.NAMES_MAX:
        raise TooLarge(
            f"{len(query.names):,} names; the limit is {c.NAMES_MAX:,}",
            size=len(query.names),
            limit=c.NAMES_MAX,
        )
    summaries = (summarize_log(store, c.SummarizeLog(check_name(name))) for name in query.names)
    return [summary for summary in summaries if summary is not None]


def _names(view: View, *, after: str, limit: int) -> list[str]:
    return [keys.leading_name(key) for key in view.find(*keys.log_names(after), limit=limit)]


def _summary(view: View, *, extent: CopyExtent, digest: bytes) -> c.Summary | None:
    """Summarize a log up to its hashed end; None if the log was replaced meanwhile."""
    head = view.entity(keys.head(extent.log_id), Head)
    base = mark_at(view, extent.log_id, head.start)
    if base is None or head.end < extent.end or head.name != extent.name:
        return None
    metadata = view.entity(keys.metadata(extent.log_id), MetadataState)
    store = view.entity(keys.STORE_KEY, Instance)
    return c.Summary(
        name=head.name,
        start=head.start,
        end=extent.end,
        base=base,
        digest=digest,
        owner=head.owner or store.id,
        epoch=head.epoch,
        timestamp_ms=head.timestamp_ms,
        metadata=digest_of(metadata.entries),
    )


def get_chain(store: Store, query: c.GetChain) -> bytes:
    """Return the running hash at an offset."""
    reading = Reading(store)
    extent, chain = advance(reading, query.log)
    if query.offset == chain.end:
        return chain.digest()
    anchor = _checked(reading, extent, query.offset)
    chain = Chain(anchor)
    for block in _blocks(reading, extent, anchor.offset, query.offset):
        chain.extend(block)
    return chain.digest()


def digest_range(store: Store, query: c.DigestRange) -> bytes:
    """Return the digest of a range of records."""
    reading = Reading(store)
    extent, _ = advance(reading, query.log)
    _checked(reading, extent, query.start)
    _checked(reading, extent, query.stop)
    run = Run()
    for block in _blocks(reading, extent, query.start, query.stop):
        run.add(block)
    return run.digest()


def transfer_blocks(store: Store, query: c.SendBlocks) -> list[RecordBlock]:
    """Return blocks for another copy, as they are stored."""
    reading = Reading(store)
    extent = need_extent(reading, query.log)
    if extent.last is None:
        extent, _ = advance(reading, query.log)
    _checked(reading, extent, query.start)
    stop = min(query.stop, extent.end)
    if query.start >= stop:
        return []
    return fetch_blocks(
        store,
        extent.log_id,
        extent.name,
        start=query.start,
        stop=stop,
        bytes_max=min(query.bytes_max, store.limits.read_bytes_max),
    )


def _checked(reading: Reading, extent: CopyExtent, offset: int) -> Mark:
    """Return the mark from which the hash at an offset is computed. Raises if that is impossible."""
    check_integer("an offset", offset)
    if offset > extent.end:
        raise OutOfRange(
            f"log {extent.name!r} ends at {extent.end}: there is no offset {offset}",
            position=offset,
            end=extent.end,
        )

    def ask(view: View) -> tuple[Mark | None, Mark | None]:
        head = view.entity(keys.head(extent.log_id), Head)
        base = mark_at(view, extent.log_id, head.start)
        return base, mark_at(view, extent.log_id, offset)

    base, mark = reading.view(ask)
    if base is None or mark is None or offset < base.offset:
        start = extent.start if base is None else base.offset
        raise Truncated(
            f"log {extent.name!r} can be compared and copied from {start} on, not from {offset}",
            log=extent.name,
            offset=offset,
            start=start,
        )
    return mark
