"""Which record a time stands for, also if some of them cannot be read."""

from __future__ import annotations

import pytest

from millstream.embedded.session import EmbeddedSession
from millstream.format import keys
from millstream.log.commands import DescribeLog
from millstream.spark.source.planning import offset_at
from millstream.testing import Probe, SimulatedClock, memory_store

EACH = 10
STEP_S = 60


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.mark.parametrize("damaged", [None, 0, 1, 2])
def test_a_time_is_found_beside_records_that_cannot_be_read(
    clock: SimulatedClock, damaged: int | None
) -> None:
    ms = memory_store(clock=clock)
    log, times = ms.log("a"), []
    for _ in range(3):
        times.append(clock.wall_ms())
        log.append_many([b"x"] * EACH)
        clock.advance(STEP_S)
    ms.log("later").append(b"so that there is a newer commit")
    ms.fold()
    probe = Probe(ms)
    if damaged is not None:
        probe.damage(sorted(probe.rows(keys.ENTRY))[damaged])
    session = EmbeddedSession(probe.store)
    info = session.execute(DescribeLog("a"))
    for number, time_ms in enumerate(times):
        # Of what cannot be read the first is found, if the time may be among theirs.
        unsure = damaged is not None and damaged == number - 1
        found = offset_at(session, info, time_ms)
        assert found == (number - 1 if unsure else number) * EACH
    assert offset_at(session, info, clock.wall_ms()) == (20 if damaged == 2 else 30)
