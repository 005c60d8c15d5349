"""The Python process that Spark runs our code in, and runs it in again for the next task."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

_DAEMON = "pyspark.daemon"
"""What such a process was started as; its `worker` does one task, and is called for each."""

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
    """Let a worker that Spark has no more work for end without a traceback.

    Over a Unix socket it would print one, because it cannot answer any more.
    """
    main = _daemon()
    if main is None or hasattr(main.worker, "__wrapped__"):
        return

    @wraps(main.worker)
    def quiet(*given: Any, worker: Callable[..., int] = main.worker) -> int:
        try:
            return worker(*given)
        except BrokenPipeError:
            return 1

    main.worker = quiet  # type: ignore[attr-defined]


def _daemon() -> ModuleType | None:
    """The module that this process was started as, if it is one of Spark's workers."""
    main = sys.modules["__main__"]
    return main if getattr(main.__spec__, "name", "") == _DAEMON else None
