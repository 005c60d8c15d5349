"""Staging in a bucket: each task puts its packed blocks into an object below the store's prefix.

    staging/DIGEST/TASK-RANDOM      the blocks of a task, one after the other
    adopt/DIGEST                    the driver's request to the writer (`adoption`)

DIGEST stands for the name of the transaction. The writer of the bucket adopts the objects: Spark
never opens the store of a bucket to write, because the open would fence the writer.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from millstream.errors import Conflict, MillstreamError, StoreError, WriteFailed
from millstream.format.packing import Batch, Single
from millstream.limits import Limits, MiB
from millstream.objects.address import parse_address
from millstream.objects.folder import STAGED, ListedObject, ObjectFolder
from millstream.spark.place import Place
from millstream.spark.sink.adoption import Asking
from millstream.spark.sink.publishing import LogBlock, Version
from millstream.spark.sink.staging import (
    LEFTOVER_MS,
    StagedBlock,
    StagedFile,
    TaskAttempt,
    decode_block,
    digest_of,
    is_same,
    write_blocks,
)

REQUEST_BYTES = 8 * MiB
"""The bytes of blocks that a request fetches; a larger block has a request of its own."""


class BucketStaging:
    """The place of a store in a bucket."""

    def __init__(self, place: Place) -> None:
        self._objects = objects_of(place.url)

    def stage(self, txn: str, task: TaskAttempt, blocks: Iterable[LogBlock]) -> list[StagedFile]:
        """Put the blocks into an object."""
        file = stage(self._objects, txn, task.name, blocks, Limits())
        return [file] if file.blocks else []

    def publish(
        self, txn: str, version: Version | None, log: str, staged: list[StagedFile]
    ) -> None:
        """Ask the writer of the bucket to adopt the objects, and wait for its answer."""
        Asking(self._objects).adopt(txn, version, log, staged)

    def discard(self, txn: str, *, is_published: bool) -> None:
        """Remove the objects of a transaction; otherwise the writer removes them later."""
        with suppress(MillstreamError):
            discard(self._objects, txn)


def objects_of(url: str) -> ObjectFolder:
    """Return the objects of the store at an address."""
    return ObjectFolder(parse_address(url))


def stage(
    objects: ObjectFolder, txn: str, task: str, blocks: Iterable[LogBlock], limits: Limits
) -> StagedFile:
    """Write blocks to this machine's disk, and upload the complete file as an object."""
    name = f"{task}-{secrets.token_hex(4)}"
    try:
        with tempfile.NamedTemporaryFile(prefix="millstream-staging-") as file:
            listed = write_blocks(file, blocks, limits)
            file.flush()
            if listed:
                objects.upload(_name(txn, name), Path(file.name))
    except OSError as error:
        raise WriteFailed(f"rows cannot be staged on this machine: {error.strerror}") from error
    return StagedFile(txn, name, listed)


def fetch(objects: ObjectFolder, staged: StagedFile) -> Iterator[bytes]:
    """Yield the bytes of each block; raise `Conflict` for a block with other bytes than listed."""
    at = 0
    for neighbours in _requests(staged.blocks):
        size = sum(block.size for block in neighbours)
        data = memoryview(_range(objects, staged, at, size))
        at, start = at + size, 0
        for block in neighbours:
            block_data = bytes(data[start : start + block.size])
            start += block.size
            if not is_same(block_data, block):
                raise Conflict(
                    f"the staged object {_name(staged.txn, staged.name)} holds a block whose bytes "
                    "are not what was staged; nothing was published, run the job again",
                    part=staged.name,
                )
            yield block_data


def unpacked(data: bytes, task: str) -> Single | Batch:
    """Decode a block; raise `Conflict` for a block of another version of Millstream."""
    try:
        block: Single | Batch = decode_block(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Conflict(
            f"what task {task} staged is no packed block of this version of Millstream: {error}; "
            "nothing was published. Run the job with the version that the server has",
            part=task,
        ) from error
    return block


def discard(objects: ObjectFolder, txn: str) -> None:
    """Remove the objects of a transaction."""
    for listed in list(objects.list(f"{STAGED}/{digest_of(txn)}")):
        objects.delete(listed.name)


def remove(objects: ObjectFolder, staged: Iterable[StagedFile]) -> None:
    """Remove objects that the writer has adopted."""
    for file in staged:
        objects.delete(_name(file.txn, file.name))


def sweep(objects: ObjectFolder, now_ms: int) -> None:
    """Remove the objects of transactions whose newest object is older than a week."""
    by_folder: dict[str, list[ListedObject]] = {}
    for listed in objects.list(STAGED):
        by_folder.setdefault(listed.name.rpartition("/")[0], []).append(listed)
    for folder in by_folder.values():
        if max(listed.modified_ms for listed in folder) < now_ms - LEFTOVER_MS:
            for listed in folder:
                objects.delete(listed.name)


def _name(txn: str, name: str) -> str:
    return f"{STAGED}/{digest_of(txn)}/{name}"


def _requests(blocks: list[StagedBlock]) -> Iterator[list[StagedBlock]]:
    """Yield lists of neighbouring blocks, a list for each request."""
    neighbours: list[StagedBlock] = []
    size = 0
    for block in blocks:
        if neighbours and size + block.size > REQUEST_BYTES:
            yield neighbours
            neighbours, size = [], 0
        neighbours.append(block)
        size += block.size
    if neighbours:
        yield neighbours


def _range(objects: ObjectFolder, staged: StagedFile, at: int, size: int) -> bytes:
    name = _name(staged.txn, staged.name)
    try:
        return objects.get_range(name, at, size)
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise Conflict(
                f"what task {staged.name} staged is gone ({name}): it lay there longer than a "
                "week, or it was removed; nothing was published, run the job again",
                part=staged.name,
            ) from None
        raise
