"""A Python worker of Spark: a process that runs task after task."""

from __future__ import annotations

import gc
import sys
import traceback
from types import ModuleType, SimpleNamespace

_DAEMON = "pyspark.daemon"
"""The module that Spark starts a worker as."""

_modules_spared = 0


def settle() -> None:
    """Exempt all imported modules from garbage collection; call it after the imports of a task.

    Spark collects garbage after each task, and the modules of pyspark, pyarrow and Millstream make
    a collection take longer than a small task. Modules that are imported later are exempted by the
    next call.
    """
    global _modules_spared
    if len(sys.modules) == _modules_spared or _daemon() is None:
        return
    _modules_spared = len(sys.modules)
    leave_quietly()
    gc.collect()
    gc.freeze()


def leave_quietly() -> None:
    """Let a worker end without a traceback if Spark has closed the connection.

    Over a Unix socket a worker fails to answer, and prints a traceback, whenever the session ends
    or Spark takes only the first rows of a task.
    """
    main = _daemon()
    if main is not None:
        quiet_traceback = SimpleNamespace(
            print_exc=_print_unless_gone, format_exc=traceback.format_exc
        )
        main.traceback = quiet_traceback  # type: ignore[attr-defined]


def _print_unless_gone() -> None:
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        traceback.print_exc()


def _daemon() -> ModuleType | None:
    """Return the main module if this process is a worker of Spark, else None."""
    main = sys.modules["__main__"]
    return main if getattr(main.__spec__, "name", "") == _DAEMON else None
