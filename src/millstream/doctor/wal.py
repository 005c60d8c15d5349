"""The write-ahead log, examined: SQLite silently ignores all that lies behind damage in it."""

from __future__ import annotations

from pathlib import Path

from millstream.doctor.findings import Findings
from millstream.store.sqlite_file import PAGE_BYTES
from millstream.store.sqlite_wal import find_break


def check_wal(path: Path, findings: Findings, *, sound_frames: int) -> None:
    """Report commits that SQLite no longer sees because the log is damaged before them.

    Behind the frames that SQLite has found in order, that is.
    """
    found = find_break(path, page_bytes=PAGE_BYTES, sound_frames=sound_frames)
    if found is not None:
        findings.add("file", str(found))
