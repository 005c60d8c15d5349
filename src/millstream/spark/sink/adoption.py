"""Adoption: a driver asks the writer of a bucket to publish the objects that its tasks staged.

Driver and writer speak only through the note `adopt/DIGEST`. Each replaces the note only if the
note is still in the state that was read. So a job cannot be withdrawn and adopted.

    asked       by the driver, which then calls the holder of the lease
    begun       by the writer. A later writer begins again; the noted version (`publishing`) keeps
                the job from being published twice
    done        by the writer: published, now or by an earlier run
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
"""The longest wait of a driver for a writer to begin: longer than a standby needs to take over."""

DONE_S_MAX = 1_800.0
"""The longest wait of a driver for the end of an adoption that has begun."""

CALL_S = 5.0
"""The interval at which a driver calls the server, which may have died after the last call."""

LOOK_S = 0.25
"""The interval at which a driver reads the note."""

State = Literal["asked", "begun", "done", "failed", "withdrawn"]


class AdoptionNote(Struct, frozen=True, kw_only=True):
    """A request for an adoption, and its state."""

    format: int = FORMAT
    state: State = "asked"
    token: str
    """The run of the job that asks: an interrupted run may have left another note."""
    txn: str
    version: Version
    log: str
    files: list[StagedFile]
    count: int = 0
    """The number of published records in state `done`; 0 if an earlier run published them."""
    error: str = ""
    detail: str = ""
    """The error and its text in state `failed`."""


def name_of(txn: str) -> str:
    """Return the name of a transaction's note."""
    return f"{FOLDER}/{digest_of(txn)}"


def read_note(stored: StoredObject) -> AdoptionNote:
    """Decode a note; raise `Conflict` for a damaged note or another format."""
    try:
        note = msgspec.json.decode(stored.data, type=AdoptionNote)
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
    """Encode a note."""
    return msgspec.json.encode(note)


def check_served(objects: ObjectFolder) -> None:
    """Refuse a bucket without a server that writes it, before tasks stage anything."""
    lease = objects.get(LEASE)
    if lease is None or not lease_note(lease.data).holder:
        place = objects.address.text
        raise CannotOpen(
            f"no server writes {place}, and Spark never opens it to write itself, because that "
            f"would fence its writer: start `millstream serve --store {place}`",
            path=place,
        )


class Asking:
    """The driver's part of an adoption: sends the request and waits for the answer."""

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
        """Let the writer publish files in one commit, once; return the number of records."""
        note = AdoptionNote(
            token=secrets.token_hex(8),
            txn=txn,
            version=version or Version(txn, 0),
            log=log,
            files=files,
        )
        self._objects.put(name_of(txn), encode_note(note))
        answer = self._awaited(note)
        self._objects.delete(name_of(txn))
        if answer.state == "done":
            return answer.count
        kind = getattr(errors, answer.error, None)
        is_ours = isinstance(kind, type) and issubclass(kind, MillstreamError)
        raise (kind if is_ours and kind is not None else MillstreamError)(answer.detail)

    def _awaited(self, request: AdoptionNote) -> AdoptionNote:
        """Wait for the answer of the writer; raise an error if no answer comes in time."""
        began_s = called_s = self._clock.seconds()
        self._call()
        while True:
            self._pause(LOOK_S)
            now_s = self._clock.seconds()
            note, stored = self._looked(request)
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

    def _looked(self, request: AdoptionNote) -> tuple[AdoptionNote, StoredObject | None]:
        """Read the note; return the request unchanged while the object store does not answer."""
        try:
            stored = self._objects.get(name_of(request.txn))
        except StoreError:
            return request, None
        if stored is None:
            raise Conflict(f"the note {name_of(request.txn)} was removed; run the job again")
        note = read_note(stored)
        if note.token != request.token:
            raise Conflict(
                f"another run of the same job ({request.txn}) has taken the place of this"
            )
        return note, stored

    def _call(self) -> None:
        try:
            call_holder(self._objects)
        except StoreError:
            pass  # the next round calls again

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
