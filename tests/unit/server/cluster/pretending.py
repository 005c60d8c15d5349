"""Servers that are nodes over one file, of which a test says which leads.

The nodes pretend: their rows are the same because their file is. What servers and clients do with
leaders and followers can be tested with them without elections.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from millstream.clock import SystemClock
from millstream.cluster.node.status import NodeState
from millstream.cluster.reports import NodeReport, Role
from millstream.engine.commit import Commit
from millstream.engine.protocol import WouldWait, Writer
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.errors import NotLeader
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings

KEY = "k" * 64
SETTINGS = Settings(port=0, stop_s=1.0)


class PretendingWriter:
    """A turn to write whose commit may be kept waiting, or fail."""

    def __init__(self, inner: Writer, before_commit: Callable[[], None]) -> None:
        self._inner = inner
        self._before_commit = before_commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, commit: Commit) -> None:
        self._before_commit()
        self._inner.commit(commit)


class PretendingEngine:
    """An engine that writes only while its node leads."""

    def __init__(self, path: Path, node: PretendingNode) -> None:
        self.inner = SqliteEngine(path, durability="relaxed")
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def read_only(self) -> bool:
        return not self._node.leads

    @contextmanager
    def write(self, *, waits: bool = True) -> Iterator[Writer]:
        self._node.check()
        before_commit = self._node.before_commit
        if before_commit is None:
            with self.inner.write(waits=waits) as writer:
                yield writer
        elif not waits:
            raise WouldWait
        else:
            with self.inner.write() as writer:
                yield PretendingWriter(writer, before_commit)


class PretendingNode:
    """A node that leads when it is told to."""

    def __init__(self, pair: Pair, name: str, address: str, path: Path) -> None:
        self.name, self.address = name, address
        self.clock = SystemClock()
        self.on_change: Callable[[Any], None] | None = None
        self.barriers = 0
        self.lag = 0
        self.progress_age_s = 0.0
        self.believes: str | None = None
        """Another node that it takes for the leader."""
        self.before_commit: Callable[[], None] | None = None
        """Called before each commit of this node, by the thread that makes it: it may raise."""
        self._pair = pair
        self.engine = PretendingEngine(path, self)

    @property
    def leads(self) -> bool:
        return self._pair.leading == self.name

    def check(self) -> None:
        if not self.leads:
            raise NotLeader(f"{self.name} does not lead", leader=self._pair.address, epoch=1)

    def start(self) -> None:
        pass

    def hurry(self) -> None:
        """No commit of it waits."""

    def wait_readable(self, timeout_s: float) -> None:
        pass

    def stop(self) -> None:
        self.engine.inner.close()

    def reports(self) -> dict[str, tuple[NodeReport, float]]:
        return {one.name: (one.report(), 0.25) for one in self._pair.nodes.values()}

    def report(self) -> NodeReport:
        role: Role = "leader" if self.leads else "follower"
        return NodeReport(self.name, self.address, role, self._pair.epoch, 7 - self.lag, b"")

    def barrier(self, timeout_s: float) -> None:
        self.barriers += 1
        self.check()

    def wait_applied(self, sequence: int, timeout_s: float) -> None:
        pass  # the rows are the same

    def state(self) -> NodeState:
        return NodeState(
            node=self.name,
            address=self.address,
            role="leader" if self.leads else "follower",
            epoch=self._pair.epoch,
            leader=self._pair.leading,
            leader_address=self.believes or self._pair.address,
            sequence=7,
            lag=self.lag,
            progress_age_s=self.progress_age_s,
            elections=1,
            replays=2,
            snapshots=3,
            barrier_s=0.004,
            reason="",
        )


class Pair:
    """Two nodes; the first one leads, until a test says otherwise."""

    def __init__(
        self, path: Path, held: ExitStack, settings: Settings, options: dict[str, Any]
    ) -> None:
        self.leading: str | None = "a"
        self.epoch = 1
        self.nodes: dict[str, PretendingNode] = {}
        self.servers: dict[str, Serving] = {}
        self._endings: dict[str, ExitStack] = {}
        for name in ("a", "b"):
            ending = self._endings[name] = held.enter_context(ExitStack())
            server = running(
                os.devnull,
                settings,
                make_node=self._maker(name, path),
                cluster_key=KEY,
                **options,
            )
            self.servers[name] = ending.enter_context(server)

    def _maker(self, name: str, path: Path) -> Callable[[str], PretendingNode]:
        def make(url: str) -> PretendingNode:
            self.nodes[name] = PretendingNode(self, name, url, path)
            return self.nodes[name]

        return make

    @property
    def address(self) -> str | None:
        found = self.nodes.get(self.leading or "")
        return None if found is None else found.address

    def url(self, name: str) -> str:
        return self.servers[name].url

    def lead(self, name: str | None) -> None:
        """Another node leads from here on, or none."""
        self.leading, self.epoch = name, self.epoch + 1
        for node in self.nodes.values():
            if node.on_change is not None:
                node.on_change(node.state())

    def stop(self, name: str) -> None:
        """End a node."""
        self._endings[name].close()


@contextmanager
def paired(path: Path, settings: Settings = SETTINGS, **options: Any) -> Iterator[Pair]:
    """Two nodes while the block runs."""
    with ExitStack() as held:
        yield Pair(path, held, settings, options)
