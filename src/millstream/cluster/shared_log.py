"""The shared log: the one order in which a cluster's commits happen, kept by a quorum of servers.

NATS JetStream keeps it. Millstream sees it through a narrow door: append if nothing came in
between, read what came after, drop what is old. What cannot be known is said to be unknown.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Stored(NamedTuple):
    """An entry as the shared log gives it back: its sequence, and its bytes."""

    sequence: int
    data: bytes


class Held(NamedTuple):
    """What a shared log holds: entries with first <= sequence <= last; last + 1 == first if none."""

    first: int
    last: int


class Overtaken(Exception):
    """An append came too late: another entry has the place. Nothing of it was stored."""


class Unsure(Exception):
    """An append was sent, and no answer came: it may or may not be stored, now or a little later."""


class Unreachable(Exception):
    """The shared log did not answer, or has no quorum. If an append raises it, nothing was sent."""


class Gone(Exception):
    """The log, or the part of it that was asked for, is not there any more."""


class SharedLog(Protocol):
    """One log of entries with sequences from 1. All methods block, and any thread may call them."""

    place: str
    """What it is called in messages."""
    entry_bytes_max: int
    """The largest entry that it takes."""

    def append(self, data: bytes, *, after: int, timeout_s: float) -> int:
        """Store an entry if the last sequence is `after`; returns its sequence, `after` + 1.

        It returns when a quorum has the entry on disk. Raises `Overtaken`, `Unsure` or `Unreachable`.
        An append whose outcome was `Unsure` can be stored only while the last sequence is `after`.
        """

    def read(self, after: int, *, bytes_max: int, timeout_s: float) -> list[Stored]:
        """Entries after a sequence, in order and without a hole; waits for the first of them.

        An empty list means that none came in time. Only what a quorum has is ever read, but the
        newest entries may not be seen yet. Raises `Gone` if the entry `after` + 1 was trimmed, or
        the log is shorter than `after`; and `Unreachable`.
        """

    def held(self, *, timeout_s: float) -> Held:
        """What it holds now; it may have grown meanwhile. Raises `Gone` or `Unreachable`."""

    def entry(self, sequence: int, *, timeout_s: float) -> bytes | None:
        """One entry, as the server that leads the log has it; None if it is not there.

        Raises `Gone` or `Unreachable`.
        """

    def begun_behind(self, *, timeout_s: float) -> bytes:
        """The hash behind which the log was begun, by `cluster repair` or `move`; else nothing."""

    def trim(self, before: int, *, timeout_s: float) -> None:
        """Drop the entries below a sequence; what is dropped already is no error."""

    def close(self) -> None:
        """Let go of the connection; calls that wait raise `Unreachable`."""
