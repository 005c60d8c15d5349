"""Ticks: the times at which a schedule fires.

A cron expression follows the wall clock of its zone, as Debian's cron does. A fixed time that the
change to summer time leaves out fires right after the gap; a fixed time that comes twice in autumn
fires once. An expression with a wildcard in its hour or minute keeps its real interval. An interval
counts from its anchor, and knows no wall clock.

Times are milliseconds since 1970, in UTC.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from msgspec import Struct

from millstream.errors import InvalidInput

Missed = Literal["skip", "once", "all"]
"""What happens to ticks that passed while no worker ran."""

MISSED = ("skip", "once", "all")
LATE_MS = 60_000
"""How late a tick may fire that is not missed: workers start, and clocks differ."""

DAY_MS = 86_400_000
LOOKS_BACK_MS = (3_600_000, DAY_MS, 32 * DAY_MS, 366 * DAY_MS, 10 * 366 * DAY_MS)

FIELDS = 5
"""The fields of a cron expression."""

INTERVAL_MS_MIN = 1_000
TICKS_PER_STEP = 1_000
"""The most ticks of a schedule that one step fires; the next step fires the later ticks."""


class Interval(Struct, frozen=True, tag="interval"):
    """A schedule that fires every `every_ms`, counted from an anchor."""

    every_ms: int
    anchor_ms: int = 0

    def after(self, at_ms: int) -> Iterator[int]:
        """Yield the ticks after a time, in order."""
        tick = self.anchor_ms + ((at_ms - self.anchor_ms) // self.every_ms + 1) * self.every_ms
        while True:
            yield tick
            tick += self.every_ms


class Cron(Struct, frozen=True, tag="cron"):
    """A schedule of a cron expression with five fields, in a time zone."""

    expression: str
    zone: str = "UTC"

    def after(self, at_ms: int) -> Iterator[int]:
        """Yield the ticks after a time, in order; ends if the expression never matches again."""
        start = datetime.fromtimestamp(at_ms / 1000, ZoneInfo(self.zone))
        for tick in CronSim(self.expression, start):
            tick_ms = round(tick.timestamp() * 1000)
            if tick_ms > at_ms:  # in an hour that comes twice, cronsim also yields a passed tick
                yield tick_ms


Ticks = Interval | Cron


class Firing(Struct, frozen=True):
    """The ticks that fire now, and the next tick, which is None after the last tick."""

    ticks: list[int]
    next_ms: int | None


def fire(ticks: Ticks, due_ms: int, now_ms: int, missed: Missed) -> Firing:
    """Return the ticks that fire at a time, of a schedule whose next tick is `due_ms`.

    A tick before `due_ms` never fires again, even if the clock goes back.
    """
    if due_ms > now_ms:
        return Firing([], due_ms)
    if missed == "all":
        passed = [due_ms, *_until(ticks, due_ms, now_ms)]
        return Firing(passed, next(ticks.after(passed[-1]), None))
    latest = _latest(ticks, due_ms, now_ms)
    is_fresh = missed == "once" or now_ms - latest <= LATE_MS
    return Firing([latest] if is_fresh else [], next(ticks.after(latest), None))


def _latest(ticks: Ticks, due_ms: int, now_ms: int) -> int:
    """Return the last tick at or before a time. Looks back further and further from that time:
    a schedule of every minute that nobody served for a year has half a million ticks.
    """
    for length_ms in LOOKS_BACK_MS:
        last = due_ms
        for tick in ticks.after(max(due_ms, now_ms - length_ms)):
            if tick > now_ms:
                break
            last = tick
        if last != due_ms or now_ms - length_ms <= due_ms:
            return last
    return due_ms


def _until(ticks: Ticks, after_ms: int, until_ms: int) -> Iterator[int]:
    for tick in islice(ticks.after(after_ms), TICKS_PER_STEP - 1):
        if tick > until_ms:
            return
        yield tick


def parse_ticks(every: str | timedelta | float, zone: str, anchor_ms: int) -> Ticks:
    """Return the ticks that a user describes: a cron expression, or an interval."""
    check_zone(zone)
    if isinstance(every, str):
        return _parse_cron(every, zone)
    seconds = every.total_seconds() if isinstance(every, timedelta) else every
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidInput(
            "a schedule is a cron expression, a timedelta or a number of seconds, "
            f"not {every!r:.100}"
        )
    if not INTERVAL_MS_MIN <= seconds * 1000 <= 366 * DAY_MS:
        raise InvalidInput(
            f"the interval of a schedule is from 1 second to 366 days, not {seconds:g} seconds"
        )
    return Interval(round(seconds * 1000), anchor_ms)


_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)
"""Where the search for a first tick begins; cronsim looks fifty years ahead."""


def _parse_cron(expression: str, zone: str) -> Cron:
    try:
        if len(expression.split()) != FIELDS:  # cronsim takes a sixth field, seconds
            raise CronSimError("Wrong number of fields")
        has_tick = any(True for _ in islice(CronSim(expression, _ANY_TIME), 1))
    except CronSimError as error:
        raise InvalidInput(
            f"{expression!r:.100} is no cron expression: {str(error).lower()}; it has five fields, "
            "minute hour day month weekday, as in '30 1 * * *'"
        ) from None
    if not has_tick:
        raise InvalidInput(f"the cron expression {expression!r:.100} names a day that never comes")
    return Cron(expression, zone)


def check_zone(zone: str) -> None:
    """Refuse an unknown time zone."""
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        raise InvalidInput(
            f"{zone!r:.100} is no time zone; name one as in 'Europe/Lisbon', or 'UTC'"
        ) from None
