"""Staging on this machine: a task writes packed blocks to a file in a folder beside the store."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from millstream.clock import SystemClock
from millstream.embedded.session import EmbeddedSession
from millstream.errors import Conflict, WriteFailed
from millstream.limits import Limits
from millstream.spark.place import Place, check_here, writing
from millstream.spark.sink.publishing import LogBlock, Version, publish_blocks
from millstream.spark.sink.staging import (
    LEFTOVER_MS,
    StagedFile,
    TaskAttempt,
    decode_block,
    digest_of,
    is_same,
    write_blocks,
)

MAKING_TRIES = 10


class DiskStaging:
    """The place of a store file."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def stage(self, txn: str, task: TaskAttempt, blocks: Iterable[LogBlock]) -> list[StagedFile]:
        """Write the blocks to a file."""
        check_here(self._place)
        file = stage(self._place.url, txn, task.name, blocks, Limits())
        return [file] if file.blocks else []

    def publish(
        self, txn: str, version: Version | None, log: str, staged: list[StagedFile]
    ) -> None:
        """Publish the files in a commit of this process."""
        with writing(self._place) as session:
            assert isinstance(session, EmbeddedSession)
            publish(session, self._place.url, log, staged, version)

    def discard(self, txn: str, *, is_published: bool) -> None:
        """Remove the folder of a transaction, and folders that are older than a week."""
        shutil.rmtree(directory_of(self._place.url, txn), ignore_errors=True)
        sweep(self._place.url)


def directory_of(path: str, txn: str) -> Path:
    """Return the folder with the files of a transaction."""
    return _root(path) / digest_of(txn)


def _root(path: str) -> Path:
    return Path(f"{path}-staging")


def stage(path: str, txn: str, task: str, blocks: Iterable[LogBlock], limits: Limits) -> StagedFile:
    """Write blocks to a new file."""
    directory = directory_of(path, txn)
    name = f"{task}-{secrets.token_hex(4)}"
    try:
        _make(directory)
        with (directory / name).open("xb") as file:
            listed = write_blocks(file, blocks, limits)
    except OSError as error:
        raise WriteFailed(f"{directory / name}: cannot be staged: {error.strerror}") from error
    return StagedFile(txn, name, listed)


def _make(directory: Path) -> None:
    """Create a folder, again if another job removes the empty parent folder meanwhile."""
    for remaining in reversed(range(MAKING_TRIES)):
        with suppress(FileExistsError):
            directory.parent.mkdir()
        try:
            directory.mkdir(mode=0o700)
            return
        except FileExistsError:
            return  # by another task of the job
        except FileNotFoundError:
            if not remaining:
                raise


def publish(
    session: EmbeddedSession,
    path: str,
    log: str,
    files: list[StagedFile],
    version: Version | None,
) -> int:
    """Append the blocks of files in one commit, once; return the number of records."""

    def blocks() -> Iterable[LogBlock]:
        return (block for file in files for block in load(path, file))

    return publish_blocks(session.store, log, blocks, version)


def load(path: str, staged: StagedFile) -> Iterator[LogBlock]:
    """Yield the blocks of a file; raise `Conflict` for a block with other bytes than listed.

    The task has checked the content of each block, so here a comparison of the bytes is enough.
    """
    file_path = directory_of(path, staged.txn) / staged.name
    try:
        with file_path.open("rb") as file:
            for block in staged.blocks:
                data = file.read(block.size)
                if not is_same(data, block):
                    raise Conflict(
                        f"staged file {staged.name} holds a block whose bytes are not what was "
                        "staged; nothing was published, run the job again",
                        part=staged.name,
                    )
                yield block.log, decode_block(data)
    except FileNotFoundError:
        raise Conflict(
            f"what task {staged.name} staged is gone ({file_path}): it lay there longer "
            "than a week, or it was removed; nothing was published, run the job again",
            part=staged.name,
        ) from None


def sweep(path: str, *, now_ms: int | None = None) -> None:
    """Remove folders in which nothing was touched for a week."""
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
