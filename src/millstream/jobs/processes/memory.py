"""The memory of this process."""

from __future__ import annotations

import os
import resource
import sys


def resident_bytes() -> int:
    """Return the resident memory of this process; where only the peak is known, the peak."""
    try:
        with open("/proc/self/statm", "rb") as facts:
            return int(facts.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
