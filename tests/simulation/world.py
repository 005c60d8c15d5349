"""A cluster in a simulated world: every order of events comes from one seed, and there are no threads.

Three nodes run over a simulated shared log. While one of them is inside a call (an append, a read, a
local commit), the others may go on: the world then takes some steps of theirs before the call goes on,
so a node can be held up at every step for seconds. What else happens, at random:

    lost         an append never arrives, and its writer gets no answer
    late         an append arrives after its writer has given up waiting, once or twice
    ack lost     an append is stored, and the answer is lost
    unreachable  a call fails at once
    election     the log takes no entries for a while: its servers elect one of them
    unseen       the newest entries are not seen yet
    crash        a node ends at a step of its own, with or without the commit that was on its way
    disk         a local commit fails, or its outcome is unknown
    pause        a node stands still for seconds
    skew         wall clocks differ by up to an hour; monotonic clocks run up to 5 % fast or slow
    trim         the log forgets what a majority has, by the rule of real nodes
    short        the log's servers do not show its newest entries, or none at all, for a while
    disk lost    a node comes back with an empty store, once in a run
    no copy      a snapshot that a node asks for does not arrive

Every write puts a number of its own and counts up. So of each it can be told afterwards whether it was
stored, and of each strong read whether it saw every write that was acknowledged before it began.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from millstream.cluster.node.node import Node
from millstream.cluster.node.trimmer import URGENT_BYTES, trim_before
from millstream.cluster.reports import LocalReportChannel, NodeReport
from millstream.cluster.settings import NodeSettings
from millstream.cluster.shared_log import Held, Unreachable, Unsure
from millstream.engine.commit import Commit, Row
from millstream.engine.memory.engine import MemoryEngine
from millstream.engine.memory.faults import Crash, Torn
from millstream.engine.open import open_engine
from millstream.engine.protocol import Ability
from millstream.errors import MillstreamError, NoQuorum, NotLeader, OutcomeUnknown, WriteFailed
from millstream.format import keys
from tests.conformance.kits import all_rows
from tests.kit.shared_log import SimulatedDoor, SimulatedLog

SETTINGS = NodeSettings(
    append_timeout_s=0.5, settle_timeout_s=2.0, beat_s=0.5, silence_s=2.0, look_again_s_max=2.0
)
ELECTION_S = SETTINGS.settle_timeout_s
"""How long an election of the log may take at most for its leader to wait until it is over."""
COUNT_KEY = keys.delta(0)[:2].replace(b"\x0e", b"\x10")
"""The row that counts writes: that of the store's own record, which no test needs here."""

DEPTH_MAX = 3
"""How many nodes may be inside a call, one beside the other."""

WAIT_S = 0.05

LARGE_BYTES = 6_000
ENTRY_BYTES_MAX = 3 * 1024
"""Small, so that a large commit travels in pieces and costs the simulation little."""


class Span(NamedTuple):
    """The shared log as one that is too large: what is in it counts, not its bytes."""

    bytes: int
    held: Held


class DiskEngine(MemoryEngine):
    """Rows in memory that a file can be put in the place of, as a node does with a snapshot."""

    abilities = frozenset[Ability]({"exchange"})

    def exchange(self, path: Path, *, aside: Path) -> None:
        """Take all rows of a file."""
        engine = open_engine(path, mode="r")
        try:
            rows = all_rows(engine)
        finally:
            engine.close()
        path.unlink()
        faults, self.faults = self.faults, None  # the files are exchanged at once, or not at all
        try:
            self.recover()
            with self.write() as writer:
                everything = [(bytes((keys.VERSION,)), bytes((keys.VERSION + 1,)))]
                writer.commit(Commit(rows, ranges=everything))
        finally:
            self.faults = faults


class SkewedClock:
    """A machine's clocks: its own idea of the time, and of its speed."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._rate = chance.uniform(0.95, 1.05)
        self._wall_ms = 1_700_000_000_000 + chance.randint(-3_600_000, 3_600_000)
        self._boot_ms = chance.randint(0, 10**9)

    def wall_ms(self) -> int:
        return self._wall_ms + round(self.seconds() * 1000)

    def boot_ms(self) -> int:
        return self._boot_ms + round(self.seconds() * 1000)

    def boot_id(self) -> str:
        return f"boot-{self._boot_ms}"

    def seconds(self) -> float:
        return self._world.now_s * self._rate


@dataclass
class Outcome:
    """What became of everything that was tried."""

    attempted: int = 0
    acknowledged: dict[int, int] = field(default_factory=dict)
    """The number of a write, and the count that it left."""
    refused: set[int] = field(default_factory=set)
    """Writes of which the caller was told that nothing was stored."""
    unknown: set[int] = field(default_factory=set)
    without_quorum: int = 0
    """How many of the refused were refused for want of a quorum."""
    strong_reads: int = 0
    stale: int = 0
    snapshots: int = 0
    faults: Counter[str] = field(default_factory=Counter)


class Machine:
    """One node of the world, up or down."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.clock = SkewedClock(world, world.chance)
        self.engine = DiskEngine(faults=self._on_disk)
        self.door: SimulatedDoor
        self.up = False
        self.busy = False
        self.waiting: list[tuple[int, int]] = []
        """Strong reads that came while the node was inside a call: since which append, and the least
        count that they must see."""
        self.boot()

    def boot(self) -> None:
        self.engine = self.engine.reopen(faults=self._on_disk)
        self.engine.place = str(self.world.folder / f"{self.name}.db")
        self.door = self.world.log.door(self._on_log)
        self.door.entry_bytes_max = ENTRY_BYTES_MAX
        self.door.wait = self.world.wait
        self.node = Node(
            self.name,
            f"http://{self.name}",
            self.engine,
            self.door,
            self.world.bulletin,
            clock=self.clock,
            settings=SETTINGS,
            snapshots=self._fetch,
            chance=self.world.chance,
            pause=self.world.wait,
        )
        self.up, self.busy = True, False
        self.waiting = []

    def do(self, name: str) -> None:
        """One step of the loop, or of a client; a crash ends the node."""
        self.busy = True
        try:
            getattr(self, name)()
            self._answer_reads()
        except Crash:
            self.up = False
        except (MillstreamError, Unreachable):
            pass  # as the loop does: it tries again
        finally:
            self.busy = False

    def step(self) -> None:
        self.node.step()

    def write(self) -> None:
        world, outcome = self.world, self.world.outcome
        number = outcome.attempted = outcome.attempted + 1
        outcome.unknown.add(number)
        try:
            with self.node.engine.write() as writer:
                count = int.from_bytes(writer.get(COUNT_KEY) or b"", "big") + 1
                large = b"x" * LARGE_BYTES if world.chance.random() < 0.15 else b""
                rows = [
                    (keys.delta(writer.last_seq() + 1), b""),
                    (keys.payload(number), count.to_bytes(8, "big") + large),
                    (COUNT_KEY, count.to_bytes(8, "big")),
                ]
                ranges = []
                if world.chance.random() < 0.1:  # as a fold does
                    ranges.append((keys.delta(0), keys.delta(writer.last_seq())))
                writer.commit(Commit(rows, ranges=ranges))
        except OutcomeUnknown:
            self.node.engine.recover()
            raise
        except (NotLeader, NoQuorum, WriteFailed) as error:
            outcome.without_quorum += isinstance(error, NoQuorum)
            outcome.unknown.discard(number)
            outcome.refused.add(number)
            raise
        outcome.unknown.discard(number)
        outcome.acknowledged[number] = count

    def trim(self) -> None:
        """Trim as a node does when the log is too large."""
        log, leads = self.world.log, self.node.state().role == "leader"
        if log.is_short or log.is_gone:
            return
        span = Span(2 * URGENT_BYTES, Held(log.first, log.last))
        before = trim_before(span, self.node.reports(), members=3, leads=leads)
        if before:
            self.world.forget(before)

    def lose_disk(self) -> None:
        """Everything that this node had is gone."""
        self.engine = DiskEngine(faults=self._on_disk)
        self.up = False

    def _fetch(self, source: NodeReport, path: Path) -> None:
        """A copy of what another node has on its disk, if that one is up."""
        world = self.world
        other = next(one for one in world.machines if one.name == source.node)
        if not other.up or (world.is_faulty and world.happens("no copy", 0.2)):
            raise ConnectionError("simulated")
        rows = other.rows()
        path.unlink(missing_ok=True)
        engine = open_engine(path, durability="relaxed")
        try:
            with engine.write() as writer:
                writer.commit(Commit(rows))
        finally:
            engine.close()
        world.outcome.snapshots += 1
        if world.is_faulty:
            world.interrupt(self)

    def strong_read(self) -> None:
        floor = self._floor()
        self.node.barrier(1.0)
        self._look(floor)

    def ask_beside(self) -> None:
        """A strong read comes while another thread of this node is inside a call."""
        if self.node.state().role == "leader":
            self.waiting.append((self.node.member.begun, self._floor()))

    def _answer_reads(self) -> None:
        waiting, self.waiting = self.waiting, []
        for since, floor in waiting:
            with self.node.member.turn:
                self.node.member.prove(since)
            self._look(floor)

    def _floor(self) -> int:
        return max(self.world.outcome.acknowledged.values(), default=0)

    def _look(self, floor: int) -> None:
        self.world.outcome.strong_reads += 1
        if self.count() < floor:
            self.world.outcome.stale += 1

    def count(self) -> int:
        with self.engine.read() as snapshot:
            return int.from_bytes(snapshot.get(COUNT_KEY) or b"", "big")

    def rows(self) -> list[Row]:
        return self.engine.survivors()

    def _on_log(self, step: str) -> None:
        world = self.world
        if step == "sending" and world.now_s < world.elects_until_s:
            raise Unreachable("simulated: its servers elect one of them")
        if not world.is_faulty:
            return
        world.interrupt(self)
        if step == "sending" and world.happens("unreachable", 0.03):
            raise Unreachable("simulated")
        if step == "sent":
            if world.happens("late", 0.04):
                raise Unsure("simulated")
            if world.happens("lost", 0.03):
                world.drop_next = True
                raise Unsure("simulated")
        if step == "stored" and world.happens("ack lost", 0.05):
            raise Unsure("simulated")
        if step == "reading":
            if world.happens("unreachable", 0.02):
                raise Unreachable("simulated")
            unseen = world.happens("unseen", 0.2)
            self.door.seen = world.chance.randint(0, world.log.last) if unseen else None

    def _on_disk(self, step: str) -> None:
        world = self.world
        if not world.is_faulty or step not in ("begin", "put", "commit", "sent", "committed"):
            return
        world.interrupt(self)
        if step == "commit" and world.happens("disk", 0.01):
            raise WriteFailed("simulated")
        if step == "sent" and world.happens("disk", 0.01):
            raise Torn(kept=world.chance.random() < 0.5)


class World:
    """The nodes, the log between them, and the time; all of it from one seed."""

    def __init__(self, seed: int, folder: Path, names: str = "abc") -> None:
        """Snapshots pass through files in a folder."""
        self.chance = random.Random(seed)
        self.folder = folder
        self.forgotten: list[bytes] = []
        """Entries that were trimmed."""
        self.now_s = 0.0
        self.log = SimulatedLog()
        self.bulletin = LocalReportChannel(lambda: self.now_s)
        self.outcome = Outcome()
        self.is_faulty = False
        self.election_s_max = 0.0
        """How long elections of the log take at most, if there are any."""
        self.elects_until_s = 0.0
        self.drop_next = False
        self._depth = 0
        self.machines = [Machine(self, name) for name in names]

    def run(
        self, steps: int, *, faulty: bool = True, election_s_max: float = 2 * ELECTION_S
    ) -> None:
        """Take steps, with faults or without; without elections if these may take no time."""
        self.is_faulty, self.election_s_max = faulty, election_s_max
        for _ in range(steps):
            self._step()
        self.is_faulty, self.election_s_max = False, 0.0

    def heal(self) -> None:
        """No more faults: everything on its way arrives, and every node is up again."""
        self.elects_until_s = 0.0
        self._show()
        self.log.deliver()
        for machine in self.machines:
            machine.door.seen = None
            if not machine.up:
                machine.boot()
        for _ in range(400):
            for machine in self.machines:
                machine.do("step")
                if "Restart this node" in machine.node.state().reason:
                    machine.boot()  # as an operator does
            if self._is_level():
                break
        self._write_once_more()

    @property
    def every_entry(self) -> list[bytes]:
        """All that was ever in the log."""
        return self.forgotten + self.log.entries

    def forget(self, before: int) -> None:
        """Trim the log."""
        self.forgotten += self.log.entries[: before - self.log.first]
        self.log.trim(before)
        self.outcome.faults["trim"] += 1

    def divergent(self) -> int:
        """How many nodes have other rows than the first."""
        rows = self.machines[0].rows()
        return sum(machine.rows() != rows for machine in self.machines)

    def pass_time(self, duration_s: float) -> None:
        self.now_s += duration_s

    def wait(self, duration_s: float) -> None:
        """A node waits; the others do so at the same time, so it costs the world only a moment."""
        self.pass_time(min(duration_s, WAIT_S))

    def happens(self, fault: str, probability: float) -> bool:
        found = self.chance.random() < probability
        if found:
            self.outcome.faults[fault] += 1
        return found

    def interrupt(self, machine: Machine) -> None:
        """At a step of a node: it may end there, or stand still while the others go on."""
        if self.chance.random() < 0.004:
            self.outcome.faults["crash"] += 1
            raise Crash(kept=self.chance.random() < 0.5)
        if self._depth < DEPTH_MAX and self.chance.random() < 0.05:
            self.outcome.faults["pause"] += 1
            self._depth += 1
            for _ in range(self.chance.randint(1, 20)):
                if self.chance.random() < 0.1:
                    machine.ask_beside()
                self._step()
            self._depth -= 1

    def _step(self) -> None:
        self.pass_time(self.chance.uniform(0, 0.2))
        if self.drop_next:
            self.log.late.pop()
            self.drop_next = False
        if self.log.late and self.chance.random() < 0.2:
            arrived = self.log.late.pop(self.chance.randrange(len(self.log.late)))
            for _ in range(self.chance.randint(1, 2)):
                self.log.store(*arrived)
        self._hide_or_show()
        is_over = self.now_s > self.elects_until_s + 1  # so that something is written in between
        if self.election_s_max and is_over and self.happens("election", 0.02):
            self.elects_until_s = self.now_s + self.chance.uniform(0.1, self.election_s_max)
        idle = [machine for machine in self.machines if not machine.busy]
        if not idle:
            return
        machine = self.chance.choice(idle)
        if not machine.up:
            if self.is_faulty and not self.outcome.faults["disk lost"]:
                if self.happens("disk lost", 0.05):
                    machine.lose_disk()
            elif self.chance.random() < 0.2:
                machine.boot()
            return
        if self.is_faulty and self.chance.random() < 0.01:
            machine.do("trim")
            return
        what = (
            "step" if self.chance.random() < 0.6 else self.chance.choice(["write", "strong_read"])
        )
        machine.do(what)

    def _hide_or_show(self) -> None:
        """The servers of the log have not caught up for a while, or have lost sight of it."""
        if self.log.is_short or self.log.is_gone:
            if self.chance.random() < 0.02:
                self._show()
        elif self.is_faulty and self.log.entries and self.happens("short", 0.003):
            if self.chance.random() < 0.5:
                self.log.hide(self.chance.randint(1, len(self.log.entries)))
            else:
                self.log.is_gone = True

    def _show(self) -> None:
        self.log.is_gone = False
        self.log.show()

    def _is_level(self) -> bool:
        leads = [machine for machine in self.machines if machine.node.state().role == "leader"]
        same = {machine.node.member.position.sequence for machine in self.machines}
        return len(leads) == 1 and len(same) == 1

    def _write_once_more(self) -> None:
        """A commit that all nodes apply: then each has noted the same position."""
        for machine in self.machines:
            if machine.node.state().role == "leader":
                machine.do("write")
        for _ in range(20):
            if self._is_level():  # more steps would be a silence after which others campaign
                break
            for machine in self.machines:
                if machine.node.state().role != "leader":
                    machine.do("step")
