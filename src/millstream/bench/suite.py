"""A suite: workloads that are run one after the other, in files that are removed afterwards."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from millstream.bench.measure import Row


class Bench(Protocol):
    """What workloads are run on: a store, a server or such, in a directory."""

    def close(self) -> None:
        """Let go of it."""


B = TypeVar("B", bound=Bench)


class Suite(Generic[B]):
    """Workloads by name; all of a run share what `make` makes, unless each is to be `apart`."""

    def __init__(
        self, make: Callable[..., B], *workloads: Callable[[B], Row], apart: bool = False
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
    ) -> Iterator[Row]:
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
