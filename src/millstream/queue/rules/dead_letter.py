"""Dead letters: a failed message is published to a log as well, with why and after what.

A letter is written in the commit that fails its message. Where that cannot be, because the log
is held or is written elsewhere, the commit notes what is owed, and the background writes it
later: one letter for each failure, whatever happens in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
from msgspec import Struct

from millstream.errors import InvalidInput, MillstreamError, StoreError
from millstream.format import keys
from millstream.format.packing import Single, pack_single
from millstream.header import Headers, HeaderValue, Pair
from millstream.log.commands import Append
from millstream.log.model.head import Head
from millstream.log.reading.salvage import Damage, salvage
from millstream.queue.model.attempts import trials_of
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.message import tries_of
from millstream.queue.model.queue_changes import Moved
from millstream.queue.model.slots import Slots, Trial
from millstream.queue.model.state import QueueState
from millstream.queue.rules.ledger import Ledger
from millstream.queue.rules.putting import append
from millstream.record import Record
from millstream.store.commit.transaction import WriteTransaction

OWN = "dead-letter-"
"""How the headers begin that a letter has beside those of its message."""

ATTEMPTS_BYTES_MAX = 16 * 1024
"""What a letter says of its attempts: reasons are cut, then those in the middle are left out."""

REASONS_CHARS = (1_000, 200, 40, 0)
LETTERS_PER_COMMIT = 100
"""Letters that the background writes in one commit."""

_NAMES_BYTES_MAX = 1_000
"""Room for the names of headers that are left out."""

_MAP_BYTES = 16


class Owed(Struct, array_like=True, frozen=True):
    """A letter that is still to be written."""

    log_id: int
    offset: int
    reason: str
    history: list[Trial]


def publish_failed(
    ledger: Ledger, bucket_id: int, bucket: Bucket, slots: Slots, reason: str
) -> None:
    """Append failed messages to the queue's dead-letter log, in the commit that fails them."""
    tx, queue = ledger.tx, ledger.queue
    histories = trials_of(bucket, *slots)
    for span in bucket.sources(*slots):
        for records, damage in _salvaged(tx, span.log_id, span.offset, span.count):
            for record in records:
                slot = span.slot + record.offset - span.offset
                owed = Owed(span.log_id, record.offset, reason, histories[slot - slots[0]])
                if not _send(tx, queue, owed, record, damage):
                    claim_id = bucket_id + slot
                    tx.put(keys.letter(queue.queue_id, claim_id), msgspec.msgpack.encode(owed))
                    ledger.letters += 1


def send_owed(tx: WriteTransaction, name: str) -> bool:
    """Write letters that could not be written before; True if there are more to write now."""
    key = keys.queue(name)
    queue = tx.entity(key, QueueState)
    if not queue.exists() or not queue.spec.dead_letter:
        return False
    rows = tx.scan(*keys.of_queue(keys.LETTER, queue.queue_id), limit=LETTERS_PER_COMMIT)
    sent = 0
    for row, value in rows:
        owed = msgspec.msgpack.decode(value, type=Owed)
        ((records, damage),) = _salvaged(tx, owed.log_id, owed.offset, 1)
        if not _send(tx, queue, owed, records[0], damage):
            break
        tx.erase(row)
        sent += 1
    if sent:
        tx.change(key, Moved(tx.store_ms, letters=-sent))
    return sent == LETTERS_PER_COMMIT


def _salvaged(
    tx: WriteTransaction, log_id: int, offset: int, count: int
) -> list[tuple[list[Record], Damage]]:
    name = tx.entity(keys.head(log_id), Head).name
    return list(salvage(tx.view, log_id, name, start=offset, stop=offset + count))


def _send(
    tx: WriteTransaction, queue: QueueState, owed: Owed, record: Record, damage: Damage
) -> bool:
    """Append a letter; False if the log does not take it now."""
    letter = _letter(tx, queue.name, owed, record, damage)
    try:
        append(tx, Append(queue.spec.dead_letter, letter))
    except StoreError:
        raise
    except MillstreamError:
        return False  # held, a copy, damaged, or the inbox of no queue: note it for later
    return True


def _letter(tx: WriteTransaction, queue: str, owed: Owed, record: Record, damage: Damage) -> Single:
    """The record of a letter: what the message was, and why and after what it failed."""
    told, left_out = _attempts(owed.history, tx.state.time.epoch_ms())
    own: dict[str, HeaderValue] = {
        f"{OWN}queue": queue,
        f"{OWN}reason": owed.reason,
        f"{OWN}attempts": told,
        f"{OWN}log": record.log,
        f"{OWN}offset": record.offset,
    }
    if left_out:
        own[f"{OWN}attempts-left-out"] = left_out
    value, key = record.value, record.key
    if damage is not None:
        own[f"{OWN}damage"] = damage.message
    if value is not None and len(value) > tx.limits.value_bytes_max:
        own[f"{OWN}value-left-out"] = f"{len(value):,} bytes, over the limit of this store's handle"
        value = b""
    headers = _fitting(record.headers, own, tx.limits.headers_bytes_max)
    # What is said of a failure never fails to fit, however little users may say.
    limits = replace(
        tx.limits, headers_bytes_max=max(tx.limits.headers_bytes_max, _size(headers.pairs()))
    )
    timestamp = record.timestamp or None
    try:
        return pack_single(value, key=key, headers=headers, timestamp=timestamp, limits=limits)
    except InvalidInput:  # a key that was written under other limits
        return pack_single(value, key=None, headers=headers, timestamp=timestamp, limits=limits)


def _fitting(headers: Headers, own: dict[str, HeaderValue], bytes_max: int) -> Headers:
    """The message's headers and the letter's own; if they do not fit, without the largest of the message's."""
    kept = [pair for pair in headers.pairs() if not pair[0].startswith(OWN)]
    sizes = [_size([pair]) for pair in kept]
    size, room = sum(sizes), bytes_max - _size(list(own.items())) - _MAP_BYTES
    if size <= room:
        return Headers([*kept, *own.items()])
    lost: list[int] = []
    for at in sorted(range(len(kept)), key=lambda one: sizes[one], reverse=True):
        if size <= room - _NAMES_BYTES_MAX:
            break
        lost.append(at)
        size -= sizes[at]
    names = msgspec.json.encode([kept[at][0] for at in lost]).decode()
    if len(names.encode()) > _NAMES_BYTES_MAX // 2:
        names = f"{len(lost)} headers"
    rest = [pair for at, pair in enumerate(kept) if at not in set(lost)]
    return Headers([*rest, *own.items(), (f"{OWN}headers-left-out", names)])


def _size(pairs: Sequence[Pair]) -> int:
    """Bytes of some headers as pairs: a map takes less."""
    return len(msgspec.msgpack.encode(pairs))


def _attempts(history: Sequence[Trial], epoch_ms: int) -> tuple[str, int]:
    """Every attempt as JSON, within its bound; and how many in the middle had to be left out."""
    tries = [
        {"attempt": number, **msgspec.structs.asdict(one)}
        for number, one in enumerate(tries_of(history, epoch_ms), 1)
    ]
    for chars in REASONS_CHARS:
        cut = [{**one, "reason": str(one["reason"])[:chars]} for one in tries]
        told = msgspec.json.encode(cut).decode()
        if len(told) <= ATTEMPTS_BYTES_MAX:
            return told, 0
    each = max(len(msgspec.json.encode(one)) for one in cut) + 1
    half = max(1, ATTEMPTS_BYTES_MAX // each // 2)
    told = msgspec.json.encode([*cut[:half], *cut[-half:]]).decode()
    return told, len(cut) - 2 * half
