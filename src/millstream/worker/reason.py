"""Reasons: what is kept of an error that ended an attempt; pure.

The first line says what happened. If it was an error, and no decision of the handler, the lines
behind it say where: the frames of the traceback, the innermost last, without the worker's own. If
they are too many, the outermost are left out.
"""

from __future__ import annotations

import os
import traceback
from types import TracebackType

from millstream.queue.model.message import Reject, Retry
from millstream.queue.rules.endings import REASON_CHARS_MAX

TEXT_CHARS_MAX = 500
"""Of an error's own text, so much is kept; the rest is for where it happened."""

_OWN = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
"""Where this package lies: its first frames are the worker, which called the handler."""


def reason_of(error: BaseException) -> str:
    """What is kept of an error: its kind, text and traceback, or the reason that a handler gave."""
    try:
        text = str(error.reason if isinstance(error, Reject | Retry) else error)
    except Exception:  # of a handler's own class of errors
        text = ""
    if isinstance(error, Reject | Retry):
        return _storable(text[:TEXT_CHARS_MAX])
    kind = type(error).__name__
    told = _storable((f"{kind}: {text}" if text else kind)[:TEXT_CHARS_MAX])
    return "\n".join([told, *_fitting(_frames(error.__traceback__), REASON_CHARS_MAX - len(told))])


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _frames(trace: TracebackType | None) -> list[str]:
    """Where the handler was, as Python tells it, without the lines of its source."""
    places = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(trace)
    ]
    while places and places[0][0].startswith(_OWN):
        del places[0]
    return [_storable(f'  File "{file}", line {line}, in {name}') for file, line, name in places]


def _fitting(lines: list[str], chars_max: int) -> list[str]:
    """The last lines that fit, each with its line break."""
    kept: list[str] = []
    for line in reversed(lines):
        chars_max -= len(line) + 1
        if chars_max < 0:
            break
        kept.append(line)
    return kept[::-1]
