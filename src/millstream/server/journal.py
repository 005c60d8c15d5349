"""The journal: the log lines of a server, one JSON object per event.

A line has an event and its facts, never payloads, queries or secrets. An exception is logged by its
type and place. Its text is left out, because the text may contain data of a client.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any, TextIO

import msgspec

ACCESS = "millstream.access"
"""The logger of requests."""

_logger = logging.getLogger("millstream.server")
_NAMES = ("millstream", "uvicorn")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class JsonLines(logging.Formatter):
    """Formats an event as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the event, its time, its logger and its facts as JSON."""
        event = record.getMessage()
        if record.name == ACCESS:
            return event  # a line already
        facts: dict[str, Any] = {
            "event": event,
            "level": record.levelname.lower(),
            "logger": record.name,
            "time_ms": int(record.created * 1000),
        }
        facts |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info and record.exc_info[0] is not None:
            facts |= {"error": record.exc_info[0].__name__, "where": place(record.exc_info[2])}
        return msgspec.json.encode(facts, enc_hook=str).decode()


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
