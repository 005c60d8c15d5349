"""Claims of consumers that keep up: they place what has just come themselves, inside their commit."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Millstream
from millstream.embedded.rules import operation
from millstream.format import keys
from millstream.format.packing import Single
from millstream.log.commands import Append
from millstream.queue.commands import ClaimRouted, PutMessages
from millstream.queue.model.message import Message
from millstream.queue.rules.arrivals import ARRIVALS_MAX
from millstream.queue.service import claims
from millstream.queue.service.router import route
from millstream.replica.commands import SetAside
from millstream.store.commit.ticket import Ticket
from millstream.store.state.overlay import Overlay
from millstream.testing import Probe, SimulatedClock

from .conftest import counts, values

pytestmark = pytest.mark.embedded


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queues whose logs were looked at before a claim."""
    found: list[str] = []

    def noted(store: Any, facts: Any, want: int) -> Any:
        found.append(facts.name)
        return route(store, facts, want)

    monkeypatch.setattr(claims, "route", noted)
    return found


def test_a_consumer_that_keeps_up_looks_at_the_logs_once(ms: Millstream, looks: list[str]) -> None:
    queue = ms.queue("jobs", sources="events")
    log = ms.log("events")
    for number in range(30):
        log.append(b"%d" % number, key=str(number), headers={"n": number})
        (message,) = queue.claim(5)
        assert (message.value, message.key, message.headers) == (
            b"%d" % number,
            str(number).encode(),
            {"n": number},
        )
        queue.ack(message)
        assert queue.claim(1) == []
    assert looks == ["jobs"]
    assert counts(queue) == {"done": 30}


def test_what_came_is_claimed_in_order_from_every_log(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources=["a", "b"], bucket_exponent=1)
    assert queue.claim(1) == []
    for number in range(15):
        ms.log("b").append(b"b%d" % number)
        ms.log("a").append(b"a%d" % number)
    queue.put(b"own")
    found = values(queue.claim(100))
    assert found == [b"own", *(b"a%d" % n for n in range(15)), *(b"b%d" % n for n in range(15))]
    assert queue.claim(1) == []
    assert counts(queue) == {"in_flight": 31}


def test_fewer_than_asked_for_are_claimed_with_the_acknowledgement(ms: Millstream) -> None:
    queue = ms.create_queue("jobs")
    assert queue.claim(1) == []
    queue.put(b"1")
    held = queue.claim(10)
    queue.put(b"2")
    queue.put(b"3")
    held = queue.claim(10, ack=held)
    assert values(held) == [b"2", b"3"]
    assert queue.claim(10, ack=held) == []
    assert counts(queue) == {"done": 3}


def test_a_consumer_of_blocks_and_single_messages_looks_once_as_well(
    ms: Millstream, looks: list[str]
) -> None:
    queue = ms.create_queue("jobs")
    queue.put(b"first")
    held = queue.claim(10)
    for sizes in ([1, 3], [2], [ARRIVALS_MAX], [1, 1, 40, 1, 60], [7, 7]):
        expected = [b"%d/%d" % (size, number) for size in sizes for number in range(size)]
        rest = iter(expected)
        for size in sizes:
            if size == 1:
                queue.put(next(rest))
            else:
                queue.put_many([next(rest) for _ in range(size)])
        held = queue.claim(256, ack=held)
        assert values(held) == expected
    queue.ack(held)
    assert looks == ["jobs"]
    assert counts(queue) == {"done": 1 + 4 + 2 + ARRIVALS_MAX + 103 + 14}


def test_the_rest_of_a_block_that_was_routed_in_part_is_placed(
    ms: Millstream, looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = ms.create_queue("jobs")
    monkeypatch.setattr("millstream.queue.service.router.WINDOW", 3)
    queue.put_many([b"%d" % number for number in range(10)])
    assert values(queue.claim(3)) == [b"0", b"1", b"2"]
    looks.clear()
    assert values(queue.claim(20)) == [b"%d" % number for number in range(3, 10)]
    assert looks == []


@pytest.mark.parametrize("bucket_exponent", [0, 1])
def test_a_block_is_placed_across_buckets(ms: Millstream, bucket_exponent: int) -> None:
    queue = ms.queue("jobs", bucket_exponent=bucket_exponent)
    queue.put(b"first")
    held = queue.claim(10)
    for size in (ARRIVALS_MAX, 3, 90):
        expected = [b"%d" % number for number in range(size)]
        queue.put_many(expected)
        queue.ack(held)
        held = queue.claim(256)
        assert values(held) == expected
    for message in held:
        queue.ack(message)  # by its own number, and so by its own bucket
    assert counts(queue) == {"done": 1 + ARRIVALS_MAX + 3 + 90}


def test_a_block_with_a_damaged_header_is_left_to_routing(
    ms: Millstream, looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(overlay: Overlay, key: bytes) -> bytes | None:
        value = get(overlay, key)
        if value is None or key[1] != keys.ENTRY:
            return value
        return value[:20] + bytes([value[20] ^ 255]) + value[21:]

    queue, get = ms.create_queue("jobs"), Overlay.get
    queue.put(b"first")
    held = queue.claim(10)
    queue.put_many([b"a", b"b"])
    looks.clear()
    monkeypatch.setattr(Overlay, "get", damaged)
    assert values(queue.claim(256, ack=held)) == [b"a", b"b"]  # routing does not read by `get`
    assert looks == ["jobs"]


@pytest.mark.parametrize("way", ["fold", "fold before a block", "block", "truncate", "large"])
def test_whatever_is_not_in_memory_is_routed(ms: Millstream, looks: list[str], way: str) -> None:
    queue = ms.queue("jobs", sources="events")
    log = ms.log("events")
    assert queue.claim(1) == []
    log.append(b"1")
    if way.startswith("fold"):
        log.append(b"2")
        ms.log("else").append(b"the newest delta stays")
        ms.fold()
        if way == "fold before a block":
            log.append_many([b"3", b"4"])
    elif way == "block":
        log.append_many([b"2", b"3"])
    elif way == "truncate":
        assert values(queue.claim(1)) == [b"1"]
        log.truncate(before=3, past_end=True)
        log.append(b"2")
    else:
        log.append(b"2" * 5_000)
    wanted = [record.value for record in log.read()]
    looks.clear()
    assert values(queue.claim(10)) == wanted
    assert looks == ([] if way in ("large", "block") else ["jobs"])
    log.append(b"9")
    assert values(queue.claim(1)) == [b"9"]


@pytest.mark.parametrize(
    "settings",
    [
        {"filter": "n > 0"},
        {"dedup_by": "n"},
        {"sources": "event*"},
        {"group_by": "n"},
        {"priority_by": "n"},
        {"delay": 0.001},
        {"changes": "changes"},
    ],
)
def test_a_queue_that_chooses_is_routed(
    ms: Millstream, clock: SimulatedClock, looks: list[str], settings: dict[str, Any]
) -> None:
    queue = ms.queue("jobs", **{"sources": "events", **settings})
    for number in range(1, 4):
        looks.clear()
        ms.log("events").append(b"%d" % number, headers={"n": number})
        clock.advance(0.01)
        assert values(queue.claim(1)) == [b"%d" % number]
        assert looks


@pytest.mark.parametrize("settings", [{"max_in_flight": 2}, {"rate": 1_000.0}])
def test_a_queue_with_a_cap_places_what_has_come(
    ms: Millstream, clock: SimulatedClock, looks: list[str], settings: dict[str, Any]
) -> None:
    queue = ms.queue("jobs", sources="events", **settings)
    held = queue.claim(1)
    for number in range(1, 9):
        ms.log("events").append(b"%d" % number)
        clock.advance(0.01)
        held = queue.claim(5, ack=held)
        assert values(held) == [b"%d" % number]
    assert looks == ["jobs"]
    assert counts(queue) == {"done": 7, "in_flight": 1}


def test_a_cap_holds_for_what_a_claim_places(ms: Millstream, looks: list[str]) -> None:
    queue = ms.create_queue("jobs", max_in_flight=3)
    queue.put(b"first")
    held = queue.claim(1)
    looks.clear()
    queue.put_many([b"%d" % number for number in range(7)])
    assert values(held := held + queue.claim(10)) == [b"first", b"0", b"1"]
    assert queue.claim(10) == []
    assert values(queue.claim(10, ack=held)) == [b"2", b"3", b"4"]
    assert looks == []
    assert counts(queue) == {"available": 2, "in_flight": 3, "done": 3}


def test_what_has_come_is_placed_while_a_message_waits_for_its_retry(
    ms: Millstream, clock: SimulatedClock, looks: list[str]
) -> None:
    queue = ms.create_queue("jobs")
    queue.put(b"bad")
    (bad,) = queue.claim(1)
    queue.nack(bad, delay=60)
    looks.clear()
    held: list[Message] = []
    for number in range(5):
        queue.put_many([b"%d" % number, b"x"])
        held = queue.claim(10, ack=held)
        assert values(held) == [b"%d" % number, b"x"]
    queue.ack(held)
    clock.advance(60)
    queue.put(b"last")
    assert values(queue.claim(10)) == [b"bad", b"last"]
    assert looks == []


def test_a_queue_that_begins_to_choose_is_routed_from_then_on(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="events")
    assert queue.claim(1) == []
    ms.queue("jobs", sources="events", filter="n > 1")
    for number in range(4):
        ms.log("events").append(b"%d" % number, headers={"n": number})
    assert values(queue.claim(10)) == [b"2", b"3"]


def test_what_was_put_for_later_waits_for_its_time(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("jobs")
    assert queue.claim(1) == []
    queue.put(b"later", delay=5)
    queue.put(b"now")
    assert values(queue.claim(10)) == [b"now"]
    assert queue.claim(10) == []
    clock.advance(6)
    assert values(queue.claim(10)) == [b"later"]


def test_a_paused_queue_places_nothing(ms: Millstream) -> None:
    queue = ms.create_queue("jobs")
    assert queue.claim(1) == []
    queue.pause()
    queue.put(b"1")
    assert queue.claim(1) == []
    queue.resume()
    assert values(queue.claim(1)) == [b"1"]


def test_after_records_were_set_aside_the_new_records_are_placed(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="events")
    log = ms.log("events")
    assert queue.claim(1) == []
    for value in (b"a", b"b", b"c"):
        log.append(value)
    assert values(queue.claim(1)) == [b"a"]
    ms.session.execute(SetAside("events", 1, 0))
    log.append(b"d")
    assert values(queue.claim(10)) == [b"d"]


def test_two_handles_of_a_file_place_each_message_once(
    ms: Millstream, tmp_path: Path, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", sources="events")
    assert queue.claim(1) == []
    with millstream.open(tmp_path / "store.db", clock=clock) as other:
        theirs = other.queue("jobs", sources="events")
        assert theirs.claim(1) == []
        found: list[bytes] = []
        for number in range(20):
            (ms if number % 3 else other).log("events").append(b"%d" % number)
            found += values((queue if number % 2 else theirs).claim(5))
    assert found == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("way", ["append", "put"])
def test_a_claim_gets_what_another_caller_brings_in_the_same_commit(
    ms: Millstream, way: str
) -> None:
    queue = ms.queue("jobs", sources="events")
    assert queue.claim(1) == []
    record = Single(b"1", None, b"", None)
    bringing = Append("events", record) if way == "append" else PutMessages("jobs", record)
    claiming = ClaimRouted("jobs", 1, None, "", [], [])
    store, over = Probe(ms).store, threading.Semaphore(0)
    before = store.stats()["commits"]
    tickets: list[Ticket[Any]] = [
        Ticket(operation(command), lambda _: over.release()) for command in (claiming, bringing)
    ]
    store.submit(tickets)
    for _ in tickets:
        assert over.acquire(timeout=60)
    granted = tickets[0].result
    assert granted is not None
    assert granted.count == 1
    assert store.stats()["commits"] == before + 1
    assert counts(queue) == {"in_flight": 1}


def test_a_log_that_is_named_twice_is_placed_once(ms: Millstream) -> None:
    queue = ms.queue("q", sources=["a", "b", "a"], start="earliest")
    for number in range(3):
        ms.log("a").append(b"a%d" % number)
        ms.log("b").append(b"b%d" % number)
        found = queue.claim(1) + queue.claim(5)
        assert sorted(message.value for message in found) == [b"a%d" % number, b"b%d" % number]
        queue.ack(found)
    assert queue.claim(1) == []
