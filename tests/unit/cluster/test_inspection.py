"""Damage that no query has met is found when a node starts: it never leads, and mends itself."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.cluster.node.inspection import Inspection
from millstream.engine.memory.engine import MemoryEngine
from millstream.errors import CorruptionError
from millstream.testing import SimulatedClock
from tests.unit.cluster.trio import QUICK, STEADY, Trio

PAGE_BYTES = 4096


class Slow(MemoryEngine):
    """An engine whose check takes until the test lets it end."""

    def __init__(self, outcome: Exception | None = None) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self._outcome = outcome

    def verify(self, stop: Callable[[], bool]) -> bool:
        while not self.go_on.wait(0.01):
            if stop():
                return False
        if self._outcome is not None:
            raise self._outcome
        return True


def until_over(inspection: Inspection) -> None:
    while inspection.is_awaited:
        threading.Event().wait(0.01)


def test_a_check_is_awaited_until_it_is_over_or_its_time_is() -> None:
    engine, clock = Slow(), SimulatedClock()
    inspection = Inspection(engine, clock=clock, wait_s=20.0)
    assert not inspection.is_awaited
    inspection.start()
    assert inspection.is_awaited
    clock.advance(21)
    assert not inspection.is_awaited
    inspection.stop()

    inspection = Inspection(engine, clock=clock, wait_s=20.0)
    inspection.start()
    engine.go_on.set()
    until_over(inspection)
    assert not inspection.damage
    inspection.stop()


def test_damage_is_remembered_until_the_file_is_exchanged() -> None:
    engine = Slow(CorruptionError("page 7", what="page", where=7))
    inspection = Inspection(engine, clock=SimulatedClock(), wait_s=20.0)
    inspection.start()
    engine.go_on.set()
    until_over(inspection)
    assert "page 7" in inspection.damage
    inspection.stop()
    assert not inspection.damage


def test_an_engine_without_a_file_is_not_checked() -> None:
    inspection = Inspection(MemoryEngine(), clock=SimulatedClock(), wait_s=20.0)
    inspection.start()
    assert not inspection.is_awaited
    inspection.stop()


def flip(path: Path, page: int) -> None:
    """Flip one bit in the middle of a page, counted from 0."""
    with open(path, "r+b") as file:
        file.seek(page * PAGE_BYTES + PAGE_BYTES // 2)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes((byte ^ 1,)))


def filled(trio: Trio) -> None:
    """Records that take many pages, of which a node reads few when it starts."""
    for number in range(20):
        trio.leader().ms.log("orders").append_many([bytes([number]) * 1000] * 100)
    trio.settle()


@pytest.mark.parametrize("seed", range(3))
def test_a_node_with_a_damaged_page_repairs_itself_from_another(tmp_path: Path, seed: int) -> None:
    with Trio(tmp_path, STEADY) as trio:
        trio.start("a", "b", "c")
        filled(trio)
        name = trio.followers()[0].name
        trio.stop(name)
        path = tmp_path / f"{name}.db"
        pages = path.stat().st_size // PAGE_BYTES
        flip(path, random.Random(seed).randrange(pages // 2, pages - 1))

        trio.start(name)
        trio.until(lambda: trio.machines[name].node.state().snapshots == 1)
        trio.settle()

        assert (tmp_path / f"{name}.db.aside-1").exists()
        assert not trio.machines[name].node.state().reason


def test_a_damaged_node_does_not_lead_when_the_whole_cluster_starts(tmp_path: Path) -> None:
    with Trio(tmp_path, STEADY) as trio:
        trio.start("a", "b", "c")
        filled(trio)
        for name in "abc":
            trio.stop(name)
        path = tmp_path / "a.db"
        flip(path, path.stat().st_size // PAGE_BYTES - 10)

        trio.start("a")
        trio.until(lambda: bool(trio.machines["a"].node.state().reason))
        assert not trio.machines["a"].leads
        trio.start("b", "c")
        trio.until(lambda: trio.machines["a"].node.state().snapshots == 1)
        trio.settle()


def test_a_node_that_no_other_can_repair_serves_what_can_be_read(tmp_path: Path) -> None:
    """A cluster of one node, or the primary of a pair: not to lead would help nobody."""
    with Trio(tmp_path, replace(QUICK, yields_damaged=False)) as trio:
        trio.start("a")
        filled(trio)
        trio.stop("a")
        path = tmp_path / "a.db"
        flip(path, path.stat().st_size // PAGE_BYTES - 10)
        trio.start("a")
        trio.leader().ms.log("others").append(b"0")


def test_a_leader_whose_file_is_found_damaged_steps_down(tmp_path: Path) -> None:
    with Trio(tmp_path, STEADY) as trio:
        trio.start("a", "b", "c")
        filled(trio)
        first = trio.leader()
        first.node.member.found_damage("page 7 is damaged")
        trio.until(lambda: first.node.state().snapshots == 1)
        assert trio.leader() is not first
        trio.settle()
