"""The lease of a server on object storage: an object by which a standby knows that the writer lives.

The lease decides who opens the store to write, and when; that only one writes is SlateDB's promise
and not the lease's. So no clocks are compared: a standby measures by its own clock how long the object
has stayed the same. The holder replaces it every `RENEW_S`; once it is `LEASE_S` old, it is free.

A server that stands still may have lost its lease without knowing. It therefore asks right before and
right after it opens the store (`LeaseKeeper.check`): else it would fence the server that has it now.

Bulk writers that have staged something call the holder by it (`call_holder`): they count `calls` up,
which the holder notices when it renews. So nothing is polled while no one writes in bulk, and a call
does not make a dead holder look alive: a standby compares the beats.

The object is `lease` below the store's prefix, as JSON:

    holder      text        who has it; empty once it was given back
    generation  integer     how often it has changed hands
    beat        integer     how often this holder has replaced it
    calls       integer     how often bulk writers have called a holder
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
"""How often a standby looks."""

TRIES = 20
"""How often a note is replaced anew that another process has replaced meanwhile."""


class LeaseNote(msgspec.Struct, frozen=True):
    """What the object says."""

    holder: str
    generation: int
    beat: int
    calls: int = 0

    @property
    def sign(self) -> tuple[str, int, int]:
        """What only its holder changes."""
        return self.holder, self.generation, self.beat


class LeaseWatch:
    """How long the object has stayed the same, by the clock of the process that looks: pure."""

    def __init__(self) -> None:
        self._sign = ("", 0, 0)
        self._since_s = 0.0

    def is_free(self, found: StoredObject | None, now_s: float) -> bool:
        """Whether the lease may be taken; asked with each look."""
        if found is None or not (note := decoded(found.data)).holder:
            return True
        if note.sign != self._sign:
            self._sign, self._since_s = note.sign, now_s
        return now_s - self._since_s >= LEASE_S


class ObjectLease:
    """The lease, as one server sees it; `holder` is a name that no other server has."""

    def __init__(self, objects: ObjectFolder, holder: str) -> None:
        self._objects, self._holder = objects, holder
        self._lock = threading.Lock()
        self._note = LeaseNote(holder, 0, 0)
        self._tag = ""

    @property
    def calls(self) -> int:
        """How often bulk writers have called, as far as this server knows."""
        return self._note.calls

    def look(self) -> StoredObject | None:
        """The object, as it is now."""
        return self._objects.get(NAME)

    def take(self, found: StoredObject | None) -> bool:
        """Take the lease from the state that was seen; False if another was faster."""
        before = LeaseNote("", 0, 0) if found is None else decoded(found.data)
        self._note = LeaseNote(self._holder, before.generation + 1, 0, before.calls)
        data = msgspec.json.encode(self._note)
        if found is None:
            tag = self._objects.create(NAME, data)
        else:
            tag = self._objects.replace(NAME, data, found.tag)
        if tag is None:
            return self._is_ours()
        self._tag = tag
        return True

    def seize(self) -> None:
        """Take the lease at once, from whatever server holds it."""
        while not self.take(self.look()):
            pass  # another replaced it between the look and the take

    def renew(self) -> bool:
        """Say that this server lives; False if the lease is another's."""
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
                    return True  # the answer was lost; else a bulk writer has called
            return True

    def give_back(self) -> None:
        """Let the next server have it at once; nothing happens if it is another's."""
        with self._lock:
            note = replace(self._note, holder="")
            self._objects.replace(NAME, msgspec.json.encode(note), self._tag)

    def _is_ours(self) -> bool:
        """After a refusal: an answer may have been lost, and the repeat of the request refused."""
        found = self.look()
        if found is None:
            return False
        note = decoded(found.data)
        if (note.holder, note.generation) != (self._holder, self._note.generation):
            return False
        self._note, self._tag = note, found.tag
        return True


def call_holder(objects: ObjectFolder) -> bool:
    """Have the server that holds the lease look for staged writes; False if no server holds it."""
    for _ in range(TRIES):
        found = objects.get(NAME)
        if found is None or not (note := decoded(found.data)).holder:
            return False
        called = msgspec.json.encode(replace(note, calls=note.calls + 1))
        if objects.replace(NAME, called, found.tag) is not None:
            break
    return True


def decoded(data: bytes) -> LeaseNote:
    """A note from its bytes; what cannot be read is nobody's."""
    try:
        return msgspec.json.decode(data, type=LeaseNote)
    except msgspec.DecodeError:
        return LeaseNote("", 0, 0)


def wait_for_lease(lease: ObjectLease, clock: Clock, stop: threading.Event) -> str | None:
    """Wait until the lease is free, and take it; from which holder, or None if told to stop.

    While the object store does not answer, nothing is taken: it is asked again.
    """
    watch = LeaseWatch()
    while not stop.is_set():
        try:
            found = lease.look()
            if watch.is_free(found, clock.seconds()) and lease.take(found):
                return "" if found is None else decoded(found.data).holder
        except StoreError:
            pass
        stop.wait(LOOK_S)
    return None


Loss = Literal["taken", "fenced"]


class LeaseKeeper:
    """A thread that renews the lease, until it is closed, or lost: then it tells so once."""

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
        """Ask the object store whether the lease is still ours; `Fenced` if it is another's."""
        if self._was_taken or not self._lease.renew():
            self._was_taken = True
            raise Fenced(
                f"another server has taken the lease of {self._place} meanwhile: this one ends",
                path=self._place,
            )

    def close(self) -> None:
        """Stop, and give the lease back; a server that was fenced lets the next one have it, too."""
        self._stop.set()
        self._thread.join()
        if not self._was_taken:
            try:
                self._lease.give_back()
            except StoreError:
                pass  # it ends by itself

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
                pass  # the object store does not answer: no other server can take it either
