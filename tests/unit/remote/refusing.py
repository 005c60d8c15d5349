"""Two servers over one file, of which a test says which may write: nodes as their clients see them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

from millstream.engine.protocol import Engine, Writer
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.errors import NoQuorum, NotLeader
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings

SETTINGS = Settings(port=0, stop_s=1.0)


class RefusingEngine:
    """An engine that writes only while its node leads."""

    def __init__(self, path: Path) -> None:
        self.leads = True
        self.leader: str | None = None
        self.refusals = 0
        self.writes = 0
        """How often it was asked to write."""
        self.lacks_quorum: Callable[[int], bool] = lambda number: False
        """Whether the write of a number finds no quorum, and nothing is stored."""
        self._inner = SqliteEngine(path, durability="relaxed")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @contextmanager
    def write(self, *, waits: bool = True) -> Iterator[Writer]:
        """The inner engine's, or `NotLeader` or `NoQuorum`."""
        self.writes += 1
        if not self.leads:
            self.refusals += 1
            raise NotLeader("this node does not lead", leader=self.leader, epoch=1)
        if self.lacks_quorum(self.writes):
            self.refusals += 1
            raise NoQuorum("too few servers answer; nothing was stored")
        with self._inner.write(waits=waits) as writer:
            yield writer


class Pair:
    """Two nodes: their servers and engines."""

    def __init__(self, path: Path, held: ExitStack) -> None:
        self.engines: list[RefusingEngine] = []
        self.servers: list[Serving] = []
        self._endings: list[ExitStack] = []
        for _ in range(2):
            ending = held.enter_context(ExitStack())
            self._endings.append(ending)
            self.servers.append(
                ending.enter_context(running(os.devnull, SETTINGS, make_engine=self._maker(path)))
            )

    def _maker(self, path: Path) -> Any:
        def make() -> Engine:
            self.engines.append(RefusingEngine(path))
            return cast(Engine, self.engines[-1])

        return make

    @property
    def url(self) -> str:
        """Both addresses."""
        return ",".join(server.url for server in self.servers)

    def lead(self, leading: int | None, *, named: bool = True) -> None:
        """Only one of them writes from here on, or none; the other one may name it."""
        for number, engine in enumerate(self.engines):
            engine.leads = number == leading
            is_told = named and leading is not None
            engine.leader = self.servers[leading].url if is_told and leading is not None else None

    def stop(self, number: int) -> None:
        """End a node."""
        self._endings[number].close()


@contextmanager
def paired(path: Path) -> Iterator[Pair]:
    """Two nodes while the block runs."""
    with ExitStack() as held:
        yield Pair(path, held)
