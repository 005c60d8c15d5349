"""Where a queue begins in logs that exist already."""

from __future__ import annotations

import re
from typing import Any

import pytest

from millstream import Millstream
from millstream.errors import InvalidInput, OutOfRange
from millstream.log.reading import times
from millstream.testing import SimulatedClock

from .conftest import fold_all, values


@pytest.mark.parametrize("fold", [False, True])
def test_every_time_leads_to_the_first_record_at_or_after_it(
    ms: Millstream, clock: SimulatedClock, fold: bool
) -> None:
    log = ms.log("events")
    times = []
    for number in range(40):
        count = number % 4 + 1
        log.append_many([b"%d" % number] * count)
        times += [clock.wall_ms()] * count
        clock.advance(1)
    log.truncate(before=7)
    if fold:
        fold_all(ms)
    for at, time_ms in enumerate([times[0] - 5, *times[::3], times[-1], times[-1] + 5]):
        for moment in (time_ms - 1, time_ms, time_ms + 1):
            name = f"q{at} {moment}"
            queue = ms.queue(name, sources="events", start_ms=moment)
            expected = [offset for offset in range(7, len(times)) if times[offset] >= moment]
            info = queue.info()
            assert info is not None
            assert info.unrouted == len(expected)
            assert [one.offset for one in queue.claim(1)] == expected[:1]


@pytest.mark.embedded
def test_a_long_log_is_not_read_through(
    ms: Millstream, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3_000):
        ms.log("events").append_many([b"", b""])
    moment = clock.wall_ms() + 1
    clock.advance(1)
    ms.log("events").append(b"new")
    read: list[int] = []
    entries_of = times.entries_of

    def counted(*arguments: Any, **options: Any) -> Any:
        read.append(options["start"])
        return entries_of(*arguments, **options)

    monkeypatch.setattr(times, "entries_of", counted)
    queue = ms.queue("jobs", sources="events", start_ms=moment)
    assert len(read) < 20
    assert values(queue.claim(5)) == [b"new"]


def test_an_offset_that_there_is_not_yet_is_refused(ms: Millstream) -> None:
    ms.log("events").append_many([b"a", b"b"])
    with pytest.raises(OutOfRange, match="log 'events', which ends at 2"):
        ms.queue("jobs", sources="eve*", start=3)
    assert list(ms.queues()) == []
    queue = ms.queue("jobs", sources="events", start=2)
    ms.log("events").append(b"c")
    assert values(queue.claim(5)) == [b"c"]


@pytest.mark.parametrize(
    ("sources", "missing"),
    [
        ("dev", "dev"),
        ("dev*", "dev*"),
        (("events", "dev"), "dev"),
        (("dev", "events"), "dev"),
        (("event?", "dev", "even*"), "dev"),
        (("events", "parted", "dev:*"), "dev:*"),
    ],
)
def test_an_offset_of_a_log_that_there_is_not_yet_is_refused(
    ms: Millstream, sources: Any, missing: str
) -> None:
    ms.log("events").append_many([b"a", b"b"])
    parted = ms.log("parted", partitions=2)
    parted.create()
    for number in range(2):
        parted.partition(number).append_many([b"a", b"b"])
    with pytest.raises(OutOfRange, match=re.escape(f"offset 1 of source {missing!r}")) as caught:
        ms.queue("jobs", sources=sources, start=1)
    assert (caught.value.position, caught.value.end) == (1, 0)
    assert list(ms.queues()) == []


@pytest.mark.parametrize("start", ["latest", "earliest", 0])
@pytest.mark.parametrize("source", ["dev", "d*"])
def test_every_other_start_takes_all_of_a_log_that_comes_later(
    ms: Millstream, start: str | int, source: str
) -> None:
    queue = ms.queue("jobs", sources=source, start=start)
    ms.log("dev").append_many([b"a", b"b"])
    assert values(queue.claim(5)) == [b"a", b"b"]


def test_partitions_that_exist_are_taken_from_an_offset_on(ms: Millstream) -> None:
    parted = ms.log("parted", partitions=2)
    parted.create()
    for number in range(2):
        parted.partition(number).append_many([b"a", b"b"])
    queue = ms.queue("jobs", sources="parted", start=1)
    assert values(queue.claim(5)) == [b"b", b"b"]


def test_a_time_that_has_passed_takes_all_of_a_log_that_comes_later(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", sources="dev", start_ms=clock.wall_ms() - 1_000)
    ms.log("dev").append(b"a")
    assert values(queue.claim(5)) == [b"a"]


@pytest.mark.parametrize("exists", [False, True])
def test_a_time_to_come_is_refused(ms: Millstream, clock: SimulatedClock, exists: bool) -> None:
    if exists:
        ms.log("dev").append(b"a")
    with pytest.raises(InvalidInput, match="cannot start at a time to come"):
        ms.queue("jobs", sources="dev", start_ms=clock.wall_ms() + 3_600_000)
    assert list(ms.queues()) == []
    # A caller whose clock is a little ahead means "from now on".
    assert ms.queue("jobs", sources="dev", start_ms=clock.wall_ms() + 1_000).claim(5) == []


def test_a_queue_that_is_declared_again_keeps_its_start(ms: Millstream) -> None:
    ms.log("events").append_many([b"a", b"b"])
    ms.queue("jobs", sources="events", start=1)
    ms.log("events").delete()
    assert ms.queue("jobs", sources="events", start=1).claim(5) == []


def test_a_log_that_is_added_may_be_shorter(ms: Millstream) -> None:
    ms.log("events").append_many([b"a", b"b"])
    ms.log("short").append(b"x")
    queue = ms.queue("jobs", sources="events", start=2)
    queue.alter(sources=("events", "short"))
    ms.log("short").append(b"y")
    assert values(queue.claim(5)) == [b"y"]


def test_messages_left_in_the_inbox_of_a_queue_do_not_count(ms: Millstream) -> None:
    ms.log("events").append_many([b"a", b"b", b"c"])
    ms.queue("jobs", lease=5).put(b"old")
    ms.queue("jobs").delete()
    assert values(ms.queue("jobs", sources="events", start=2).claim(5))[-1:] == [b"c"]
