"""Staging: tasks leave packed blocks in a place, and the driver publishes them in one commit.

A store file, a bucket and a server each have a place of their own: `disk_staging`, `bucket_staging` and
`server_staging`. Staged blocks are no part of the store. Each task lists its blocks, with their sizes
and checksums, in its message to the driver, and the commit takes exactly the listed blocks. Blocks
that are never published are removed a week after the last block of their transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import IO, Protocol, TypeVar

import msgspec
from msgspec import Struct

from millstream.format.block import checksum
from millstream.format.packing import Batch, Single
from millstream.format.record_checks import check_packed
from millstream.limits import Limits
from millstream.spark.sink.publishing import LogBlock, Version

LEFTOVER_MS = 7 * 24 * 3600 * 1000
"""The age from which staged blocks belong to a job that no longer runs."""

encode_block = msgspec.msgpack.Encoder().encode
decode_block = msgspec.msgpack.Decoder(Single | Batch).decode

S = TypeVar("S")


class StagedBlock(Struct, frozen=True, array_like=True):
    """A packed block in a file or an object."""

    size: int
    crc: int
    log: str = ""
    """The log of the block, unless all blocks of the write belong to the same log."""


class StagedFile(Struct, frozen=True, array_like=True):
    """The file or object of one task, with its blocks in order."""

    txn: str
    name: str
    blocks: list[StagedBlock]


class TaskAttempt(Struct, frozen=True):
    """An attempt of Spark at a task."""

    partition: int
    attempt: int

    @property
    def name(self) -> str:
        """Return the prefix of the names that this attempt gives to files."""
        return f"{self.partition}-{self.attempt}"


class Staging(Protocol[S]):
    """A place for staged blocks; `S` describes staged blocks in messages to the driver."""

    def stage(self, txn: str, task: TaskAttempt, blocks: Iterable[LogBlock]) -> list[S]:
        """Store the blocks of a task, concurrently with other tasks of the transaction."""
        ...

    def publish(self, txn: str, version: Version | None, log: str, staged: list[S]) -> None:
        """Append the listed blocks to a log, or to the logs that they name, durably and once.

        Raises `Conflict` if a block is missing or has other bytes than its task listed.
        """
        ...

    def discard(self, txn: str, *, is_published: bool) -> None:
        """Remove the blocks of a transaction; an error is ignored, as leftovers go by themselves."""
        ...


def digest_of(txn: str) -> str:
    """Return the name of a transaction's folder."""
    return blake2b(txn.encode(), digest_size=16).hexdigest()


def write_blocks(file: IO[bytes], blocks: Iterable[LogBlock], limits: Limits) -> list[StagedBlock]:
    """Check blocks and write them to a file in order; return their list."""
    listed: list[StagedBlock] = []
    for log, packed in blocks:
        check_packed(packed, limits)
        data = encode_block(packed)
        file.write(data)
        listed.append(StagedBlock(len(data), checksum(data), log))
    return listed


def is_same(data: bytes, block: StagedBlock) -> bool:
    """Return whether bytes are the block that a task listed."""
    return len(data) == block.size and checksum(data) == block.crc
