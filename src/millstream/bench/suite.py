"""A suite: workloads that run in sequence, in temporary files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from millstream.bench.measure import ReportRow


class Suite:
    """Workloads by name, and the function that opens their store or server.

    All workloads of a run share a store, unless they run `apart`.
    """

    def __init__(
        self, make: Callable[..., Any], *workloads: Callable[[Any], ReportRow], apart: bool = False
    ) -> None:
        self.workloads = {workload.__name__: workload for workload in workloads}
        self._make = make
        self._apart = apart

    def run(
        self,
        names: list[str],
        *,
        directory: Path | None,
        started: Callable[[str], None],
        **settings: Any,
    ) -> Iterator[ReportRow]:
        """Run workloads in sequence; call `started` with the name of each."""
        groups = [[name] for name in names] if self._apart else [names]
        with tempfile.TemporaryDirectory(prefix="millstream-bench-", dir=directory) as folder:
            for group in groups:
                place = Path(folder, group[0])
                place.mkdir()
                with closing(self._make(place, **settings)) as bench:
                    for name in group:
                        started(name)
                        row = self.workloads[name](bench)
                        row.workload = name
                        yield row
                shutil.rmtree(place)
