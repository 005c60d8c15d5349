"""Schedules over simulated years, against a model, with workers that die between any two steps.

The model knows the ticks of a schedule by counting them one by one. After each step of the world it
compares: a worker that committed has fired exactly the ticks of the missed policy, and any other worker
has fired nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream import Millstream
from millstream.command import Command, Transact
from millstream.jobs import schedule as s
from millstream.jobs.schedule import Schedule, ScheduledJob, define
from millstream.jobs.ticks import LATE_MS, TICKS_PER_STEP
from millstream.record import wall_ms_of
from millstream.testing import MemoryEngine, SimulatedClock, memory_store
from millstream.threads.schedules import ScheduleStore
from tests.property.examples import examples

DAY_S = 86_400
LEASE_OVER_S = s.LEASE_S + 1


class WorkerDied(BaseException):
    """The end of a worker, between two of its steps."""


class Mortal:
    """A session of a worker that dies before or after one of its commands, or dawdles before it."""

    def __init__(
        self, ms: Millstream, *, dies_at: int = -1, done: bool = False, dawdle: Any = None
    ) -> None:
        self.limits, self.clock = ms.session.limits, ms.session.clock
        self._session, self._left = ms.session, dies_at
        self._done, self._dawdle = done, dawdle

    def execute(self, command: Command[Any]) -> Any:
        """Answer a command, unless the worker dies here."""
        if self._dawdle is not None and isinstance(command, Transact):
            dawdle, self._dawdle = self._dawdle, None
            dawdle()
        dies = self._left == 0
        self._left -= 1
        if dies and not self._done:
            raise WorkerDied
        answer = self._session.execute(command)
        if dies:
            raise WorkerDied
        return answer

    def close(self) -> None:
        """Leave the store open."""


class World:
    """A store with one schedule, its model, and the workers that serve it."""

    def __init__(self, every: str | float, zone: str, missed: str) -> None:
        self.clock, self.engine = SimulatedClock(), MemoryEngine()
        self.open()
        self.ms.create_queue("jobs")
        self.every, self.zone, self.missed = every, zone, missed
        self.fired: list[int] = []
        self.found_due_ms = 0
        """The latest time at which the store may have found the present tick due."""
        self.put()

    def open(self) -> None:
        self.ms = memory_store(self.engine, clock=self.clock)
        self.store = ScheduleStore(self.ms.session)

    def close(self) -> None:
        self.ms.close()

    # What the model says.

    def ticks_until(self, now_ms: int) -> list[int]:
        """Count the ticks that are due, one by one."""
        due = self.due_ms
        assert due is not None
        if due > now_ms:
            return []
        later = takewhile(lambda tick: tick <= now_ms, self.schedule.ticks.after(due))
        return [due, *later]

    def expected(self, now_ms: int) -> list[int]:
        passed = self.ticks_until(now_ms)
        if self.missed == "all":
            return passed[:TICKS_PER_STEP]
        is_fresh = self.missed == "once" or now_ms - passed[-1] <= LATE_MS
        return passed[-1:] if is_fresh else []

    def check(self, looked_ms: int) -> None:
        """Compare the jobs and the next tick with the model, after a worker may have looked."""
        jobs = self.ms.queue("jobs").pop(10_000)
        ticks = [_ms(str(job.headers[s.TICK_HEADER])) for job in jobs]
        info = self.store.get("x")
        next_ms = None if info.next is None else wall_ms_of(info.next)
        if self.paused or next_ms == self.due_ms:
            assert ticks == [], "nobody committed"
            return
        # A tick stays due that was due at a claim or at its put, even if the clock has gone back since.
        if self.due_ms is not None and looked_ms < self.due_ms <= self.found_due_ms:
            looked_ms = self.due_ms
        assert ticks == self.expected(looked_ms)
        passed = self.ticks_until(looked_ms)
        last = passed[:TICKS_PER_STEP][-1] if self.missed == "all" else passed[-1]
        assert next_ms == next(self.schedule.ticks.after(last))
        assert not self.fired or not ticks or ticks[0] > self.fired[-1], "no tick fires twice"
        self.fired += ticks[-1:]
        self.due_ms, self.found_due_ms = next_ms, 0

    # What happens in the world.

    def put(self) -> None:
        job = ScheduledJob("work")
        now_ms = self.clock.wall_ms()
        wanted = define("x", job, self.every, tz=self.zone, missed=self.missed, now_ms=now_ms)
        if self.store.store(wanted) == "created":
            self.schedule: Schedule = wanted
            self.due_ms, self.found_due_ms, self.paused = wanted.next_ms, 0, False

    def serve(self, session: Mortal | None = None) -> None:
        looked_ms = self.note_claim()
        try:
            ScheduleStore(session or Mortal(self.ms)).fire()
        except WorkerDied:
            pass
        self.check(looked_ms)

    def note_claim(self) -> int:
        """Note that a worker claims now; return the time."""
        now_ms = self.clock.wall_ms()
        self.found_due_ms = max(self.found_due_ms, now_ms)
        return now_ms

    def serve_all(self) -> None:
        """Let healthy workers serve everything, after the leases of the dead have ended."""
        self.clock.advance(LEASE_OVER_S)
        for _ in range(50):
            before = self.due_ms
            self.serve()
            if self.due_ms == before:
                break
        assert self.paused or self.due_ms is None or self.due_ms > self.clock.wall_ms()

    def pause(self) -> None:
        self.store.pause("x")
        self.paused = True

    def resume(self) -> None:
        self.store.resume("x")
        self.paused = False
        self.due_ms = next(self.schedule.ticks.after(self.clock.wall_ms()))
        self.found_due_ms = 0
        self.fired = [tick for tick in self.fired if tick <= self.clock.wall_ms()]

    def trigger(self) -> None:
        self.store.trigger("x")
        self.found_due_ms = self.clock.wall_ms()
        (job,) = self.ms.queue("jobs").pop(10)
        assert _ms(str(job.headers[s.TICK_HEADER])) == self.clock.wall_ms()

    def claim_and_die(self) -> None:
        self.note_claim()
        self.ms.queue(s.QUEUE).claim(10, lease=s.LEASE_S)

    def reboot(self) -> None:
        """The machine is off for hours, with all processes that had opened the store."""
        self.close()
        self.clock.reboot(off=timedelta(hours=5))
        self.engine = self.engine.reopen()
        self.open()

    def dawdle(self) -> None:
        """A worker falls asleep between its claim and its commit; another worker serves meanwhile.

        A worker that claims nothing, because a dead worker still holds the lease, does not commit, so it
        does not fall asleep.
        """
        slept = False

        def meanwhile() -> None:
            nonlocal slept
            slept = True
            self.clock.advance(LEASE_OVER_S)
            self.serve()

        looked_ms = self.note_claim()
        before = self.due_ms
        ScheduleStore(Mortal(self.ms, dawdle=meanwhile)).fire()
        assert self.ms.queue("jobs").pop(10) == [], "the lease of the sleeper was lost"
        if slept and before is not None and before <= looked_ms:
            assert self.due_ms != before, "the other worker has fired"


def _ms(text: str) -> int:
    return wall_ms_of(datetime.fromisoformat(text))


Step = Callable[[World], object]


def _dying(at: int, done: bool) -> Step:
    return lambda world: world.serve(Mortal(world.ms, dies_at=at, done=done))


STEPS = st.one_of(
    st.sampled_from([30, 3_600, DAY_S, 9 * DAY_S, 40 * DAY_S]).map(
        lambda seconds: lambda world: world.clock.advance(seconds)
    ),
    st.sampled_from([-7_200, -60, 60, 7_200, 3 * DAY_S]).map(
        lambda seconds: lambda world: world.clock.jump(seconds)
    ),
    st.builds(_dying, st.integers(0, 2), st.booleans()),
    st.sampled_from(
        [
            World.serve,
            World.serve,
            World.serve_all,
            World.claim_and_die,
            World.dawdle,
            World.pause,
            World.resume,
            World.trigger,
            World.put,
            World.reboot,
        ]
    ),
)
EVERY = st.sampled_from(
    ["30 1 * * *", "*/30 * * * *", "0 3 1 * *", "15 */5 * * 1", 5_400.0, 86_400.0]
)


@settings(max_examples=examples(60))
@given(
    every=EVERY,
    zone=st.sampled_from(["UTC", "Europe/Lisbon", "America/New_York"]),
    missed=st.sampled_from(["skip", "once", "all"]),
    steps=st.lists(STEPS, max_size=25),
)
def test_each_tick_fires_once_whatever_workers_and_clocks_do(
    every: str | float, zone: str, missed: str, steps: list[Step]
) -> None:
    world = World(every, zone, missed)
    with closing(world):
        for step in steps:
            step(world)
        world.serve_all()


def test_twenty_years_of_a_monthly_schedule_with_dying_workers() -> None:
    world = World("30 1 28 * *", "Europe/Lisbon", "once")
    with closing(world):
        for month in range(240):
            world.clock.advance(30.4375 * DAY_S)
            if month % 3 == 0:
                world.serve(Mortal(world.ms, dies_at=month // 3 % 3, done=month % 2 == 0))
                world.clock.advance(LEASE_OVER_S)
            world.serve()
        assert 238 <= len(world.fired) <= 241
        assert len(set(world.fired)) == len(world.fired)
