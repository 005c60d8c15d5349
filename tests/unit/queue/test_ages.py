"""The age of what waits: for how long the message that waits longest could have been claimed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from millstream import Millstream
from millstream.embedded.status import age_s
from millstream.embedded.totals import Tally
from millstream.engine.protocol import Snapshot
from millstream.queue.service.info import BUCKETS_LOOKED_AT, ROWS_LOOKED_AT
from millstream.server.observe.health import check_ages
from millstream.testing import Probe, SimulatedClock
from millstream.threads.queue import Queue

from .conftest import Reopen, counts, fold_all, upkeep

KINDS = pytest.mark.parametrize(
    "options",
    [
        {},
        {"priority_by": "p"},
        {"group_by": "g"},
        {"group_by": "g", "group_in_flight": 0},
        {"group_by": "g", "priority_by": "p"},
    ],
    ids=["plain", "priority", "ordered", "fair", "ordered with priorities"],
)
Options = dict[str, str | int]


def moment(clock: SimulatedClock, seconds: float) -> datetime:
    return datetime.fromtimestamp(clock.wall_ms() / 1000, tz=UTC) + timedelta(seconds=seconds)


def age(ms: Millstream, clock: SimulatedClock, queue: Queue) -> float | None:
    """The age as a queue says it; every other surface says the same."""
    info = queue.info()
    assert info is not None
    (listed,) = ms.queues()
    assert listed.oldest_s == info.oldest_s
    totals = Tally(Probe(ms).store).look()
    assert age_s(totals, clock.wall_ms()) == (info.oldest_s or 0.0)
    is_late = (info.oldest_s or 0.0) > 30
    assert check_ages([info], 30).status == ("warning" if is_late else "healthy")
    return info.oldest_s


@KINDS
@pytest.mark.parametrize("by_time", [False, True], ids=["delay", "time"])
def test_a_delayed_message_has_no_age_until_it_is_due(
    ms: Millstream, clock: SimulatedClock, options: Options, by_time: bool
) -> None:
    queue = ms.create_queue("jobs", **options)  # type: ignore[arg-type]
    group = {"group": "a"} if "group_by" in options else {}
    if by_time:
        queue.put(b"x", at=moment(clock, 3_600), **group)  # type: ignore[arg-type]
    else:
        queue.put(b"x", delay=3_600, **group)  # type: ignore[arg-type]
    tally = Tally(Probe(ms).store)
    tally.look()
    clock.advance(1_800)
    assert (age(ms, clock, queue), counts(queue)) == (None, {"delayed": 1})
    clock.advance(1_800 + 40)
    assert (age(ms, clock, queue), counts(queue)) == (40, {"available": 1})
    # A tally that nothing was changed for since knows it too.
    assert age_s(tally.look(), clock.wall_ms()) == 40
    assert queue.claim(0) == []  # which makes due messages ready
    assert age(ms, clock, queue) == 40
    fold_all(ms)
    assert age(ms, clock, queue) == 40
    assert [message.value for message in queue.claim(5, lease=3)] == [b"x"]
    assert age(ms, clock, queue) is None


@KINDS
def test_a_ready_message_counts_beside_delayed_ones(
    ms: Millstream, clock: SimulatedClock, options: Options
) -> None:
    queue = ms.create_queue("jobs", bucket_exponent=1, **options)  # type: ignore[arg-type]
    groups = [{"group": f"{n}"} if "group_by" in options else {} for n in range(26)]
    for group in groups[:25]:
        queue.put(b"later", delay=3_600, **group)  # type: ignore[arg-type]
    clock.advance(100)
    assert age(ms, clock, queue) is None
    queue.put(b"now", **groups[25])  # type: ignore[arg-type]
    clock.advance(5)
    assert age(ms, clock, queue) == 5
    assert counts(queue) == {"delayed": 25, "available": 1}
    (message,) = queue.claim(5, lease=10_000)
    assert message.value == b"now"
    assert age(ms, clock, queue) is None


@KINDS
def test_an_attempt_that_ended_counts_from_when_the_next_is_due(
    ms: Millstream, clock: SimulatedClock, options: Options
) -> None:
    queue = ms.create_queue("jobs", backoff=60, lease=10, **options)  # type: ignore[arg-type]
    queue.put(b"x", **({"group": "a"} if "group_by" in options else {}))  # type: ignore[arg-type]
    clock.advance(500)
    assert age(ms, clock, queue) == 500
    queue.nack(queue.claim(1)[0])
    assert (age(ms, clock, queue), counts(queue)) == (None, {"delayed": 1})
    clock.advance(63)
    assert age(ms, clock, queue) == 3
    queue.claim(1)
    clock.advance(20)  # its lease has ended
    assert queue.claim(0) == []
    clock.advance(2)
    assert age(ms, clock, queue) == 2


def test_the_delay_of_a_whole_queue_counts_also_before_routing(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.create_queue("jobs", sources=["orders"], delay=3_600)
    ms.log("orders").append(b"x")
    queue.put(b"y")
    clock.advance(60)
    assert age(ms, clock, queue) is None
    assert queue.claim(1) == []
    assert (age(ms, clock, queue), counts(queue)) == (None, {"delayed": 2})
    clock.advance(3_550)
    assert age(ms, clock, queue) == 10


def test_a_redriven_message_counts_from_the_redrive(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("jobs", max_attempts=1)
    queue.put(b"x")
    queue.nack(queue.claim(1)[0])
    clock.advance(1_000)
    queue.redrive()
    assert counts(queue) == {"available": 1}
    clock.advance(7)
    assert age(ms, clock, queue) == 7
    queue.fail(queue.claim(1)[0])
    queue.put(b"y")
    clock.advance(1_000)
    queue.redrive(rate=0.01)
    assert age(ms, clock, queue) == 1_000  # that of the other one


def test_records_from_before_the_queue_count_from_when_it_was_made(
    ms: Millstream, clock: SimulatedClock
) -> None:
    ms.log("orders").append(b"x")
    clock.advance(1_000)
    queue = ms.create_queue("jobs", sources=["orders"], start="earliest")
    clock.advance(5)
    assert age(ms, clock, queue) == 5


def test_a_wall_clock_that_is_set_back_leaves_an_age_of_0(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.create_queue("jobs")
    queue.put(b"x")
    clock.jump(-1_000)
    assert age(ms, clock, queue) == 0
    queue.peek(1)
    upkeep(ms)
    assert age(ms, clock, queue) == 0


def test_what_waits_for_its_group_counts_as_waiting(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("jobs", group_by="g", lease=1_000)
    queue.put(b"first", group="a")
    clock.advance(10)
    queue.put(b"second", group="a")
    queue.claim(5)
    clock.advance(5)
    assert age(ms, clock, queue) == 5
    queue.put(b"third", group="a", delay=3_600)
    clock.advance(5)
    assert age(ms, clock, queue) == 10


def test_a_delay_of_a_reopened_store_is_known(reopen: Reopen, clock: SimulatedClock) -> None:
    ms = reopen()
    queue = ms.create_queue("jobs")
    queue.put_many([b"x"] * 30, delay=100)
    clock.advance(130)
    queue.claim(0)
    ms = reopen()
    assert age(ms, clock, ms.queue("jobs")) == 30


def test_a_look_costs_the_same_beside_any_number_of_delayed_messages(
    ms: Millstream, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = ms.create_queue("jobs", bucket_exponent=1)
    for _ in range(20):
        queue.put_many([b"x"] * 100, delay=3_600)
    queue.put(b"now")
    fold_all(ms)
    clock.advance(9)
    looked = _buckets_read(ms, queue, monkeypatch)
    assert age(ms, clock, queue) == 9
    assert len(set(looked)) <= 1
    clock.advance(3_600)
    queue.claim(0)  # some of them are ready now
    looked.clear()
    assert age(ms, clock, queue) == 3_609
    assert len(set(looked)) <= ROWS_LOOKED_AT + BUCKETS_LOOKED_AT


def _buckets_read(ms: Millstream, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The buckets that are looked at from now on."""
    from millstream.queue.service import info

    looked: list[int] = []
    find_bucket = info.find_bucket

    def counted(view: Snapshot, state: object, bucket_id: int) -> object:
        looked.append(bucket_id)
        return find_bucket(view, state, bucket_id)  # type: ignore[arg-type]

    monkeypatch.setattr(info, "find_bucket", counted)
    return looked
