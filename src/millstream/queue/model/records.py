"""The RFC's records of a queue, types 0x02 to 0x06, byte for byte: pure functions of its state.

The store keeps the facts about messages once, in buckets. The RFC's records repeat a part of these
facts: they lack the outcome of an attempt and the time of a retry. So the records are made on
demand. Times are store time. The attempt count of a redriven message starts at the redrive; the
record of attempts includes the attempts before the redrive.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from millstream.format import rfc
from millstream.format.ids import make_claim_id, split_id
from millstream.queue.model.attempts import trials_of
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.slots import AVAILABLE, DONE, FAILED, IN_FLIGHT, Span, Trial
from millstream.queue.model.spec import QueueSpec

ATTEMPTS_MAX = 65_535
"""The most attempts in one of the RFC's arrays; the oldest attempts are dropped."""

MetadataOf = Callable[[Span], list[bytes]]
"""Returns the metadata of neighbouring messages, as stored in the entries of their log."""


def bucket_record(
    kind: rfc.RecordType, name: bytes, bucket_id: int, bucket: Bucket, metadata_of: MetadataOf
) -> rfc.RfcRecord:
    """Return a bucket's record of a kind: active (available and in flight), done, or failed
    messages.
    """
    each = partial(_each, bucket, bucket_id, metadata_of=metadata_of)
    attempts, until_ms = bucket.attempts, bucket.until_ms
    if kind == rfc.RecordType.ACTIVE:
        claimed_ms = _claimed_ms(bucket)
        available = [
            rfc.AvailableMessage(message_id, claim_id, attempts[slot], metadata)
            for slot, message_id, claim_id, metadata in each(AVAILABLE)
        ]
        in_flight = [
            rfc.InFlightMessage(
                message_id, claim_id, claimed_ms[slot], until_ms[slot], attempts[slot], metadata
            )
            for slot, message_id, claim_id, metadata in each(IN_FLIGHT)
        ]
        value = rfc.encode_active(available, in_flight)
    else:
        finished = [
            rfc.FinishedMessage(message_id, claim_id, until_ms[slot], attempts[slot], metadata)
            for slot, message_id, claim_id, metadata in each(
                DONE if kind == rfc.RecordType.DONE else FAILED
            )
        ]
        value = rfc.encode_finished(finished)
    return rfc.RfcRecord(rfc.bucket_key(kind, name, bucket_id), value)


BUCKET_RECORDS = (rfc.RecordType.ACTIVE, rfc.RecordType.DONE, rfc.RecordType.FAILED)
"""The record types of each bucket, in key order."""


def attempts_record(name: bytes, message_id: int, trials: Iterable[Trial]) -> rfc.RfcRecord:
    """Return the record of the consumers and times that claimed a message."""
    attempts = [rfc.Attempt(trial.at_ms, trial.consumer) for trial in trials]
    return rfc.RfcRecord(
        rfc.attempts_key(name, message_id), rfc.encode_attempts(attempts[-ATTEMPTS_MAX:])
    )


def spec_record(name: bytes, spec: QueueSpec) -> rfc.RfcRecord:
    """Return the fields of a queue's spec that the RFC defines."""
    fields = rfc.QueueSpecRecord(
        spec.filter,
        spec.max_attempts,
        spec.done_retention_s,
        spec.bucket_exponent,
        spec.description,
    )
    return rfc.RfcRecord(rfc.queue_spec_key(name), rfc.encode_queue_spec(fields))


def trials_by_message(bucket: Bucket) -> Iterator[tuple[int, list[Trial]]]:
    """Yield the id and the attempts of each message in a bucket that was ever claimed."""
    histories = trials_of(bucket, 0, len(bucket.states))
    for span in bucket.sources(0, len(bucket.states)):
        for slot in range(span.slot, span.slot + span.count):
            if histories[slot]:
                yield span.message_id + slot - span.slot, histories[slot]


def _each(
    bucket: Bucket, bucket_id: int, state: int, metadata_of: MetadataOf
) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield the slot, message id, claim id and metadata of every message in a state."""
    exponent, base = split_id(bucket_id)
    for start, stop in bucket.runs(state):
        for span in bucket.sources(start, stop):
            for at, metadata in enumerate(metadata_of(span)):
                slot = span.slot + at
                yield slot, span.message_id + at, make_claim_id(exponent, base + slot), metadata


def _claimed_ms(bucket: Bucket) -> Sequence[int]:
    """Return the time of the last claim of each slot."""
    claimed_ms = array("q", bytes(8 * len(bucket.states)))
    for claim in bucket.tries:
        claimed_ms[claim.start : claim.stop] = array("q", [claim.at_ms]) * (
            claim.stop - claim.start
        )
    return claimed_ms
