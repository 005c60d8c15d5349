"""Staging on this machine: tasks leave packed blocks in files beside the store, one per task.

Nothing in a file is part of the store until the driver publishes it. Every block in a file is listed,
with its size and checksum, in the message that the task sends to the driver: the commit takes exactly
what is listed. What was never committed is removed when nothing in its directory was touched for a week.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec import Struct

from millstream.clock import SystemClock
from millstream.errors import Conflict, WriteFailed
from millstream.format.block import checksum
from millstream.format.checking import check_packed
from millstream.format.packing import Batch, Single
from millstream.limits import Limits

LEFTOVER_MS = 7 * 24 * 3600 * 1000
"""After so long without a touch, what was staged belongs to a job that is no more."""

MAKING_TRIES = 10

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Single | Batch).decode


LogBlock = tuple[str, Single | Batch]
"""Packed records, and the log that they go to; it is empty if all go to the same."""


class StagedBlock(Struct, frozen=True, array_like=True):
    """One packed block in a file."""

    size: int
    crc: int
    log: str = ""
    """Where it goes, if not all blocks go to the same log."""


class StagedFile(Struct, frozen=True, array_like=True):
    """What one task staged."""

    txn: str
    name: str
    blocks: list[StagedBlock]


def directory_of(path: str, txn: str) -> Path:
    """Where the files of one transaction lie."""
    return _root(path) / blake2b(txn.encode(), digest_size=16).hexdigest()


def _root(path: str) -> Path:
    return Path(f"{path}-staging")


def stage(path: str, txn: str, task: str, found: Iterable[LogBlock], limits: Limits) -> StagedFile:
    """Write blocks to a file of their own."""
    directory = directory_of(path, txn)
    name = f"{task}-{secrets.token_hex(4)}"
    listed: list[StagedBlock] = []
    try:
        _make(directory)
        with (directory / name).open("xb") as file:
            for log, packed in found:
                check_packed(packed, limits)
                data = _encode(packed)
                file.write(data)
                listed.append(StagedBlock(len(data), checksum(data), log))
    except OSError as error:
        raise WriteFailed(f"{directory / name}: cannot be staged: {error.strerror}") from error
    return StagedFile(txn, name, listed)


def _make(directory: Path) -> None:
    """Make a directory; another job may remove the empty one above it at any moment."""
    for left in reversed(range(MAKING_TRIES)):
        with suppress(FileExistsError):
            directory.parent.mkdir()
        try:
            directory.mkdir(mode=0o700)
            return
        except FileExistsError:
            return  # by another task of the job
        except FileNotFoundError:
            if not left:
                raise


def load(path: str, staged: StagedFile) -> Iterator[LogBlock]:
    """The blocks of a file; one that is not what its task listed is refused.

    Tasks check what they pack; here it only has to be the same bytes.
    """
    file_path = directory_of(path, staged.txn) / staged.name
    try:
        with file_path.open("rb") as file:
            for block in staged.blocks:
                data = file.read(block.size)
                if len(data) != block.size or checksum(data) != block.crc:
                    raise Conflict(
                        f"staged file {staged.name} holds a block whose bytes are not what was "
                        "staged; nothing was published, run the job again",
                        part=staged.name,
                    )
                yield block.log, _decode(data)
    except FileNotFoundError:
        raise Conflict(
            f"what task {staged.name} staged is gone ({file_path}): it lay there longer "
            "than a week, or it was removed; nothing was published, run the job again",
            part=staged.name,
        ) from None


def discard(path: str, txn: str) -> None:
    """Forget what was staged for a transaction, and what others left behind long ago."""
    shutil.rmtree(directory_of(path, txn), ignore_errors=True)
    sweep(path)


def sweep(path: str, *, now_ms: int | None = None) -> None:
    """Remove directories in which nothing was touched for a week."""
    root = _root(path)
    late_s = ((SystemClock().wall_ms() if now_ms is None else now_ms) - LEFTOVER_MS) / 1000
    with suppress(OSError):
        for directory in root.iterdir():
            if _touched_s(directory) < late_s:
                shutil.rmtree(directory, ignore_errors=True)
        root.rmdir()  # only if it is empty


def _touched_s(directory: Path) -> float:
    times = [directory.stat().st_mtime]
    with os.scandir(directory) as entries:
        times += [entry.stat().st_mtime for entry in entries]
    return max(times)
