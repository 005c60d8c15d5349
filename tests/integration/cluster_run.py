"""A cluster of real processes under load, while nodes and NATS servers are killed, stopped and damaged.

Writers append values that occur once, each through any node, and note what they were told. A reader
asks for strong reads. When everything is healed, every value that was acknowledged must be in every
node's own file, once, and in the same order everywhere.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import millstream
from millstream.cluster.admin import ClusterAdmin
from millstream.cluster.membership import Plan
from millstream.cluster.reports import NodeReport
from millstream.cluster.trial import TrialCluster
from millstream.engine.open import open_engine
from millstream.errors import MillstreamError, OutcomeUnknown
from millstream.format import keys
from tests.conformance.kits import all_rows
from tests.conformance.nats_kit import until

LOG = "orders"
WRITERS = 3
PAUSED_S = 4.0
"""How long a process is stopped: longer than followers wait for their leader."""


@dataclass
class Account:
    """What a run prints, whatever came of it."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    attempted: int = 0
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    lost: int = 0
    duplicated: int = 0
    stale_strong_reads: int = 0
    strong_reads: int = 0
    divergent_nodes: int = 0

    def __str__(self) -> str:
        faults = (
            ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items())) or "none"
        )
        return (
            f"seed {self.seed}; faults: {faults}; attempted {self.attempted}, acknowledged "
            f"{self.acknowledged}, refused {self.refused}, unknown {self.unknown}; lost {self.lost}, "
            f"duplicated {self.duplicated}; strong reads {self.strong_reads}, stale "
            f"{self.stale_strong_reads}; divergent nodes {self.divergent_nodes}"
        )


class Run:
    """One cluster, from its first node to the verdict."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.trial = TrialCluster(folder)
        self.trial.make(3)
        self.chance = random.Random(seed)
        self.account = Account(seed)
        self.plan = Plan(
            "visitor",
            "",
            peers=self.trial.peers,
            secret=self.trial.secret_file.read_text().strip(),
        )
        self._acknowledged: dict[bytes, int] = {}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._guard = threading.Lock()
        self._values_given = itertools.count()

    @property
    def names(self) -> list[str]:
        """The nodes."""
        return [one.name for one in self.trial.peers]

    # The cluster.

    def reports(self) -> dict[str, NodeReport]:
        """What every node says of itself now; those that say nothing are missing."""
        with ClusterAdmin(self.plan) as visit:
            found = visit.listen(lambda heard: len(heard) == 3, timeout_s=3.0)
        return {name: report for name, (report, _) in found.items()}

    def leader(self) -> str | None:
        """The node that leads, by what nodes say."""
        leading = [report for report in self.reports().values() if report.role == "leader"]
        return max(leading, key=lambda one: one.epoch).node if leading else None

    def start(self, *names: str) -> None:
        """Start nodes."""
        for name in names or self.names:
            self.trial.start(name)

    def until_well(self) -> None:
        """Wait until one node leads and the others follow."""

        def is_well() -> bool:
            roles = sorted(report.role for report in self.reports().values())
            return roles == ["follower", "follower", "leader"]

        until(is_well, "one node leads and two follow")

    def send(self, name: str, what: signal.Signals) -> None:
        """A signal to a node's process."""
        process_id = self.trial.process(name)
        if process_id is not None:
            with suppress(ProcessLookupError):
                os.kill(process_id, what)

    def send_nats(self, name: str, what: signal.Signals) -> None:
        """A signal to a node's NATS server."""
        place = os.fsencode(str(self.nats_folder(name) / "nats.conf"))
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if place in (folder / "cmdline").read_bytes().split(b"\0"):
                    os.kill(int(folder.name), what)

    def nats_folder(self, name: str) -> Path:
        """Where the files of a node's NATS server lie."""
        return (self.trial.folder / name / "store.db.nats").absolute()

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of `millstream cluster` on this cluster."""
        return subprocess.run(
            [sys.executable, "-m", "millstream", "cluster", *arguments, str(self.trial.folder)],
            capture_output=True,
            text=True,
            check=False,
        )

    # Faults.

    def kill_leader(self) -> None:
        """kill -9 of the node that leads, and with it of its NATS server."""
        self._kill(self.leader() or self.chance.choice(self.names))

    def kill_follower(self) -> None:
        """kill -9 of a node that does not lead."""
        leader = self.leader()
        self._kill(self.chance.choice([name for name in self.names if name != leader]))

    def kill_two(self) -> None:
        """kill -9 of two of three nodes at once, and of their NATS servers."""
        two = self.chance.sample(self.names, 2)
        self.kill(*two)
        self.start(*two)

    def stop_leader(self) -> None:
        """SIGSTOP of the node that leads: it wakes up believing that it still does."""
        self._pause(self.leader() or self.chance.choice(self.names))

    def stop_follower(self) -> None:
        """SIGSTOP of a node that does not lead."""
        leader = self.leader()
        self._pause(self.chance.choice([name for name in self.names if name != leader]))

    def lose_nats(self) -> None:
        """kill -9 of a NATS server alone."""
        self.send_nats(self.chance.choice(self.names), signal.SIGKILL)

    def stop_nats(self) -> None:
        """SIGSTOP of a NATS server alone."""
        name = self.chance.choice(self.names)
        self.send_nats(name, signal.SIGSTOP)
        threading.Event().wait(PAUSED_S)
        self.send_nats(name, signal.SIGCONT)

    def lose_store(self) -> None:
        """A node's disk is replaced by an empty one: it begins anew, from the others."""
        name = self.chance.choice(self.names)
        self.kill(name)
        for file in (self.trial.folder / name).glob("store.db*"):
            if file.is_file():
                file.unlink()
        self.until_acknowledged()
        self.start(name)

    def inject(self, kind: str) -> None:
        """Let a fault happen, and wait until the cluster is well again."""
        self.account.faults[kind] += 1
        getattr(self, kind)()
        self.until_well()

    def flip(self, name: str) -> None:
        """Flip one bit in a file of a stream, on the disk of a server that does not run."""
        files = self.nats_folder(name).glob("jetstream/*/streams/*/msgs/*.blk")
        file = max(files, key=lambda one: one.stat().st_size)
        place = self.chance.randrange(file.stat().st_size)
        with open(file, "r+b") as opened:
            opened.seek(place)
            (byte,) = opened.read(1)
            opened.seek(place)
            opened.write(bytes((byte ^ 1 << self.chance.randrange(8),)))
        self.account.faults["flip"] += 1

    def heal(self) -> None:
        """Do what an operator does until the cluster is well.

        Every node may have stopped with a reason: then the log is rebuilt. If some have, which found the
        log shorter than it is, while its servers came to terms, and another leads, they are started anew.
        """
        found: dict[str, NodeReport] = {}

        def halted() -> list[str]:
            return [name for name, report in found.items() if report.role == "halted"]

        def is_decided() -> bool:
            found.clear()
            found.update(self.reports())
            roles = sorted(report.role for report in found.values())
            if roles in (["follower", "follower", "leader"], ["halted"] * 3):
                return True
            return len(roles) == 3 and "leader" in roles and "halted" in roles

        until(is_decided, "the cluster is well, some nodes have halted, or all have")
        while halted() and len(halted()) < 3:
            assert all(found[name].reason for name in halted()), found
            self.account.faults["restart"] += 1
            self.kill(*halted())
            self.start(*halted())
            until(is_decided, "the cluster is well, some nodes have halted, or all have")
        if halted():
            assert all(report.reason for report in found.values()), found
            self.account.faults["repair"] += 1
            done = self.command("repair", "--yes")
            went_on = "nothing is to be repaired" in done.stderr  # by themselves, meanwhile
            assert went_on or done.returncode == 0, done.stderr
            self.trial.stop()
            self.start()
            self.until_well()

    def kill(self, *names: str) -> None:
        """kill -9 of nodes at once, and of their NATS servers."""
        for name in names:
            self.send(name, signal.SIGKILL)
        until(lambda: not any(self.trial.process(name) for name in names), f"{names} are gone")

    def _kill(self, name: str) -> None:
        self.kill(name)
        self.until_acknowledged()  # the others go on without it
        self.start(name)

    def _pause(self, name: str) -> None:
        self.send(name, signal.SIGSTOP)
        threading.Event().wait(PAUSED_S)
        self.send(name, signal.SIGCONT)

    # The load.

    @contextmanager
    def load(self) -> Iterator[None]:
        """Writers and a reader, while the block runs."""
        self._stop.clear()
        self._threads = [
            threading.Thread(target=self._write, args=(number,)) for number in range(WRITERS)
        ]
        self._threads.append(threading.Thread(target=self._read))
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def until_acknowledged(self, more: int = 5) -> None:
        """Wait until some more writes were acknowledged."""
        wanted = self.account.acknowledged + more
        until(lambda: self.account.acknowledged >= wanted, "writes are acknowledged")

    def _opened(self, first: int) -> millstream.Millstream:
        """The store, through one of the nodes before the others."""
        found = [one.address for one in self.trial.peers]
        first %= len(found)
        return millstream.open(",".join(found[first:] + found[:first]), retry_for=5.0)

    def _write(self, number: int) -> None:
        while not self._stop.is_set():
            with suppress(MillstreamError), self._opened(number) as ms:
                log = ms.log(LOG)
                while not self._stop.is_set():
                    self._append(log, b"%d-%d" % (number, next(self._values_given)))

    def _append(self, log: millstream.Log, value: bytes) -> None:
        with self._guard:
            self.account.attempted += 1
        try:
            offset = log.append(value)
        except OutcomeUnknown:
            self.account.unknown += 1
            raise
        except MillstreamError:
            self.account.refused += 1
            raise
        with self._guard:
            self._acknowledged[value] = offset
            self.account.acknowledged += 1
        self._stop.wait(0.01)

    def _read(self) -> None:
        """Ask any node, strongly, for the end of the log: it is behind all that was acknowledged."""
        turn = 0
        while not self._stop.is_set():
            turn += 1
            with suppress(MillstreamError), self._opened(turn) as ms:
                for _ in range(20):
                    with self._guard:
                        wanted = max(self._acknowledged.values(), default=-1)
                    info = ms.log(LOG).info()
                    found = -1 if info is None else info.end_offset - 1
                    self.account.strong_reads += 1
                    self.account.stale_strong_reads += found < wanted
                    self._stop.wait(0.02)

    # The verdict.

    def judge(self) -> Account:
        """Heal, stop, and compare what every node has on its disk with what was acknowledged."""
        self.start()
        self.until_well()
        until(self._is_settled, "every node has what was acknowledged")
        self.trial.stop()
        contents = [self._values(name) for name in self.names]
        every = Counter(contents[0])
        self.account.lost = sum(value not in every for value in self._acknowledged)
        self.account.duplicated = sum(count > 1 for count in every.values())
        self.account.divergent_nodes = self._divergent(contents)
        return self.account

    def _is_settled(self) -> bool:
        """Whether each node's file has as many records as the others, and all acknowledged ones."""
        counts = {len(self._values(name)) for name in self.names}
        return len(counts) == 1 and min(counts) >= self.account.acknowledged

    def _values(self, name: str) -> list[bytes]:
        with millstream.open(self.trial.folder / name / "store.db", mode="r") as ms:
            return [one.value for one in ms.log(LOG).read()]

    def _divergent(self, contents: list[list[bytes]]) -> int:
        """Nodes with other records, or, at the same entry, with other rows."""
        other = {
            name for name, found in zip(self.names, contents, strict=True) if found != contents[0]
        }
        rows: dict[bytes, dict[bytes, bytes]] = {}
        for name in self.names:
            engine = open_engine(self.trial.folder / name / "store.db", mode="r")
            try:
                found = dict(all_rows(engine))
            finally:
                engine.close()
            if rows.setdefault(found[keys.CLUSTER_KEY], found) != found:
                other.add(name)
        return len(other)


@contextmanager
def running(folder: Path, seed: int) -> Iterator[Run]:
    """A cluster that runs, and is ended with the block; what it did is printed then."""
    run = Run(folder / "run", seed)
    try:
        run.start()
        run.until_well()
        yield run
    finally:
        for name in run.names:
            run.send(name, signal.SIGCONT)
            run.send_nats(name, signal.SIGCONT)
        run.trial.stop()
        print(run.account)
