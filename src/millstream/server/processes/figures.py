"""Figures that the processes of a group share: a file in memory with one row per process.

Each process writes its own row about once per second, and reads all rows. A figure is an aligned
number of eight bytes, so a reader never sees half of a write. A process that was restarted starts its
row again.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Sequence

from msgspec import Struct

from millstream.server.observe.meter import SECONDS

_COUNTS = len(SECONDS) + 1
_ROW = struct.Struct(f"={3 + _COUNTS}q")


class ProcessFigures(Struct, frozen=True, kw_only=True):
    """The figures of one process."""

    port: int = 0
    """The port on loopback where the process answers its siblings; 0 before it serves."""
    beat_ms: int = 0
    """When the process wrote these figures, in milliseconds since the boot."""
    connections: int = 0
    """The number of open connections."""
    commits: tuple[int, ...] = (0,) * _COUNTS
    """How many commits took at most each bound of `SECONDS`, and how many there were."""


class SharedFigures:
    """The rows of all processes of a group."""

    def __init__(self, descriptor: int, count: int) -> None:
        self.count = count
        self._map = mmap.mmap(descriptor, count * _ROW.size)

    def write(self, number: int, figures: ProcessFigures) -> None:
        """Replace the row of a process; processes count from 1."""
        row = (figures.port, figures.beat_ms, figures.connections, *figures.commits)
        _ROW.pack_into(self._map, (number - 1) * _ROW.size, *row)

    def clear(self, number: int) -> None:
        """Clear the row of a process that has ended."""
        self.write(number, ProcessFigures())

    def read(self, number: int) -> ProcessFigures:
        """Return the row of a process."""
        port, beat_ms, connections, *commits = _ROW.unpack_from(self._map, (number - 1) * _ROW.size)
        return ProcessFigures(
            port=port, beat_ms=beat_ms, connections=connections, commits=tuple(commits)
        )

    def all(self) -> list[ProcessFigures]:
        """Return the rows of all processes."""
        return [self.read(number) for number in range(1, self.count + 1)]

    def close(self) -> None:
        """Release the memory; the file exists until all processes have released it."""
        self._map.close()


def create_figures(count: int) -> int:
    """Return the descriptor of a new file for a number of processes, which has no name."""
    with tempfile.TemporaryFile() as file:
        file.truncate(count * _ROW.size)
        return os.dup(file.fileno())


def sum_commits(rows: Sequence[ProcessFigures]) -> list[tuple[float, int]]:
    """Return how many commits of all processes took at most each bound."""
    bounds = (*SECONDS, float("inf"))
    return [(bound, sum(row.commits[index] for row in rows)) for index, bound in enumerate(bounds)]
