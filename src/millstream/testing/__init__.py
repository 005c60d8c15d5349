"""The test kit: a store without a disk, a clock without waiting, faults on demand, and a probe.

from millstream.testing import Probe, SimulatedClock, memory_store

clock = SimulatedClock()
with memory_store(clock=clock) as ms:
    ms.log("orders").append({"id": 1})
    clock.advance(3600)
    Probe(ms).upkeep()
"""

from __future__ import annotations

from millstream.engine.memory.engine import MemoryEngine
from millstream.engine.memory.faults import Crash, Faults, Pause, Torn
from millstream.testing.clock import SimulatedClock
from millstream.testing.jobs_runner import JobsRunner, jobs_eagerly
from millstream.testing.probe import Probe
from millstream.testing.store import memory_store

__all__ = [
    "Crash",
    "Faults",
    "JobsRunner",
    "MemoryEngine",
    "Pause",
    "Probe",
    "SimulatedClock",
    "Torn",
    "jobs_eagerly",
    "memory_store",
]
