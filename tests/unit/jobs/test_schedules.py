"""Schedules in a store: each tick fires once; changes are atomic against ticks and each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from millstream import Message, Millstream
from millstream.command import Command, Transact
from millstream.errors import InvalidInput, NotFound
from millstream.jobs import schedule as s
from millstream.jobs.schedule import ScheduledJob, define
from millstream.record import moment
from millstream.testing import SimulatedClock, memory_store
from millstream.threads.schedules import ScheduleStore

JOB = ScheduledJob("shop:report", arguments={"day": 1})
START = round(datetime(2026, 10, 24, 12, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(START)


@pytest.fixture
def ms(clock: SimulatedClock) -> Iterator[Millstream]:
    with memory_store(clock=clock) as ms:
        ms.create_queue("jobs")
        yield ms


@pytest.fixture
def schedules(ms: Millstream) -> ScheduleStore:
    return ScheduleStore(ms.session)


class BeforeTransactions:
    """A session in which something else happens before its first transaction."""

    def __init__(self, ms: Millstream, happens: Callable[[], object]) -> None:
        self.limits, self.clock = ms.session.limits, ms.session.clock
        self._session, self._happens = ms.session, [happens]

    def execute(self, command: Command[Any]) -> Any:
        if isinstance(command, Transact) and self._happens:
            self._happens.pop()()
        return self._session.execute(command)

    def close(self) -> None:
        """Leave the store open."""


def put(
    schedules: ScheduleStore, clock: SimulatedClock, name: str = "nightly", **given: Any
) -> str:
    options = {"every": "30 1 * * *", "tz": "Europe/Lisbon", **given}
    every = options.pop("every")
    return schedules.store(define(name, JOB, every, now_ms=clock.wall_ms(), **options))


def fired(ms: Millstream) -> list[str]:
    """Take all jobs, and return their ticks."""
    return [str(job.headers["job-tick"])[:16] for job in ms.queue("jobs").pop(10_000)]


def run_until(
    schedules: ScheduleStore, clock: SimulatedClock, until: datetime, step_s: float = 600
) -> None:
    while clock.wall_ms() < until.timestamp() * 1000:
        clock.advance(step_s)
        schedules.fire()


def test_a_due_tick_puts_its_job_and_the_next_tick(
    ms: Millstream, schedules: ScheduleStore, clock: SimulatedClock
) -> None:
    put(schedules, clock)

    assert schedules.fire() == 0
    clock.advance(timedelta(hours=13))
    assert schedules.fire() == 1
    assert schedules.fire() == 0

    (job,) = ms.queue("jobs").claim(10)
    assert job.json() == {"day": 1}
    assert job.headers["task"] == "shop:report"
    assert job.headers["job-schedule"] == "nightly"
    assert job.headers["job-tick"] == "2026-10-25T00:30:00.000+00:00"
    (info,) = schedules.list(upcoming=2)
    assert info.last == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert info.next == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)
    assert info.upcoming == [info.next, info.next + timedelta(days=1)]
    assert (info.every, info.tz, info.task) == ("30 1 * * *", "Europe/Lisbon", "shop:report")


def test_lisbon_in_autumn_fires_once_at_half_past_one(
    ms: Millstream, schedules: ScheduleStore, clock: SimulatedClock
) -> None:
    put(schedules, clock)

    run_until(schedules, clock, datetime(2026, 10, 26, 12, tzinfo=UTC))

    assert fired(ms) == ["2026-10-25T00:30", "2026-10-26T01:30"]


def test_lisbon_in_spring_fires_at_two(
    ms: Millstream, schedules: ScheduleStore, clock: SimulatedClock
) -> None:
    clock.jump(datetime(2026, 3, 28, 12, tzinfo=UTC) - moment(START))
    put(schedules, clock)

    run_until(schedules, clock, datetime(2026, 3, 30, 12, tzinfo=UTC))

    assert fired(ms) == ["2026-03-29T01:00", "2026-03-30T00:30"], "02:00 and 01:30 in Lisbon"


@pytest.mark.parametrize("day", ["2026-10-25", "2026-03-29"])
def test_every_half_hour_keeps_its_real_interval_on_both_days(
    ms: Millstream, schedules: ScheduleStore, clock: SimulatedClock, day: str
) -> None:
    noon = datetime.fromisoformat(f"{day}T12:00+00:00")
    clock.jump(noon - timedelta(days=1) - moment(START))
    put(schedules, clock, every="*/30 * * * *")

    run_until(schedules, clock, noon)

    ticks = [datetime.fromisoformat(tick) for tick in fired(ms)]
    assert len(ticks) == 48
    assert {later - tick for tick, later in itertools.pairwise(ticks)} == {timedelta(minutes=30)}


@pytest.mark.parametrize(("missed", "count"), [("skip", 0), ("once", 1), ("all", 7)])
def test_a_week_without_workers(
    ms: Millstream, schedules: ScheduleStore, clock: SimulatedClock, missed: str, count: int
) -> None:
    put(schedules, clock, missed=missed)
    clock.reboot(off=timedelta(days=7))

    assert schedules.fire() == count
    assert schedules.fire() == 0
    assert len(fired(ms)) == count


def test_many_missed_ticks_fire_in_several_steps(
    ms: Millstream, schedules: ScheduleStore, clock: SimulatedClock
) -> None:
    put(schedules, clock, every=timedelta(minutes=1), missed="all")
    clock.advance(timedelta(minutes=2_500))

    assert [schedules.fire() for _ in range(4)] == [1_000, 1_000, 500, 0]
    assert len(set(fired(ms))) == 2_500


def test_a_clock_that_goes_back_fires_nothing_twice(
    ms: Millstream, schedules: ScheduleStore, clock: SimulatedClock
) -> None:
    put(schedules, clock, every=timedelta(minutes=10))
    clock.advance(600)
    assert schedules.fire() == 1
    clock.jump(-3_600)
    run_until(schedules, clock, moment(START) + timedelta(minutes=30))

    ticks = fired(ms)
    assert ticks == sorted(set(ticks))
    assert len(ticks) == 3


def test_a_clock_that_goes_forward_misses_ticks(
    ms: Millstream, schedules: ScheduleStore, clock: SimulatedClock
) -> None:
    put(schedules, clock, every=timedelta(minutes=10), missed="once")
    clock.jump(timedelta(days=2))

    assert schedules.fire() == 1
    assert schedules.get("nightly").next == moment(clock.wall_ms()) + timedelta(minutes=10)


def test_a_repeated_put_keeps_the_tick_that_was_missed(
    schedules: ScheduleStore, clock: SimulatedClock
) -> None:
    assert put(schedules, clock) == "created"
    clock.reboot(off=timedelta(days=3))

    assert put(schedules, clock) == "unchanged"
    assert schedules.fire() == 1


def test_a_repeated_interval_keeps_its_rhythm(
    schedules: ScheduleStore, clock: SimulatedClock
) -> None:
    put(schedules, clock, every=timedelta(hours=1))
    clock.advance(1_800)

    assert put(schedules, clock, every=3600) == "unchanged"
    assert put(schedules, clock, every=3601) == "changed"


def test_a_changed_expression_changes_the_stored_schedule(
    ms: Millstream, schedules: ScheduleStore, clock: SimulatedClock
) -> None:
    put(schedules, clock)

    assert put(schedules, clock, every="0 13 * * *", tz="UTC") == "changed"

    (info,) = schedules.list()
    assert info.next == datetime(2026, 10, 24, 13, tzinfo=UTC)
    run_until(schedules, clock, datetime(2026, 10, 25, 12, tzinfo=UTC))
    assert fired(ms) == ["2026-10-24T13:00"], "the old tick has gone"


def test_a_paused_schedule_fires_again_after_it_is_resumed(
    ms: Millstream, schedules: ScheduleStore, clock: SimulatedClock
) -> None:
    put(schedules, clock, missed="all")
    assert schedules.pause("nightly").paused
    assert schedules.pause("nightly").next is None
    run_until(schedules, clock, datetime(2026, 10, 28, 12, tzinfo=UTC), 7_200)
    assert put(schedules, clock, missed="all") == "unchanged", "it stays paused"

    assert not schedules.resume("nightly").paused

    run_until(schedules, clock, datetime(2026, 10, 29, 12, tzinfo=UTC))
    assert fired(ms) == ["2026-10-29T01:30"]


def test_a_resume_in_the_hour_that_comes_twice_fires_no_tick_again(
    ms: Millstream, schedules: ScheduleStore, clock: SimulatedClock
) -> None:
    put(schedules, clock)
    run_until(schedules, clock, datetime(2026, 10, 25, 1, 10, tzinfo=UTC))
    schedules.pause("nightly")

    assert schedules.resume("nightly").next == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)

    run_until(schedules, clock, datetime(2026, 10, 25, 12, tzinfo=UTC))
    assert fired(ms) == ["2026-10-25T00:30"]


def test_a_trigger_puts_a_job_and_leaves_the_ticks(
    ms: Millstream, schedules: ScheduleStore, clock: SimulatedClock
) -> None:
    put(schedules, clock)
    before = schedules.get("nightly")

    id = schedules.trigger("nightly")

    assert id == "jobs-0"
    assert fired(ms) == ["2026-10-24T12:00"]
    assert schedules.get("nightly") == before


def test_a_deleted_schedule_fires_no_more(
    ms: Millstream, schedules: ScheduleStore, clock: SimulatedClock
) -> None:
    put(schedules, clock)

    assert schedules.delete("nightly")
    assert not schedules.delete("nightly")

    clock.advance(timedelta(days=3))
    assert schedules.fire() == 0
    assert schedules.list() == []
    assert put(schedules, clock) == "created"


@pytest.mark.parametrize("call", ["pause", "resume", "trigger", "get"])
def test_an_unknown_schedule(schedules: ScheduleStore, call: str) -> None:
    with pytest.raises(NotFound, match="there is no schedule 'weekly'"):
        getattr(schedules, call)("weekly")


def test_a_change_wins_over_a_worker_that_has_claimed_the_tick(
    ms: Millstream, schedules: ScheduleStore, clock: SimulatedClock
) -> None:
    put(schedules, clock)
    clock.advance(timedelta(hours=13))
    queue = ms.queue(s.QUEUE)
    (tick,) = queue.claim(1, lease=10)

    schedules.pause("nightly")

    assert queue.finish_each(tick, "ack") == [tick], "the worker has lost its lease"
    assert schedules.fire() == 0
    assert schedules.get("nightly").paused


CHANGES: dict[str, Callable[[ScheduleStore, SimulatedClock], object]] = {
    "pause": lambda schedules, _: schedules.pause("nightly"),
    "resume": lambda schedules, _: schedules.resume("nightly"),
    "trigger": lambda schedules, _: schedules.trigger("nightly"),
    "delete": lambda schedules, _: schedules.delete("nightly"),
    "put": lambda schedules, clock: put(schedules, clock, every="0 5 * * *"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_schedule_whose_worker_died_is_changed_once_the_lease_has_ended(
    ms: Millstream, schedules: ScheduleStore, clock: SimulatedClock, change: str
) -> None:
    put(schedules, clock)
    clock.advance(timedelta(hours=13))
    (tick,) = ms.queue(s.QUEUE).claim(1, lease=10)
    clock.advance(11)

    CHANGES[change](schedules, clock)

    assert ms.queue(s.QUEUE).finish_each(tick, "ack") == [tick], "the dead worker cannot come back"
    fired(ms)
    # A trigger keeps the tick, which a living worker now fires.
    assert schedules.fire() == (change == "trigger")
    assert [info.paused for info in schedules.list()] == (
        [] if change == "delete" else [change == "pause"]
    )


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_and_a_worker_that_claims_the_tick_meanwhile_fire_it_once(
    ms: Millstream, schedules: ScheduleStore, clock: SimulatedClock, change: str
) -> None:
    """The change looks at the schedule of a dead worker; then a living worker claims the tick."""
    put(schedules, clock)
    clock.advance(timedelta(hours=13))
    ms.queue(s.QUEUE).claim(1, lease=10)
    clock.advance(11)
    claims: list[Message] = []
    session = BeforeTransactions(ms, lambda: claims.extend(ms.queue(s.QUEUE).claim(1, lease=10)))

    CHANGES[change](ScheduleStore(session), clock)

    (tick,) = claims
    assert ms.queue(s.QUEUE).finish_each(tick, "ack") == [tick], "the change took its lease"
    fired(ms)
    assert schedules.fire() == (change == "trigger")


def test_a_job_that_cannot_be_put_is_tried_again_and_shown(
    ms: Millstream, schedules: ScheduleStore, clock: SimulatedClock
) -> None:
    put(schedules, clock, "good", every=timedelta(minutes=10))
    lost = define("lost", msgspec.structs.replace(JOB, queue="none"), 600, now_ms=clock.wall_ms())
    schedules.store(lost)
    clock.advance(600)

    assert schedules.fire() == 1, "the other schedule fires"
    assert "none" in schedules.get("lost").failure

    ms.create_queue("none")
    clock.advance(60)
    assert schedules.fire() == 1
    assert schedules.get("lost").failure == ""


def test_schedules_of_code_are_stored_and_reported(
    schedules: ScheduleStore, clock: SimulatedClock
) -> None:
    def declared(name: str, every: str) -> s.Schedule:
        return define(name, JOB, every, declared=True, now_ms=clock.wall_ms())

    put(schedules, clock, "by hand")
    report = schedules.sync([declared("a", "0 1 * * *"), declared("b", "0 2 * * *")])
    assert report.created == ["a", "b"]

    report = schedules.sync([declared("b", "0 3 * * *"), declared("c", "0 4 * * *")])

    assert (report.created, report.changed, report.undeclared) == (["c"], ["b"], ["a"])
    assert [info.name for info in schedules.list()] == ["a", "b", "by hand", "c"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"every": "99 * * * *"}, "schedule 'x': '99 . . . .' is no cron expression"),
        ({"tz": "Mars/Olympus"}, "schedule 'x': 'Mars/Olympus' is no time zone"),
        ({"missed": "never"}, "schedule 'x': missed is 'skip', 'once' or 'all', not 'never'"),
        ({"start": datetime(2020, 1, 1, tzinfo=UTC)}, "schedule 'x': the start .* is in the past"),
        ({"start": datetime(2030, 1, 1)}, "schedule 'x': the start needs a time zone"),
        ({"start": 5}, "schedule 'x': the start is a datetime, not 5"),
        ({"every": 0.1}, "schedule 'x': the interval of a schedule is from 1 second"),
    ],
)
def test_a_wrong_schedule_is_refused_and_nothing_is_stored(
    ms: Millstream, schedules: ScheduleStore, clock: SimulatedClock, given: Any, says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        put(schedules, clock, "x", **given)
    assert schedules.list() == []
    assert [queue.name for queue in ms.queues()] == ["jobs"]


def test_a_start_is_the_first_tick(
    ms: Millstream, schedules: ScheduleStore, clock: SimulatedClock
) -> None:
    start = moment(START) + timedelta(hours=5)
    put(schedules, clock, every=3600, start=start)

    assert schedules.get("nightly").next == start


@pytest.mark.parametrize("every", [3600, "0 * * * *"])
def test_a_put_with_another_start_holds_the_next_tick_back(
    schedules: ScheduleStore, clock: SimulatedClock, every: Any
) -> None:
    start = (moment(START) + timedelta(days=5)).replace(minute=0, second=0, microsecond=0)
    put(schedules, clock, every=every)
    assert put(schedules, clock, every=every, start=start) == "changed"
    assert schedules.get("nightly").next == start
    clock.advance(600)
    assert put(schedules, clock, every=every, start=start) == "unchanged"
    assert put(schedules, clock, every=every) == "unchanged"
    assert schedules.get("nightly").next == start
