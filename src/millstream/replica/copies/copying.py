"""Copying, on the side that gives: marks and hashes of logs, and their blocks.

A chain is computed when it is asked for, in bounded slices outside of the write lock; each slice
leaves its marks in a small commit. Appends are not held up. The hash state at the end of a log
is remembered, so that the next question costs what is new.
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
"""How often a chain is computed again while its log is set back, truncated or deleted."""


class LogStanding(NamedTuple):
    """Where a log stands, at one moment."""

    log_id: int
    name: str
    start: int
    end: int
    setbacks: int
    last: Mark | None
    """The last mark; None if the log has no chain."""


class Chains:
    """The hash states at the ends of the logs that were asked for last."""

    def __init__(self) -> None:
        self._found: OrderedDict[int, tuple[int, Chain]] = OrderedDict()
        self._lock = Lock()

    def find(self, standing: LogStanding) -> Chain | None:
        """A chain that goes on where a log's last mark is, if one is remembered."""
        with self._lock:
            found = self._found.get(standing.log_id)
            if found is None or found[0] != standing.setbacks:
                return None
            chain = found[1]
            if chain.last != standing.last or chain.end > standing.end:
                return None
            return chain.copy()

    def keep(self, standing: LogStanding, chain: Chain) -> None:
        """Remember a chain."""
        with self._lock:
            self._found[standing.log_id] = standing.setbacks, chain.copy()
            self._found.move_to_end(standing.log_id)
            if len(self._found) > CHAINS_KEPT:
                self._found.popitem(last=False)


def chains_of(store: Store) -> Chains:
    """What is remembered of a store's chains."""
    return store.caches.of(Chains)


# Where logs stand.


def find_standing(reading: Reading, name: str) -> LogStanding | None:
    """Where a log stands now; None if there is none."""

    def ask(view: View) -> LogStanding | None:
        found = find_log(view, name)
        if found is None:
            return None
        log_id, head = found
        last = last_mark(view, log_id)
        return LogStanding(log_id, head.name, head.start, head.end, head.setbacks, last)

    return reading.view(ask)


def need_standing(reading: Reading, name: str) -> LogStanding:
    """Where a log stands; there must be one."""
    found = find_standing(reading, name)
    if found is None:
        raise NotFound(f"there is no log {name!r}", name=name)
    return found


# Chains.


def advance(reading: Reading, name: str) -> tuple[LogStanding, Chain]:
    """Compute a log's chain up to its end, and keep the marks; the hash state at the end."""
    for _ in range(TRIES):
        standing = need_standing(reading, name)
        try:
            return _advance(reading, standing)
        except _Changed:
            continue
        except CorruptionError:
            if _is_same(standing, find_standing(reading, name)):
                raise  # else its records went while they were read
    raise NotFound(f"log {name!r} changes all the time; ask again", name=name)


def _is_same(one: LogStanding, later: LogStanding | None) -> bool:
    """Whether nothing but appends can have happened to a log."""
    return later is not None and later._replace(end=one.end, last=one.last) == one


def _advance(reading: Reading, standing: LogStanding) -> tuple[LogStanding, Chain]:
    """One try; `_Changed` if the log was changed otherwise than by an append meanwhile."""
    if standing.last is None:
        standing = _with_marks(reading, standing, [Mark(standing.start, ZERO)])
    chain = chains_of(reading.store).find(standing)
    while chain is None and (inherited := _inherited(reading, standing)):
        standing = _with_marks(reading, standing, inherited)
    if chain is None:
        assert standing.last is not None
        chain = Chain(standing.last)
    new: list[Mark] = []
    for block in _blocks(reading, standing, chain.end, standing.end):
        new += chain.extend(block)
        if len(new) >= MARKS_PER_COMMIT:
            standing, new = _with_marks(reading, standing, new), []
    if new:
        standing = _with_marks(reading, standing, new)
    chains_of(reading.store).keep(standing, chain)
    return standing, chain


class _Changed(Exception):  # never leaves this module
    """A log is no longer what its chain was computed from."""


def _with_marks(reading: Reading, standing: LogStanding, marks: list[Mark]) -> LogStanding:
    """Keep marks; where the log stands with them."""
    if not reading.run(partial(_note, standing=standing, marks=marks)):
        raise _Changed
    return standing._replace(last=marks[-1])


def _inherited(reading: Reading, standing: LogStanding) -> list[Mark]:
    """Marks that a fork's parent has computed already, and that are the fork's as well."""

    def ask(view: View) -> list[Mark]:
        fork = fork_of(view, standing.log_id)
        last = standing.last
        if fork is None or last is None or last.offset >= fork.point:
            return []
        found: list[Mark] = []
        for mark in read_marks(view, fork.parent_id, start=last.offset):
            if mark.offset > fork.point or len(found) > MARKS_PER_COMMIT:
                break
            found.append(mark)
        return found[1:] if found[:1] == [last] else []

    return reading.view(ask)


def _blocks(
    reading: Reading, standing: LogStanding, start: int, stop: int
) -> Iterator[RecordBlock]:
    while start < stop:
        for block in fetch_blocks(
            reading.store,
            standing.log_id,
            standing.name,
            start=start,
            stop=stop,
            bytes_max=READ_BYTES,
        ):
            yield block
            start = block.offsets.stop


def _note(tx: WriteTransaction, *, standing: LogStanding, marks: list[Mark]) -> bool:
    """Write marks behind the last one, if the log is still what they were computed from."""
    head = tx.entity(keys.head(standing.log_id), Head)
    if not head.exists() or head.deleted or head.setbacks != standing.setbacks:
        return False
    if last_mark(tx.view, standing.log_id) != standing.last:
        return False
    if standing.last is None and head.start != standing.start:
        return False
    if marks[-1].offset > head.end:
        return False
    add_marks(tx, standing.log_id, marks)
    anchor = mark_at(tx.view, standing.log_id, head.dropped)
    if anchor is not None:
        prune_marks(tx, standing.log_id, anchor.offset)
    return True


# What is asked.


def get_store_id(store: Store, _: c.GetStoreId) -> str:
    """The id of the store."""
    found: Instance = store.seen(keys.STORE_KEY)
    return found.id


def summarize_log(store: Store, query: c.SummarizeLog) -> c.Summary | None:
    """How one log stands."""
    for _ in range(TRIES):
        reading = Reading(store)
        try:
            standing, chain = advance(reading, query.log)
        except NotFound:
            return None
        found = reading.view(partial(_summary, standing=standing, digest=chain.digest()))
        if found is not None:
            return found
    return None


def summarize_logs(store: Store, query: c.SummarizeLogs) -> list[c.Summary]:
    """How some logs stand, in the order of their names."""
    found: list[c.Summary] = []
    after = query.after
    while len(found) < query.limit:
        names = store.view(partial(_names, after=after, limit=NAMES_PER_STEP))
        for name in names:
            if takes(query.pattern, name) and len(found) < query.limit:
                one = summarize_log(store, c.SummarizeLog(name))
                if one is not None:
                    found.append(one)
        if len(names) < NAMES_PER_STEP:
            break
        after = names[-1]
    return found


def summarize_named(store: Store, query: c.SummarizeNamed) -> list[c.Summary]:
    """How the logs of given names stand, for a side that gives or takes only these."""
    if len(query.names) > c.NAMES_MAX:
        raise TooLarge(
            f"{len(query.names):,} names; the limit is {c.NAMES_MAX:,}",
            size=len(query.names),
            limit=c.NAMES_MAX,
        )
    found = (summarize_log(store, c.SummarizeLog(check_name(name))) for name in query.names)
    return [one for one in found if one is not None]


def _names(view: View, *, after: str, limit: int) -> list[str]:
    return [key[2:].decode() for key in view.find(*keys.log_names(after), limit=limit)]


def _summary(view: View, *, standing: LogStanding, digest: bytes) -> c.Summary | None:
    """What the state says of a log up to where it was hashed; None if it is another one by now."""
    head = view.entity(keys.head(standing.log_id), Head)
    base = mark_at(view, standing.log_id, head.start)
    if base is None or head.end < standing.end or head.setbacks != standing.setbacks:
        return None
    metadata = view.entity(keys.metadata(standing.log_id), MetadataState)
    store = view.entity(keys.STORE_KEY, Instance)
    return c.Summary(
        name=head.name,
        start=head.start,
        end=standing.end,
        base=base,
        digest=digest,
        owner=head.owner or store.id,
        epoch=head.epoch,
        timestamp_ms=head.timestamp_ms,
        metadata=digest_of(metadata.entries),
    )


def get_chain(store: Store, query: c.GetChain) -> bytes:
    """The running hash at an offset."""
    reading = Reading(store)
    standing, chain = advance(reading, query.log)
    if query.offset == chain.end:
        return chain.digest()
    anchor = _checked(reading, standing, query.offset)
    chain = Chain(anchor)
    for block in _blocks(reading, standing, anchor.offset, query.offset):
        chain.extend(block)
    return chain.digest()


def digest_range(store: Store, query: c.DigestRange) -> bytes:
    """The digest of a run of records."""
    reading = Reading(store)
    standing, _ = advance(reading, query.log)
    _checked(reading, standing, query.start)
    _checked(reading, standing, query.stop)
    run = Run()
    for block in _blocks(reading, standing, query.start, query.stop):
        run.add(block)
    return run.digest()


def transfer_blocks(store: Store, query: c.SendBlocks) -> list[RecordBlock]:
    """Blocks for another copy, as they are stored."""
    reading = Reading(store)
    standing = need_standing(reading, query.log)
    if standing.last is None:
        standing, _ = advance(reading, query.log)
    _checked(reading, standing, query.start)
    stop = min(query.stop, standing.end)
    if query.start >= stop:
        return []
    return fetch_blocks(
        store,
        standing.log_id,
        standing.name,
        start=query.start,
        stop=stop,
        bytes_max=min(query.bytes_max, store.limits.read_bytes_max),
    )


def _checked(reading: Reading, standing: LogStanding, offset: int) -> Mark:
    """The mark from which the hash at an offset is computed; there must be one, and the offset."""
    check_integer("an offset", offset)
    if offset > standing.end:
        raise OutOfRange(
            f"log {standing.name!r} ends at {standing.end}: there is no offset {offset}",
            position=offset,
            end=standing.end,
        )

    def ask(view: View) -> tuple[Mark | None, Mark | None]:
        head = view.entity(keys.head(standing.log_id), Head)
        base = mark_at(view, standing.log_id, head.start)
        return base, mark_at(view, standing.log_id, offset)

    base, found = reading.view(ask)
    if base is None or found is None or offset < base.offset:
        start = standing.start if base is None else base.offset
        raise Truncated(
            f"log {standing.name!r} can be compared and copied from {start} on, not from {offset}",
            log=standing.name,
            offset=offset,
            start=start,
        )
    return found
