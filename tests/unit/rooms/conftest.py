"""A store in memory with a clock in the test's hands, and instances of servers on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.testing import MemoryEngine, Probe, SimulatedClock, memory_store
from tests.unit.rooms.serving import Served


@pytest.fixture
def served() -> Iterator[Served]:
    clock, engine = SimulatedClock(), MemoryEngine()
    with memory_store(engine, clock=clock) as ms:
        Probe(ms).pause_keeper()
        yield Served(ms, clock)
