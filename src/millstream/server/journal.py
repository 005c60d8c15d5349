"""The journal: the log lines of a server, one JSON object per event.

A line begins with its time in UTC, its level and its event, and has the facts of the event, never
payloads, queries or secrets. An exception is logged by its type and place. Its text is left out,
because the text may contain data of a client.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from types import TracebackType
from typing import Any, TextIO

import msgspec

from millstream.errors import InvalidInput
from millstream.log.model.names import did_you_mean
from millstream.record import moment

ACCESS = "millstream.access"
"""The logger of requests."""

_logger = logging.getLogger("millstream.server")
_NAMES = ("millstream", "uvicorn")
LEVELS = ("debug", "info", "warning", "error")
PARTS = ("server", "cluster", "store", "engine", "rooms", "feed", "jobs", "worker", "cursor")
"""The parts of a server that write log lines: the names of their loggers after `millstream.`."""

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


class TextLines(JsonLines):
    """Formats an event as one line for people: time, level, part, event and facts."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a fact with a space is in quotes."""
        facts = msgspec.json.decode(super().format(record))
        facts.pop("time_ms", None)
        time, level = facts.pop("time", ""), facts.pop("level", "info")
        event, part_name = facts.pop("event", ""), part_of(facts.pop("logger", record.name))
        texts = (f"{name}={_fact_text(value)}" for name, value in facts.items())
        return " ".join([str(time), f"{level:<7}", part_name, _printable(event), *texts])


def part_of(logger: str) -> str:
    """Return the part of the server that a logger belongs to."""
    return logger.removeprefix("millstream.")


def _fact_text(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return _printable(f'"{text}"' if " " in text else text)


def _printable(text: str) -> str:
    """Return a text without control characters, which could deceive the reader of a terminal."""
    return text if text.isprintable() else repr(text)[1:-1]


def levels_of(texts: Iterable[str]) -> dict[str, str]:
    """Return the levels by part, from texts such as `info` and `queue=debug,info`; "" is every part."""
    levels: dict[str, str] = {}
    for text in (each.strip() for entry in texts for each in entry.split(",")):
        part_name, _, level = text.rpartition("=")
        if level not in LEVELS:
            raise InvalidInput(
                f"a level of log lines is {', '.join(LEVELS)}, or PART=LEVEL, not {text!r:.100}"
            )
        if part_name and part_name not in PARTS:
            raise InvalidInput(
                f"log lines have no part {part_name!r}{did_you_mean(part_name, PARTS)}"
            )
        levels[part_name] = level
    return levels


def write_to(
    stream: TextIO, *, requests: bool, form: str = "json", levels: Iterable[str] = ()
) -> None:
    """Write all log lines of this process to a stream; lines of requests only with `requests`.

    `form` is `text`, `json`, or `auto`: text for a terminal. `levels` are read by `levels_of`; without
    them, warnings and errors are written.
    """
    is_text = form == "text" or (form == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextLines() if is_text else JsonLines())
    by_part = levels_of(levels)
    for name in _NAMES:
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(by_part.get("", "warning").upper())
        logger.propagate = False
    for part_name in PARTS:
        level = by_part.get(part_name)
        logging.getLogger(f"millstream.{part_name}").setLevel(
            level.upper() if level else logging.NOTSET
        )
    logging.getLogger(ACCESS).setLevel(logging.INFO if requests else logging.WARNING)
