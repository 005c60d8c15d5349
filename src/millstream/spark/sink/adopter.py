"""The writer's part of an adoption: a thread of the server that publishes staged objects.

The thread first copies the staged objects to the server's disk and checks them, while commits go
on. Then a single commit publishes the blocks from the disk, and the thread removes the objects. A
passing error leaves the request as it is, and a later look of this server or of its successor tries
again.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import IO

from msgspec.structs import replace

from millstream.clock import SystemClock
from millstream.errors import (
    Conflict,
    DiskFull,
    Fenced,
    MillstreamError,
    Overloaded,
    StoreError,
)
from millstream.objects.folder import ListedObject, ObjectFolder
from millstream.objects.lease import NAME as LEASE
from millstream.spark.failures import point
from millstream.spark.sink.adoption import (
    BEGIN_S_MAX,
    DONE_S_MAX,
    FOLDER,
    AdoptionNote,
    encode_note,
    read_note,
)
from millstream.spark.sink.bucket_staging import fetch, remove, sweep, unpacked
from millstream.spark.sink.publishing import LogBlock, publish_blocks
from millstream.store.store import Store

RETRY_S, RETRY_S_MAX = 1.0, 15.0
"""The first and the longest pause of a writer before it retries after a passing error."""

NOTE_MS_MAX = int((BEGIN_S_MAX + DONE_S_MAX) * 2000)
"""The age from which no driver waits for an answer to its note. The writer removes such a note."""

_MAY_PASS = (StoreError, Fenced, Overloaded)
"""Errors that say nothing about the job: the store recovers, or another server writes now."""

_logger = logging.getLogger("millstream.server")


class Adopter:
    """Publishes the staged objects of one job after the other, until it is closed."""

    def __init__(
        self,
        objects: ObjectFolder,
        store: Callable[[], Store | None],
        *,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """`store` returns the store once it is open to write.

        Ages are measured by the clock of the object store, which also stamps the objects.
        """
        self._objects, self._store = objects, store
        self._now_ms = now_ms or self._renewed_ms
        self._called = threading.Event()
        self._called.set()  # a server before this one may have left notes behind
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millstream-adopter", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def call(self) -> None:
        """Let the thread look for notes; callable from any thread."""
        self._called.set()

    def close(self) -> None:
        """Stop the thread, and wait for its end."""
        self._stop.set()
        self._called.set()
        self._thread.join()

    def look(self) -> bool:
        """Process all notes; return False if a note needs another try."""
        store = self._store()
        if store is None:
            return False
        is_settled = True
        try:
            now_ms = self._now_ms()
            for listed in list(self._objects.list(FOLDER)):
                if self._stop.is_set():
                    return False
                if listed.modified_ms < now_ms - NOTE_MS_MAX:
                    self._objects.delete(listed.name)
                else:
                    is_settled &= self._settle(store, listed)
            sweep(self._objects, now_ms)
        except StoreError as error:
            _logger.warning("adoption_waits", extra={"why": error.message})
            return False
        return is_settled

    def _renewed_ms(self) -> int:
        """Return the last renewal of this server's lease, by the object store's clock."""
        return self._objects.modified_ms(LEASE) or SystemClock().wall_ms()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._called.wait()
            self._called.clear()
            wait_s = RETRY_S
            while not self._stop.is_set() and not self.look():
                self._stop.wait(wait_s)
                wait_s = min(2 * wait_s, RETRY_S_MAX)

    def _settle(self, store: Store, listed: ListedObject) -> bool:
        """Process a note; return False if the note needs another try."""
        stored = self._objects.get(listed.name)
        if stored is None:
            return True
        try:
            note = read_note(stored)
        except Conflict as error:
            _logger.warning("adoption_refused", extra={"why": error.message, "note": listed.name})
            return True  # the driver reads the damaged note too, and reports it
        if note.state not in ("asked", "begun"):
            return True
        begun_note = replace(note, state="begun")
        tag = self._objects.replace(listed.name, encode_note(begun_note), stored.tag)
        if tag is None:
            return False  # the driver has just replaced the note
        point("before adoption")
        answer = self._answer(store, begun_note)
        if answer is None:
            return False
        point("after adoption")
        is_told = self._objects.replace(listed.name, encode_note(answer), tag) is not None
        remove(self._objects, note.files)
        return is_told  # else another run of the job has asked meanwhile

    def _answer(self, store: Store, note: AdoptionNote) -> AdoptionNote | None:
        """Publish the objects of a note and return the answer; None after a passing error."""
        try:
            count = self._publish(store, note)
        except MillstreamError as error:
            if isinstance(error, _MAY_PASS) and not isinstance(error, DiskFull):
                _logger.warning("adoption_waits", extra={"why": error.message})
                return None
            failed = type(error).__name__
            return replace(note, state="failed", files=[], error=failed, detail=error.message)
        return replace(note, state="done", files=[], count=count)

    def _publish(self, store: Store, note: AdoptionNote) -> int:
        try:
            with tempfile.TemporaryFile(prefix="millstream-adopted-") as spool:
                for file in note.files:
                    for data in fetch(self._objects, file):
                        spool.write(data)
                return publish_blocks(store, note.log, lambda: _spooled(spool, note), note.version)
        except OSError as error:
            raise DiskFull(
                f"what the job staged cannot be kept on the disk of the server, in "
                f"{tempfile.gettempdir()}: {error.strerror}; nothing was published",
                path=tempfile.gettempdir(),
            ) from error


def _spooled(spool: IO[bytes], note: AdoptionNote) -> Iterator[LogBlock]:
    """Yield the blocks of a note in order, from the disk."""
    spool.seek(0)
    for file in note.files:
        for block in file.blocks:
            yield block.log, unpacked(spool.read(block.size), file.name)
