"""A process that ends at every single step of moving 503 due jobs to ready: none is missing.

Jobs that were put for later become ready when they are due, and due schedules put their jobs. The store
is stopped once at each step of its engine, opened again, and must then deliver each job exactly once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from millstream import Millstream
from millstream.embedded.session import EmbeddedSession, open_store
from millstream.jobs.schedule import LEASE_S, SCHEDULE_HEADER, ScheduledJob, define
from millstream.testing import Crash, Faults, MemoryEngine, Probe, SimulatedClock
from millstream.threads.schedules import ScheduleStore

pytestmark = pytest.mark.faults

COUNT = 503
START_MS = 1_700_000_000_000
BETWEEN = ("get", "scan", "read", "put", "delete")


def opened(engine: MemoryEngine, clock: SimulatedClock) -> Millstream:
    """A store whose background thread never starts: every step is taken by the test."""
    store = open_store(engine, clock=clock)
    Probe(store).pause_keeper()
    return Millstream(EmbeddedSession(store))


def with_delayed_jobs(engine: MemoryEngine) -> None:
    ms = opened(engine, SimulatedClock(START_MS))
    queue = ms.create_queue("jobs", priority_by="job-priority")
    queue.put_many([str(n) for n in range(COUNT)], at=START_MS + 60_000)
    ms.close()


def with_schedules(engine: MemoryEngine) -> None:
    ms = opened(engine, SimulatedClock(START_MS))
    ms.create_queue("jobs")
    store = ScheduleStore(ms.session)
    for n in range(COUNT):
        store.store(define(str(n), ScheduledJob("work"), 60, now_ms=START_MS))
    ms.close()


def claim_jobs(ms: Millstream) -> None:
    """Move the due jobs to ready, by a claim of one of them, and by the upkeep."""
    ms.queue("jobs").claim(1, lease=1)
    Probe(ms).upkeep()


def fire_schedules(ms: Millstream) -> None:
    while ScheduleStore(ms.session).fire():
        pass


def delivered(ms: Millstream, clock: SimulatedClock) -> Counter[str]:
    """Serve and take everything, after the leases of the stopped process have ended."""
    clock.advance(LEASE_S + 1)
    if ms.queue("jobs.schedules").exists():
        fire_schedules(ms)
    found: Counter[str] = Counter()
    while jobs := ms.queue("jobs").pop(100):
        found.update(str(job.headers.get(SCHEDULE_HEADER, job.value.decode())) for job in jobs)
    return found


@pytest.mark.parametrize(
    ("prepare", "move"),
    [(with_delayed_jobs, claim_jobs), (with_schedules, fire_schedules)],
    ids=["delayed jobs", "schedules"],
)
def test_a_stop_at_any_step_loses_no_due_job_and_repeats_none(
    prepare: Callable[[MemoryEngine], None], move: Callable[[Millstream], None]
) -> None:
    prepared = MemoryEngine()
    prepare(prepared)
    counted = Faults()
    clock = SimulatedClock(START_MS + 61_000)
    move(opened(prepared.reopen(faults=counted), clock))
    steps = counted.steps
    assert "sent" in steps
    wanted = Counter(str(n) for n in range(COUNT))

    for index, kept in _stops(steps):
        faults = Faults()
        faults.at(index, Crash(kept=kept))
        engine = prepared.reopen(faults=faults)
        clock = SimulatedClock(START_MS + 61_000)
        with pytest.raises(Crash):
            move(opened(engine, clock))

        found = delivered(opened(engine.reopen(), clock), clock)

        assert found == wanted, f"step {index} ({steps[index]}, kept={kept})"


def _stops(steps: list[str]) -> list[tuple[int, bool]]:
    """Every step of a commit, and a sample of the reads and changes between them, which are lost."""
    between = [index for index, step in enumerate(steps) if step in BETWEEN]
    sampled = set(between[:: max(1, len(between) // 12)])
    stops = []
    for index, step in enumerate(steps):
        if step in BETWEEN and index not in sampled:
            continue
        stops += [(index, False), (index, True)] if step == "sent" else [(index, False)]
    return stops
