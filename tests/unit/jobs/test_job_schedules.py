"""Schedules of tasks: declared by a decorator, or put at run time; workers store and fire them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from millstream import Millstream
from millstream.clock import SystemClock
from millstream.errors import InvalidInput
from millstream.testing import Probe, SimulatedClock, memory_store
from millstream.threads.jobs import Jobs

START = round(datetime(2026, 10, 24, 12, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(START)


@pytest.fixture
def ms(clock: SimulatedClock) -> Iterator[Millstream]:
    with memory_store(clock=clock) as ms:
        yield ms


@pytest.fixture
def jobs(ms: Millstream) -> Jobs:
    return Jobs(ms)


def test_the_schedules_of_the_code_are_stored_and_fired(
    ms: Millstream, jobs: Jobs, clock: SimulatedClock
) -> None:
    @jobs.every("30 1 * * *", tz="Europe/Lisbon", name="nightly", kwargs={"day": 7})
    @jobs.task(name="report", priority=3)
    def report(day: int) -> None:
        """Do nothing."""

    assert jobs.schedules.sync().created == ["nightly"]
    clock.advance(timedelta(hours=13))
    assert jobs.schedules.fire() == 1

    (job,) = ms.queue("jobs").claim(1)
    assert (job.json(), job.headers["task"], job.headers["job-priority"]) == (
        {"day": 7},
        "report",
        3,
    )
    (info,) = jobs.schedules.list()
    assert (info.name, info.task, info.queue, info.declared) == ("nightly", "report", "jobs", True)
    assert info.arguments == {"day": 7}
    assert info.last == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)


def test_a_worker_stores_schedules_and_fires_due_ticks() -> None:
    runs: list[str] = []
    with memory_store(clock=SystemClock()) as ms:
        jobs = Jobs(ms)

        @jobs.every(1, name="each second")
        @jobs.task(name="sweep")
        def sweep() -> None:
            runs.append("x")

        with jobs.worker():
            Probe(ms).until(lambda: bool(runs))
        assert jobs.schedules.get("each second").last is not None
        jobs.worker().run(drain=True)


def test_the_code_changes_the_stored_schedule(ms: Millstream, jobs: Jobs) -> None:
    def work() -> None:
        """Do nothing."""

    jobs.every("0 1 * * *", name="a")(jobs.task(name="work")(work))
    jobs.schedules.sync()
    later = Jobs(ms)
    task = later.task(name="work")(work)
    later.every("0 2 * * *", name="a")(task)
    assert later.schedules.sync().changed == ["a"]
    assert later.schedules.get("a").every == "0 2 * * *"

    report = Jobs(ms).schedules.sync()

    assert report.undeclared == ["a"], "it is reported, and kept"
    assert len(later.schedules.list()) == 1


def test_wrong_declarations_are_refused_where_they_are_written(jobs: Jobs) -> None:
    @jobs.task(name="work")
    def work(n: int = 0) -> None:
        """Do nothing."""

    jobs.every("0 1 * * *")(work)
    with pytest.raises(InvalidInput, match="two schedules have the name 'work'"):
        jobs.every("0 2 * * *")(work)
    with pytest.raises(InvalidInput, match=r"schedule 'work': '0 25 . . .' is no cron expression"):
        jobs.every("0 25 * * *")(work)
    with pytest.raises(InvalidInput, match="schedule 'z': 'Atlantis' is no time zone"):
        jobs.every("0 2 * * *", tz="Atlantis", name="z")(work)
    with pytest.raises(InvalidInput, match="'n'"):
        jobs.every("0 2 * * *", name="z", args=["one"])(work)
    with pytest.raises(InvalidInput, match="these jobs have no task 'walk'; they have work"):
        jobs.schedules.put("z", "walk", "0 2 * * *")
    assert jobs.schedules.sync().created == ["work"]


def test_a_schedule_at_run_time(ms: Millstream, jobs: Jobs, clock: SimulatedClock) -> None:
    @jobs.task(name="greet", unique=True)
    def greet(name: str) -> str:
        return f"hello {name}"

    info = jobs.schedules.put("ada", greet, 60, args=["Ada"], missed="all")
    assert info.queue == "jobs.greet"
    jobs.schedules.put("bob", "greet", timedelta(minutes=2), kwargs={"name": "Bob"})
    clock.advance(130)

    assert jobs.schedules.fire() == 3
    waiting = [message.json() for message in ms.queue("jobs.greet").claim(10)]
    assert waiting == [{"name": "Ada"}, {"name": "Bob"}], "the second job of Ada was a repeat"
    assert jobs.schedules.pause("ada").paused
    assert not jobs.schedules.resume("ada").paused
    assert jobs.schedules.delete("ada")
    assert [each.name for each in jobs.schedules.list()] == ["bob"]
