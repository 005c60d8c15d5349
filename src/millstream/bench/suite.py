"""A suite: workloads that are run one after the other, in files that are removed afterwards."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from millstream.bench.measure import ReportRow


class Suite:
    """Workloads by name, and what makes the store or server, to be closed, that they are run on.

    All of a run share one, unless each is to be `apart`.
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
        """Run workloads one after the other; `started` is told the name of each."""
        groups = [[name] for name in names] if self._apart else [names]
        with tempfile.TemporaryDirectory(prefix="millstream-bench-", dir=directory) as found:
            for group in groups:
                place = Path(found, group[0])
                place.mkdir()
                with closing(self._make(place, **settings)) as bench:
                    for name in group:
                        started(name)
                        row = self.workloads[name](bench)
                        row.workload = name
                        yield row
                shutil.rmtree(place)
