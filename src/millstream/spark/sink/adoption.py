"""Adoption: how a driver asks the writer of a bucket to publish what its tasks staged there.

The note `adopt/DIGEST` is all that both sides say to each other. Each replaces it only in the state
that it has seen, so a job is either withdrawn or adopted, and never both.

    asked       by the driver, which then calls the holder of the lease
    begun       by the writer; a writer after it begins anew, and the book of what was published
                (`publishing`) sees to it that nothing is published twice
    done        by the writer: published, now or before
    failed      by the writer: refused for good, and nothing was published
    withdrawn   by the driver, because no writer had begun
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from millstream import errors
from millstream.clock import Clock, SystemClock
from millstream.errors import CannotOpen, Conflict, MillstreamError, OutcomeUnknown, StoreError
from millstream.objects.folder import ObjectFolder, StoredObject
from millstream.objects.lease import NAME as LEASE
from millstream.objects.lease import call_holder
from millstream.objects.lease import decoded as lease_note
from millstream.spark.sink.publishing import Version
from millstream.spark.sink.staging import StagedFile, digest_of

FOLDER = "adopt"
FORMAT = 1

BEGIN_S_MAX = 120.0
"""How long a driver waits until a writer begins: longer than a standby needs to take over."""

DONE_S_MAX = 1_800.0
"""How long it waits then."""

CALL_S = 5.0
"""How often it calls: the server that was called may have died."""

LOOK_S = 0.25
"""How often it looks at the note."""

State = Literal["asked", "begun", "done", "failed", "withdrawn"]


class AdoptionNote(Struct, frozen=True, kw_only=True):
    """What is to be adopted, and how far that is."""

    format: int = FORMAT
    state: State = "asked"
    token: str
    """Which run of the job asks: a run that was broken off may have left a note behind."""
    txn: str
    version: Version
    log: str
    files: list[StagedFile]
    count: int = 0
    """Once it is done: how many records were published, none if that was before."""
    error: str = ""
    detail: str = ""
    """Once it has failed: which error it was, and what it says."""


def name_of(txn: str) -> str:
    """The name of a transaction's note."""
    return f"{FOLDER}/{digest_of(txn)}"


def read_note(found: StoredObject) -> AdoptionNote:
    """A note from its bytes; `Conflict` if it is damaged, or of another format."""
    try:
        note = msgspec.json.decode(found.data, type=AdoptionNote)
    except msgspec.MsgspecError as error:
        raise Conflict(
            f"the note by which a job asks to be adopted cannot be read: {error}; nothing was "
            "published by it, run the job again"
        ) from error
    if note.format != FORMAT:
        raise Conflict(
            f"the job asks to be adopted in format {note.format}, and {FORMAT} is known here; "
            "nothing was published: use the same version of Millstream for Spark and the server"
        )
    return note


def encode_note(note: AdoptionNote) -> bytes:
    """Its bytes."""
    return msgspec.json.encode(note)


def check_served(objects: ObjectFolder) -> None:
    """Refuse a bucket that no server writes, before anything is staged."""
    found = objects.get(LEASE)
    if found is None or not lease_note(found.data).holder:
        place = objects.address.text
        raise CannotOpen(
            f"no server writes {place}, and Spark never opens it to write itself, because that "
            f"would fence its writer: start `millstream serve --store {place}`",
            path=place,
        )


class Asking:
    """A driver's side: it asks, waits, and takes the answer."""

    def __init__(
        self,
        objects: ObjectFolder,
        *,
        clock: Clock | None = None,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._objects = objects
        self._clock = clock or SystemClock()
        self._pause = pause or threading.Event().wait

    def adopt(self, txn: str, version: Version | None, log: str, files: list[StagedFile]) -> int:
        """Have files published in one commit, once; how many records that were."""
        note = AdoptionNote(
            token=secrets.token_hex(8),
            txn=txn,
            version=version or Version(txn, 0),
            log=log,
            files=files,
        )
        self._objects.put(name_of(txn), encode_note(note))
        found = self._awaited(note)
        self._objects.delete(name_of(txn))
        if found.state == "done":
            return found.count
        kind = getattr(errors, found.error, None)
        is_ours = isinstance(kind, type) and issubclass(kind, MillstreamError)
        raise (kind if is_ours and kind is not None else MillstreamError)(found.detail)

    def _awaited(self, asked: AdoptionNote) -> AdoptionNote:
        """The note with its answer; an error if none comes."""
        began_s = called_s = self._clock.seconds()
        self._call()
        while True:
            self._pause(LOOK_S)
            now_s = self._clock.seconds()
            note, stored = self._looked(asked)
            if note.state in ("done", "failed"):
                return note
            if now_s - began_s > BEGIN_S_MAX + DONE_S_MAX:
                raise OutcomeUnknown(
                    f"the server of {self._place} began to adopt the job, and did not say within "
                    f"{DONE_S_MAX:g} s that it has; it may or may not be published. A repeat of a "
                    "stream's batch, or with the same txnAppId and txnVersion, is published once"
                )
            is_late = note.state == "asked" and now_s - began_s > BEGIN_S_MAX
            if is_late and stored is not None and self._is_withdrawn(note, stored):
                raise CannotOpen(
                    f"no server of {self._place} began within {BEGIN_S_MAX:g} s to adopt what the "
                    "job staged: nothing was published. Does `millstream serve` run there?",
                    path=self._place,
                )
            if now_s - called_s >= CALL_S and note.state == "asked":
                called_s = now_s
                self._call()

    def _looked(self, asked: AdoptionNote) -> tuple[AdoptionNote, StoredObject | None]:
        """The note as it is now; while the object store does not answer, as it was."""
        try:
            stored = self._objects.get(name_of(asked.txn))
        except StoreError:
            return asked, None
        if stored is None:
            raise Conflict(f"the note {name_of(asked.txn)} was removed; run the job again")
        note = read_note(stored)
        if note.token != asked.token:
            raise Conflict(f"another run of the same job ({asked.txn}) has taken the place of this")
        return note, stored

    def _call(self) -> None:
        try:
            call_holder(self._objects)
        except StoreError:
            pass  # it is called again

    def _is_withdrawn(self, note: AdoptionNote, stored: StoredObject) -> bool:
        gone = encode_note(replace(note, state="withdrawn", files=[]))
        try:
            if self._objects.replace(name_of(note.txn), gone, stored.tag) is None:
                return False
            self._objects.delete(name_of(note.txn))
        except StoreError:
            return False
        return True

    @property
    def _place(self) -> str:
        return self._objects.address.text
