"""The rows of notes: results, errors and progress of messages, by claim id.

Most messages have no note, and their commits touch no row of this kind. Every rule that removes or
forgets messages drops their notes in the same commit, so that a note never outlives its message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from millstream.errors import InvalidInput
from millstream.format import keys
from millstream.queue.model.note import (
    NO_NOTE,
    Note,
    Result,
    check_result,
    decode_note,
    encode_note,
)
from millstream.queue.model.slots import Slots
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View

Run = tuple[int, int, int]


def check_results(
    tx: WriteTransaction, results: Sequence[Result], acked: Sequence[Run], *, outcome: str = "ack"
) -> None:
    """Refuse results that are too large, or that belong to no acknowledged claim."""
    if outcome != "ack":
        raise InvalidInput(f"only an acknowledgement carries a result, not a {outcome}")
    for claim_id, result in results:
        check_result(result, tx.limits.value_bytes_max)
        if not any(first <= claim_id < first + count for first, count, _ in acked):
            raise InvalidInput(f"a result came for claim {claim_id}, which is not acknowledged")
    if tx.refusal is not None:
        raise tx.refusal


def write_results(tx: WriteTransaction, queue_id: int, results: Iterable[Result]) -> None:
    """Store the results of messages that are done; earlier errors and progress go."""
    for claim_id, result in results:
        tx.put(keys.note(queue_id, claim_id), encode_note(Note(result)))


def write_error(tx: WriteTransaction, queue_id: int, claims: Iterable[int], error: bytes) -> None:
    """Store the error of attempts; the progress of the attempts goes."""
    value = encode_note(Note(error=error))
    for claim_id in claims:
        tx.put(keys.note(queue_id, claim_id), value)


def write_progress(tx: WriteTransaction, queue_id: int, claim_id: int, progress: bytes) -> None:
    """Store the progress of an attempt; the error of the attempt before it stays."""
    key = keys.note(queue_id, claim_id)
    stored = tx.get(key)
    note = NO_NOTE if stored is None else decode_note(stored)
    tx.put(key, encode_note(replace(note, progress=progress)))


def read_note(view: View, queue_id: int, claim_id: int) -> Note:
    """Return the note of a message; an empty note without a row."""
    stored = view.get(keys.note(queue_id, claim_id))
    return NO_NOTE if stored is None else decode_note(stored)


def take_note(tx: WriteTransaction, queue_id: int, claim_id: int) -> bytes | None:
    """Remove the note of a message that gets another claim id, and return its row."""
    key = keys.note(queue_id, claim_id)
    stored = tx.get(key)
    if stored is not None:
        tx.erase(key)
    return stored


def drop_notes(
    tx: WriteTransaction, queue_id: int, bucket_id: int, ranges: Sequence[Slots]
) -> None:
    """Delete the notes of messages in ranges of slots of a bucket."""
    if not ranges:
        return
    first, stop = bucket_id + ranges[0][0], bucket_id + ranges[-1][1]
    if not tx.scan(keys.note(queue_id, first), keys.note(queue_id, stop), limit=1):
        return
    for start, end in ranges:
        tx.drop_all(keys.note(queue_id, bucket_id + start), keys.note(queue_id, bucket_id + end))
