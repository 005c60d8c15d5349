"""The test kit: a store without a disk, a clock without waiting, and faults on demand.

from millstream.testing import SimulatedClock, memory_store

clock = SimulatedClock()
with memory_store(clock=clock) as ms:
    ms.log("orders").append({"id": 1})
    clock.advance(3600)
"""

from __future__ import annotations

from millstream.store.faults import Crash, Faults, Pause, Torn
from millstream.store.memory import MemoryEngine
from millstream.testing.clock import SimulatedClock
from millstream.testing.store import memory_store

__all__ = ["Crash", "Faults", "MemoryEngine", "Pause", "SimulatedClock", "Torn", "memory_store"]
