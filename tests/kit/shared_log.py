"""A shared log in memory, for tests of clusters: one order for all nodes, and faults on demand.

Each node has a door of its own. A hook of the door is asked before each step and may raise what a
shared log raises; an append that it lets fail in between may be stored, now or later, or not at all.

    step        what has happened when it is called
    sending     nothing: `Unreachable` says that nothing was sent
    sent        nothing yet: `Unsure` says that the entry may be stored `late`
    stored      the entry is stored: `Unsure` says that the answer was lost
    reading     nothing
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from millstream.cluster.shared_log import Gone, Held, Overtaken, Stored, Unreachable, Unsure

Hook = Callable[[str], None]


class SimulatedLog:
    """The entries shared by all nodes; any thread may use the log."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.first = 1
        """Entries below it were trimmed."""
        self.late: list[tuple[bytes, int]] = []
        """Appends in flight whose writers stopped waiting: data, and the expected previous sequence."""
        self.hidden: list[bytes] = []
        """The newest entries, while they are not shown."""
        self.behind = b""
        """The hash behind which it was begun."""
        self.changed = threading.Condition()
        self.is_gone = False

    def door(self, hook: Hook | None = None) -> SimulatedDoor:
        """A node's way to the log."""
        return SimulatedDoor(self, hook)

    def store(self, data: bytes, after: int) -> bool:
        """Store an entry if the last sequence is `after`."""
        with self.changed:
            if self.is_gone or self.is_short or after != self.last:
                return False
            self.entries.append(data)
            self.changed.notify_all()
            return True

    def hide(self, entries: int) -> None:
        """Its servers do not show its newest entries, and take none, until `show`."""
        with self.changed:
            if entries and not self.is_short:
                self.hidden = self.entries[-entries:]
                del self.entries[-entries:]

    def show(self) -> None:
        """Its servers have everything again."""
        with self.changed:
            self.entries += self.hidden
            self.hidden = []
            self.changed.notify_all()

    @property
    def is_short(self) -> bool:
        """Whether newest entries are not shown."""
        return bool(self.hidden)

    def deliver(self) -> None:
        """Deliver all appends in flight; store an entry if it still fits the end of the log."""
        while self.late:
            self.store(*self.late.pop(0))

    @property
    def last(self) -> int:
        """The sequence of the newest entry."""
        return self.first - 1 + len(self.entries)

    def trim(self, before: int) -> None:
        """Drop the entries below a sequence."""
        with self.changed:
            gone = max(0, min(before, self.last + 1) - self.first)
            del self.entries[:gone]
            self.first += gone


class SimulatedDoor:
    """The shared log, seen by a node."""

    place = "the simulated shared log"
    entry_bytes_max = 1024 * 1024

    def __init__(self, log: SimulatedLog, hook: Hook | None) -> None:
        self.log = log
        self.hook = hook
        self.seen: int | None = None
        """Entries behind it are not seen by this node yet; None: it sees all."""
        self.wait: Callable[[float], object] | None = None
        """What a read does while there is nothing, instead of waiting."""
        self._closed = False

    def append(self, data: bytes, *, after: int, timeout_s: float) -> int:
        """Store an entry if nothing came in between."""
        if len(data) > self.entry_bytes_max:
            raise ValueError(f"an entry has at most {self.entry_bytes_max:,} bytes")
        self._step("sending")
        if self.log.is_short:
            raise Unreachable("its servers have no quorum yet")
        try:
            self._step("sent")
        except Unsure:
            self.log.late.append((data, after))
            raise
        if not self.log.store(data, after):
            raise Overtaken(f"the log does not end at {after}")
        self._step("stored")
        return after + 1

    def read(self, after: int, *, bytes_max: int, timeout_s: float) -> list[Stored]:
        """Entries after a sequence; waits for the first of them."""
        self._step("reading")
        log = self.log
        if self.wait is not None and timeout_s and log.last <= after:
            self.wait(timeout_s)
        with log.changed:
            if self.wait is None and timeout_s:
                log.changed.wait_for(lambda: log.last != after or self._closed, timeout_s)
            self._check(after)
            last = log.last if self.seen is None else min(log.last, max(self.seen, after))
            entries: list[Stored] = []
            size = 0
            for sequence in range(after + 1, last + 1):
                data = log.entries[sequence - log.first]
                if entries and size + len(data) > bytes_max:
                    break
                entries.append(Stored(sequence, data))
                size += len(data)
            return entries

    def held(self, *, timeout_s: float) -> Held:
        """What the log holds now."""
        self._step("reading")
        self._check(self.log.first - 1)
        return Held(self.log.first, self.log.last)

    def entry(self, sequence: int, *, timeout_s: float) -> bytes | None:
        """One entry of the log."""
        self._step("reading")
        self._check(self.log.first - 1)
        if not self.log.first <= sequence <= self.log.last:
            return None
        return self.log.entries[sequence - self.log.first]

    def begun_behind(self, *, timeout_s: float) -> bytes:
        """The hash behind which it was begun."""
        self._step("reading")
        return self.log.behind

    def trim(self, before: int, *, timeout_s: float) -> None:
        """Drop the entries below a sequence."""
        self._step("reading")
        self.log.trim(before)

    def close(self) -> None:
        """Let go."""
        self._closed = True
        with self.log.changed:
            self.log.changed.notify_all()

    def _check(self, after: int) -> None:
        if self._closed:
            raise Unreachable("closed")
        if self.log.is_gone:
            raise Gone("the simulated log is gone")
        if after + 1 < self.log.first or after > self.log.last:
            raise Gone(f"entry {after + 1} is not held: {self.log.first} to {self.log.last} are")

    def _step(self, name: str) -> None:
        if self._closed:
            raise Unreachable("closed")
        if self.hook is not None:
            self.hook(name)
