"""The Python process that Spark runs our code in, and runs it in again for the next task."""

from __future__ import annotations

import gc
import sys

_DAEMON = "pyspark.daemon"
_settled = False


def settle() -> None:
    """Take what this process has imported out of garbage collection, if it is one of Spark's workers.

    Spark collects garbage after every task; among all those modules that took longer than a small task.
    """
    global _settled
    main = sys.modules.get("__main__")
    if _settled or getattr(getattr(main, "__spec__", None), "name", "") != _DAEMON:
        return
    _settled = True
    gc.collect()
    gc.freeze()
