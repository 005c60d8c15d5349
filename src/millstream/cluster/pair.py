"""A pair without a quorum: a primary that writes alone, and a standby that copies its entries.

Both are nodes, and the primary keeps the shared log in memory. An append is stored at once, so the
primary never waits for its standby. The standby receives only entries on the primary's disk: after
a crash the primary is never behind the standby. Entries that a lost primary had not yet sent are
lost to the standby; `Superseded` tells how many.
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
from millstream.engine.disk import sync_folder
from millstream.errors import CannotOpen

KEPT_BYTES = 64 * 1024 * 1024
"""Entries in a primary's memory; a standby that is further behind takes a copy."""

PRIMARY_SETTINGS = NodeSettings(silence_s=0.0, jitter_s=0.0, yields_damaged=False)
"""A primary leads without asking other nodes, and no node replaces it by itself."""

STANDBY_SETTINGS = NodeSettings(silence_s=1e9, jitter_s=0.0)
"""A standby leads only after a promotion."""

ENTRY_BYTES_MAX = 1024 * 1024


class OwnLog:
    """The shared log of a primary: entries in memory, behind the position of its store."""

    entry_bytes_max = ENTRY_BYTES_MAX

    def __init__(self, last: int, *, bytes_max: int = KEPT_BYTES) -> None:
        """`last` is the sequence of the store."""
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
        """Return the entries after a sequence, without waiting."""
        stored: list[Stored] = []
        size = 0
        with self._lock:
            if after + 1 < self._first or after > self._last:
                raise Gone(f"entry {after + 1} is not kept: {self._first} to {self._last} are")
            for sequence in range(after + 1, self._last + 1):
                data = self._entries[sequence - self._first]
                if stored and size + len(data) > bytes_max:
                    break
                stored.append(Stored(sequence, data))
                size += len(data)
        return stored

    def held(self, *, timeout_s: float) -> Held:
        """Return the extent of the kept entries."""
        with self._lock:
            return Held(self._first, self._last)

    def entry(self, sequence: int, *, timeout_s: float) -> bytes | None:
        """Return a kept entry."""
        with self._lock:
            if not self._first <= sequence <= self._last:
                return None
            return self._entries[sequence - self._first]

    def begun_behind(self, *, timeout_s: float) -> bytes:
        """Return b"": the log begins behind its own store."""
        return b""

    def trim(self, before: int, *, timeout_s: float) -> None:
        """Do nothing: the log limits its own size."""

    def close(self) -> None:
        """Do nothing."""

    @property
    def _last(self) -> int:
        return self._first - 1 + len(self._entries)


class EntriesGiven(Struct, frozen=True, array_like=True):
    """The answer of a primary: a report, and entries on the primary's disk."""

    primary: NodeReport
    first: int
    """The first entry that the primary keeps."""
    entries: list[tuple[int, bytes]]


class EntriesAsked(Struct, frozen=True, array_like=True):
    """The request of a standby: a report, and the range of missing entries."""

    standby: NodeReport
    after: int
    bytes_max: int
    wait_s: float


Ask = Callable[[EntriesAsked], EntriesGiven]
"""Sends a request to the primary. Raises `Unreachable`."""


class PrimaryLog:
    """The primary's log as its standby sees it, and the reports of both nodes."""

    entry_bytes_max = ENTRY_BYTES_MAX

    def __init__(self, place: str, name: str, ask: Ask, seconds: Callable[[], float]) -> None:
        """`name` is the standby's name."""
        self.place = place
        self._ask = ask
        self._seconds = seconds
        self._report = NodeReport(
            node=name, address="", role="joining", epoch=0, sequence=0, hash=b""
        )
        self._primary: tuple[NodeReport, float] | None = None
        self._closed = False

    # The shared log.

    def append(self, data: bytes, *, after: int, timeout_s: float) -> int:
        """Refuse: a standby writes nothing."""
        raise Unreachable("a standby writes only once it is promoted")

    def read(self, after: int, *, bytes_max: int, timeout_s: float) -> list[Stored]:
        """Return entries after a sequence that the primary has on disk."""
        answer = self._given(after, bytes_max, timeout_s)
        if after + 1 < answer.first or after > answer.primary.sequence:
            raise Gone(
                f"the primary keeps entries {answer.first} to {answer.primary.sequence}, and "
                f"{after + 1} is asked for"
            )
        return [Stored(sequence, data) for sequence, data in answer.entries]

    def held(self, *, timeout_s: float) -> Held:
        """Return the extent of the primary's log."""
        answer = self._given(0, 0, 0.0)
        return Held(answer.first, answer.primary.sequence)

    def entry(self, sequence: int, *, timeout_s: float) -> bytes | None:
        """Return an entry that the primary keeps."""
        stored = self._given(sequence - 1, 1, 0.0).entries
        return stored[0][1] if stored and stored[0][0] == sequence else None

    def begun_behind(self, *, timeout_s: float) -> bytes:
        """Return b"": the log begins behind the primary's own store."""
        return b""

    def trim(self, before: int, *, timeout_s: float) -> None:
        """Do nothing: the primary limits its log."""

    def close(self) -> None:
        """Stop asking."""
        self._closed = True

    def _given(self, after: int, bytes_max: int, wait_s: float) -> EntriesGiven:
        if self._closed:
            raise Unreachable("closed")
        answer = self._ask(EntriesAsked(self._report, after, bytes_max, wait_s))
        self._primary = answer.primary, self._seconds()
        return answer

    # The reports.

    def post(self, report: NodeReport) -> None:
        """Keep a report, for the next request to the primary."""
        self._report = report

    def reports(self) -> dict[str, tuple[NodeReport, float]]:
        """Return the reports of the primary and of this node."""
        reports = {self._report.node: (self._report, 0.0)}
        if self._primary is not None:
            report, at_s = self._primary
            reports[report.node] = report, self._seconds() - at_s
        return reports


class Superseded(Struct, frozen=True):
    """The message of a promoted standby to the former primary."""

    node: str
    address: str
    epoch: int
    sequence: int
    """The last entry of the former primary that the standby had."""


def note_superseded(file: Path, by: Superseded, sequence: int) -> str:
    """Write a mark beside a store that another store has replaced; the store itself is not changed.

    Returns the reason, for people: it tells how many entries were not shipped.
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


def write_mark(mark: Path, contents: object) -> None:
    """Write a mark durably: the message of the promoted node comes only once."""
    with open(mark, "wb") as file:
        file.write(msgspec.json.encode(contents))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(mark)


def check_not_superseded(file: Path) -> None:
    """Refuse to serve a store that a promoted store has replaced."""
    mark = mark_of(file)
    if not mark.exists():
        return
    contents = msgspec.json.decode(mark.read_bytes())
    raise CannotOpen(
        f"{file} is kept aside: {contents['reason']}. Read it with `millstream read --store {file}`; "
        f"to follow the new primary, serve another file with --standby-of {contents['by']['address']}",
        path=str(file),
    )


def mark_of(file: Path) -> Path:
    """Return the path of the mark beside a replaced store."""
    return file.with_name(f"{file.name}.superseded")
