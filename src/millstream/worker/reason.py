"""Reasons: the stored text about an error that ended an attempt; pure.

The first line tells what happened. For an error that the handler did not raise on purpose, the
following lines tell where: the frames of the traceback, innermost last, without the worker's own
frames. Of too many frames, the outermost are dropped.
"""

from __future__ import annotations

import os
import traceback
from types import TracebackType

from millstream.queue.model.message import Reject, Retry
from millstream.queue.rules.endings import REASON_CHARS_MAX

TEXT_CHARS_MAX = 500
"""Characters of an error's own text; the remaining space is for the traceback."""

_OWN = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
"""The folder of this package: its first frames are the worker, which called the handler."""


def reason_of(error: BaseException) -> str:
    """Return the stored text of an error: kind, text and traceback, or the handler's reason."""
    try:
        text = str(error.reason if isinstance(error, Reject | Retry) else error)
    except Exception:  # raised by an error class of the handler
        text = ""
    if isinstance(error, Reject | Retry):
        return _storable(text[:TEXT_CHARS_MAX])
    kind = type(error).__name__
    summary = _storable((f"{kind}: {text}" if text else kind)[:TEXT_CHARS_MAX])
    return "\n".join(
        [summary, *_fitting(_frames(error.__traceback__), REASON_CHARS_MAX - len(summary))]
    )


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _frames(trace: TracebackType | None) -> list[str]:
    """Return the frames of a traceback in Python's format, without source lines."""
    places = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(trace)
    ]
    while places and places[0][0].startswith(_OWN):
        del places[0]
    return [_storable(f'  File "{file}", line {line}, in {name}') for file, line, name in places]


def _fitting(lines: list[str], chars_max: int) -> list[str]:
    """Return the last lines that fit, counting their line breaks."""
    fitting: list[str] = []
    for line in reversed(lines):
        chars_max -= len(line) + 1
        if chars_max < 0:
            break
        fitting.append(line)
    return fitting[::-1]
