"""Repeats: a message that was seen lately is dropped, and counted."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import millstream
from millstream import Limits, Millstream
from millstream.embedded.rules import operation
from millstream.errors import InvalidInput
from millstream.format import keys
from millstream.format.packing import pack_many
from millstream.queue.commands import PutFresh
from millstream.queue.rules.claims import place_routed
from millstream.queue.service.backlog import need_facts
from millstream.queue.service.router import route
from millstream.testing import Probe, SimulatedClock
from millstream.threads.queue import Queue
from tests.property.background import at_rest

from .conftest import Reopen, counts, fold_all, values


@pytest.fixture
def queue(ms: Millstream) -> Queue:
    return ms.queue("jobs", dedup_by="id", dedup_window=10, bucket_exponent=1)


def duplicates(queue: Queue) -> int:
    info = queue.info()
    assert info is not None
    return info.duplicates


def test_a_repeat_is_dropped_and_counted(queue: Queue) -> None:
    queue.put(b"a", dedup="1")
    queue.put(b"b", dedup="1")
    queue.put(b"c", headers={"id": "1"})
    queue.put(b"d", dedup="2")
    assert values(queue.claim(5)) == [b"a", b"d"]
    assert duplicates(queue) == 2
    assert counts(queue) == {"in_flight": 2}


def test_a_repeat_is_dropped_whatever_became_of_the_first(queue: Queue) -> None:
    for end in (queue.ack, queue.fail, queue.nack):
        queue.put(b"a", dedup=end.__name__)
        end(queue.claim())
        queue.put(b"b", dedup=end.__name__)
    assert queue.claim(5) == []
    assert duplicates(queue) == 3


def test_the_window_counts_from_the_first(queue: Queue, clock: SimulatedClock) -> None:
    passed = []
    for second in range(25):
        queue.put(b"%d" % second, dedup="x")
        passed += values(queue.claim(5))
        clock.advance(1)
    assert passed == [b"0", b"10", b"20"]
    assert duplicates(queue) == 22


def test_the_window_is_between_appends_whenever_they_are_routed(
    queue: Queue, clock: SimulatedClock
) -> None:
    queue.put(b"a", dedup="x")
    clock.advance(9)
    queue.put(b"b", dedup="x")
    clock.advance(3_600)
    queue.put(b"c", dedup="x")
    assert values(queue.claim(5)) == [b"a", b"c"]


def test_messages_without_an_id_are_no_repeats(queue: Queue) -> None:
    queue.put_many([b"a", b"a"])
    queue.put(b"a", headers={"id": None})
    assert values(queue.claim(5)) == [b"a"] * 3
    assert duplicates(queue) == 0


def test_an_empty_id_is_an_id(queue: Queue) -> None:
    queue.put(b"a", dedup="")
    queue.put(b"b", dedup="")
    assert values(queue.claim(5)) == [b"a"]


def test_ids_may_be_numbers_or_long(queue: Queue) -> None:
    for value in (1, 2, "y" * 500, "y" * 501):
        for _ in range(2):
            queue.put(str(value), headers={"id": value})
    assert len(queue.claim(9)) == 4
    assert duplicates(queue) == 4


def test_a_repeat_may_be_known_by_its_key(ms: Millstream) -> None:
    queue = ms.queue("jobs", dedup_by="_key")
    queue.put(b"a", key="k")
    queue.put(b"b", key=b"k")
    queue.put(b"c", dedup="k")
    queue.put(b"d", key="l")
    assert values(queue.claim(5)) == [b"a", b"d"]
    with pytest.raises(InvalidInput):
        queue.put(b"e", key="k", dedup="l")


def test_repeats_within_one_batch_are_dropped(queue: Queue) -> None:
    ids = [n % 3 for n in range(30)]
    queue.put_many([b"%d" % n for n in range(30)], headers=[{"id": one} for one in ids])
    assert values(queue.claim(30)) == [b"0", b"1", b"2"]
    assert duplicates(queue) == 27


def test_repeats_in_what_is_put_for_later_are_dropped(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"a", dedup="x", delay=5)
    queue.put(b"b", dedup="x", delay=1)
    queue.put(b"c", dedup="x")
    assert queue.claim(5) == []
    assert duplicates(queue) == 2
    assert counts(queue) == {"delayed": 1}
    clock.advance(5)
    assert values(queue.claim(5)) == [b"a"]


def test_what_was_put_first_is_not_the_repeat(queue: Queue) -> None:
    queue.put(b"now", dedup="x")
    queue.put(b"later", dedup="x", delay=3_600)
    assert values(queue.claim(5)) == [b"now"]


@pytest.mark.embedded
def test_what_was_put_first_is_not_the_repeat_if_another_handle_routes_meanwhile(
    tmp_path: Path, clock: SimulatedClock
) -> None:
    path = tmp_path / "shared.db"
    with (
        millstream.open(path, clock=clock) as ms,
        millstream.open(path, clock=clock) as other,
        at_rest((ms, other)),
        ThreadPoolExecutor() as pool,
    ):
        queue = ms.queue("jobs", dedup_by="id")
        cancelled_id = queue.put(b"cancelled")
        queue.put(b"now", dedup="x")

        with other.begin() as tx:  # keeps the commit of the put waiting
            put = pool.submit(queue.put, b"later", dedup="x", delay=3_600)
            while not Probe(ms).store.is_committing:
                os.sched_yield()
            tx.cancel("jobs", cancelled_id)  # routes the first message alone

        assert put.result() is not None
        assert values(queue.claim(5)) == [b"now"]
        assert duplicates(queue) == 1


@pytest.mark.parametrize("inline", [0, 2_048])
def test_a_repeat_in_another_log_is_dropped_in_the_same_claim(reopen: Reopen, inline: int) -> None:
    ms = reopen(Limits(inline_bytes_max=inline))
    queue = ms.queue("jobs", sources="l.*", dedup_by="id")
    ms.log("l.a").append(b"a", headers={"id": "x"})
    ms.log("l.b").append(b"b", headers={"id": "x"})
    assert values(queue.claim(5)) == [b"a"]


@pytest.mark.embedded
def test_what_another_caller_has_placed_in_part_keeps_back_younger_messages(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="l.*", dedup_by="id")
    ms.log("l.a").append(b"other")
    store = Probe(ms).store
    early = route(store, need_facts(store, "jobs"), 1)
    ms.log("l.a").append(b"older", headers={"id": "x"})
    ms.log("l.b").append(b"younger", headers={"id": "x"})
    late = route(store, need_facts(store, "jobs"), 5)
    assert store.run(lambda tx: place_routed(tx, "jobs", early)) == 1
    assert store.run(lambda tx: place_routed(tx, "jobs", late)) == 0
    assert values(queue.claim(5)) == [b"other", b"older"]


def test_a_repeat_in_another_log_is_dropped_later(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="l.*", dedup_by="id")
    ms.log("l.a").append(b"a", headers={"id": "x"})
    assert values(queue.claim(5)) == [b"a"]
    ms.log("l.b").append(b"b", headers={"id": "x"})
    queue.put(b"c", dedup="x")
    assert queue.claim(5) == []


def put_fresh(ms: Millstream, *messages: tuple[bytes, str]) -> int | None:
    values, headers = [value for value, _ in messages], [{"id": id} for _, id in messages]
    batch = pack_many(values, keys=None, headers=headers, timestamps=None, limits=Limits())
    assert batch is not None
    return Probe(ms).store.run(operation(PutFresh("jobs", batch)))


@pytest.mark.embedded
def test_messages_without_repeats_are_put_and_placed_in_one_commit(
    ms: Millstream, queue: Queue
) -> None:
    before = ms.stats()["commits"]
    assert put_fresh(ms, (b"a", "1"), (b"b", "2")) == 0
    assert ms.stats()["commits"] == before + 1
    assert counts(queue) == {"available": 2}
    assert put_fresh(ms, (b"c", "3")) == 2
    assert values(queue.claim(5)) == [b"a", b"b", b"c"]


@pytest.mark.embedded
def test_of_messages_with_a_repeat_none_is_put(ms: Millstream, queue: Queue) -> None:
    queue.put(b"unrouted", dedup="0")
    assert put_fresh(ms, (b"a", "1")) is None
    queue.ack(queue.claim(5))
    assert put_fresh(ms, (b"a", "1")) == 1
    assert put_fresh(ms, (b"b", "2"), (b"c", "1")) is None
    assert put_fresh(ms, (b"b", "2"), (b"c", "2")) is None
    assert values(queue.claim(5)) == [b"a"]
    assert duplicates(queue) == 0


def test_a_redriven_message_is_no_repeat(queue: Queue) -> None:
    queue.put(b"a", dedup="x")
    queue.fail(queue.claim())
    assert queue.redrive() == 1
    assert values(queue.claim(5)) == [b"a"]


def test_a_filter_comes_before_the_repeats(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="l", filter="take = TRUE", dedup_by="id")
    ms.log("l").append(b"a", headers={"id": "x", "take": False})
    ms.log("l").append(b"b", headers={"id": "x", "take": True})
    assert values(queue.claim(5)) == [b"b"]
    assert duplicates(queue) == 0


def test_ids_go_with_priorities_and_groups(ms: Millstream) -> None:
    queue = ms.queue("jobs", dedup_by="id", priority_by="p", group_by="g")
    for priority in (1, 9):
        queue.put(b"%d" % priority, priority=priority, group="a", dedup="x")
    queue.put(b"other", group="a", dedup="y")
    held = queue.claim(5)
    assert values(held) == [b"1"]
    assert values(queue.claim(5, ack=held)) == [b"other"]


@pytest.mark.parametrize("inline", [0, 2_048])
def test_repeats_are_known_after_folding_and_opening_again(
    reopen: Reopen, clock: SimulatedClock, inline: int
) -> None:
    limits = Limits(inline_bytes_max=inline, fold_deltas_min=1)
    ms = reopen(limits)
    ms.queue("jobs", dedup_by="id", dedup_window=10)
    passed = []
    for second in range(22):
        queue = ms.queue("jobs")
        queue.put(b"%d" % second, dedup="x")
        queue.put(b"other", dedup=f"{second}")
        passed += [value for value in values(queue.claim(5)) if value != b"other"]
        clock.advance(1)
        fold_all(ms)
        ms = reopen(limits)
    assert passed == [b"0", b"10", b"20"]


def test_a_queue_of_the_same_name_has_seen_nothing(ms: Millstream) -> None:
    queue = ms.queue("jobs", dedup_by="id")
    queue.put(b"a", dedup="x")
    queue.claim()
    queue.delete()
    queue = ms.queue("jobs", dedup_by="id")
    queue.put(b"b", dedup="x")
    assert values(queue.claim()) == [b"b"]
    assert duplicates(queue) == 0


@pytest.mark.parametrize("kind", [{}, {"priority_by": "p"}, {"group_by": "g"}])
def test_routing_a_day_late_finds_every_repeat(
    ms: Millstream, clock: SimulatedClock, kind: dict[str, str]
) -> None:
    queue = ms.queue("jobs", sources="events", dedup_by="id", dedup_window=10, **kind)
    log = ms.log("events")
    queue.pause()
    for turn in range(3):  # a stretch is longer than what is placed at once
        for _ in range(2):
            headers = [{"id": f"{turn} {number}"} for number in range(2_500)]
            log.append_many([b""] * 2_500, headers=headers)
            clock.advance(5)
    clock.advance(24 * 3600)
    queue.resume()
    found = 0
    while some := queue.claim(500):
        found += len(some)
        queue.ack(some)
    assert (found, duplicates(queue)) == (7_500, 7_500)


def test_a_log_that_comes_late_is_compared_by_its_times(
    ms: Millstream, clock: SimulatedClock, tmp_path: Path
) -> None:
    queue = ms.queue("jobs", sources="dev.*", dedup_by="id", dedup_window=10)
    path = tmp_path / "device.db"
    with millstream.open(path, clock=clock, durability="relaxed") as device:
        for value in (b"old", b"repeat"):
            device.log("dev.1").append(value, headers={"id": 1})
            clock.advance(5)
        clock.advance(1_000)
        ms.log("dev.2").append(b"new", headers={"id": 1})
        assert values(queue.claim(5)) == [b"new"]
        device.sync(ms)
    assert values(queue.claim(5)) == [b"old"]
    assert duplicates(queue) == 1


@pytest.mark.embedded
def test_what_was_seen_is_forgotten(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("jobs", sources="events", dedup_by="id", dedup_window=10)
    for turn in range(50):
        headers = [{"id": f"{turn} {number}"} for number in range(20)]
        ms.log("events").append_many([b""] * 20, headers=headers)
        queue.ack(queue.claim(20))
        clock.advance(8)
    fold_all(ms)
    for kind in (keys.SEEN, keys.SEEN_UNTIL):
        assert len(Probe(ms).rows(kind)) < 200


def test_a_dead_letter_repeats_only_itself(queue: Queue) -> None:
    for offset in (7, 8, 7):
        letter = {"id": "1", "dead-letter-log": "jobs", "dead-letter-offset": offset}
        queue.put(str(offset).encode(), headers=letter)
    queue.put(b"no letter", headers={"id": "1", "dead-letter-log": "jobs"})
    queue.put(b"repeat", headers={"id": "1"})
    assert values(queue.claim(9)) == [b"7", b"8", b"no letter"]
