"""A pair without a quorum: a primary that writes alone, and a standby that takes what it wrote.

Both are nodes, and their shared log is kept by the primary itself, in memory. An append is stored at
once, so the primary never waits for its standby. What the standby is given is what the primary has on
its own disk, and never more: a primary that crashes has all that its standby has. What it had not yet
given when it was lost is lost to the standby; `Superseded` says how much that was.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from millstream.cluster.reports import NodeReport
from millstream.cluster.settings import NodeSettings
from millstream.cluster.shared_log import Gone, Held, Overtaken, Stored, Unreachable
from millstream.engine.sqlite.file import sync_folder
from millstream.errors import CannotOpen

KEPT_BYTES = 64 * 1024 * 1024
"""Entries that a primary keeps for its standby; one that is further behind takes a copy."""

PRIMARY_SETTINGS = NodeSettings(silence_s=0.0, jitter_s=0.0, yields_damaged=False)
"""A primary asks no other node whether it may lead, and none takes its place by itself."""

STANDBY_SETTINGS = NodeSettings(silence_s=1e9, jitter_s=0.0)
"""A standby leads when it is promoted, and not before."""

ENTRY_BYTES_MAX = 1024 * 1024


class OwnLog:
    """The shared log of a primary: entries in memory, behind what its store has on disk."""

    entry_bytes_max = ENTRY_BYTES_MAX

    def __init__(self, last: int, *, bytes_max: int = KEPT_BYTES) -> None:
        """`last` is where the store stands."""
        self.place = "the shared log of this server"
        self._entries: deque[bytes] = deque()
        self._first = last + 1
        self._bytes = 0
        self._bytes_max = bytes_max
        self._lock = threading.Lock()

    def append(self, data: bytes, *, after: int, timeout_s: float) -> int:
        """Keep an entry."""
        with self._lock:
            if after != self._last:
                raise Overtaken(f"the log does not end at {after}")
            self._entries.append(data)
            self._bytes += len(data)
            while self._bytes > self._bytes_max:
                self._bytes -= len(self._entries.popleft())
                self._first += 1
            return after + 1

    def read(self, after: int, *, bytes_max: int, timeout_s: float) -> list[Stored]:
        """Entries after a sequence; it does not wait."""
        found: list[Stored] = []
        size = 0
        with self._lock:
            if after + 1 < self._first or after > self._last:
                raise Gone(f"entry {after + 1} is not kept: {self._first} to {self._last} are")
            for sequence in range(after + 1, self._last + 1):
                data = self._entries[sequence - self._first]
                if found and size + len(data) > bytes_max:
                    break
                found.append(Stored(sequence, data))
                size += len(data)
        return found

    def held(self, *, timeout_s: float) -> Held:
        """What it keeps."""
        with self._lock:
            return Held(self._first, self._last)

    def entry(self, sequence: int, *, timeout_s: float) -> bytes | None:
        """One that it keeps."""
        with self._lock:
            if not self._first <= sequence <= self._last:
                return None
            return self._entries[sequence - self._first]

    def begun_behind(self, *, timeout_s: float) -> bytes:
        """It begins behind the store that it is kept by."""
        return b""

    def trim(self, before: int, *, timeout_s: float) -> None:
        """Nothing: it is bounded by itself."""

    def close(self) -> None:
        """Nothing."""

    @property
    def _last(self) -> int:
        return self._first - 1 + len(self._entries)


class EntriesGiven(Struct, frozen=True, array_like=True):
    """What a primary gives its standby: entries that it has on disk, and how it stands itself."""

    primary: NodeReport
    first: int
    """The first entry that it could give."""
    entries: list[tuple[int, bytes]]


class EntriesAsked(Struct, frozen=True, array_like=True):
    """What a standby asks with: how it stands itself, and what it wants."""

    standby: NodeReport
    after: int
    bytes_max: int
    wait_s: float


Ask = Callable[[EntriesAsked], EntriesGiven]
"""Asks the primary; raises `Unreachable`."""


class PrimaryLog:
    """The primary's log as its standby sees it; also what the standby knows of other nodes."""

    entry_bytes_max = ENTRY_BYTES_MAX

    def __init__(self, place: str, name: str, ask: Ask, seconds: Callable[[], float]) -> None:
        """`name` is the standby's own."""
        self.place = place
        self._ask = ask
        self._seconds = seconds
        self._own = NodeReport(name, "", "joining", 0, 0, b"")
        self._primary: tuple[NodeReport, float] | None = None
        self._closed = False

    # The shared log.

    def append(self, data: bytes, *, after: int, timeout_s: float) -> int:
        """A standby writes nothing."""
        raise Unreachable("a standby writes only once it is promoted")

    def read(self, after: int, *, bytes_max: int, timeout_s: float) -> list[Stored]:
        """What the primary has on disk after a sequence."""
        given = self._given(after, bytes_max, timeout_s)
        if after + 1 < given.first or after > given.primary.sequence:
            raise Gone(
                f"the primary keeps entries {given.first} to {given.primary.sequence}, and "
                f"{after + 1} is asked for"
            )
        return [Stored(sequence, data) for sequence, data in given.entries]

    def held(self, *, timeout_s: float) -> Held:
        """What the primary keeps."""
        given = self._given(0, 0, 0.0)
        return Held(given.first, given.primary.sequence)

    def entry(self, sequence: int, *, timeout_s: float) -> bytes | None:
        """One that the primary keeps."""
        found = self._given(sequence - 1, 1, 0.0).entries
        return found[0][1] if found and found[0][0] == sequence else None

    def begun_behind(self, *, timeout_s: float) -> bytes:
        """A primary's log begins behind the primary's own store."""
        return b""

    def trim(self, before: int, *, timeout_s: float) -> None:
        """The primary does that by itself."""

    def close(self) -> None:
        """Ask no more."""
        self._closed = True

    def _given(self, after: int, bytes_max: int, wait_s: float) -> EntriesGiven:
        if self._closed:
            raise Unreachable("closed")
        found = self._ask(EntriesAsked(self._own, after, bytes_max, wait_s))
        self._primary = found.primary, self._seconds()
        return found

    # The bulletin.

    def post(self, report: NodeReport) -> None:
        """Told to the primary with the next question."""
        self._own = report

    def reports(self) -> dict[str, tuple[NodeReport, float]]:
        """The primary, and this node."""
        found = {self._own.node: (self._own, 0.0)}
        if self._primary is not None:
            report, at_s = self._primary
            found[report.node] = report, self._seconds() - at_s
        return found


class Superseded(Struct, frozen=True):
    """A promoted standby's word to the node that was primary before it."""

    node: str
    address: str
    epoch: int
    sequence: int
    """The last entry that it had of the former primary."""


def note_superseded(file: Path, by: Superseded, sequence: int) -> str:
    """Write beside a store that another one took its place; the store itself is left as it is.

    Answers the reason, for people: it says what was not shipped.
    """
    behind = max(0, sequence - by.sequence)
    missing = (
        f"{behind:,} entries after {by.sequence} were not shipped, and are in this file alone"
        if behind
        else "all that it had was shipped"
    )
    reason = f"node {by.node} at {by.address} was promoted in epoch {by.epoch}; {missing}"
    write_mark(mark_of(file), {"reason": reason, "by": by})
    return reason


def write_mark(mark: Path, told: object) -> None:
    """Keep a word on disk for as long as the file is there: the other node is told only once."""
    with open(mark, "wb") as file:
        file.write(msgspec.json.encode(told))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(mark)


def check_not_superseded(file: Path) -> None:
    """Refuse to serve a store in whose place another one was promoted."""
    mark = mark_of(file)
    if not mark.exists():
        return
    told = msgspec.json.decode(mark.read_bytes())
    raise CannotOpen(
        f"{file} is kept aside: {told['reason']}. Read it with `millstream read --store {file}`; "
        f"to follow the new primary, serve another file with --standby-of {told['by']['address']}",
        path=str(file),
    )


def mark_of(file: Path) -> Path:
    """The file beside a store that says that another one took its place."""
    return file.with_name(f"{file.name}.superseded")
