"""Downloads of backups: a snapshot of the store as a stream of frames.

A download holds a snapshot on a thread of its own, and reads the next frames only when the client has taken
the frames before. So the memory is bounded, and a slow client delays nobody; but the write-ahead log grows
while a snapshot is held. A client that takes nothing is cut by its connection.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct

from millstream.backup.increment import (
    FIRST_LINE,
    WAITING,
    KnownChunks,
    failure_frame,
    frames_of,
)
from millstream.backup.source import source_of, store_id
from millstream.clock import Clock
from millstream.engine.protocol import Engine
from millstream.errors import CannotOpen, MillstreamError, Overloaded
from millstream.limits import MiB
from millstream.server.problems import problem_of

DOWNLOADS_MAX = 2
SIGN_S = 5.0
"""The silence after which the client gets a sign of life."""
PART_BYTES = MiB
"""Bytes of frames that are read at once."""


class StoreOffer(Struct, frozen=True, kw_only=True):
    """The store that can be downloaded."""

    store: str
    """The id of the store."""
    seq: int
    """The sequence of the newest commit."""


class BackupDownloads:
    """The downloads of one server. Belongs to the server's event loop."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine, self._clock = engine, clock
        self._running: set[_Download] = set()
        self._sent_ms = 0

    def age_s(self) -> float | None:
        """Return the age of the last backup that a client has taken completely; None without one."""
        if not self._sent_ms:
            return None
        return max(0.0, (self._clock.wall_ms() - self._sent_ms) / 1000)

    def offer(self) -> StoreOffer:
        """Return which store can be downloaded; blocks."""
        with self._engine.read() as snapshot:
            if not snapshot.last_seq():
                raise CannotOpen("the store is empty: there is nothing to back up", path="")
            return StoreOffer(store=store_id(snapshot), seq=snapshot.last_seq())

    def begin(self, known_chunks: KnownChunks, *, checks_rows: bool) -> AsyncGenerator[bytes, None]:
        """Return the frames of a snapshot as of now. Raises `Overloaded` at the limit of downloads."""
        if len(self._running) >= DOWNLOADS_MAX:
            raise Overloaded(
                f"{DOWNLOADS_MAX} backups of this store are downloaded now; try again later"
            )
        return self._parts(_Download(self._engine, known_chunks, checks_rows=checks_rows))

    async def _parts(self, download: _Download) -> AsyncGenerator[bytes, None]:
        self._running.add(download)
        try:
            began_ms = self._clock.wall_ms()
            async for part in download.parts():
                yield part
            if download.is_complete:
                self._sent_ms = max(self._sent_ms, began_ms)
        finally:
            self._running.discard(download)
            download.close()

    async def close(self) -> None:
        """End all downloads, and let go of their snapshots."""
        for download in [*self._running]:
            await asyncio.to_thread(download.end)


class _Download:
    """One download. A separate thread opens, reads and closes the snapshot."""

    def __init__(self, engine: Engine, known_chunks: KnownChunks, *, checks_rows: bool) -> None:
        self._engine, self._known_chunks, self._checks_rows = engine, known_chunks, checks_rows
        self._stop = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="millstream-backup-download")
        self._frames = self._read()
        self.is_complete = False
        """True if the thread has read all frames without an error."""

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the stream, and signs of life while the thread works."""
        loop = asyncio.get_running_loop()
        coming = loop.run_in_executor(self._thread, self._next)
        while True:
            while not coming.done():
                await asyncio.wait([coming], timeout=SIGN_S)
                if not coming.done():
                    yield WAITING
            part = coming.result()
            if not part:
                return
            # The thread reads the next part while the client takes this one.
            coming = loop.run_in_executor(self._thread, self._next)
            yield part

    def close(self) -> None:
        """Let go of the snapshot, soon."""
        self._stop.set()
        self._thread.submit(self._frames.close)
        self._thread.shutdown(wait=False)

    def end(self) -> None:
        """Let go of the snapshot, and wait for that."""
        self._stop.set()
        self._thread.submit(self._frames.close).result()

    def _next(self) -> bytes:
        """Return the next bytes; empty at the end of the stream."""
        frames: list[bytes] = []
        size = 0
        for frame in self._frames:
            frames.append(frame)
            size += len(frame)
            if size >= PART_BYTES:
                break
        return b"".join(frames)

    def _read(self) -> Generator[bytes, None, None]:
        yield FIRST_LINE
        try:
            place = self._engine.place
            with (
                source_of(self._engine, place=place, stop=self._stop.is_set) as source,
                source.capture((), checks_rows=self._checks_rows, heard=_quiet) as captured,
            ):
                for frame in frames_of(*captured, self._known_chunks):
                    if self._stop.is_set():
                        raise Overloaded("the server stops; run the backup again")
                    yield frame
            self.is_complete = True
        except MillstreamError as error:
            problem = problem_of(error)
            yield failure_frame(problem.title, problem.detail)


def _quiet(_stage: str, _done: int, _total: int) -> None:
    """Ignore progress: the client gets signs of life."""
