"""The workloads of operators: exports, imports, backups, restores and compaction."""

from __future__ import annotations

from pathlib import Path

from millstream.bench.backups import backup_full, backup_increment, restore
from millstream.bench.compact import compact
from millstream.bench.exchange import export, import_
from millstream.bench.suite import Suite


class OpsBench:
    """The settings of one run; each workload makes its own stores in the directory."""

    def __init__(self, directory: Path, *, seconds_each: float, records: int) -> None:
        self.directory = directory
        self.seconds = seconds_each
        self.records = records

    def close(self) -> None:
        """Leave the files to the suite, which removes the directory."""


SUITE = Suite(OpsBench, export, import_, backup_full, backup_increment, restore, compact)
