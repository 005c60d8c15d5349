"""Staging in a bucket: each task leaves its packed blocks in one object below the store's prefix.

    staging/DIGEST/TASK-RANDOM      what one task staged, its blocks one after the other
    adopt/DIGEST                    what the driver asks the writer to adopt (`adoption`)

DIGEST stands for the transaction's name. Nothing in an object is part of the store until the writer
has adopted it. As with files, the commit takes exactly the blocks that the tasks have listed, by
their sizes and checksums.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

import msgspec

from millstream.errors import Conflict, StoreError, WriteFailed
from millstream.format.block import checksum
from millstream.format.checking import check_packed
from millstream.format.packing import Batch, Single
from millstream.limits import Limits, MiB
from millstream.objects.address import parse_address
from millstream.objects.folder import STAGED, ListedObject, ObjectFolder
from millstream.spark.sink.staging import LEFTOVER_MS, LogBlock, StagedBlock, StagedFile

REQUEST_BYTES = 8 * MiB
"""How many bytes of blocks one request fetches, or one block if it is larger."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Single | Batch).decode


def objects_of(url: str) -> ObjectFolder:
    """The objects of the store at an address."""
    return ObjectFolder(parse_address(url))


def digest_of(txn: str) -> str:
    """What stands for a transaction in the names of objects."""
    return blake2b(txn.encode(), digest_size=16).hexdigest()


def stage(
    objects: ObjectFolder, txn: str, task: str, found: Iterable[LogBlock], limits: Limits
) -> StagedFile:
    """Put blocks into an object of their own; until it is complete they lie on this machine's disk."""
    name = f"{task}-{secrets.token_hex(4)}"
    listed: list[StagedBlock] = []
    try:
        with tempfile.NamedTemporaryFile(prefix="millstream-staging-") as file:
            for log, packed in found:
                check_packed(packed, limits)
                data = _encode(packed)
                file.write(data)
                listed.append(StagedBlock(len(data), checksum(data), log))
            file.flush()
            if listed:
                objects.upload(_name(txn, name), Path(file.name))
    except OSError as error:
        raise WriteFailed(f"rows cannot be staged on this machine: {error.strerror}") from error
    return StagedFile(txn, name, listed)


def fetch(objects: ObjectFolder, staged: StagedFile) -> Iterator[bytes]:
    """The bytes of each block of an object; one that is not what its task listed is refused."""
    at = 0
    for some in _together(staged.blocks):
        size = sum(block.size for block in some)
        data = memoryview(_range(objects, staged, at, size))
        at, start = at + size, 0
        for block in some:
            one = bytes(data[start : start + block.size])
            start += block.size
            if len(one) != block.size or checksum(one) != block.crc:
                raise Conflict(
                    f"the staged object {_name(staged.txn, staged.name)} holds a block whose bytes "
                    "are not what was staged; nothing was published, run the job again",
                    part=staged.name,
                )
            yield one


def unpacked(data: bytes, part: str) -> Single | Batch:
    """A block from its bytes; those of a task of another format are refused."""
    try:
        found: Single | Batch = _decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Conflict(
            f"what task {part} staged is no packed block of this version of Millstream: {error}; "
            "nothing was published. Run the job with the version that the server has",
            part=part,
        ) from error
    return found


def discard(objects: ObjectFolder, txn: str) -> None:
    """Forget everything that was staged for a transaction."""
    for one in list(objects.list(f"{STAGED}/{digest_of(txn)}")):
        objects.delete(one.name)


def remove(objects: ObjectFolder, staged: Iterable[StagedFile]) -> None:
    """Forget objects that were adopted."""
    for one in staged:
        objects.delete(_name(one.txn, one.name))


def sweep(objects: ObjectFolder, now_ms: int) -> None:
    """Remove what was staged for transactions in which nothing was put for a week."""
    by_folder: dict[str, list[ListedObject]] = {}
    for one in objects.list(STAGED):
        by_folder.setdefault(one.name.rpartition("/")[0], []).append(one)
    for found in by_folder.values():
        if max(one.modified_ms for one in found) < now_ms - LEFTOVER_MS:
            for one in found:
                objects.delete(one.name)


def _name(txn: str, name: str) -> str:
    return f"{STAGED}/{digest_of(txn)}/{name}"


def _together(blocks: list[StagedBlock]) -> Iterator[list[StagedBlock]]:
    """Neighbouring blocks that one request fetches."""
    some: list[StagedBlock] = []
    size = 0
    for block in blocks:
        if some and size + block.size > REQUEST_BYTES:
            yield some
            some, size = [], 0
        some.append(block)
        size += block.size
    if some:
        yield some


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
