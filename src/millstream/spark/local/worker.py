"""The Python process that Spark runs our code in, and runs it in again for the next task."""

from __future__ import annotations

import gc
import sys
import traceback
from types import ModuleType, SimpleNamespace

_DAEMON = "pyspark.daemon"
"""What such a process was started as; it does one task after the other."""

_modules_spared = 0


def settle() -> None:
    """Make a worker of Spark fit for many tasks; called when a task has imported what it needs.

    Spark collects garbage after every task, and among all those modules that takes longer than a
    small task: they are taken out of it, again whenever there are more of them.
    """
    global _modules_spared
    if len(sys.modules) == _modules_spared or _daemon() is None:
        return
    _modules_spared = len(sys.modules)
    leave_quietly()
    gc.collect()
    gc.freeze()


def leave_quietly() -> None:
    """Let a worker that Spark wants nothing more of end without a traceback.

    Over a Unix socket it would print one, because it cannot answer any more: when the session ends,
    and whenever Spark has taken only the first rows of a task.
    """
    main = _daemon()
    if main is not None:
        told = SimpleNamespace(print_exc=_print_unless_gone, format_exc=traceback.format_exc)
        main.traceback = told  # type: ignore[attr-defined]


def _print_unless_gone() -> None:
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        traceback.print_exc()


def _daemon() -> ModuleType | None:
    """The module that this process was started as, if it is one of Spark's workers."""
    main = sys.modules["__main__"]
    return main if getattr(main.__spec__, "name", "") == _DAEMON else None
