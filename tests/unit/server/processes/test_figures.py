"""Figures that server processes share in memory."""

from __future__ import annotations

import os

from millstream.server.observe.meter import SECONDS
from millstream.server.processes.figures import (
    ProcessFigures,
    SharedFigures,
    create_figures,
    sum_commits,
)


def test_each_process_has_a_row_that_all_processes_read() -> None:
    descriptor = create_figures(3)
    mine, other = SharedFigures(descriptor, 3), SharedFigures(descriptor, 3)
    try:
        counts = tuple(range(len(SECONDS) + 1))
        mine.write(2, ProcessFigures(port=8_000, beat_ms=5, connections=7, commits=counts))
        other.write(3, ProcessFigures(port=9_000, commits=counts))
        assert [row.port for row in mine.all()] == [0, 8_000, 9_000]
        assert other.read(2) == ProcessFigures(port=8_000, beat_ms=5, connections=7, commits=counts)
        totals = sum_commits(mine.all())
        assert totals[-1] == (float("inf"), 2 * counts[-1])
        assert [bound for bound, _ in totals[:-1]] == list(SECONDS)
        mine.clear(2)
        assert other.read(2) == ProcessFigures()
    finally:
        mine.close()
        other.close()
        os.close(descriptor)
