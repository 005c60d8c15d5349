"""Ids of messages, claims and buckets, and the `SeqBlock` that keeps message ids from repeating.

A `SeqBlock` is a durable mark: message ids are assigned only below the end of a committed block. A
reopened store continues at that end, so ids never repeat, and the unused ids of a block are skipped.
The store places and commits the record.

    SeqBlock value        base  u64 big-endian
                          size  u64 big-endian, a positive multiple of 4096

    claim id, bucket id   top 4 bits   exponent of the bucket's capacity, 10^exponent, from 0 to 4
    (u64)                 low 60 bits  number; that of a bucket is a multiple of its capacity
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from millstream.errors import InvalidInput, Overloaded
from millstream.format.encodings import Reader

BLOCK_IDS: Final = 4096
"""Ids in one step of the mark: large enough that few commits move it, small enough to skip."""

MESSAGE_ID_END: Final = 1 << 63
"""One more than the largest message id, which still fits into a signed 64-bit integer."""

CAPACITY_EXPONENT_MAX: Final = 4
"""A bucket holds at most 10^4 messages: an array counts in u16, so 10^5 cannot be encoded."""

NUMBER_BITS: Final = 60
"""Bits of a claim or bucket id below the capacity exponent."""

CLAIM_ID_END: Final = (CAPACITY_EXPONENT_MAX + 1) << NUMBER_BITS
"""One more than the largest claim id or bucket id."""

_NUMBER_MAX = (1 << NUMBER_BITS) - 1
CAPACITIES = (1, 10, 100, 1_000, 10_000)
_LAYOUT = struct.Struct(">QQ")


class SeqBlock(NamedTuple):
    """The ids from `base` up to, not including, `base + size`."""

    base: int
    size: int

    @property
    def end(self) -> int:
        """The first id after the block, where a reopened store continues."""
        return self.base + self.size


def next_block(next_id: int, count: int) -> SeqBlock:
    """Return the block that covers the ids from `next_id` up to `next_id + count`.

    A block that would reach past the largest message id is refused with `Overloaded`.
    """
    block = SeqBlock(next_id, -(-count // BLOCK_IDS) * BLOCK_IDS)
    if block.end > MESSAGE_ID_END:
        raise Overloaded(
            f"no message ids left for {count} from {next_id}", next_id=next_id, count=count
        )
    return block


def encode_seq_block(block: SeqBlock) -> bytes:
    """Encode the value of a SeqBlock record."""
    return _LAYOUT.pack(*block)


def decode_seq_block(value: bytes) -> SeqBlock:
    """Decode the value of a SeqBlock record."""
    reader = Reader(value, "SeqBlock")
    block = SeqBlock(*reader.unpack(_LAYOUT))
    reader.finish()
    if block.end > MESSAGE_ID_END:
        raise reader.corrupt(f"ids up to {block.end} are out of range", where=0)
    if block.size < 1 or block.size % BLOCK_IDS:
        raise reader.corrupt(
            f"size {block.size} is not a positive multiple of {BLOCK_IDS}", where=8
        )
    return block


def capacity_of(exponent: int) -> int:
    """Return how many messages a bucket holds: 10^exponent, for exponents from 0 to 4."""
    if not 0 <= exponent <= CAPACITY_EXPONENT_MAX:
        raise InvalidInput(
            f"capacity exponent {exponent} is not 0 to {CAPACITY_EXPONENT_MAX}", exponent=exponent
        )
    return CAPACITIES[exponent]


def make_claim_id(exponent: int, number: int) -> int:
    """Return the claim id of a message's number under a bucket capacity."""
    capacity_of(exponent)
    if not 0 <= number <= _NUMBER_MAX:
        raise InvalidInput(f"number {number} does not fit into {NUMBER_BITS} bits", number=number)
    return exponent << NUMBER_BITS | number


def make_bucket_id(exponent: int, number: int) -> int:
    """Return the id of the bucket that starts at `number`, a multiple of the capacity."""
    if number % capacity_of(exponent):
        raise InvalidInput(f"no bucket of capacity 10^{exponent} at {number}", number=number)
    return make_claim_id(exponent, number)


def split_id(packed: int) -> tuple[int, int]:
    """Split a claim id or a bucket id into capacity exponent and number."""
    if not 0 <= packed < CLAIM_ID_END:
        raise InvalidInput(f"{packed:#x} is not a claim id or bucket id", id=packed)
    return packed >> NUMBER_BITS, packed & _NUMBER_MAX


def capacity_of_id(packed: int) -> int:
    """Return how many messages the bucket of a claim id or bucket id holds."""
    return CAPACITIES[split_id(packed)[0]]


def bucket_of(claim_id: int) -> int:
    """Return the id of the bucket that holds a claim id."""
    if not 0 <= claim_id < CLAIM_ID_END:
        raise InvalidInput(f"{claim_id:#x} is not a claim id", id=claim_id)
    return claim_id - (claim_id & _NUMBER_MAX) % CAPACITIES[claim_id >> NUMBER_BITS]
