"""Trimming: the shared log drops entries that a majority of the stores has, and stays small.

A majority of the nodes has applied and synced every dropped entry. Below `URGENT_BYTES`, every node
that reports has the entry too, so that a slow node needs no snapshot.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from millstream.cluster.reports import NodeReport, ReportChannel
from millstream.cluster.shared_log import Gone, Held, Unreachable

_logger = logging.getLogger("millstream.cluster")

TRIM_BYTES = 64 << 20
"""The leader trims a log of this size to half of it."""
URGENT_BYTES = 160 << 20
"""From this size on any node trims, and slow nodes are not waited for."""
LOOK_S = 1.0
TIMEOUT_S = 5.0
HEARD_S = 10.0
"""A node with an older report is not waited for."""


class Sized(Protocol):
    """The size and the extent of a shared log."""

    @property
    def bytes(self) -> int:
        """Bytes of the log's entries."""

    @property
    def held(self) -> Held:
        """The extent of the log."""


class SizedLog(Protocol):
    """A shared log with a known size."""

    def span(self, *, timeout_s: float) -> Sized:
        """Return its size and extent."""

    def trim(self, before: int, *, timeout_s: float) -> None:
        """Drop the entries below a sequence."""


def trim_before(
    span: Sized,
    reports: Mapping[str, tuple[NodeReport, float]],
    *,
    members: int,
    leads: bool,
) -> int:
    """Return the first entry to keep; 0 if nothing should be dropped now."""
    is_urgent = span.bytes >= URGENT_BYTES
    if not is_urgent and not (leads and span.bytes >= TRIM_BYTES):
        return 0
    sound = [report for report, _ in reports.values() if report.role != "halted"]
    verified = sorted((report.sequence for report in sound), reverse=True)
    majority = members // 2 + 1
    if len(verified) < majority or _differ(sound):
        return 0
    before = verified[majority - 1]
    if not is_urgent:
        waited_for = [report.sequence for report, age_s in reports.values() if age_s < HEARD_S]
        before = min(before, *waited_for)
    first, last = span.held
    half = first + int((last - first) * (1 - TRIM_BYTES / 2 / span.bytes))
    before = min(before, half)
    return before if before > first else 0


def _differ(reports: list[NodeReport]) -> bool:
    """Whether two nodes report different hashes of an entry. The log is then kept as evidence."""
    hashes: dict[int, bytes] = {}
    return any(hashes.setdefault(report.sequence, report.hash) != report.hash for report in reports)


class Trimmer:
    """A thread that checks at intervals whether the shared log is too large."""

    def __init__(
        self, log: SizedLog, channel: ReportChannel, *, members: int, leads: Callable[[], bool]
    ) -> None:
        """Prepare; `start` begins."""
        self.trims = 0
        """How often entries were dropped."""
        self._log, self._channel = log, channel
        self._members, self._leads = members, leads
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millstream-trimmer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Close the shared log first, so that no call waits."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Drop the entries that nobody needs."""
        span = self._log.span(timeout_s=TIMEOUT_S)
        before = trim_before(
            span, self._channel.reports(), members=self._members, leads=self._leads()
        )
        if before:
            self._log.trim(before, timeout_s=TIMEOUT_S)
            self.trims += 1
            _logger.info("shared_log_trimmed", extra={"before": before, "bytes": span.bytes})

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self.look()
            except (Gone, Unreachable):
                pass  # the node reports the reason itself
