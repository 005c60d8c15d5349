"""Findings of an examination: problems with their losses, and the report.

A problem is *damage* if stored data is gone or cannot be trusted, and *waste* if no record refers to
the bytes. Only damage makes a store unhealthy.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

Severity = Literal["damage", "waste"]

PROBLEMS_MAX = 1_000
"""Problems that a report lists; further problems are only counted."""


class Finding(Struct, frozen=True, kw_only=True):
    """A problem of a store."""

    kind: str
    """The kind of the damaged object: file, row, commit, name, log, cursor, payload, queue, room, counter."""
    message: str
    severity: Severity = "damage"
    log: str | None = None
    lost: tuple[int, int] | None = None
    """The offsets that cannot be read any more, half-open."""


class Report(Struct, kw_only=True):
    """What an examination has seen and found."""

    path: str
    healthy: bool = True
    complete: bool = True
    """True if the whole file was readable; losses are counted only in this case."""
    format: int = 0
    page_checksums: bool = False
    """Whether every page has a checksum, and it was compared."""
    sqlite: str = "ok"
    rows: dict[str, int] = {}
    """Rows whose checksum was computed, by table."""
    bytes: int = 0
    commits_unfolded: int = 0
    logs: int = 0
    records: int = 0
    cursors: int = 0
    producers: int = 0
    queues: int = 0
    messages: int = 0
    """What queues hold: available, in flight and failed."""
    rooms: int = 0
    payloads_lost: int = 0
    payloads_missing: int = 0
    """Payloads of messages that a queue holds, also below the start of the log."""
    payloads_unreachable: int = 0
    records_lost: int = 0
    problems: list[Finding] = []
    problems_left_off: int = 0


class Findings:
    """Gathers problems, and joins neighbouring losses with the same cause."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self._open: Finding | None = None

    def add(self, kind: str, message: str, **facts: Any) -> None:
        """Note a problem: `severity`, `log` and `lost` are its facts."""
        self._settle()
        self._list(Finding(kind=kind, message=message, **facts))

    def of_log(self, log: str, message: str) -> None:
        """Note that something is wrong with a log."""
        self.add("log", message, log=log)

    def lose(self, kind: str, why: str, *, log: str, start: int, stop: int) -> None:
        """Note that the records in [start, stop) of a log cannot be read."""
        self.report.records_lost += stop - start
        before = self._open
        if before is not None and before.lost is not None:
            is_same_cause = (before.kind, before.message, before.log) == (kind, why, log)
            if is_same_cause and before.lost[1] == start:
                self._open = replace(before, lost=(before.lost[0], stop))
                return
        self._settle()
        self._open = Finding(kind=kind, message=why, log=log, lost=(start, stop))

    def finish(self) -> Report:
        """The report, complete."""
        self._settle()
        return self.report

    def _settle(self) -> None:
        if self._open is not None:
            problem, self._open = self._open, None
            self._list(problem)

    def _list(self, problem: Finding) -> None:
        report = self.report
        if problem.severity == "damage":
            report.healthy = False
        if len(report.problems) < PROBLEMS_MAX:
            report.problems.append(problem)
        else:
            report.problems_left_off += 1
