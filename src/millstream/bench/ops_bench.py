"""The settings of the suite `ops`, which its workloads share."""

from __future__ import annotations

from pathlib import Path


class OpsBench:
    """The settings of one run; each workload makes its own stores in the directory."""

    def __init__(self, directory: Path, *, seconds_each: float, records: int) -> None:
        self.directory = directory
        self.seconds = seconds_each
        self.records = records

    def close(self) -> None:
        """Leave the files to the suite, which removes the directory."""
