"""The lease of a server on object storage: an object by which a standby sees that the writer lives.

The lease decides which server opens the store to write, and when. SlateDB, not the lease, guarantees a
single writer. So no clocks are compared: a standby measures by its own clock how long the object has not
changed. The holder replaces the object every `RENEW_S`; after `LEASE_S` without a change it is free.

A server that was suspended may have lost its lease unnoticed. So it asks the object store right before
and right after it opens the store (`LeaseKeeper.check`): otherwise it would fence the present holder.

Bulk writers with staged objects call the holder through the lease (`call_holder`): they increment
`calls`, and the holder notices at its next renewal. So no server polls for staged objects, and a call
does not make a dead holder look alive, because a standby compares the heartbeat (`beat`).

The object is `lease` below the store's prefix, as JSON:

    holder      text        the name of the holder; empty once the lease was released
    generation  integer     the number of changes of the holder
    beat        integer     the heartbeat: the number of renewals by this holder
    calls       integer     the number of calls of bulk writers
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec.structs import replace

from millstream.clock import Clock
from millstream.errors import Fenced, StoreError
from millstream.objects.folder import ObjectFolder, StoredObject

NAME = "lease"
LEASE_S = 4.0
RENEW_S = 1.2
LOOK_S = 1.0
"""Period in which a standby reads the object."""

TRIES = 20
"""How often a replace is retried after another process has replaced the object."""


class LeaseNote(msgspec.Struct, frozen=True):
    """The content of the object."""

    holder: str
    generation: int
    beat: int
    calls: int = 0

    @property
    def sign(self) -> tuple[str, int, int]:
        """The fields that only a holder changes."""
        return self.holder, self.generation, self.beat


class LeaseWatch:
    """The time since the last change of the object, by the clock of the observer: pure."""

    def __init__(self) -> None:
        self._sign = ("", 0, 0)
        self._since_s = 0.0

    def is_free(self, stored: StoredObject | None, now_s: float) -> bool:
        """True if the lease may be taken; called with each read of the object."""
        if stored is None or not (note := decoded(stored.data)).holder:
            return True
        if note.sign != self._sign:
            self._sign, self._since_s = note.sign, now_s
        return now_s - self._since_s >= LEASE_S


class ObjectLease:
    """The lease from the view of one server; `holder` is the unique name of the server."""

    def __init__(self, objects: ObjectFolder, holder: str) -> None:
        self._objects, self._holder = objects, holder
        self._lock = threading.Lock()
        self._note = LeaseNote(holder, 0, 0)
        self._tag = ""

    @property
    def calls(self) -> int:
        """The number of calls of bulk writers, as of the last renewal."""
        return self._note.calls

    def look(self) -> StoredObject | None:
        """Read the object."""
        return self._objects.get(NAME)

    def take(self, stored: StoredObject | None) -> bool:
        """Take the lease if the object is unchanged; False if another server was faster."""
        before = LeaseNote("", 0, 0) if stored is None else decoded(stored.data)
        self._note = LeaseNote(self._holder, before.generation + 1, 0, before.calls)
        data = msgspec.json.encode(self._note)
        if stored is None:
            tag = self._objects.create(NAME, data)
        else:
            tag = self._objects.replace(NAME, data, stored.tag)
        if tag is None:
            return self._is_ours()
        self._tag = tag
        return True

    def seize(self) -> None:
        """Take the lease at once from its holder."""
        while not self.take(self.look()):
            pass  # another server replaced the object between read and replace

    def renew(self) -> bool:
        """Renew the lease by a heartbeat; False if another server has the lease."""
        with self._lock:
            beat = self._note.beat + 1
            for _ in range(TRIES):
                note = replace(self._note, beat=beat)
                tag = self._objects.replace(NAME, msgspec.json.encode(note), self._tag)
                if tag is not None:
                    self._note, self._tag = note, tag
                    return True
                if not self._is_ours():
                    return False
                if self._note.beat == beat:
                    return True  # the answer was lost; otherwise a bulk writer has called
            return True

    def give_back(self) -> None:
        """Release the lease for the next server; do nothing if another server has the lease."""
        with self._lock:
            note = replace(self._note, holder="")
            self._objects.replace(NAME, msgspec.json.encode(note), self._tag)

    def _is_ours(self) -> bool:
        """After a refusal, find out whether a first attempt succeeded whose answer was lost."""
        stored = self.look()
        if stored is None:
            return False
        note = decoded(stored.data)
        if (note.holder, note.generation) != (self._holder, self._note.generation):
            return False
        self._note, self._tag = note, stored.tag
        return True


def call_holder(objects: ObjectFolder) -> bool:
    """Ask the holder of the lease to adopt staged objects; False without a holder."""
    for _ in range(TRIES):
        stored = objects.get(NAME)
        if stored is None or not (note := decoded(stored.data)).holder:
            return False
        called = msgspec.json.encode(replace(note, calls=note.calls + 1))
        if objects.replace(NAME, called, stored.tag) is not None:
            break
    return True


def decoded(data: bytes) -> LeaseNote:
    """Decode a note; an unreadable note has no holder."""
    try:
        return msgspec.json.decode(data, type=LeaseNote)
    except msgspec.DecodeError:
        return LeaseNote("", 0, 0)


def wait_for_lease(lease: ObjectLease, clock: Clock, stop: threading.Event) -> str | None:
    """Wait until the lease is free, take it, and return its last holder; None after `stop`.

    While the object store does not answer, the lease is not taken, and the wait goes on.
    """
    watch = LeaseWatch()
    while not stop.is_set():
        try:
            stored = lease.look()
            if watch.is_free(stored, clock.seconds()) and lease.take(stored):
                return "" if stored is None else decoded(stored.data).holder
        except StoreError:
            pass
        stop.wait(LOOK_S)
    return None


Loss = Literal["taken", "fenced"]


class LeaseKeeper:
    """A thread that renews the lease until `close`; it reports a lost lease once."""

    def __init__(
        self,
        lease: ObjectLease,
        *,
        place: str,
        is_fenced: Callable[[], bool],
        on_lost: Callable[[Loss], None],
        on_called: Callable[[], None] | None = None,
    ) -> None:
        self._lease, self._place = lease, place
        self._is_fenced, self._on_lost, self._on_called = is_fenced, on_lost, on_called
        self._calls = lease.calls
        self._was_taken = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millstream-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Renew the lease; raise `Fenced` if another server has taken it."""
        if self._was_taken or not self._lease.renew():
            self._was_taken = True
            raise Fenced(
                f"another server has taken the lease of {self._place} meanwhile: this one ends",
                path=self._place,
            )

    def close(self) -> None:
        """Stop the thread, and release the lease, also after the server was fenced."""
        self._stop.set()
        self._thread.join()
        if not self._was_taken:
            try:
                self._lease.give_back()
            except StoreError:
                pass  # the lease expires

    def _run(self) -> None:
        while not self._stop.wait(RENEW_S):
            try:
                if self._is_fenced():
                    self._on_lost("fenced")
                    return
                if self._was_taken or not self._lease.renew():
                    self._was_taken = True
                    self._on_lost("taken")
                    return
                if self._calls != self._lease.calls:
                    self._calls = self._lease.calls
                    if self._on_called is not None:
                        self._on_called()
            except StoreError:
                pass  # the object store does not answer, so no server can take the lease
