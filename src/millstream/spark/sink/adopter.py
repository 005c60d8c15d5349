"""The writer's side of an adoption: a thread of the server looks for notes when it is called.

What was staged is first fetched to the server's disk and checked, beside all commits; then one commit
publishes it from there. Staged objects are removed afterwards. An error that may pass leaves the note
as it is: it is tried again, by this server or the next.
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
"""How long a writer waits before it tries again what may pass, at first and at most."""

NOTE_MS_MAX = int((BEGIN_S_MAX + DONE_S_MAX) * 2000)
"""After so long no driver waits for an answer to its note: it is removed, and not adopted."""

_MAY_PASS = (StoreError, Fenced, Overloaded)
"""What says nothing of the job itself: the store recovers, or another server writes it now."""

_logger = logging.getLogger("millstream.server")


class Adopter:
    """Adopts what was staged, one job after the other, until it is closed."""

    def __init__(
        self,
        objects: ObjectFolder,
        store: Callable[[], Store | None],
        *,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """`store` gives the store once it is open to write.

        What is old is told by the object store's own clock, which also says when objects were put.
        """
        self._objects, self._store = objects, store
        self._now_ms = now_ms or self._renewed_ms
        self._called = threading.Event()
        self._called.set()  # a server before this one may have left notes behind
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millstream-adopter", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def call(self) -> None:
        """Have it look; from any thread."""
        self._called.set()

    def close(self) -> None:
        """End it, and wait until it has ended."""
        self._stop.set()
        self._called.set()
        self._thread.join()

    def look(self) -> bool:
        """Adopt what is asked for; False if something is left that may pass later."""
        store = self._store()
        if store is None:
            return False
        is_settled = True
        try:
            now_ms = self._now_ms()
            for one in list(self._objects.list(FOLDER)):
                if self._stop.is_set():
                    return False
                if one.modified_ms < now_ms - NOTE_MS_MAX:
                    self._objects.delete(one.name)
                else:
                    is_settled &= self._settle(store, one)
            sweep(self._objects, now_ms)
        except StoreError as error:
            _logger.warning("adoption_waits", extra={"why": error.message})
            return False
        return is_settled

    def _renewed_ms(self) -> int:
        """When this server has last renewed its lease, by the object store's clock."""
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
        """Do what a note asks for; False if it has to be tried again."""
        stored = self._objects.get(listed.name)
        if stored is None:
            return True
        try:
            note = read_note(stored)
        except Conflict as error:
            _logger.warning("adoption_refused", extra={"why": error.message, "note": listed.name})
            return True  # its driver reads it too, and says so
        if note.state not in ("asked", "begun"):
            return True
        begun = replace(note, state="begun")
        tag = self._objects.replace(listed.name, encode_note(begun), stored.tag)
        if tag is None:
            return False  # it has just changed: look again
        point("before adoption")
        answer = self._answer(store, begun)
        if answer is None:
            return False
        point("after adoption")
        is_told = self._objects.replace(listed.name, encode_note(answer), tag) is not None
        remove(self._objects, note.files)
        return is_told  # else another run of the job has asked meanwhile

    def _answer(self, store: Store, note: AdoptionNote) -> AdoptionNote | None:
        """Publish it; None if that has to be tried again."""
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
    """The blocks in order, from the disk."""
    spool.seek(0)
    for file in note.files:
        for block in file.blocks:
            yield block.log, unpacked(spool.read(block.size), file.name)
