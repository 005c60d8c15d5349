"""The shared log: the order of a cluster's commits, stored by a quorum of servers.

NATS JetStream stores the log. Millstream uses a narrow interface: append if no entry came in
between, read newer entries, drop old entries. An unknown outcome is reported as unknown.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Stored(NamedTuple):
    """An entry of the shared log, with a sequence and bytes."""

    sequence: int
    data: bytes


class Held(NamedTuple):
    """The extent of a shared log: first <= sequence <= last; last + 1 == first if it is empty."""

    first: int
    last: int


class Overtaken(Exception):
    """An append came too late: its sequence belongs to another entry. Nothing was stored."""


class Unsure(Exception):
    """An append was sent, and no answer came: it may be stored, now or a little later, or never."""


class Unreachable(Exception):
    """The shared log did not answer, or has no quorum. An append has then sent nothing."""


class Gone(Exception):
    """The log, or the requested entry, does not exist any more."""


class SharedLog(Protocol):
    """A log of entries with sequences from 1. The methods block, and are safe for all threads."""

    place: str
    """The name of the log in messages."""
    entry_bytes_max: int
    """The largest entry."""

    def append(self, data: bytes, *, after: int, timeout_s: float) -> int:
        """Store an entry if the last sequence is `after`, and return its sequence, `after` + 1.

        It returns when a quorum has the entry on disk. Raises `Overtaken`, `Unsure` or
        `Unreachable`. An append with an `Unsure` outcome can be stored only while the last sequence
        is `after`.
        """

    def read(self, after: int, *, bytes_max: int, timeout_s: float) -> list[Stored]:
        """Return the entries after a sequence, in order and without a hole; wait for the first.

        An empty list means that no entry came in time. A quorum has every returned entry, but the
        newest entries may be missing. Raises `Gone` if the entry `after` + 1 was trimmed, or the
        log is shorter than `after`; and `Unreachable`.
        """

    def held(self, *, timeout_s: float) -> Held:
        """Return the present extent. Raises `Gone` or `Unreachable`."""

    def entry(self, sequence: int, *, timeout_s: float) -> bytes | None:
        """Return an entry as the log's leading server has it; None if the entry does not exist.

        Raises `Gone` or `Unreachable`.
        """

    def begun_behind(self, *, timeout_s: float) -> bytes:
        """Return the hash behind which `cluster repair` or `move` began the log; else b""."""

    def trim(self, before: int, *, timeout_s: float) -> None:
        """Drop the entries below a sequence; entries that are gone already are no error."""

    def close(self) -> None:
        """Close the connection; waiting calls raise `Unreachable`."""
