"""Three servers that are nodes of one cluster, over a simulated shared log, each with its own file."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from millstream.clock import SystemClock
from millstream.cluster.node.node import Node
from millstream.cluster.reports import LocalReportChannel
from millstream.engine.open import open_engine
from millstream.server.cluster.copy_download import Fetcher
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.kit.shared_log import SimulatedLog
from tests.unit.cluster.trio import QUICK

KEY = "k" * 64
PATIENCE_S = 60.0
SETTINGS = Settings(port=0, stop_s=1.0)


class ServedNodes:
    """A cluster of servers; a test starts and stops them by their names."""

    def __init__(self, folder: Path, settings: Settings = SETTINGS) -> None:
        self.folder = folder
        self.log = SimulatedLog()
        self.clock = SystemClock()
        self.bulletin = LocalReportChannel(self.clock.seconds)
        self.servers: dict[str, Serving] = {}
        self.nodes: dict[str, Node] = {}
        self.fetchers: dict[str, Fetcher] = {}
        self.node_settings = QUICK
        self._settings = settings
        self._endings: dict[str, ExitStack] = {}

    def start(self, *names: str) -> None:
        """Start servers, all of them at once."""
        found: dict[str, BaseException | None] = {}

        def start(name: str) -> None:
            try:
                self._start(name)
            except BaseException as error:
                found[name] = error

        starting = [threading.Thread(target=start, args=(name,)) for name in names]
        for thread in starting:
            thread.start()
        for thread in starting:
            thread.join()
        assert not found, found

    def _start(self, name: str) -> None:
        ending = ExitStack()
        self._endings[name] = ending

        def make(url: str) -> Node:
            self.fetchers[name] = Fetcher(KEY)
            node = self.nodes[name] = Node(
                name,
                url,
                open_engine(self.folder / f"{name}.db"),
                self.log.door(),
                self.bulletin,
                clock=self.clock,
                settings=self.node_settings,
                snapshots=self.fetchers[name],
            )
            return node

        serving = ExitStack()
        server = serving.enter_context(
            running(os.devnull, self._settings, make_node=make, cluster_key=KEY)
        )
        ending.push(serving)
        self.servers[name] = server

    def stop(self, name: str) -> None:
        """Stop a server and its node."""
        del self.servers[name]
        self._endings.pop(name).close()
        del self.nodes[name]

    def close(self) -> None:
        """Stop all."""
        for name in list(self._endings):
            self._endings.pop(name).close()

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers.values()]

    def leader(self) -> str:
        """The name of the node that leads, once one does."""
        self.until(lambda: len(self._leading()) == 1)
        return self._leading()[0]

    def followers(self) -> list[str]:
        leading = self.leader()
        return [name for name in self.servers if name != leading]

    def _leading(self) -> list[str]:
        return [name for name, node in self.nodes.items() if not node.engine.read_only]

    def url(self, name: str) -> str:
        return self.servers[name].url

    def core(self, name: str) -> Any:
        return self.servers[name].core

    def until(self, question: Callable[[], bool]) -> None:
        """Wait until something holds."""
        deadline_s = self.clock.seconds() + PATIENCE_S
        pause = threading.Event()
        while not question():
            assert self.clock.seconds() < deadline_s, "it took too long"
            pause.wait(0.01)


@contextmanager
def serving_nodes(folder: Path, *names: str) -> Iterator[ServedNodes]:
    """A cluster while the block runs."""
    found = ServedNodes(folder)
    try:
        found.start(*names)
        yield found
    finally:
        found.close()
