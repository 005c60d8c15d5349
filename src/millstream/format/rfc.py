"""The queue records of types 0x01 to 0x06, byte for byte as the OpenData-Queue RFC lays them out.

Invariant: decode(encode(x)) == x, and each value has exactly one encoding. Fields that the RFC lacks
lie in companion records of other modules.

    type  record       key after [version, type]           value
    0x01  payload      message id u64                      the payload itself
    0x02  active       queue TerminatedBytes, bucket u64   Array<Available>, Array<InFlight>
    0x03  done         queue TerminatedBytes, bucket u64   Array<Done>
    0x04  failed       queue TerminatedBytes, bucket u64   Array<Failed>
    0x05  attempts     queue TerminatedBytes, message u64  Array<Attempt>
    0x06  queue spec   queue, to the end of the key        filter … description

The name of a queue is bytes, a time is in milliseconds, and a bucket or claim id is an int of `ids`.
The reader checks that a claim id belongs to its bucket.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import astuple

from millstream.errors import InvalidInput, TooLarge
from millstream.format.encodings import (
    I64,
    KEY_U64,
    VERSION,
    Reader,
    encode_array,
    encode_number,
    encode_terminated_bytes,
    encode_utf8,
)
from millstream.format.ids import (
    CAPACITY_EXPONENT_MAX,
    CLAIM_ID_END,
    bucket_of,
    capacity_of,
)
from millstream.limits import CONSUMER_BYTES_MAX


class RecordType(IntEnum):
    """The second byte of a key: the type of an RFC record."""

    PAYLOAD = 0x01
    ACTIVE = 0x02
    DONE = 0x03
    FAILED = 0x04
    ATTEMPTS = 0x05
    QUEUE_SPEC = 0x06


# ---- keys


def bucket_key(record: RecordType, queue: bytes, bucket: int) -> bytes:
    """Return the key of a bucket's record: of its active, done or failed messages."""
    if bucket_of(bucket) != bucket:
        raise InvalidInput(f"{bucket:#x} is not the id of a bucket", id=bucket)
    return queue_prefix(record, queue) + encode_number(KEY_U64, bucket)


def attempts_key(queue: bytes, message_id: int) -> bytes:
    """Return the key of the attempts at one message in one queue."""
    return queue_prefix(RecordType.ATTEMPTS, queue) + encode_number(KEY_U64, message_id)


def queue_spec_key(queue: bytes) -> bytes:
    """Return the key of a queue's specification."""
    return bytes((VERSION, RecordType.QUEUE_SPEC)) + queue


def queue_prefix(record: RecordType, queue: bytes) -> bytes:
    """Return what all keys of one queue start with, and no others, for types 0x02 to 0x05."""
    if not RecordType.ACTIVE <= record <= RecordType.ATTEMPTS:
        raise InvalidInput(f"type {record:#04x} has no keys under a queue", type=record)
    return bytes((VERSION, record)) + encode_terminated_bytes(queue)


def parse_key(record: RecordType, key: bytes) -> tuple[bytes, int]:
    """Return the queue in a key of types 0x02 to 0x05, and the id of its bucket or message."""
    reader = Reader(key, f"{record.name.lower()} key")
    reader.key_prefix(record)
    queue, number = reader.terminated_bytes(), reader.number(KEY_U64)
    reader.finish()
    if record != RecordType.ATTEMPTS and (number >= CLAIM_ID_END or bucket_of(number) != number):
        raise reader.corrupt(f"{number:#x} is not the id of a bucket", where=len(key) - 8)
    return queue, number


# ---- values


class AvailableMessage(Struct, frozen=True, gc=False):
    """A message that can be claimed."""

    message_id: int
    claim_id: int
    attempts: int
    metadata: bytes


class InFlightMessage(Struct, frozen=True, gc=False):
    """A message that a consumer has claimed, at the latest until the lease deadline."""

    message_id: int
    claim_id: int
    claimed_at_ms: int
    lease_deadline_ms: int
    attempts: int
    metadata: bytes


class FinishedMessage(Struct, frozen=True, gc=False):
    """A message that a consumer has acknowledged, or that has no attempts left."""

    message_id: int
    claim_id: int
    finished_at_ms: int
    attempts: int
    metadata: bytes


class Attempt(Struct, frozen=True, gc=False):
    """One claim of a message; the consumer chose its id, of at most 128 bytes."""

    claimed_at_ms: int
    consumer_id: str


class QueueSpecRecord(Struct, frozen=True, gc=False):
    """A queue's specification; a retention of 0 seconds is unlimited."""

    filter: str
    max_attempts: int
    done_retention_s: int
    capacity_exponent: int
    description: str


M = TypeVar("M", bound=Struct)


class _MessageArray(Generic[M]):
    """An array of messages: fixed fields, the claim id second, and metadata behind its length."""

    def __init__(self, make: Callable[..., M], layout: str) -> None:
        self.make = make
        self.layout = struct.Struct(layout)

    def encode(self, messages: Sequence[M]) -> bytes:
        pack, encoded = self.layout.pack, []
        try:
            for message in messages:
                *fields, metadata = astuple(message)
                if fields[1] >= CLAIM_ID_END:
                    raise InvalidInput(f"{fields[1]:#x} is not a claim id", id=fields[1])
                encoded.append(pack(*fields, len(metadata)) + metadata)
        except struct.error as error:
            raise InvalidInput(f"{type(message).__name__} cannot be encoded: {error}") from None
        return encode_array(encoded)

    def read(self, reader: Reader) -> list[M]:
        unpack_from, width = self.layout.unpack_from, self.layout.size
        count = reader.array_count(element_bytes_min=width)
        data, end, at = reader.data, len(reader.data), reader.position
        messages: list[M] = []
        # No call of our own per message: a bucket holds thousands of them.
        for _ in range(count):
            start = at + width
            if start > end:
                raise reader.corrupt(f"{width} bytes expected, {end - at} left", where=at)
            fields = unpack_from(data, at)
            stop = start + fields[-1]
            if stop > end:
                raise reader.corrupt(f"{stop - at} bytes expected, {end - at} left", where=at)
            if fields[1] >= CLAIM_ID_END:
                raise reader.corrupt(f"{fields[1]:#x} is not a claim id", where=at + 8)
            messages.append(self.make(*fields[:-1], data[start:stop]))
            at = stop
        reader.position = at
        return messages


_AVAILABLE = _MessageArray(AvailableMessage, "<QQHI")
_IN_FLIGHT = _MessageArray(InFlightMessage, "<QQqqHI")
_FINISHED = _MessageArray(FinishedMessage, "<QQqHI")
_SPEC_FIXED = struct.Struct("<HIB")


def encode_active(
    available: Sequence[AvailableMessage], in_flight: Sequence[InFlightMessage]
) -> bytes:
    """Encode a bucket of available and in-flight messages."""
    return _AVAILABLE.encode(available) + _IN_FLIGHT.encode(in_flight)


def decode_active(
    value: bytes,
) -> tuple[list[AvailableMessage], list[InFlightMessage]]:
    """Decode a bucket of available and in-flight messages."""
    reader = Reader(value, "active value")
    available, in_flight = _AVAILABLE.read(reader), _IN_FLIGHT.read(reader)
    reader.finish()
    return available, in_flight


def encode_finished(messages: Sequence[FinishedMessage]) -> bytes:
    """Encode a bucket of done or of failed messages."""
    return _FINISHED.encode(messages)


def decode_finished(value: bytes) -> list[FinishedMessage]:
    """Decode a bucket of done or of failed messages."""
    reader = Reader(value, "done or failed value")
    messages = _FINISHED.read(reader)
    reader.finish()
    return messages


def encode_attempts(attempts: Sequence[Attempt]) -> bytes:
    """Encode the attempts at one message, oldest first."""
    return encode_array([_encode_attempt(attempt) for attempt in attempts])


def _encode_attempt(attempt: Attempt) -> bytes:
    consumer = encode_utf8(attempt.consumer_id)
    if (size := len(consumer) - 2) > CONSUMER_BYTES_MAX:
        raise TooLarge(
            f"a consumer id has up to {CONSUMER_BYTES_MAX} bytes, not {size}",
            limit=CONSUMER_BYTES_MAX,
            size=size,
        )
    return encode_number(I64, attempt.claimed_at_ms) + consumer


def decode_attempts(value: bytes) -> list[Attempt]:
    """Decode the attempts at one message."""
    reader = Reader(value, "attempts value")
    attempts = [
        Attempt(reader.number(I64), reader.utf8(bytes_max=CONSUMER_BYTES_MAX))
        for _ in range(reader.array_count(element_bytes_min=10))
    ]
    reader.finish()
    return attempts


def encode_queue_spec(spec: QueueSpecRecord) -> bytes:
    """Encode a queue's specification."""
    capacity_of(spec.capacity_exponent)
    try:
        fixed = _SPEC_FIXED.pack(spec.max_attempts, spec.done_retention_s, spec.capacity_exponent)
    except struct.error as error:
        raise InvalidInput(f"queue spec cannot be encoded: {error}") from None
    return encode_utf8(spec.filter) + fixed + encode_utf8(spec.description)


def decode_queue_spec(value: bytes) -> QueueSpecRecord:
    """Decode a queue's specification."""
    reader = Reader(value, "queue spec value")
    text = reader.utf8()
    max_attempts, done_retention_s, exponent = reader.unpack(_SPEC_FIXED)
    if exponent > CAPACITY_EXPONENT_MAX:
        raise reader.corrupt(f"capacity exponent {exponent}", where=reader.position - 1)
    spec = QueueSpecRecord(text, max_attempts, done_retention_s, exponent, reader.utf8())
    reader.finish()
    return spec


# ---- whole records


class RfcRecord(Struct, frozen=True, array_like=True):
    """One record of types 0x02 to 0x06."""

    key: bytes
    value: bytes

    def describe(self) -> str:
        """Describe the content in one line."""
        kind = RecordType(self.key[1])
        if kind == RecordType.QUEUE_SPEC:
            spec = decode_queue_spec(self.value)
            retention = f"{spec.done_retention_s} s" if spec.done_retention_s else "without limit"
            return (
                f"spec: filter {spec.filter!r}, {spec.max_attempts} attempts, done kept {retention}, "
                f"buckets of {10**spec.capacity_exponent:,}, {spec.description!r}"
            )
        _, number = parse_key(kind, self.key)
        if kind == RecordType.ATTEMPTS:
            attempts = decode_attempts(self.value)
            consumers = ", ".join(
                f"{attempt.consumer_id!r} at {attempt.claimed_at_ms}" for attempt in attempts
            )
            return f"attempts at message {number}: {consumers}"
        if kind == RecordType.ACTIVE:
            available, in_flight = decode_active(self.value)
            counts = f"{len(available)} available, {len(in_flight)} in flight"
        else:
            counts = str(len(decode_finished(self.value)))
        return f"{kind.name.lower()}: {counts} in bucket {number:#x}"
