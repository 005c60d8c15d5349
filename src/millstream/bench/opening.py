"""How long a large store takes to open, after a kill and after a clean close.

The store is filled by one child process and opened by others, so that nothing is warm but the
operating system's cache of the file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

import millstream
from millstream.bench.measure import PAYLOAD_BYTES, ReportRow, memory_mib, seconds
from millstream.embedded.rules import operation
from millstream.embedded.session import open_file
from millstream.format.packing import pack_single
from millstream.limits import Limits
from millstream.log.commands import Append

APPENDS = 1_000_000
GROUP = 1_000
OPENED_KILLED_MS_MAX = 500
OPENED_CLOSED_MS_MAX = 100
MEMORY_MIB_MAX = 50


class Opened(msgspec.Struct):
    """The report of a child process that opened a store."""

    ms: float
    memory_mib: float
    end: int
    unfolded: int


def measure(directory: Path) -> ReportRow:
    """Fill, kill, open; then close cleanly, and open again."""
    large, empty = directory / "large.db", directory / "empty.db"
    millstream.open(empty).close()
    filled = _child("fill", large)
    if filled.returncode != -signal.SIGKILL:
        raise RuntimeError(f"filling failed: {filled.stderr.decode()}")
    nothing = _opened(empty)
    killed = _opened(large)
    millstream.open(large).close()
    closed = _opened(large)
    growth = max(killed.memory_mib, closed.memory_mib) - nothing.memory_mib
    if killed.end < APPENDS:
        raise RuntimeError(f"{APPENDS} appended, {killed.end} found")
    row = ReportRow(
        payload_bytes=PAYLOAD_BYTES,
        details={
            "killed_ms": killed.ms,
            "closed_ms": closed.ms,
            "empty_ms": nothing.ms,
            "memory_growth_mib": round(growth, 1),
            "unfolded_commits": killed.unfolded,
        },
    )
    row.require(f"killed < {OPENED_KILLED_MS_MAX} ms", killed.ms < OPENED_KILLED_MS_MAX)
    row.require(f"closed < {OPENED_CLOSED_MS_MAX} ms", closed.ms < OPENED_CLOSED_MS_MAX)
    return row.require(f"memory < {MEMORY_MIB_MAX} MiB", growth < MEMORY_MIB_MAX)


def _child(task: str, path: Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "millstream.bench.opening", task, str(path)]
    return subprocess.run(command, capture_output=True, check=False)


def _opened(path: Path) -> Opened:
    """The best of three: the first also reads the interpreter's own files."""
    openings = []
    for _ in range(3):
        done = _child("open", path)
        if done.returncode != 0:
            raise RuntimeError(f"opening failed: {done.stderr.decode()}")
        openings.append(msgspec.json.decode(done.stdout, type=Opened))
    return min(openings, key=lambda opening: opening.ms)


def _fill(path: Path) -> None:
    """A million single appends, most of them folded; the tail as long as is permitted; a kill."""
    limits = Limits()
    store = open_file(path, durability="relaxed")
    record = pack_single(
        os.urandom(PAYLOAD_BYTES), key=None, headers=None, timestamp=None, limits=limits
    )
    append = operation(Append("log", record))
    for _ in range(APPENDS // GROUP):
        store.run(lambda tx: [append(tx) for _ in range(GROUP)])
    store.close()
    lazy = Limits(fold_deltas_min=10**9, fold_bytes_min=10**12)
    store = open_file(path, durability="relaxed", limits=lazy)
    for _ in range(limits.tail_deltas_max - 1):
        store.run(append)
    os.kill(os.getpid(), signal.SIGKILL)


def _open(path: Path) -> Opened:
    began = seconds()
    ms = millstream.open(path)
    end = ms.log("log").end_offset()
    took_ms = (seconds() - began) * 1000
    stats = ms.stats()
    return Opened(round(took_ms, 1), memory_mib(), end, stats["unfolded_commits"])


if __name__ == "__main__":
    if sys.argv[1] == "fill":
        _fill(Path(sys.argv[2]))
    else:
        sys.stdout.buffer.write(msgspec.json.encode(_open(Path(sys.argv[2]))))
