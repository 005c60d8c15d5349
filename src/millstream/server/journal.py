"""The journal: the log lines of a server, one JSON object per event.

A line begins with its time in UTC, its level and its event, and has the facts of the event, never
payloads, queries or secrets. An exception is logged by its type and place. Its text is left out,
because the text may contain data of a client.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any, TextIO

import msgspec

from millstream.record import moment

ACCESS = "millstream.access"
"""The logger of requests."""

_logger = logging.getLogger("millstream.server")
_NAMES = ("millstream", "uvicorn")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class JsonLines(logging.Formatter):
    """Formats an event as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the time, level, event, logger and facts of an event as JSON."""
        event = record.getMessage()
        if record.name == ACCESS:
            return event  # a line already
        wall_ms = int(record.created * 1000)
        facts: dict[str, Any] = {
            "time": time_text(wall_ms),
            "level": record.levelname.lower(),
            "event": event,
            "logger": record.name,
            "time_ms": wall_ms,
        }
        facts |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info and record.exc_info[0] is not None:
            facts |= {"error": record.exc_info[0].__name__, "where": place(record.exc_info[2])}
        return msgspec.json.encode(facts, enc_hook=str).decode()


def time_text(wall_ms: int) -> str:
    """Return a time of the wall clock as text of RFC 3339, in UTC, to the millisecond."""
    return moment(wall_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def place(trace: TracebackType | None) -> str:
    """Return the file and line that raised an exception."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def note_failure(error: Exception, **facts: Any) -> None:
    """Log a mistake of ours: its type and place, without data of the request."""
    where = place(error.__traceback__)
    facts |= {"error": type(error).__name__, "where": where}
    _logger.error("request_failed", extra=facts)


def write_to(stream: TextIO, *, requests: bool) -> None:
    """Write all log lines of this process to a stream; lines of requests only with `requests`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    for name in _NAMES:
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING)
        logger.propagate = False
    logging.getLogger(ACCESS).setLevel(logging.INFO if requests else logging.WARNING)
