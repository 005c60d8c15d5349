"""Dead letters: a failed message is appended to a dead-letter log, with reason and attempts.

A letter is written in the commit that fails its message. If the log is held or written elsewhere,
the commit stores the owed letter, and the upkeep writes it later. So every failure has exactly one
letter.
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
from millstream.queue.rules.puts import append
from millstream.record import Record
from millstream.store.commit.transaction import WriteTransaction

OWN = "dead-letter-"
"""The prefix of the headers that a letter adds to the headers of its message."""

ATTEMPTS_BYTES_MAX = 16 * 1024
"""The limit on the attempts in a letter: first reasons are cut, then middle attempts are left out.
"""

REASONS_CHARS = (1_000, 200, 40, 0)
LETTERS_PER_COMMIT = 100
"""The most owed letters that the upkeep writes in a commit."""

_NAMES_BYTES_MAX = 1_000
"""Space for the names of headers that are left out."""

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
                if _refusal(tx, queue, owed, record, damage) is not None:
                    claim_id = bucket_id + slot
                    tx.put(keys.letter(queue.queue_id, claim_id), msgspec.msgpack.encode(owed))
                    ledger.letters += 1


def send_owed(tx: WriteTransaction, name: str, first: bytes = b"") -> tuple[int, bytes]:
    """Write owed letters from a row on; return their number, and the row to go on from.

    The row is empty after the last letter, and if the log takes no letter now.
    """
    key = keys.queue(name)
    queue = tx.entity(key, QueueState)
    if not queue.exists() or not queue.spec.dead_letter:
        return 0, b""
    start, stop = keys.of_queue(keys.LETTER, queue.queue_id)
    rows = tx.scan(max(start, first), stop, limit=LETTERS_PER_COMMIT)
    following = keys.successor(rows[-1][0]) if len(rows) == LETTERS_PER_COMMIT else b""
    sent = 0
    for row, value in rows:
        owed = msgspec.msgpack.decode(value, type=Owed)
        ((records, damage),) = _salvaged(tx, owed.log_id, owed.offset, 1)
        refusal = _refusal(tx, queue, owed, records[0], damage)
        if isinstance(refusal, InvalidInput):
            continue  # the schema of the log refuses this letter, and may accept the next letter
        if refusal is not None:
            following = b""
            break
        tx.erase(row)
        sent += 1
    if sent:
        tx.change(key, Moved(tx.store_ms, letters=-sent))
    return sent, following


def _salvaged(
    tx: WriteTransaction, log_id: int, offset: int, count: int
) -> list[tuple[list[Record], Damage]]:
    name = tx.entity(keys.head(log_id), Head).name
    return list(salvage(tx.view, log_id, name, start=offset, stop=offset + count))


def _refusal(
    tx: WriteTransaction, queue: QueueState, owed: Owed, record: Record, damage: Damage
) -> MillstreamError | None:
    """Append a letter; return the error if the log refuses the letter now."""
    letter = _letter(tx, queue.name, owed, record, damage)
    try:
        append(tx, Append(queue.spec.dead_letter, letter))
    except StoreError:
        raise
    except MillstreamError as error:
        return error  # held, a copy, damaged, an inbox without a queue, or a misfit: owe the letter
    return None


def _letter(tx: WriteTransaction, queue: str, owed: Owed, record: Record, damage: Damage) -> Single:
    """Return the record of a letter: the message, and the reason and attempts of its failure."""
    attempts, left_out = _attempts(owed.history, tx.state.time.epoch_ms())
    added: dict[str, HeaderValue] = {
        f"{OWN}queue": queue,
        f"{OWN}reason": owed.reason,
        f"{OWN}attempts": attempts,
        f"{OWN}log": record.log,
        f"{OWN}offset": record.offset,
    }
    if left_out:
        added[f"{OWN}attempts-left-out"] = left_out
    value, key = record.value, record.key
    if damage is not None:
        added[f"{OWN}damage"] = damage.message
    if value is not None and len(value) > tx.limits.value_bytes_max:
        added[f"{OWN}value-left-out"] = (
            f"{len(value):,} bytes, over the limit of this store's handle"
        )
        value = b""
    headers = _fitting(record.headers, added, tx.limits.headers_bytes_max)
    # The headers of a letter must always fit, however low the limit for users is.
    limits = replace(
        tx.limits, headers_bytes_max=max(tx.limits.headers_bytes_max, _size(headers.pairs()))
    )
    timestamp = record.timestamp or None
    try:
        return pack_single(value, key=key, headers=headers, timestamp=timestamp, limits=limits)
    except InvalidInput:  # the key was written under higher limits
        return pack_single(value, key=None, headers=headers, timestamp=timestamp, limits=limits)


def _fitting(headers: Headers, added: dict[str, HeaderValue], bytes_max: int) -> Headers:
    """Return the headers of the message and the letter. If too large, the largest of the message's
    go.
    """
    pairs = [pair for pair in headers.pairs() if not pair[0].startswith(OWN)]
    sizes = [_size([pair]) for pair in pairs]
    size, space = sum(sizes), bytes_max - _size(list(added.items())) - _MAP_BYTES
    if size <= space:
        return Headers([*pairs, *added.items()])
    lost: list[int] = []
    for index in sorted(range(len(pairs)), key=lambda index: sizes[index], reverse=True):
        if size <= space - _NAMES_BYTES_MAX:
            break
        lost.append(index)
        size -= sizes[index]
    names = msgspec.json.encode([pairs[index][0] for index in lost]).decode()
    if len(names.encode()) > _NAMES_BYTES_MAX // 2:
        names = f"{len(lost)} headers"
    fitting = [pair for index, pair in enumerate(pairs) if index not in set(lost)]
    return Headers([*fitting, *added.items(), (f"{OWN}headers-left-out", names)])


def _size(pairs: Sequence[Pair]) -> int:
    """Return the bytes of headers encoded as pairs; a map takes less."""
    return len(msgspec.msgpack.encode(pairs))


def _attempts(history: Sequence[Trial], epoch_ms: int) -> tuple[str, int]:
    """Return the attempts as JSON within the limit, and the number of attempts left out."""
    tries = [
        {"attempt": number, **msgspec.structs.asdict(attempt)}
        for number, attempt in enumerate(tries_of(history, epoch_ms), 1)
    ]
    for chars in REASONS_CHARS:
        cut = [{**attempt, "reason": str(attempt["reason"])[:chars]} for attempt in tries]
        encoded = msgspec.json.encode(cut).decode()
        if len(encoded) <= ATTEMPTS_BYTES_MAX:
            return encoded, 0
    each = max(len(msgspec.json.encode(attempt)) for attempt in cut) + 1
    half = max(1, ATTEMPTS_BYTES_MAX // each // 2)
    encoded = msgspec.json.encode([*cut[:half], *cut[-half:]]).decode()
    return encoded, len(cut) - 2 * half
