"""Reading: the payloads of messages, fetched outside the write lock once they are claimed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from millstream.errors import CorruptionError, MillstreamError
from millstream.format import keys
from millstream.log.block import pack_headers
from millstream.log.head import Head
from millstream.log.reader import read_records
from millstream.log.recent import Columns, is_at_hand, recent_columns, recent_rows
from millstream.queue import commands as c
from millstream.queue.message import Label, Lot
from millstream.store.engine import Snapshot
from millstream.store.state import State
from millstream.store.store import Store
from millstream.store.transaction import Transaction

_NAMES = "names of logs"


def read_granted(store: Store, queue: str, granted: c.Granted) -> list[Lot]:
    """The messages that a claim got, with their payloads.

    Threads that claim together wake one after the other, each with everything to fetch anew for its
    processor: so the first reads for all.
    """
    deal = granted.deal
    if deal is None:
        return read_grants(store, queue, granted.grants)
    if deal.lots is None:
        try:
            deal.lots = _read_deal(store, queue, deal)
        except MillstreamError:  # of one of them, who will be told when reading alone
            deal.lots = []
    return deal.lots[granted.turn] if deal.lots else read_grants(store, queue, granted.grants)


def read_grants(store: Store, queue: str, grants: Sequence[c.Grant]) -> list[Lot]:
    """Messages that are claimed, with their payloads."""
    if len(grants) == 1:
        return read_grant(store, queue, grants[0])
    return [lot for grant in grants for lot in read_grant(store, queue, grant)]


def _read_deal(store: Store, queue: str, deal: c.Deal) -> list[list[Lot]]:
    """The message of each claim, if there is one for each, and they lie side by side; else nothing."""
    first, count = deal.grants[0][0], len(deal.grants)
    place = first.log_id, first.offset
    places = [(one.log_id, one.offset - at) for at, (one, *_) in enumerate(deal.grants)]
    if places.count(place) < count or any(len(own) > 1 or own[0].count > 1 for own in deal.grants):
        return []
    log, stop = log_name(store, first.log_id), first.offset + count
    rows = recent_rows(store, first.log_id, log, start=first.offset, stop=stop)
    return [[_lot(queue, log, own[0], row)] for own, row in zip(deal.grants, rows, strict=True)]


def read_grant(store: Store, queue: str, grant: c.Grant, reason: str = "") -> list[Lot]:
    """Neighbouring messages with their payloads; as many lots as they lie in blocks."""
    log, stop = log_name(store, grant.log_id), grant.offset + grant.count
    found = recent_columns(store, grant.log_id, log, start=grant.offset, stop=stop)
    return [_lot(queue, log, grant, some, reason) for some in found]


def _lot(queue: str, log: str, grant: c.Grant, some: Columns, reason: str = "") -> Lot:
    """Messages of a grant, from their records."""
    first = some.offsets.start
    label = Label(
        queue,
        log,
        grant.claim_id + first - grant.offset,
        first,
        grant.attempt,
        some.timestamps,
        some.keys,
        some.packed_headers,
        grant.until_ms,
        reason,
    )
    return Lot(label, some.values)


def read_what_is_left(store: Store, queue: str, grant: c.Grant, reason: str) -> list[Lot]:
    """The same of done messages: where payloads are gone, empty ones."""
    try:
        return read_grant(store, queue, grant, reason)
    except CorruptionError:
        if grant.count > 1:
            half = grant.count // 2
            claim_id, offset = grant.claim_id + half, grant.offset + half
            rest = replace(grant, claim_id=claim_id, offset=offset, count=grant.count - half)
            lower = read_what_is_left(store, queue, replace(grant, count=half), reason)
            return lower + read_what_is_left(store, queue, rest, reason)
    log = log_name(store, grant.log_id)
    until_ms, attempt = grant.until_ms, grant.attempt
    label = Label(queue, log, grant.claim_id, grant.offset, attempt, 0, None, b"", until_ms, reason)
    return [Lot(label, [b""])]


def are_at_hand(store: Store, grants: list[c.Grant]) -> bool:
    """Whether the messages that a claim got can be had without reading the file."""
    return all(
        is_at_hand(store, one.log_id, start=one.offset, stop=one.offset + one.count)
        for one in grants
    )


def read_inside(tx: Transaction, queue: str, grants: Iterable[c.Grant]) -> list[Lot]:
    """The same inside a transaction, where nothing can be forgotten meanwhile."""
    found: list[Lot] = []
    for grant in grants:
        name, start = tx.entity(keys.head(grant.log_id), Head).name, grant.offset
        records = read_records(
            tx.state.overlay, tx.writer, grant.log_id, name, start=start, stop=start + grant.count
        )
        label = Label(
            queue,
            name,
            grant.claim_id,
            start,
            grant.attempt,
            [record.timestamp for record in records],
            [record.key for record in records],
            pack_headers([record.headers for record in records]),
            grant.until_ms,
        )
        found.append(Lot(label, [record.value for record in records]))
    return found


def log_name(store: Store, log_id: int) -> str:
    """The name of a log, which it has for life."""
    names: dict[int, str] | None = store.scratch.get(_NAMES)
    name = None if names is None else names.get(log_id)
    if name is None:
        name = store.look(lambda state, snapshot: _name(state, snapshot, log_id))
        store.scratch.setdefault(_NAMES, {})[log_id] = name
    return name


def _name(state: State, snapshot: Snapshot, log_id: int) -> str:
    head = state.entity(keys.head(log_id), snapshot)
    assert isinstance(head, Head)
    return head.name
