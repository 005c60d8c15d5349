"""A whole store in memory: what users' tests open instead of a file."""

from __future__ import annotations

from millstream.clock import Clock
from millstream.embedded.session import EmbeddedSession, open_over
from millstream.engine.memory.engine import MemoryEngine
from millstream.limits import Limits
from millstream.testing.clock import SimulatedClock
from millstream.threads.database import Millstream


def memory_store(
    engine: MemoryEngine | None = None,
    *,
    clock: Clock | None = None,
    limits: Limits | None = None,
) -> Millstream:
    """A store without a disk, on a simulated clock unless another one is given.

    Hand in an engine to open it again later, with `memory_store(engine.reopen())`, or to let it
    fail.
    """
    store = open_over(
        lambda: engine or MemoryEngine(), limits=limits, clock=clock or SimulatedClock()
    )
    return Millstream(EmbeddedSession(store))
