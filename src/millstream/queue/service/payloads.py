"""Reading: fetches the payloads of claimed messages, outside the write lock.

An unreadable message fails, because no consumer could read it; its neighbours are handed out.
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
from millstream.log.model.head import Bounds, Head
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
from millstream.queue.model.grants import Deal, Grant, Granted
from millstream.queue.model.message import Damage, Label, Lot
from millstream.queue.rules.endings import finish
from millstream.record import Record
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.store import Store

DAMAGED = "damaged: "
"""The prefix of the reason of an unreadable message."""


def read_granted(store: Store, queue: str, granted: Granted) -> list[Lot]:
    """Return the messages of a claim, with payloads.

    Threads that claimed in the same commit wake one after another with cold processor caches. So the
    first thread reads for every waiting thread.
    """
    deal = granted.deal
    if deal is None:
        return read_grants(store, queue, granted.grants)
    if deal.lots is None:
        try:
            deal.lots = _read_deal(store, queue, deal)
        except MillstreamError:  # every claimant reads its own messages, so only the damaged fail
            deal.lots = []
    return deal.lots[granted.turn] if deal.lots else read_grants(store, queue, granted.grants)


def read_grants(store: Store, queue: str, grants: Sequence[Grant]) -> list[Lot]:
    """Return claimed messages with payloads; damaged messages fail now."""
    if len(grants) == 1 and grants[0].count == 1:  # the usual claim; the message is in memory
        grant = grants[0]
        row = recent_row(store, grant.log_id, grant.offset)
        if row is not None:
            log, epoch_ms = log_name(store, grant.log_id), store.state.time.epoch_ms()
            return [_lot(queue, log, grant, row, epoch_ms)]
    lots: list[Lot] = []
    damaged: list[Damaged] = []
    for bundle in _bundles(grants):
        if len(bundle) > 1 or bundle[0].offsets is not None:
            with suppress(CorruptionError):  # then messages are read singly
                lots += _read_bundle(store, queue, bundle)
                continue
        for grant in _singly(bundle):
            for result in _read(store, queue, grant):
                if isinstance(result, Lot):
                    lots.append(result)
                else:
                    damaged.append(result)
    if damaged:
        _give_up(store, queue, damaged, has_messages=bool(lots))
    return lots


def _bundles(grants: Sequence[Grant]) -> list[Sequence[Grant]]:
    """Join grants with adjacent claim ids whose messages are scattered in a log, in its order."""
    if len(grants) == 1:
        return [grants]
    bundles: list[list[Grant]] = []
    bundle: list[Grant] = []
    claim_id = attempt = log_id = offset = until_ms = -1
    for grant in grants:
        if grant.offsets is not None:
            bundles.append([grant])
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
            bundles.append(bundle)
        bundle.append(grant)
        claim_id, offset = grant.claim_id + grant.count, grant.offset
    return bundles  # type: ignore[return-value]  # lists are sequences


def _singly(grants: Iterable[Grant]) -> Iterator[Grant]:
    """Split grants into grants of adjacent records."""
    return chain.from_iterable([grant.singly() for grant in grants])


def _read_bundle(store: Store, queue: str, bundle: Sequence[Grant]) -> list[Lot]:
    """Return the messages of a bundle, a lot per block; damage raises."""
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
    for columns in recent_scattered(store, first.log_id, log, offsets):
        lots.append(_lot(queue, log, first, columns, epoch_ms, skip=skip))
        skip += len(columns.offsets)
    return lots


def _give_up(store: Store, queue: str, damaged: list[Damaged], *, has_messages: bool) -> None:
    """Fail unreadable messages; a failure to do so is ignored if the claim has other messages."""
    try:
        store.run(partial(fail_damaged, queue=queue, damaged=damaged))
    except MillstreamError:
        if not has_messages:
            raise  # else their lease expires, and the next claim meets them again


def fail_damaged(tx: WriteTransaction, *, queue: str, damaged: Iterable[Damaged]) -> None:
    """Fail unreadable messages whose lease still holds."""
    for grant, reason in damaged:
        run = grant.claim_id, grant.count, grant.attempt
        finish(tx, c.FinishClaims(queue, [run], "fail", reason=reason, each=True))


def _read_deal(store: Store, queue: str, deal: Deal) -> list[list[Lot]]:
    """Return the message of each claim, if all claims have one message and they are adjacent; else
    [].
    """
    first, count = deal.grants[0][0], len(deal.grants)
    position = first.log_id, first.offset
    positions = [
        (grant.log_id, grant.offset - index) for index, (grant, *_) in enumerate(deal.grants)
    ]
    if positions.count(position) < count or any(
        len(grants) > 1 or grants[0].count > 1 for grants in deal.grants
    ):
        return []
    return [
        [lot] for lot in read_singles(store, queue, [(grants[0], "") for grants in deal.grants])
    ]


class Damaged(NamedTuple):
    """Claimed messages that cannot be read."""

    grant: Grant
    reason: str


def _read(store: Store, queue: str, grant: Grant, reason: str = "") -> Iterator[Lot | Damaged]:
    """Yield neighbouring messages in order, a lot per block, and ranges of damaged messages."""
    log, start, stop = log_name(store, grant.log_id), grant.offset, grant.offset + grant.count
    epoch_ms = store.state.time.epoch_ms()
    while start < stop:
        try:
            blocks = recent_columns(store, grant.log_id, log, start=start, stop=stop)
        except CorruptionError as error:
            end = behind(error, start, stop)
            yield Damaged(_part(grant, start, end), damage_reason(error))
            start = end
            continue
        for columns in blocks:
            yield _lot(queue, log, grant, columns, epoch_ms, reason, skip=start - grant.offset)
            start += len(columns.offsets)


def _part(grant: Grant, start: int, stop: int) -> Grant:
    """Return the messages of a grant in a range of offsets."""
    claim_id = grant.claim_id + start - grant.offset
    return replace(grant, claim_id=claim_id, offset=start, count=stop - start)


def damage_reason(error: CorruptionError) -> str:
    """Return the reason for which a damaged message fails."""
    return f"{DAMAGED}{error.message}"


def _lot(
    queue: str,
    log: str,
    grant: Grant,
    columns: Columns,
    epoch_ms: int,
    reason: str = "",
    *,
    skip: int = 0,
) -> Lot:
    """Return a lot of a grant's messages behind the first `skip`, from their columns."""
    offsets = columns.offsets
    label = Label(
        queue,
        log,
        grant.claim_id + skip,
        offsets.start if isinstance(offsets, range) else offsets,
        grant.attempt,
        columns.timestamps,
        columns.keys,
        columns.packed_headers,
        grant.until_ms,
        reason,
        epoch_ms,
    )
    return Lot(label, columns.values)


def peek_grant(store: Store, queue: str, grant: Grant, reason: str, *, done: bool) -> list[Lot]:
    """Return messages as a peek shows them, with empty values where payloads are deleted or
    damaged.

    The payload of a done message may have been deleted, which is no damage. The damage of a message
    comes before its reason.
    """
    lots: list[Lot] = []
    for result in _read(store, queue, grant, reason):
        if isinstance(result, Lot):
            lots.append(result)
        elif done and result.grant.offset < _deleted_below(store, grant.log_id):
            lots += _without_values(store, queue, result.grant, reason, is_damaged=False)
        else:
            why = _with_damage(reason, result.reason)
            lots += _without_values(store, queue, result.grant, why, is_damaged=True)
    return lots


def _deleted_below(store: Store, log_id: int) -> int:
    """Return the offset below which a log's bytes may have been deleted."""
    return store.view(lambda view: view.entity(keys.head(log_id), Head).dropped)


def _with_damage(reason: str, damage: str) -> str:
    """Return the damage of a message, followed by the reason of its last attempt if it differs."""
    is_known = not reason or reason.startswith(DAMAGED)
    return damage if is_known else f"{damage}; before that: {reason}"


def _without_values(
    store: Store, queue: str, grant: Grant, reason: str, *, is_damaged: bool
) -> list[Lot]:
    """Return messages without payloads, with all readable facts."""
    log, start, stop = log_name(store, grant.log_id), grant.offset, grant.offset + grant.count
    read = partial(fetch_blocks, store, grant.log_id, log, stop=stop, values=False)
    epoch_ms = store.state.time.epoch_ms()
    lots: list[Lot] = []
    for records, is_lost in bare_stretches(read, log, start=start, stop=stop):
        readable = _part(grant, records[0].offset, records[-1].offset + 1)
        lot = _lot_of(queue, readable, records, epoch_ms, reason)
        if is_damaged:
            damage: Damage = "record" if is_lost else "value"
            lot.label.damage = damage
        lots.append(lot)
    return lots


def _lot_of(
    queue: str, grant: Grant, records: Sequence[Record], epoch_ms: int, reason: str = ""
) -> Lot:
    """Return a lot of a grant's messages, from record objects."""
    columns = Columns(
        range(grant.offset, grant.offset + len(records)),
        [record.value for record in records],
        [record.timestamp for record in records],
        [record.key for record in records],
        pack_headers([record.headers for record in records]),
    )
    return _lot(queue, records[0].log, grant, columns, epoch_ms, reason)


def read_singles(store: Store, queue: str, grants: Sequence[tuple[Grant, str]]) -> list[Lot]:
    """Read single messages that are neighbours in a log together, each with its reason.

    Returns [] if a message is damaged or missing; the caller then reads single messages.
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


def are_at_hand(store: Store, grants: list[Grant]) -> bool:
    """Return whether claimed messages can be read without reading the file."""
    return all(
        is_at_hand(store, grant.log_id, start=grant.offset, stop=grant.offset + grant.count)
        for grant in _singly(grants)
    )


def read_inside(
    tx: WriteTransaction, queue: str, grants: Iterable[Grant]
) -> tuple[list[Lot], list[Damaged]]:
    """Read messages inside a transaction, where no message can be deleted; also return damaged
    ones.
    """
    lots: list[Lot] = []
    damaged: list[Damaged] = []
    for grant in _singly(grants):
        log_id, start, stop = grant.log_id, grant.offset, grant.offset + grant.count
        name = tx.entity(keys.head(log_id), Head).name
        if (row := _held(tx, grant)) is not None:
            lots.append(_lot(queue, name, grant, row, tx.state.time.epoch_ms()))
            continue
        for records, damage in salvage(tx.view, log_id, name, start=start, stop=stop):
            section = _part(grant, records[0].offset, records[-1].offset + 1)
            if damage is None:
                lots.append(_lot_of(queue, section, records, tx.state.time.epoch_ms()))
            else:
                damaged.append(Damaged(section, damage_reason(damage)))
    return lots, damaged


def _held(tx: WriteTransaction, grant: Grant) -> Columns | None:
    """Return a message from memory that was appended singly; None if it must be read or is damaged."""
    if grant.count > 1:
        return None
    try:
        return held_row(tx.overlay, grant.log_id, grant.offset)
    except CorruptionError:
        return None


def log_name(store: Store, log_id: int) -> str:
    """Return the name of a log."""
    bounds: Bounds = store.seen(keys.head(log_id))
    return bounds.name
