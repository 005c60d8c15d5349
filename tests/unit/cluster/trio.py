"""Three nodes in one process, each with a file of its own, over one simulated shared log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Self

import millstream
from millstream import Millstream
from millstream.clock import Clock, SystemClock
from millstream.cluster.node.node import Node
from millstream.cluster.node.snapshots import copy, open_member
from millstream.cluster.reports import LocalReportChannel, NodeReport
from millstream.cluster.settings import NodeSettings
from millstream.cluster.shared_log import Unreachable
from millstream.embedded.session import EmbeddedSession, open_over
from millstream.engine.commit import Row
from millstream.engine.protocol import Engine
from millstream.store.store import Store
from tests.conformance.kits import all_rows
from tests.kit.shared_log import SimulatedDoor, SimulatedLog

QUICK = NodeSettings(
    append_timeout_s=0.5,
    settle_timeout_s=0.5,
    beat_s=0.05,
    silence_s=0.4,
    jitter_s=0.2,
    turn_s=0.05,
    stalled_s=2.0,
)
STEADY = replace(QUICK, silence_s=3600.0)
"""For tests of one leader: it stays, though all nodes of the process may have been held up. Who says
that it leads no more is followed all the same."""

PATIENCE_S = 30.0


class Machine:
    """One node, its door to the shared log, and its store once it is opened."""

    def __init__(self, trio: Trio, name: str, path: Path, clock: Clock) -> None:
        self.name, self.path, self._trio = name, path, trio
        self.door: SimulatedDoor = trio.log.door()
        self.inner = open_member(path)
        self.node = Node(
            name,
            f"http://{name}:1",
            self.inner,
            self.door,
            trio.bulletin,
            clock=clock,
            settings=trio.settings,
            snapshots=self._fetch,
        )
        self._store: Store | None = None

    @property
    def engine(self) -> Engine:
        return self.node.engine

    @property
    def store(self) -> Store:
        if self._store is None:
            self.node.wait_readable(PATIENCE_S)
            self._store = open_over(lambda: self.engine, clock=self.node.clock)
        return self._store

    @property
    def ms(self) -> Millstream:
        return Millstream(EmbeddedSession(self.store))

    def reopen(self) -> None:
        """Forget what the store has in memory: reads find it in the rows."""
        if self._store is not None:
            self._store.close()
            self._store = None

    @property
    def leads(self) -> bool:
        return self.node.state().role == "leader"

    def rows(self) -> list[Row]:
        return all_rows(self.inner)

    def stop(self) -> None:
        if self._store is not None:
            self._store.close()
        self.node.stop()

    def _fetch(self, source: NodeReport, path: Path) -> None:
        if self._trio.fetches_fail:
            self._trio.fetches_fail -= 1
            raise ConnectionError("simulated")
        path.unlink(missing_ok=True)
        copy(self._trio.machines[source.node].inner, path)


class Trio:
    """A cluster of three, or fewer while some are stopped."""

    def __init__(self, folder: Path, settings: NodeSettings = QUICK) -> None:
        self.folder, self.settings = folder, settings
        self.log = SimulatedLog()
        self.clock = SystemClock()
        self.bulletin = LocalReportChannel(self.clock.seconds)
        self.machines: dict[str, Machine] = {}
        self.fetches_fail = 0
        """How many of the next fetches of a snapshot fail."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for machine in self.machines.values():
            machine.stop()

    def start(self, *names: str, clock: Clock | None = None) -> Self:
        for name in names:
            path = self.folder / f"{name}.db"
            self.machines[name] = Machine(self, name, path, clock or self.clock)
            self.machines[name].node.start()
        return self

    def prepare(self, name: str) -> Millstream:
        """The store of a node before it is one."""
        return millstream.open(self.folder / f"{name}.db")

    def cut_off(self, machine: Machine) -> None:
        """Keep a node from the shared log; on return, no read that began before goes on."""
        is_refused = threading.Event()

        def refuse(step: str) -> None:
            if step == "reading":
                is_refused.set()
            raise Unreachable(f"{machine.name} is cut off at {step}")

        machine.door.hook = refuse
        assert is_refused.wait(PATIENCE_S)

    def stop(self, name: str) -> None:
        self.machines.pop(name).stop()

    def leader(self) -> Machine:
        self.until(lambda: any(one.leads for one in self.machines.values()))
        return next(one for one in self.machines.values() if one.leads)

    def followers(self) -> list[Machine]:
        return [one for one in self.machines.values() if not one.leads]

    def until(self, question: Callable[[], bool]) -> None:
        """Wait until something holds; each node's progress is a reason to look again."""
        clock = self.clock
        deadline_s = clock.seconds() + PATIENCE_S
        changed = next(iter(self.machines.values())).node.member.changed
        while not question():
            assert clock.seconds() < deadline_s, "it took too long"
            with changed:
                changed.wait(0.01)

    def settle(self) -> list[list[Row]]:
        """The rows of all nodes, once each has applied what the log holds."""
        found: list[list[Row]] = []

        def same() -> bool:
            found[:] = [one.rows() for one in self.machines.values()]
            noted = {one.node.member.noted.sequence for one in self.machines.values()}
            return len(noted) == 1 and all(rows == found[0] for rows in found)

        self.until(same)
        return found
