"""Groups: in order and one at a time, or so many at once."""

from __future__ import annotations

import pytest

from millstream import Limits, Millstream
from millstream.errors import Conflict, InvalidInput, LeaseLost
from millstream.queue.model.grants import Grant
from millstream.queue.model.message import Message
from millstream.queue.service import claims
from millstream.queue.service.backlog import need_facts
from millstream.queue.service.lines import glance
from millstream.queue.service.payloads import read_granted
from millstream.queue.service.router import route
from millstream.store.store import Store
from millstream.testing import Probe, SimulatedClock
from millstream.threads.queue import Queue

from .conftest import Reopen, counts, fold_all, settle, upkeep, values


@pytest.fixture
def queue(ms: Millstream) -> Queue:
    return ms.queue("jobs", group_by="g", lease=10, backoff=5, max_attempts=3, bucket_exponent=1)


def put(queue: Queue, names: str, **options: float) -> None:
    """Messages such as 'a1': the group and a number."""
    for name in names.split():
        queue.put(name.encode(), group=name[0], **options)  # type: ignore[arg-type]


def drained(queue: Queue) -> list[bytes]:
    """Everything, one after the other, in the order in which it came."""
    found = []
    while some := queue.claim(3):
        found += values(some)
        queue.ack(some)
    return found


def test_one_of_a_group_is_in_flight_and_the_next_waits_for_it(queue: Queue) -> None:
    put(queue, "a1 a2 b1 a3 b2")
    first = queue.claim(10)
    assert values(first) == [b"a1", b"b1"]
    assert queue.claim(10) == []
    queue.ack(first[0])
    assert values(queue.claim(10)) == [b"a2"]


def test_a_claim_that_acknowledges_gets_the_next_in_the_same_commit(queue: Queue) -> None:
    put(queue, "a1 a2")
    assert values(queue.claim(5, ack=queue.claim())) == [b"a2"]


def test_messages_without_a_group_are_independent(queue: Queue) -> None:
    put(queue, "a1 a2")
    queue.put_many([b"x", b"y"])
    queue.put(b"empty", headers={"g": ""})
    queue.put(b"none", headers={"g": None})
    assert sorted(values(queue.claim(10))) == [b"a1", b"empty", b"none", b"x", b"y"]


def test_any_number_of_blocked_messages_is_looked_past(queue: Queue) -> None:
    queue.put_many([b"a"] * 3_000, headers=[{"g": "a"}] * 3_000)
    put(queue, "b1")
    assert values(queue.claim()) == [b"a"]
    assert values(queue.claim()) == [b"b1"]
    assert queue.claim() == []


def test_what_was_given_back_comes_again_before_any_other_of_its_group(
    queue: Queue, clock: SimulatedClock
) -> None:
    put(queue, "a1 a2 b1")
    queue.nack(queue.claim())
    assert values(queue.claim(5)) == [b"b1"]
    clock.advance(4)
    assert queue.claim(5) == []
    clock.advance(1)
    (again,) = queue.claim(5)
    assert (again.value, again.attempt) == (b"a1", 2)


def test_an_expired_one_comes_again_before_any_other_of_its_group(
    queue: Queue, clock: SimulatedClock
) -> None:
    put(queue, "a1 a2")
    late = queue.claim()
    clock.advance(10)
    assert values(queue.claim(5)) == [b"a1"]
    with pytest.raises(LeaseLost):
        queue.ack(late)
    assert queue.claim(5) == []


def test_the_next_goes_once_one_has_failed(queue: Queue) -> None:
    put(queue, "a1 a2 a3")
    queue.fail(queue.claim())
    for _ in range(3):
        held = queue.claim(5)
        assert values(held) == [b"a2"]
        queue.nack(held, delay=0)
    assert values(queue.claim(5)) == [b"a3"]
    assert counts(queue) == {"in_flight": 1, "failed": 2}


def test_the_next_goes_once_the_last_attempt_has_expired(
    queue: Queue, clock: SimulatedClock
) -> None:
    put(queue, "a1 a2")
    for _ in range(3):
        assert values(queue.claim(5)) == [b"a1"]
        clock.advance(10)
    assert values(queue.claim(5)) == [b"a2"]


def test_renewing_keeps_the_group_waiting(queue: Queue, clock: SimulatedClock) -> None:
    put(queue, "a1 a2")
    held = queue.claim()
    for _ in range(3):
        clock.advance(9)
        queue.renew(held)
        assert queue.claim(5) == []
    queue.ack(held)
    assert values(queue.claim(5)) == [b"a2"]


def test_popping_takes_one_of_a_group_at_a_time(queue: Queue) -> None:
    put(queue, "a1 a2 b1")
    assert values(queue.pop(5)) == [b"a1", b"b1"]
    assert values(queue.pop(5)) == [b"a2"]
    assert counts(queue) == {"done": 3}


def test_what_is_popped_can_be_read_whatever_is_forgotten_meanwhile(
    ms: Millstream, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = ms.queue("plain", lease=10)
    queue.put_many([b"a", b"b", b"c"])

    def later(store: Store, name: str, grants: list[Grant]) -> list[Message]:
        for _ in range(3):
            fold_all(ms)
            upkeep(ms)
            clock.advance(10)
        return read_granted(store, name, grants)

    monkeypatch.setattr(claims, "read_granted", later)
    assert values(queue.pop(3)) == [b"a", b"b", b"c"]


def test_a_group_may_be_named_by_the_key(ms: Millstream) -> None:
    queue = ms.queue("jobs", group_by="_key")
    queue.put(b"1", key="a")
    queue.put(b"2", key=b"a")
    queue.put(b"3", group="a")
    queue.put(b"4", key=b"\xff")
    queue.put(b"5")
    assert sorted(values(queue.claim(9))) == [b"1", b"4", b"5"]
    with pytest.raises(InvalidInput):
        queue.put(b"6", key="a", group="b")


def test_a_group_may_repeat_a_key_of_bytes(ms: Millstream) -> None:
    queue = ms.queue("jobs", group_by="_key")
    queue.put(b"1", key=b"a", group="a")
    queue.put(b"2", group="a")
    assert [(m.value, m.key) for m in queue.claim(9)] == [(b"1", b"a")], "one group, one in flight"


def test_names_of_groups_never_run_into_each_other(ms: Millstream) -> None:
    queue = ms.queue("jobs", group_by="g", bucket_exponent=0)
    names = ["a", "a\x00", "a\x00\x00", "a\x00\x01", "ab", "\xff", "é" * 150, "x" * 200, "x" * 201]
    for number in range(3):
        for name in names:
            queue.put(b"%d" % number, headers={"g": name})
    for number in range(3):
        found = queue.claim(50)
        assert values(found) == [b"%d" % number] * len(names)
        queue.ack(found)
        ms.fold()


def test_up_to_so_many_of_a_group_are_in_flight(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("jobs", group_by="g", group_in_flight=3, backoff=5)
    put(queue, "a1 a2 a3 a4 a5 b1")
    first = queue.claim(10)
    assert values(first) == [b"a1", b"a2", b"a3", b"b1"]
    queue.nack(first[0])
    queue.ack(first[1])
    assert values(queue.claim(10)) == [b"a4", b"a5"]
    clock.advance(5)
    assert queue.claim(10) == []
    queue.ack(first[2])
    assert values(queue.claim(10)) == [b"a1"]


def test_the_order_is_kept_over_changes_of_the_bucket_size(ms: Millstream) -> None:
    queue = ms.queue("jobs", group_by="g", bucket_exponent=2)
    expected = []
    for exponent in (2, 0, 1, 3, 0):
        queue.alter(bucket_exponent=exponent)
        names = [f"a{len(expected) + n}" for n in range(4)]
        put(queue, " ".join(names))
        queue.peek()
        ms.fold()
        expected += [name.encode() for name in names]
    assert drained(queue) == expected


def test_groups_and_priorities_go_together(ms: Millstream) -> None:
    queue = ms.queue("jobs", group_by="g", priority_by="p")
    queue.put(b"a1", group="a")
    queue.put(b"a2", group="a", priority=9)
    queue.put(b"b1", group="b", priority=5)
    queue.put(b"x", priority=7)
    first = queue.claim(5)
    assert values(first) == [b"x", b"b1", b"a1"]
    queue.put(b"c1", group="c", priority=8)
    assert values(queue.claim(5, ack=first)) == [b"a2", b"c1"]


def test_a_delayed_one_holds_its_group_but_no_other(queue: Queue, clock: SimulatedClock) -> None:
    put(queue, "a1", delay=5)
    put(queue, "a2 b1")
    assert values(queue.pop(9)) == [b"b1"]
    queue.put(b"a3", group="a", at=clock.wall_ms() + 7_000)
    clock.jump(1_000)
    assert queue.claim(9) == []
    clock.advance(5)
    for expected in ([b"a1"], [b"a2"], []):
        assert values(queue.pop(9)) == expected
    clock.advance(2)
    assert values(queue.claim(9)) == [b"a3"]


def test_a_message_for_later_stays_behind_what_was_put_before_it(queue: Queue) -> None:
    put(queue, "a1")
    put(queue, "a2", delay=0)
    assert drained(queue) == [b"a1", b"a2"]


def test_what_came_to_several_logs_keeps_its_order(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("jobs", sources="l.*", group_by="g")
    ms.log("l.b").append(b"first", headers={"g": "a"})
    clock.advance(5)
    ms.log("l.a").append(b"second", headers={"g": "a"})
    assert drained(queue) == [b"first", b"second"]


def test_a_wall_clock_set_back_does_not_change_the_order_of_a_log(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", sources="l.*", group_by="g")
    ms.log("l.a").append(b"a1", headers={"g": "a"})
    clock.jump(-5)
    ms.log("l.a").append(b"a2", headers={"g": "a"})
    ms.log("l.b").append(b"b1", headers={"g": "b"})
    assert sorted(values(queue.claim(5))) == [b"a1", b"b1"]


def test_routing_goes_on_after_the_wall_clock_was_set_back(
    ms: Millstream, clock: SimulatedClock
) -> None:
    ms.queue("jobs", sources="l.*", group_by="g")
    for log in ("l.a", "l.b"):
        ms.log(log).append(b"first")
    clock.jump(-5)
    ms.log("l.a").append_many([b"more"] * 5_000)
    store = Probe(ms).store
    assert route(store, need_facts(store, "jobs"), 10) != []


def test_purging_leaves_what_is_in_flight_and_its_group(queue: Queue) -> None:
    put(queue, "a1 a2 a3 b1")
    held = queue.claim()
    put(queue, "a4")
    assert queue.purge() == 4
    put(queue, "a5 a6")
    assert queue.claim(5) == []
    queue.nack(held, delay=0)
    assert drained(queue) == [b"a1", b"a5", b"a6"]
    assert counts(queue) == {"done": 3}


def test_a_purged_retry_does_not_hold_its_group(queue: Queue) -> None:
    put(queue, "a1 a2")
    queue.nack(queue.claim())
    assert queue.purge() == 2
    put(queue, "a3")
    assert values(queue.claim(5)) == [b"a3"]


def test_redriven_messages_join_their_group_at_its_end(queue: Queue) -> None:
    put(queue, "a1 a2 a3")
    queue.fail(failed := queue.claim())
    assert queue.redrive() == 1
    again = []
    while some := queue.claim():
        again += some
        queue.ack(some)
    assert values(again) == [b"a2", b"a3", b"a1"]
    assert again[-1].claim_id != failed[0].claim_id


def test_a_redrive_with_a_rate_spreads_a_group(queue: Queue, clock: SimulatedClock) -> None:
    put(queue, "a1 b1 c1")
    queue.fail(queue.claim(3))
    assert queue.redrive(rate=2) == 3
    found = []
    for _ in range(4):
        found.append(values(queue.claim(5)))
        clock.advance(0.5)
    assert found == [[b"a1"], [b"b1"], [b"c1"], []]


def test_a_paused_queue_keeps_its_order(queue: Queue) -> None:
    put(queue, "a1 a2")
    held = queue.claim()
    queue.pause()
    assert queue.claim(5, ack=held) == []
    queue.resume()
    assert values(queue.claim(5)) == [b"a2"]


def test_dead_letters_of_groups_are_published(ms: Millstream) -> None:
    queue = ms.queue("jobs", group_by="g", max_attempts=1, dead_letter="dead")
    put(queue, "a1 a2")
    queue.nack(queue.claim(5))
    assert values(queue.claim(5)) == [b"a2"]
    assert [record.value for record in ms.log("dead").read()] == [b"a1"]


def test_attempts_and_peek_work_in_groups(queue: Queue) -> None:
    put(queue, "a1 a2")
    queue.nack(queue.claim(), delay=0, reason="why")
    (again,) = queue.claim(5)
    assert [(one.outcome, one.reason) for one in queue.attempts(again)] == [
        ("again", "why"),
        ("in_flight", ""),
    ]
    assert values(queue.peek(5)) == [b"a2"]
    assert values(queue.peek(5, state="in_flight")) == [b"a1"]


def test_a_queue_of_the_same_name_knows_nothing_of_a_deleted_one(ms: Millstream) -> None:
    queue = ms.queue("jobs", group_by="g")
    put(queue, "a1 a2")
    queue.claim()
    queue.delete()
    queue = ms.queue("jobs", group_by="g")
    put(queue, "a3 a4")
    assert drained(queue) == [b"a3", b"a4"]


def test_what_decides_the_order_is_altered_only_while_nothing_waits(queue: Queue) -> None:
    put(queue, "a1 a2")
    held = queue.claim()
    changes: list[dict[str, str | int]] = [{"group_by": "h"}, {"group_in_flight": 0}]
    for change in changes:
        with pytest.raises(Conflict):
            queue.alter(**change)
    queue.ack(held)
    queue.ack(queue.claim())
    queue.alter(group_in_flight=0)
    put(queue, "a3 a4")
    assert values(queue.claim(5)) == [b"a3", b"a4"]


@pytest.mark.parametrize("in_flight", [0, 1, 2])
def test_groups_survive_folding_and_opening_again(reopen: Reopen, in_flight: int) -> None:
    limits = Limits(inline_bytes_max=0, fold_deltas_min=1, entities_cached_max=1)
    ms = reopen(limits)
    queue = ms.queue("jobs", group_by="g", group_in_flight=in_flight, bucket_exponent=0, backoff=0)
    put(queue, " ".join(f"{name}{n:02}" for n in range(20) for name in "abc"))
    found: dict[str, list[str]] = {"a": [], "b": [], "c": []}
    while some := queue.claim(2):
        for message in some:
            found[message.text[0]].append(message.text)
        fold_all(ms)
        ms = reopen(limits)
        queue = ms.queue("jobs")
        queue.ack(some)
    assert found == {name: [f"{name}{n:02}" for n in range(20)] for name in "abc"}
    assert counts(queue) == {"done": 60}


def test_a_handle_sees_what_another_one_does_to_a_group(ms: Millstream, reopen: Reopen) -> None:
    queue = ms.queue("jobs", group_by="g", lease=10)
    put(queue, "a1 a2 a3")
    held = queue.claim()
    other = reopen().queue("jobs")
    assert other.claim(5) == []
    other.ack(held)
    assert values(other.claim(5)) == [b"a2"]


def test_a_group_goes_on_when_several_steps_of_a_transaction_finish(ms: Millstream) -> None:
    queue = ms.queue("jobs", group_by="g", group_in_flight=2)
    put(queue, "a1 a2 a3 a4 a5 b1 b2 b3")
    held = queue.claim(4)
    with ms.transaction() as tx:
        for message in held:
            tx.ack(message)
    assert sorted(drained(queue)) == [b"a3", b"a4", b"a5", b"b3"]
    assert counts(queue) == {"done": 8}


def test_who_waits_does_not_sleep_over_what_became_ready_before_it_watched(
    ms: Millstream, queue: Queue
) -> None:
    put(queue, "a1 a2")
    queue.ack(queue.claim())
    settle(queue)
    store = Probe(ms).store
    assert glance(store, "jobs")[1] == 0


def test_a_text_is_no_batch_of_its_letters(queue: Queue) -> None:
    with pytest.raises(InvalidInput, match="several values"):
        queue.put_many("abc")
    with pytest.raises(InvalidInput, match="several values"):
        queue.put_many(b"abc", delay=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("skipped", [100, 45_000])
def test_a_long_stretch_that_does_not_match_holds_others_back(
    ms: Millstream, clock: SimulatedClock, skipped: int
) -> None:
    queue = ms.queue("jobs", sources=["one", "two"], filter="take = TRUE", group_by="g")
    take, leave = {"take": True, "g": "x"}, {"take": False}
    queue.pause()
    ms.log("one").append_many([b""] * skipped, headers=[leave] * skipped)
    clock.advance(1)
    ms.log("one").append(b"first", headers=take)
    clock.advance(1)
    ms.log("two").append(b"second", headers=take)
    clock.advance(1)
    ms.log("one").append(b"third", headers=take)
    queue.resume()
    found = []
    while some := queue.claim():
        found += values(some)
        queue.ack(some)
    assert found == [b"first", b"second", b"third"]


def test_many_logs_with_few_records_each_are_in_order(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", sources="log.*", group_by="g")
    queue.pause()
    for number in range(600):
        ms.log(f"log.{number * 7919 % 97}").append(b"%d" % number, headers={"g": "x"})
        clock.advance(0.001)
    queue.resume()
    found = []
    while some := queue.claim():
        found += values(some)
        queue.ack(some)
    assert found == [b"%d" % number for number in range(600)]
