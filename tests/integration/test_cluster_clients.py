"""Clients of a cluster whose nodes are killed and stopped: what they were told stays true.

A client of a follower alone has its requests handed on. Whatever node is killed under it, nothing that
was acknowledged is lost, and under a producer nothing is done twice. Users of a room whose node is
killed resume on another one: each hears everything once, and in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import millstream
from millstream import Producer
from millstream.errors import MillstreamError
from tests.conformance.nats_kit import until
from tests.integration.cluster_run import Run, running
from tests.integration.test_room_kill import Member

pytestmark = [
    pytest.mark.requires("nats"),
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.crash,
    pytest.mark.timeout(3600),
]

SEED = int(os.environ["MILLSTREAM_SEED"])
ROUNDS = int(os.environ.get("MILLSTREAM_CLUSTER_ROUNDS", "1"))
LOG = "handed-on"
USERS = 12
EACH = 10
"""Messages that each user sends before a node is killed, and again while and after that."""

PATIENCE_S = 300


class Handing:
    """A client of one node, which hands on what it is asked for while it does not lead."""

    def __init__(self, run: Run, name: str) -> None:
        self.name = name
        self.attempted = 0
        self.stored = 0
        """Appends under a producer, each repeated until it is acknowledged."""
        self.acknowledged: list[bytes] = []
        """Appends without one, each tried once."""
        self._address = next(one.address for one in run.trial.peers if one.name == name)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def until_stored(self, more: int = 10) -> None:
        """Wait until some more were stored."""
        wanted = self.stored + more
        until(lambda: self.stored >= wanted, f"appends at {self.name} are acknowledged")

    def end(self) -> None:
        """Write no more."""
        self._stop.set()
        self._thread.join()

    def _write(self) -> None:
        while not self._stop.is_set():
            try:
                with millstream.open(self._address, retry_for=2.0) as ms:
                    while not self._stop.is_set():
                        self._append(ms.log(LOG))
            except MillstreamError:
                self._stop.wait(0.05)

    def _append(self, log: millstream.Log) -> None:
        number = self.stored
        self.attempted += 1
        log.append(
            b"%s once %d" % (self.name.encode(), number), producer=Producer(self.name, number)
        )
        self.stored += 1
        value = b"%s plain %d" % (self.name.encode(), number)
        self.attempted += 1
        log.append(value)
        self.acknowledged.append(value)


def test_what_a_follower_hands_on_is_neither_lost_nor_done_twice_when_leaders_are_killed(
    tmp_path: Path,
) -> None:
    with running(tmp_path, SEED) as run:
        clients = [Handing(run, name) for name in run.names]
        try:
            for fault in ("kill_leader", "stop_leader") * ROUNDS:
                for one in clients:
                    one.until_stored()
                hurt(run, fault)
            for one in clients:
                one.until_stored()
        finally:
            for one in clients:
                one.end()
        run.until_well()
        with millstream.open(",".join(one.address for one in run.trial.peers)) as ms:
            found = [one.value for one in ms.log(LOG).read()]
        counts = Counter(found)
        for one in clients:
            run.account.attempted += one.attempted
            run.account.acknowledged += one.stored + len(one.acknowledged)
            start = b"%s once" % one.name.encode()
            once = [value for value in found if value.startswith(start)]
            wanted = [b"%s %d" % (start, number) for number in range(len(once))]
            assert once == wanted, "in order, and none twice"
            assert len(once) in (one.stored, one.stored + 1), "the last one may not have been told"
            assert {counts[value] for value in one.acknowledged} == {1}


def hurt(run: Run, fault: str) -> None:
    """Kill the leading node, or let it sleep; then wait until the cluster is well."""
    run.account.faults[fault] += 1
    leader = run.leader()
    assert leader is not None
    if fault == "kill_leader":
        run.kill(leader)
        until(lambda: run.leader() not in (None, leader), "another node leads")
        run.start(leader)
    else:
        run.stop_leader()
    run.until_well()


@pytest.mark.parametrize("leads", [True, False])
def test_a_client_of_several_nodes_leaves_one_that_was_stopped(tmp_path: Path, leads: bool) -> None:
    """The process sleeps, its connections stay open, and nothing but its silence tells."""
    with running(tmp_path, SEED) as run:
        leader = run.leader()
        stopped, *others = sorted(run.names, key=lambda name: (name == leader) is not leads)
        addresses = {one.name: one.address for one in run.trial.peers}
        run.account.faults["stop_leader" if leads else "stop_follower"] += 1
        nodes = ",".join(addresses[name] for name in (stopped, *others))
        with millstream.open(nodes, read_level="strong" if leads else "eventual") as ms:
            log = ms.log(LOG)
            log.append(b"before", producer=Producer("client", 0))
            run.send(stopped, signal.SIGSTOP)
            log.append(b"after", producer=Producer("client", 1))
            until(lambda: log.end_offset() == 2, "the node that is asked now has both")
            assert [one.value for one in log.read()] == [b"before", b"after"]
        run.send(stopped, signal.SIGCONT)
        run.until_well()


async def story(run: Run, doomed: str) -> None:
    """Users of all nodes send, while one node is killed; each hears everything once."""
    urls = [one.address for one in run.trial.peers]
    members = [Member(n, urls[n % 3 :] + urls[: n % 3]) for n in range(USERS)]
    tasks = [asyncio.create_task(one.run()) for one in members]

    async def until(condition: Callable[[Member], bool]) -> None:
        waiting = asyncio.gather(*(one.until(condition) for one in members))
        await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        assert not any(task.done() for task in tasks), [task for task in tasks if task.done()]

    await until(lambda one: one.is_in.is_set())
    for number in range(1, EACH + 1):
        for one in members:
            await one.send(number)
    run.send(doomed, signal.SIGKILL)
    for number in range(EACH + 1, 2 * EACH + 1):
        for one in members:
            await one.send(number)
    everything = [*range(1, 2 * EACH + 1)]
    await until(lambda one: len(one.sent) == len(everything))
    wanted = (USERS - 1) * len(everything)
    await until(lambda one: len(one.heard) >= wanted)
    run.account.attempted += USERS * len(everything)
    run.account.acknowledged += sum(len(one.sent) for one in members)
    for one in members:
        for user in {other.user for other in members} - {one.user}:
            heard = [number for sender, number in one.heard if sender == user]
            assert heard == everything, f"{one.user} has not heard {user} once and in order"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("leads", [True, False])
def test_users_of_a_room_whose_node_is_killed_resume_on_another(
    tmp_path: Path, leads: bool
) -> None:
    with running(tmp_path, SEED) as run:
        for _ in range(ROUNDS):
            leader = run.leader()
            doomed = next(name for name in run.names if (name == leader) is leads)
            run.account.faults["kill_leader" if leads else "kill_follower"] += 1

            async def within(doomed: str = doomed) -> None:
                async with asyncio.timeout(PATIENCE_S):
                    await story(run, doomed)

            asyncio.run(within())
            run.start(doomed)
            run.until_well()
        account = run.account
        assert account.acknowledged == account.attempted == ROUNDS * USERS * 2 * EACH
