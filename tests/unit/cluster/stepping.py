"""Nodes without threads: a test takes each step of each node itself, and says what fails at it."""

from __future__ import annotations

import random

from millstream.cluster.node.node import Node
from millstream.cluster.reports import LocalReportChannel
from millstream.cluster.settings import NodeSettings
from millstream.engine.commit import Commit, Row
from millstream.engine.memory.engine import MemoryEngine
from millstream.engine.memory.faults import Faults
from millstream.engine.protocol import Engine
from millstream.errors import MillstreamError
from millstream.format import keys
from millstream.testing import SimulatedClock
from tests.kit.shared_log import Hook, SimulatedLog

SETTINGS = NodeSettings(settle_timeout_s=1.0, silence_s=2.0, jitter_s=0.0)


class Stepped:
    """One node; `faults` are those of its way to the shared log, `disk` those of its own rows."""

    def __init__(
        self,
        group: Group,
        name: str,
        engine: Engine | None = None,
        clock: SimulatedClock | None = None,
    ) -> None:
        self._group = group
        self.faults, self.disk = Faults(), Faults()
        self.clock = clock or SimulatedClock()
        self.inner: Engine = engine or MemoryEngine(faults=self.disk)
        self.door = group.log.door(group.hook or self.faults)
        self.door.wait = self.clock.advance
        self.node = Node(
            name,
            f"http://{name}",
            self.inner,
            self.door,
            group.bulletin,
            clock=self.clock,
            settings=SETTINGS,
            chance=random.Random(1),
            pause=self.clock.advance,
        )
        self.node.step()

    @property
    def role(self) -> str:
        return self.node.state().role

    def lead(self) -> Stepped:
        """Let time pass until it leads."""
        for _ in range(50):
            if self.role == "leader":
                return self
            self.clock.advance(1)
            self._group.clock.advance(1)
            self.node.step()
        raise AssertionError("it does not lead")

    def follow(self, steps: int = 3) -> Stepped:
        """Take some steps without time for a campaign; what fails is tried again."""
        for _ in range(steps):
            try:
                self.node.step()
            except MillstreamError:
                pass
        return self

    def put(self, number: int, *, size: int = 0) -> None:
        """Commit a row of its own, as a store would."""
        with self.node.engine.write() as writer:
            rows: list[Row] = [(keys.delta(writer.last_seq() + 1), b"d")]
            writer.commit(Commit([*rows, (keys.payload(number), bytes(size))]))

    def numbers(self) -> list[int]:
        with self.inner.read() as snapshot:
            rows = snapshot.scan(keys.payload(0), keys.payload(2**60), limit=1_000)
        return [keys.number(key) for key, _ in rows]


class Group:
    """Nodes that share a log."""

    def __init__(self) -> None:
        self.log = SimulatedLog()
        self.clock = SimulatedClock()
        self.bulletin = LocalReportChannel(self.clock.seconds)
        self.hook: Hook | None = None
        """What happens at the steps of nodes that are made from now on, instead of their `faults`."""

    def node(
        self, name: str, engine: Engine | None = None, clock: SimulatedClock | None = None
    ) -> Stepped:
        return Stepped(self, name, engine, clock)
