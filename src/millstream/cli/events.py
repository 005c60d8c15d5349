"""Events of commands that run for long: lines on standard error, each with its time and its level.

2026-11-18T05:15:13.120Z warning queue=mail claim=17:1 attempt failed: no such address
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from millstream.cli.display import note
from millstream.clock import SystemClock
from millstream.record import moment


def report_event(text: str, level: Literal["info", "warning", "error"] = "info") -> None:
    """Print a line about the work of a command: its time in UTC, its level, and the text."""
    note(_line(SystemClock().wall_ms(), level, text))


class EventLines(logging.Formatter):
    """Formats log lines of the library as `report_event` writes its lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback of an exception below it."""
        text = super().format(record)
        return _line(int(record.created * 1000), record.levelname.lower(), text)


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Write warnings and errors of the library to standard error while the block runs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EventLines())
    logger = logging.getLogger("millstream")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _line(wall_ms: int, level: str, text: str) -> str:
    time = moment(wall_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f"{time} {level} {text}"
