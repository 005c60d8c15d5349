"""Reading: the payloads of messages, fetched outside the write lock once they are claimed.

A message that cannot be read fails, for no other consumer can read it either; its neighbours are
handed out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import NamedTuple

from msgspec.structs import replace

from millstream.errors import CorruptionError, MillstreamError
from millstream.format import keys
from millstream.log.model.block import pack_headers
from millstream.log.model.head import Head
from millstream.log.reading.reader import fetch_blocks
from millstream.log.reading.recent import (
    Columns,
    held_row,
    is_at_hand,
    recent_columns,
    recent_row,
    recent_rows,
    recent_scattered,
)
from millstream.log.reading.salvage import bare_stretches, behind, salvage
from millstream.queue import commands as c
from millstream.queue.model.message import Damage, Label, Lot
from millstream.queue.rules.endings import finish
from millstream.record import Record
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.store import Store

DAMAGED = "damaged: "
"""How the reason of a message begins that cannot be read."""


def read_granted(store: Store, queue: str, granted: c.Granted) -> list[Lot]:
    """The messages that a claim got, with their payloads.

    Threads that claimed in one commit wake one after the other, each with a cold processor cache. So
    the first one reads for all.
    """
    deal = granted.deal
    if deal is None:
        return read_grants(store, queue, granted.grants)
    if deal.lots is None:
        try:
            deal.lots = _read_deal(store, queue, deal)
        except MillstreamError:  # one is damaged: each reads its own, so only that one fails
            deal.lots = []
    return deal.lots[granted.turn] if deal.lots else read_grants(store, queue, granted.grants)


def read_grants(store: Store, queue: str, grants: Sequence[c.Grant]) -> list[Lot]:
    """Messages that are claimed, with their payloads; those that are damaged fail now."""
    if len(grants) == 1 and grants[0].count == 1:  # as consumers mostly ask: it is in memory
        grant = grants[0]
        row = recent_row(store, grant.log_id, grant.offset)
        if row is not None:
            log, epoch_ms = log_name(store, grant.log_id), store.state.time.epoch_ms()
            return [_lot(queue, log, grant, row, epoch_ms)]
    found: list[Lot] = []
    damaged: list[Damaged] = []
    for bundle in _bundles(grants):
        if len(bundle) > 1 or bundle[0].offsets is not None:
            with suppress(CorruptionError):  # of one of them: each is then read by itself
                found += _read_bundle(store, queue, bundle)
                continue
        for grant in _singly(bundle):
            for some in _read(store, queue, grant):
                if isinstance(some, Lot):
                    found.append(some)
                else:
                    damaged.append(some)
    if damaged:
        _give_up(store, queue, damaged, others=bool(found))
    return found


def _bundles(grants: Sequence[c.Grant]) -> list[Sequence[c.Grant]]:
    """Grants that lie apart in one log, in its order, but are neighbours in their claim ids."""
    if len(grants) == 1:
        return [grants]
    found: list[list[c.Grant]] = []
    bundle: list[c.Grant] = []
    claim_id = attempt = log_id = offset = until_ms = -1
    for grant in grants:
        if grant.offsets is not None:
            found.append([grant])
            claim_id = -1
            continue
        if (
            grant.claim_id != claim_id
            or grant.offset < offset
            or grant.log_id != log_id
            or grant.attempt != attempt
            or grant.until_ms != until_ms
        ):
            attempt, log_id, until_ms = grant.attempt, grant.log_id, grant.until_ms
            bundle = []
            found.append(bundle)
        bundle.append(grant)
        claim_id, offset = grant.claim_id + grant.count, grant.offset
    return found  # type: ignore[return-value]  # a list of lists is one of sequences, too


def _singly(grants: Iterable[c.Grant]) -> Iterator[c.Grant]:
    """Grants of neighbouring messages: those that lie apart one by one."""
    return chain.from_iterable([grant.singly() for grant in grants])


def _read_bundle(store: Store, queue: str, bundle: Sequence[c.Grant]) -> list[Lot]:
    """The messages of a bundle, as many lots as they lie in blocks; damage raises."""
    first, last = bundle[0], bundle[-1]
    if first.offsets is not None:
        offsets = first.offsets
    elif last.claim_id + last.count - first.claim_id == len(bundle):
        offsets = [grant.offset for grant in bundle]
    else:
        runs = [range(grant.offset, grant.offset + grant.count) for grant in bundle]
        offsets = list(chain.from_iterable(runs))
    log, epoch_ms = log_name(store, first.log_id), store.state.time.epoch_ms()
    skip, lots = 0, []
    for some in recent_scattered(store, first.log_id, log, offsets):
        lots.append(_lot(queue, log, first, some, epoch_ms, skip=skip))
        skip += len(some.offsets)
    return lots


def _give_up(store: Store, queue: str, damaged: list[Damaged], *, others: bool) -> None:
    """Fail messages that cannot be read; their neighbours are handed out in any case."""
    try:
        store.run(partial(fail_damaged, queue=queue, damaged=damaged))
    except MillstreamError:
        if not others:
            raise  # else their lease ends, and the next claim comes here again


def fail_damaged(tx: WriteTransaction, *, queue: str, damaged: Iterable[Damaged]) -> None:
    """Fail messages that cannot be read, unless their lease has ended meanwhile."""
    for grant, reason in damaged:
        run = grant.claim_id, grant.count, grant.attempt
        finish(tx, c.FinishClaims(queue, [run], "fail", reason=reason, each=True))


def _read_deal(store: Store, queue: str, deal: c.Deal) -> list[list[Lot]]:
    """The message of each claim, if each has one and they lie side by side; else nothing."""
    first, count = deal.grants[0][0], len(deal.grants)
    place = first.log_id, first.offset
    places = [(one.log_id, one.offset - at) for at, (one, *_) in enumerate(deal.grants)]
    if places.count(place) < count or any(len(own) > 1 or own[0].count > 1 for own in deal.grants):
        return []
    return [[lot] for lot in read_singles(store, queue, [(own[0], "") for own in deal.grants])]


class Damaged(NamedTuple):
    """Messages that were claimed and cannot be read."""

    grant: c.Grant
    reason: str


def _read(store: Store, queue: str, grant: c.Grant, reason: str = "") -> Iterator[Lot | Damaged]:
    """Neighbouring messages in order; those with a payload as many lots as they lie in blocks."""
    log, start, stop = log_name(store, grant.log_id), grant.offset, grant.offset + grant.count
    epoch_ms = store.state.time.epoch_ms()
    while start < stop:
        try:
            found = recent_columns(store, grant.log_id, log, start=start, stop=stop)
        except CorruptionError as error:
            end = behind(error, start, stop)
            yield Damaged(_part(grant, start, end), told(error))
            start = end
            continue
        for some in found:
            yield _lot(queue, log, grant, some, epoch_ms, reason, skip=start - grant.offset)
            start += len(some.offsets)


def _part(grant: c.Grant, start: int, stop: int) -> c.Grant:
    """Some of the messages of a grant, by their offsets."""
    claim_id = grant.claim_id + start - grant.offset
    return replace(grant, claim_id=claim_id, offset=start, count=stop - start)


def told(error: CorruptionError) -> str:
    """Why a damaged message has failed."""
    return f"{DAMAGED}{error.message}"


def _lot(
    queue: str,
    log: str,
    grant: c.Grant,
    some: Columns,
    epoch_ms: int,
    reason: str = "",
    *,
    skip: int = 0,
) -> Lot:
    """Messages of a grant behind the first few, from their records."""
    offsets = some.offsets
    label = Label(
        queue,
        log,
        grant.claim_id + skip,
        offsets.start if isinstance(offsets, range) else offsets,
        grant.attempt,
        some.timestamps,
        some.keys,
        some.packed_headers,
        grant.until_ms,
        reason,
        epoch_ms,
    )
    return Lot(label, some.values)


def peek_grant(store: Store, queue: str, grant: c.Grant, reason: str, *, done: bool) -> list[Lot]:
    """Return messages as a peek shows them; where payloads are gone or damaged, with empty values.

    The payload of a done message may have been deleted, which is no damage. The damage of a message
    is told before its reason.
    """
    found: list[Lot] = []
    for some in _read(store, queue, grant, reason):
        if isinstance(some, Lot):
            found.append(some)
        elif done and some.grant.offset < _deleted_below(store, grant.log_id):
            found += _without_values(store, queue, some.grant, reason, is_damaged=False)
        else:
            why = _with_damage(reason, some.reason)
            found += _without_values(store, queue, some.grant, why, is_damaged=True)
    return found


def _deleted_below(store: Store, log_id: int) -> int:
    """Return the offset below which a log's bytes may have been deleted; from there on all are there."""
    return store.view(lambda view: view.entity(keys.head(log_id), Head).dropped)


def _with_damage(reason: str, damage: str) -> str:
    """Why a message cannot be read, and why its last attempt ended if that was for another cause."""
    is_known = not reason or reason.startswith(DAMAGED)
    return damage if is_known else f"{damage}; before that: {reason}"


def _without_values(
    store: Store, queue: str, grant: c.Grant, reason: str, *, is_damaged: bool
) -> list[Lot]:
    """Messages whose payloads cannot be read, with what else is known of them."""
    log, start, stop = log_name(store, grant.log_id), grant.offset, grant.offset + grant.count
    read = partial(fetch_blocks, store, grant.log_id, log, stop=stop, values=False)
    epoch_ms = store.state.time.epoch_ms()
    found: list[Lot] = []
    for records, is_lost in bare_stretches(read, log, start=start, stop=stop):
        part = _part(grant, records[0].offset, records[-1].offset + 1)
        lot = _lot_of(queue, part, records, epoch_ms, reason)
        if is_damaged:
            damage: Damage = "record" if is_lost else "value"
            lot.label.damage = damage
        found.append(lot)
    return found


def _lot_of(
    queue: str, grant: c.Grant, records: Sequence[Record], epoch_ms: int, reason: str = ""
) -> Lot:
    """Messages of a grant, from record objects."""
    columns = Columns(
        range(grant.offset, grant.offset + len(records)),
        [record.value for record in records],
        [record.timestamp for record in records],
        [record.key for record in records],
        pack_headers([record.headers for record in records]),
    )
    return _lot(queue, records[0].log, grant, columns, epoch_ms, reason)


def read_singles(store: Store, queue: str, grants: Sequence[tuple[c.Grant, str]]) -> list[Lot]:
    """Single messages that are neighbours in a log, each with its reason, read in one go.

    Nothing is given if one of them is damaged or gone: each is then looked at by itself.
    """
    first = grants[0][0]
    log, stop = log_name(store, first.log_id), first.offset + len(grants)
    try:
        rows = recent_rows(store, first.log_id, log, start=first.offset, stop=stop)
    except CorruptionError:
        return []
    if len(rows) < len(grants):
        return []
    epoch_ms = store.state.time.epoch_ms()
    return [
        _lot(queue, log, grant, row, epoch_ms, reason)
        for (grant, reason), row in zip(grants, rows, strict=True)
    ]


def are_at_hand(store: Store, grants: list[c.Grant]) -> bool:
    """Whether the messages that a claim got can be had without reading the file."""
    return all(
        is_at_hand(store, one.log_id, start=one.offset, stop=one.offset + one.count)
        for one in _singly(grants)
    )


def read_inside(
    tx: WriteTransaction, queue: str, grants: Iterable[c.Grant]
) -> tuple[list[Lot], list[Damaged]]:
    """Messages read inside a transaction, where none can be forgotten meanwhile; and damaged ones."""
    found: list[Lot] = []
    damaged: list[Damaged] = []
    for grant in _singly(grants):
        log_id, start, stop = grant.log_id, grant.offset, grant.offset + grant.count
        name = tx.entity(keys.head(log_id), Head).name
        if (row := _held(tx, grant)) is not None:
            found.append(_lot(queue, name, grant, row, tx.state.time.epoch_ms()))
            continue
        for records, damage in salvage(tx.view, log_id, name, start=start, stop=stop):
            part = _part(grant, records[0].offset, records[-1].offset + 1)
            if damage is None:
                found.append(_lot_of(queue, part, records, tx.state.time.epoch_ms()))
            else:
                damaged.append(Damaged(part, told(damage)))
    return found, damaged


def _held(tx: WriteTransaction, grant: c.Grant) -> Columns | None:
    """A message that was appended alone a moment ago; None if it has to be read, or is damaged."""
    if grant.count > 1:
        return None
    try:
        return held_row(tx.state.overlay, grant.log_id, grant.offset)
    except CorruptionError:
        return None


class LogNames(dict[int, str]):
    """Names of logs by their ids."""


def log_name(store: Store, log_id: int) -> str:
    """The name of a log, which it has for life."""
    names = store.caches.of(LogNames)
    name = names.get(log_id)
    if name is None:
        name = store.view(lambda view: view.entity(keys.head(log_id), Head)).name
        names[log_id] = name
    return name
