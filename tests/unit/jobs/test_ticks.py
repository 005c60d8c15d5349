"""Ticks of schedules: daylight saving, missed ticks, clocks that jump, wrong descriptions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidInput
from millstream.jobs.ticks import LATE_MS, Cron, Interval, Missed, Ticks, fire, parse_ticks

LISBON = ZoneInfo("Europe/Lisbon")
MINUTE_MS = 60_000


def ms(text: str, zone: ZoneInfo | None = None) -> int:
    at = datetime.fromisoformat(text).replace(tzinfo=zone or UTC)
    return round(at.timestamp() * 1000)


def texts(ticks: Ticks, after: str, until: str) -> list[str]:
    """The ticks between two wall times in Lisbon, as wall times."""
    stop = ms(until, LISBON)
    found = takewhile(lambda tick: tick < stop, ticks.after(ms(after, LISBON)))
    walls = [datetime.fromtimestamp(tick / 1000, LISBON) for tick in found]
    return [wall.strftime("%d %H:%M") for wall in walls]


NIGHTLY = Cron("30 1 * * *", "Europe/Lisbon")


def test_a_time_that_comes_twice_in_autumn_fires_once() -> None:
    found = texts(NIGHTLY, "2026-10-24T12:00", "2026-10-26T12:00")

    assert found == ["25 01:30", "26 01:30"]


def test_a_time_that_spring_leaves_out_fires_right_after_the_gap() -> None:
    found = texts(NIGHTLY, "2026-03-28T12:00", "2026-03-30T12:00")

    assert found == ["29 02:00", "30 01:30"]


@pytest.mark.parametrize("day", ["2026-10-25", "2026-03-29"])
@pytest.mark.parametrize("expression", ["30 1 * * *", "45 1 * * *", "0 2 * * *", "*/30 * * * *"])
def test_the_next_tick_is_the_same_from_wherever_one_looks(expression: str, day: str) -> None:
    """Also from an hour that comes twice: a tick that has passed is no next tick."""
    ticks = Cron(expression, "Europe/Lisbon")
    midnight = ms(f"{day}T00:00")
    of_the_week = list(islice(ticks.after(midnight - 1), 7 * 48))

    for at in range(midnight, midnight + 4 * 60 * MINUTE_MS, 5 * MINUTE_MS):
        assert next(ticks.after(at)) == next(tick for tick in of_the_week if tick > at)


@pytest.mark.parametrize(("day", "hours"), [("2026-10-25", 25), ("2026-03-29", 23)])
def test_an_expression_with_a_wildcard_keeps_its_real_interval(day: str, hours: int) -> None:
    ticks = Cron("*/30 * * * *", "Europe/Lisbon")
    start = ms(f"{day}T00:00", LISBON) - 1
    found = list(islice(ticks.after(start), 2 * hours + 1))

    assert {later - tick for tick, later in pairwise(found)} == {30 * MINUTE_MS}
    last = datetime.fromtimestamp(found[-1] / 1000, LISBON)
    assert (last.hour, last.minute) == (0, 0), "the day has so many hours"


@pytest.mark.parametrize(
    ("missed", "count"), [("skip", 0), ("once", 1), ("all", 4)], ids=lambda value: str(value)
)
def test_ticks_that_passed_while_nobody_worked(missed: Missed, count: int) -> None:
    firing = fire(NIGHTLY, ms("2026-10-24T00:30"), ms("2026-10-28T00:00"), missed)

    assert len(firing.ticks) == count
    assert firing.ticks[-1:] == [ms("2026-10-27T01:30")][:count]
    assert firing.next_ms == ms("2026-10-28T01:30")


def test_a_tick_that_is_a_little_late_is_not_missed() -> None:
    due = ms("2026-10-24T00:30")

    assert fire(NIGHTLY, due, due + LATE_MS, "skip").ticks == [due]
    assert fire(NIGHTLY, due, due + LATE_MS + 1, "skip").ticks == []


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_a_clock_that_goes_back_fires_nothing_again(missed: Missed) -> None:
    due = ms("2026-10-25T01:30")

    firing = fire(NIGHTLY, due, due - 7_200_000, missed)

    assert (firing.ticks, firing.next_ms) == ([], due)


def test_a_year_without_workers_takes_few_steps() -> None:
    every_minute = Cron("* * * * *")
    due, now = ms("2025-01-01T00:00"), ms("2026-11-18T00:00")

    assert fire(every_minute, due, now, "once").ticks == [now]
    firing = fire(every_minute, due, now, "all")
    assert firing.ticks == list(range(due, due + 1_000 * MINUTE_MS, MINUTE_MS))
    assert firing.next_ms == due + 1_000 * MINUTE_MS, "the next step goes on there"


EXPRESSIONS = ["* * * * *", "*/7 * * * *", "30 1 * * *", "0 3 1 * *", "15 */5 * * 1", "0 12 29 2 *"]
ANY_TICKS = st.one_of(
    st.builds(Cron, st.sampled_from(EXPRESSIONS), st.sampled_from(["UTC", "Europe/Lisbon"])),
    st.builds(Interval, st.integers(1_000, 10**9), st.integers(0, 10**12)),
)


@given(
    ticks=ANY_TICKS,
    start=st.integers(ms("2024-01-01"), ms("2028-01-01")),
    looks=st.lists(st.integers(0, 3 * 86_400_000), max_size=20),
    missed=st.sampled_from(["skip", "once", "all"]),
)
def test_no_tick_fires_twice_and_none_is_invented(
    ticks: Ticks, start: int, looks: list[int], missed: Missed
) -> None:
    due, now, fired = next(ticks.after(start)), start, []
    for step in looks:
        now += step
        firing = fire(ticks, due, now, missed)
        fired += firing.ticks
        assert firing.next_ms is not None
        due = firing.next_ms
        assert due > (fired[-1] if fired else start)
    assert fired == sorted(set(fired))
    for tick in fired:
        assert next(ticks.after(tick - 1)) == tick
    if missed == "all" and len(fired) < 1_000:
        assert fired == list(takewhile(lambda tick: tick <= now, ticks.after(start)))


@pytest.mark.parametrize(
    ("every", "says"),
    [
        ("* * *", "five fields"),
        ("0 30 1 * * *", "five fields"),
        ("61 * * * *", "bad minute"),
        ("nightly", "no cron expression"),
        ("", "no cron expression"),
        (0, "from 1 second"),
        (timedelta(days=-1), "from 1 second"),
        (float("nan"), "from 1 second"),
        (True, "a cron expression, a timedelta or a number"),
        (None, "a cron expression, a timedelta or a number"),
    ],
)
def test_a_wrong_schedule_is_refused_in_one_sentence(every: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        parse_ticks(every, "UTC", 0)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "a\0b", None, 3])
def test_a_wrong_zone_is_refused(zone: Any) -> None:
    with pytest.raises(InvalidInput, match="time zone"):
        parse_ticks("* * * * *", zone, 0)


def test_schedules_are_parsed_from_what_users_write() -> None:
    assert parse_ticks("30 1 * * *", "Europe/Lisbon", 0) == NIGHTLY
    assert parse_ticks(timedelta(minutes=5), "UTC", 7) == Interval(300_000, 7)
    assert parse_ticks(1.5, "UTC", 0) == Interval(1_500)
