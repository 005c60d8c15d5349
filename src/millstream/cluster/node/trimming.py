"""Trimming: the shared log forgets what a majority of the stores has, so that it stays small.

Every entry that goes was applied and synced by a majority of the nodes. Below `URGENT_BYTES` it is
also one that every node that was heard of has, so that none needs a snapshot for being slow.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from millstream.cluster.reports import Bulletin, NodeReport
from millstream.cluster.shared_log import Gone, Held, Unreachable

_logger = logging.getLogger("millstream.cluster")

TRIM_BYTES = 64 << 20
"""The leader trims from here on, to half of it."""
URGENT_BYTES = 160 << 20
"""From here on any node trims, and slow nodes are not waited for."""
LOOK_S = 1.0
TIMEOUT_S = 5.0
HEARD_S = 10.0
"""A node whose last report is older is not waited for."""


class Sized(Protocol):
    """How large a shared log is."""

    @property
    def bytes(self) -> int:
        """What its entries take."""

    @property
    def held(self) -> Held:
        """Which entries it holds."""


class SizedLog(Protocol):
    """A shared log that knows its size."""

    def span(self, *, timeout_s: float) -> Sized:
        """What it holds."""

    def trim(self, before: int, *, timeout_s: float) -> None:
        """Drop the entries below a sequence."""


def trim_before(
    span: Sized,
    reports: Mapping[str, tuple[NodeReport, float]],
    *,
    members: int,
    leads: bool,
) -> int:
    """The first entry that stays; 0 if nothing is to be dropped now."""
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
    """Whether two nodes say something else of the same entry: then everything stays as evidence."""
    seen: dict[int, bytes] = {}
    return any(seen.setdefault(one.sequence, one.hash) != one.hash for one in reports)


class Trimmer:
    """A thread that looks now and then whether the shared log is too large."""

    def __init__(
        self, log: SizedLog, bulletin: Bulletin, *, members: int, leads: Callable[[], bool]
    ) -> None:
        """Nothing runs yet."""
        self.trims = 0
        """How often something was dropped."""
        self._log, self._bulletin = log, bulletin
        self._members, self._leads = members, leads
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millstream-trimmer", daemon=True)

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; close the shared log first, so that it waits for nothing."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Drop what may go now."""
        span = self._log.span(timeout_s=TIMEOUT_S)
        before = trim_before(
            span, self._bulletin.reports(), members=self._members, leads=self._leads()
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
                pass  # the node says so itself, and with the reason
