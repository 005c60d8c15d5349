"""What an operator does: redrive, purge, peek, pause, alter, delete."""

from __future__ import annotations

from datetime import datetime

import pytest

from millstream import Millstream
from millstream.errors import Conflict, InvalidInput, LeaseLost, NotFound
from millstream.format import keys
from millstream.queue.commands import SpecifyQueue
from millstream.queue.model.message import Try
from millstream.record import moment
from millstream.testing import Probe, SimulatedClock

from .conftest import Reopen, counts, fold_all, settle, values


def test_redriven_messages_have_new_claim_ids_and_no_attempts(ms: Millstream) -> None:
    queue = ms.queue("jobs", bucket_exponent=0)
    queue.put_many([b"a", b"b", b"c"])
    failed = queue.claim(3)
    queue.fail(failed)
    assert queue.redrive(dry_run=True) == 3
    assert queue.redrive(limit=2) == 2
    assert counts(queue) == {"available": 2, "failed": 1}
    again = queue.claim(5)
    assert values(again) == [b"a", b"b"]
    assert {one.attempt for one in again} == {1}
    assert not {one.claim_id for one in again} & {one.claim_id for one in failed}
    for end in (queue.ack, queue.nack, queue.fail):
        with pytest.raises(LeaseLost):
            end(failed[0])
    queue.ack(again)
    assert counts(queue) == {"done": 2, "failed": 1}


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("how", [{}, {"group_by": "g"}, {"priority_by": "p"}])
def test_attempts_go_on_through_a_redrive(
    ms: Millstream, clock: SimulatedClock, folded: bool, how: dict[str, str]
) -> None:
    began_ms = clock.wall_ms()

    def at(seconds: int) -> datetime:
        return moment(began_ms + 1_000 * seconds)

    queue = ms.queue("jobs", bucket_exponent=1, backoff=0, lease=10, max_attempts=2, **how)
    queue.put_many(
        [b"%d" % n for n in range(12)], headers=[{"g": f"g{n}", "p": 1} for n in range(12)]
    )
    first = queue.claim(12, consumer="ann")
    clock.advance(1)
    queue.nack(first[0], reason="once")
    queue.ack(first[1:])
    (again,) = queue.claim(consumer="bob")
    clock.advance(10)
    settle(queue)
    told = [
        Try(at(0), "ann", at(1), "again", "once"),
        Try(at(1), "bob", at(11), "failed", "lease expired"),
    ]
    assert queue.attempts(again) == told
    for turn in range(2):
        if folded:
            fold_all(ms)
        assert queue.redrive() == 1
        (waits,) = [one for one in queue.peek(30) if one.value == b"0"]
        assert queue.attempts(waits) == told
        clock.advance(1)
        (third,) = [one for one in queue.claim(12, consumer="cid") if one.value == b"0"]
        assert third.attempt == 1
        now = at(12 + turn)
        assert queue.attempts(third) == [*told, Try(now, "cid")]
        queue.fail(third, reason="no")
        told.append(Try(now, "cid", now, "failed", "no"))
        assert queue.attempts(third) == told
    assert queue.attempts(again) == [], "it is known by another claim id now"


def test_redriven_messages_are_chosen_by_a_filter(ms: Millstream) -> None:
    queue = ms.queue("jobs", bucket_exponent=1)
    queue.put_many([b"%d" % n for n in range(30)], headers=[{"n": n} for n in range(30)])
    queue.fail(queue.claim(30))
    assert queue.redrive("n >= 12 AND n < 15") == 3
    assert values(queue.claim(30)) == [b"12", b"13", b"14"]
    assert len(list(queue.failed())) == 27


def test_a_redriven_message_can_fail_and_be_redriven_again(reopen: Reopen) -> None:
    ms = reopen()
    queue = ms.queue("jobs", bucket_exponent=1)
    queue.put(b"a")
    for _ in range(12):
        queue.fail(queue.claim())
        assert queue.redrive() == 1
        ms.fold()
    queue = reopen().queue("jobs")
    queue.ack(queue.claim())
    assert counts(queue) == {"done": 1}


def test_a_redriven_message_of_a_delayed_queue_is_not_lost(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", delay=1)
    queue.put_many([b"a", b"b"])
    queue.claim()
    clock.advance(1)
    queue.fail(queue.claim(2))
    queue.redrive()
    queue.put(b"c")
    found = values(queue.claim(1))
    for _ in range(3):
        clock.advance(1)
        found += values(queue.claim(5))
    assert sorted(found) == [b"a", b"b", b"c"]


def test_redriving_what_has_not_failed_does_nothing(ms: Millstream) -> None:
    queue = ms.queue("jobs", lease=10)
    queue.put(b"a")
    queue.claim()
    assert queue.redrive() == 0
    assert counts(queue) == {"in_flight": 1}


def test_purging_spares_what_is_in_flight_and_what_failed(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", bucket_exponent=0, backoff=5)
    queue.put_many([b"a", b"b", b"c", b"d", b"e"])
    failed, held, delayed = queue.claim(3)
    queue.fail(failed)
    queue.nack(delayed)
    assert queue.purge() == 3
    assert counts(queue) == {"in_flight": 1, "failed": 1}
    clock.advance(5)
    assert queue.claim(5) == []
    queue.ack(held)
    assert queue.purge(state="failed") == 1
    assert counts(queue) == {"done": 1}
    queue.put(b"f")
    assert values(queue.claim(5)) == [b"f"]


def test_purging_also_forgets_what_was_not_routed_yet(ms: Millstream) -> None:
    queue = ms.queue("jobs", lease=10)
    queue.put_many([b"a", b"b"])
    assert queue.purge() == 2
    assert queue.claim(5) == []


def test_only_available_and_failed_messages_can_be_purged(ms: Millstream) -> None:
    queue = ms.queue("jobs", lease=10)
    with pytest.raises(InvalidInput):
        queue.purge(state="in_flight")


def test_peeking_claims_nothing_and_goes_on_after_a_claim_id(ms: Millstream) -> None:
    queue = ms.queue("jobs", bucket_exponent=0)
    queue.put_many([b"%d" % n for n in range(6)])
    queue.ack(queue.claim(2))
    first = queue.peek(2)
    assert values(first) == [b"2", b"3"]
    assert values(queue.peek(9, after=first[-1].claim_id)) == [b"4", b"5"]
    assert values(queue.peek(9, state="done")) == [b"0", b"1"]
    assert queue.peek(9, state="in_flight") == []
    assert len(queue.claim(9)) == 4
    with pytest.raises(InvalidInput):
        queue.peek(state="gone")


def test_peeking_at_what_is_done_survives_the_loss_of_payloads(ms: Millstream) -> None:
    queue = ms.queue("jobs", bucket_exponent=0)
    inbox = ms.log("queue:jobs")
    for value in (b"a", b"b", b"c"):
        queue.put(value)
    queue.ack(queue.claim(3))
    ms.fold()
    inbox.truncate(before=2)
    inbox.enforce_retention()
    by_claim = {one.claim_id: one.value for one in queue.peek(9, state="done")}
    assert by_claim.get(2) == b"c"


def test_peeking_sees_what_was_not_routed_yet(ms: Millstream) -> None:
    queue = ms.queue("jobs", lease=10)
    queue.put(b"a")
    assert values(queue.peek()) == [b"a"]


@pytest.mark.parametrize("exponents", [(0, 2, 0), (2, 0, 2), (1, 0, 2, 1)])
def test_the_bucket_size_can_change_with_messages_in_every_state(
    reopen: Reopen, exponents: tuple[int, ...]
) -> None:
    ms = reopen()
    queue = ms.queue("jobs", sources="events", bucket_exponent=exponents[0], backoff=0)
    sent: list[bytes] = []
    found: list[bytes] = []
    for exponent in exponents:
        queue.alter(bucket_exponent=exponent)
        batch = [b"%d.%d" % (exponent, len(sent) + n) for n in range(13)]
        ms.log("events").append_many(batch)
        sent += batch
        done, again, failed, _ = claimed = queue.claim(4)
        found += values([one for one in claimed if one.attempt == 1])
        queue.ack(done)
        queue.nack(again, delay=1_000)
        queue.fail(failed)
        ms.fold()
    ms = reopen()
    queue = ms.queue("jobs")
    rounds = len(exponents)
    expected = {"done": rounds, "delayed": rounds, "failed": rounds, "in_flight": rounds}
    assert {name: counts(queue)[name] for name in expected} == expected
    assert found + values(queue.claim(100)) == sent
    assert queue.info().spec.bucket_exponent == exponents[-1]  # type: ignore[union-attr]


def test_altering_asks_for_the_spec_as_it_was(ms: Millstream) -> None:
    queue = ms.queue("jobs", lease=10)
    old = queue.info().spec  # type: ignore[union-attr]
    new = queue.alter(max_attempts=7)
    assert new.max_attempts == 7
    with pytest.raises(Conflict):
        ms.session.execute(SpecifyQueue("jobs", new, old))
    with pytest.raises(Conflict):
        queue.alter(start="earliest")
    with pytest.raises(InvalidInput):
        queue.alter(max_attempts=0)
    with pytest.raises(NotFound):
        ms.queue("other").alter(max_attempts=1)


def test_altered_attempts_count_for_messages_in_flight(ms: Millstream) -> None:
    queue = ms.queue("jobs", max_attempts=5)
    queue.put(b"a")
    held = queue.claim()
    queue.alter(max_attempts=1)
    queue.nack(held)
    assert counts(queue) == {"failed": 1}


@pytest.mark.parametrize("fold", [False, True])
def test_a_deleted_queue_leaves_its_logs_and_nothing_else(reopen: Reopen, fold: bool) -> None:
    ms = reopen()
    queue = ms.queue("jobs", sources="events", bucket_exponent=0, backoff=50)
    ms.log("events").append_many([b"%d" % n for n in range(30)])
    done, again, failed, _ = queue.claim(4)
    queue.ack(done)
    queue.nack(again)
    queue.fail(failed)
    if fold:
        ms.fold()
    assert queue.delete() is True
    assert queue.delete() is False
    fold_all(ms)
    assert not queue.exists()
    assert len(ms.log("events")) == 30
    kinds = (2, 3, 4, 5, 6, keys.QUEUE, keys.BUCKET, keys.RETRY)
    for kind in kinds:
        assert not Probe(ms).rows(kind), kind


def test_a_queue_made_again_under_its_name_begins_anew(reopen: Reopen) -> None:
    ms = reopen()
    queue = ms.queue("jobs", sources="events", start="earliest", bucket_exponent=0)
    ms.log("events").append_many([b"a", b"b"])
    (old, _) = queue.claim(2)
    queue.delete()
    queue = ms.queue("jobs", sources="events", start="earliest", bucket_exponent=0)
    ms.fold()
    queue = reopen().queue("jobs")
    with pytest.raises(LeaseLost):
        queue.ack(old)
    assert values(queue.claim(5)) == [b"a", b"b"]


def test_queues_are_listed_by_name(ms: Millstream) -> None:
    for name in ("b", "a", "c"):
        ms.queue(name, lease=1)
    assert [info.name for info in ms.queues()] == ["a", "b", "c"]


def test_many_due_messages_are_counted_as_available(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("jobs", delay=1, bucket_exponent=4)
    queue.put_many([b""] * 10_500)
    queue.claim(10_000)
    clock.advance(1)
    assert counts(queue) == {"available": 10_500}


def test_failed_messages_are_chosen_by_whether_their_value_is_null(ms: Millstream) -> None:
    queue = ms.create_queue("mail", sources="users", start="earliest")
    ms.log("users").append_many([b"", None, b"x", None])
    queue.fail(queue.claim(4))
    assert [one.value for one in queue.failed("_value IS NULL")] == [None, None]
    assert [one.value for one in queue.failed("_value IS NOT NULL")] == [b"", b"x"]
    assert queue.redrive("_value IS NULL") == 2
