"""Log lines of a worker: for people in a terminal, as JSON otherwise.

    09:30:12 done     shop.tasks:send_mail  jobs-17      waited 2 ms  ran 31 ms
    {"time":"2026-11-18T09:30:12.120Z","level":"info","event":"job_done","task":"shop.tasks:send_mail",…}

A line is written by a single call, so that lines of several processes do not mix.
"""

from __future__ import annotations

import logging
import os
import traceback
from typing import Any

import msgspec

from millstream.clock import Clock
from millstream.jobs.reports import JobFinished
from millstream.record import moment

_LEVELS = {"done": "info", "cancelled": "info", "failed": "error"}
_COLOURS = {"info": "32", "warning": "33"}


class EventWriter(logging.Handler):
    """Writes log lines to a file descriptor. Loggers use it as a handler, too."""

    def __init__(self, clock: Clock, *, is_json: bool, has_colour: bool, output: int = 2) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._is_json = is_json
        self._has_colour = has_colour
        self._output = output

    def job(self, job: JobFinished, waited_s: float, *, process: int) -> None:
        """Write the line of an attempt that has ended."""
        level = _LEVELS.get(job.outcome, "warning")
        if self._is_json:
            reason = {"reason": job.reason} if job.reason else {}
            self._write_json(
                level,
                f"job_{job.outcome}".replace("job_unknown_task", "unknown_task"),
                {
                    "task": job.task,
                    "job": job.id,
                    "attempt": job.attempt,
                    "waited_ms": round(waited_s * 1000, 1),
                    "ran_ms": round(job.run_s * 1000, 1),
                    "process": process,
                    **reason,
                },
            )
            return
        attempt = "" if job.attempt == 1 else f"  attempt {job.attempt}"
        reason_text = f"  {job.reason.splitlines()[0]}" if job.reason else ""
        self._write_text(
            level,
            job.outcome.replace("_", " "),
            f"{job.task}  {job.id}  waited {shown_s(waited_s)}  ran {shown_s(job.run_s)}"
            f"{attempt}{reason_text}",
        )

    def event(self, level: str, event: str, text: str, facts: dict[str, Any]) -> None:
        """Write the line of another event."""
        if self._is_json:
            self._write_json(level, event, {"text": text, **facts})
        else:
            self._write_text(level, "error" if level == "error" else "worker", text)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line of a logger."""
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + "".join(traceback.format_exception(record.exc_info[1])).rstrip()
        self.event(record.levelname.lower(), "log", text, {"logger": record.name})

    def _write_json(self, level: str, event: str, facts: dict[str, Any]) -> None:
        time = moment(self._clock.wall_ms()).isoformat(timespec="milliseconds")
        line = {"time": time.replace("+00:00", "Z"), "level": level, "event": event, **facts}
        self._write(msgspec.json.encode(line))

    def _write_text(self, level: str, word: str, text: str) -> None:
        time = moment(self._clock.wall_ms()).astimezone().strftime("%H:%M:%S")
        head = f"{word:<9}"
        if self._has_colour:
            head = f"\x1b[{_COLOURS.get(level, '31')}m{head}\x1b[0m"
        self._write(f"{time} {head} {text}".encode("utf-8", "backslashreplace"))

    def _write(self, line: bytes) -> None:
        try:
            os.write(self._output, line + b"\n")
        except OSError:
            pass  # the reader of the log has gone: jobs go on


def shown_s(seconds: float) -> str:
    """Return a duration for people: 2 ms, 1.25 s, 4 min 10 s."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, whole_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole_s} s"
