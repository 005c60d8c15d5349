"""The RFC's records of a queue, types 0x02 to 0x06, byte for byte: pure functions of its state.

The store keeps what it knows of messages once, in buckets. The RFC's records say less (not how an
attempt ended, not when a retry is due), and the same again, so they are made when they are asked for.
Times are store time; attempts of messages that were driven again count from there, while the record
of attempts has those before as well.
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
"""Attempts in one of the RFC's arrays; of more, the last ones."""

MetadataOf = Callable[[Span], list[bytes]]
"""The metadata of neighbouring messages, as the entries of their log have it."""


def bucket_record(
    kind: rfc.RecordType, name: bytes, bucket_id: int, bucket: Bucket, metadata_of: MetadataOf
) -> rfc.RfcRecord:
    """What of a bucket is available or in flight, done, or failed."""
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
"""The records that each bucket has, in the order of their keys."""


def attempts_record(name: bytes, message_id: int, trials: Iterable[Trial]) -> rfc.RfcRecord:
    """Who claimed a message, and when."""
    made = [rfc.Attempt(one.at_ms, one.consumer) for one in trials]
    return rfc.RfcRecord(
        rfc.attempts_key(name, message_id), rfc.encode_attempts(made[-ATTEMPTS_MAX:])
    )


def spec_record(name: bytes, spec: QueueSpec) -> rfc.RfcRecord:
    """What a queue is, as far as the RFC goes."""
    said = rfc.QueueSpecRecord(
        spec.filter,
        spec.max_attempts,
        spec.done_retention_s,
        spec.bucket_exponent,
        spec.description,
    )
    return rfc.RfcRecord(rfc.queue_spec_key(name), rfc.encode_queue_spec(said))


def trials_by_message(bucket: Bucket) -> Iterator[tuple[int, list[Trial]]]:
    """The id of each message in a bucket that was ever claimed, and its attempts."""
    histories = trials_of(bucket, 0, len(bucket.states))
    for span in bucket.sources(0, len(bucket.states)):
        for slot in range(span.slot, span.slot + span.count):
            if histories[slot]:
                yield span.message_id + slot - span.slot, histories[slot]


def _each(
    bucket: Bucket, bucket_id: int, state: int, metadata_of: MetadataOf
) -> Iterator[tuple[int, int, int, bytes]]:
    """Of every message in a state: its slot, its ids, and its metadata."""
    exponent, base = split_id(bucket_id)
    for start, stop in bucket.runs(state):
        for span in bucket.sources(start, stop):
            for at, metadata in enumerate(metadata_of(span)):
                slot = span.slot + at
                yield slot, span.message_id + at, make_claim_id(exponent, base + slot), metadata


def _claimed_ms(bucket: Bucket) -> Sequence[int]:
    """When each slot was claimed last."""
    found = array("q", bytes(8 * len(bucket.states)))
    for one in bucket.tries:
        found[one.start : one.stop] = array("q", [one.at_ms]) * (one.stop - one.start)
    return found
