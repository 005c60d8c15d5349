"""A message that waits can be cancelled by its id: no consumer gets it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Millstream
from millstream.doctor import examine
from millstream.errors import InvalidInput, LeaseLost, NotFound
from millstream.testing import Probe, SimulatedClock

from .conftest import Reopen, counts, settle, upkeep, values


def test_a_waiting_message_is_cancelled_and_the_others_are_handed_out(ms: Millstream) -> None:
    queue = ms.create_queue("q", bucket_exponent=1)
    ids = queue.put_many([b"%d" % n for n in range(5)])
    assert queue.cancel(ids[2])
    assert values(queue.claim(9)) == [b"0", b"1", b"3", b"4"]
    assert queue.message(ids[2]).state == "cancelled"
    assert counts(queue) == {"in_flight": 4}
    assert queue.info().cancelled == 1


@pytest.mark.parametrize("when", [{"delay": 60}, {"at": 10**13}])
def test_a_scheduled_message_is_cancelled(
    ms: Millstream, clock: SimulatedClock, when: dict[str, Any]
) -> None:
    queue = ms.create_queue("q")
    id, other = queue.put(b"x", **when), queue.put(b"y", **when)
    assert queue.cancel(id)
    assert counts(queue) == {"delayed": 1}
    clock.jump(10**10)
    clock.advance(60)
    assert values(queue.claim(9)) == [b"y"]
    assert (queue.message(id).state, queue.message(other).state) == ("cancelled", "in_flight")


def test_one_of_a_batch_for_later_is_cancelled(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("q")
    ids = queue.put_many([b"%d" % n for n in range(7)], delay=10)
    assert [queue.cancel(id) for id in (ids[0], ids[3], ids[6])] == [True] * 3
    assert counts(queue) == {"delayed": 4}
    clock.advance(10)
    assert values(queue.claim(9)) == [b"1", b"2", b"4", b"5"]


def test_a_wall_clock_that_was_set_does_not_hide_a_scheduled_message(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.create_queue("q")
    id = queue.put(b"x", at=clock.wall_ms() + 3_600_000)
    clock.jump(-86_400)
    assert queue.message(id).state == "delayed"
    assert queue.cancel(id)
    assert counts(queue) == {}


def test_what_runs_or_has_ended_cannot_be_cancelled(ms: Millstream) -> None:
    queue = ms.create_queue("q", max_attempts=1)
    ids = queue.put_many([b"runs", b"done", b"failed"])
    _, done, failed = queue.claim(3)
    queue.ack(done)
    queue.fail(failed)
    assert [queue.cancel(id) for id in ids] == [False] * 3
    assert [queue.message(id).state for id in ids] == ["in_flight", "done", "failed"]
    assert not queue.cancel(99)


def test_cancelling_again_succeeds(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    id = queue.put(b"x")
    assert [queue.cancel(id), queue.cancel(id)] == [True, True]
    assert queue.info().cancelled == 1


def test_a_retry_is_cancelled_and_keeps_its_attempts(ms: Millstream) -> None:
    queue = ms.create_queue("q", backoff=60)
    id = queue.put(b"x")
    (message,) = queue.claim(consumer="w")
    queue.nack(message, reason="busy")
    assert queue.cancel(id)
    assert queue.claim() == []
    fate = queue.message(id)
    assert (fate.state, fate.attempts) == ("cancelled", 1)
    assert [attempt.reason for attempt in queue.attempts(message)] == ["busy"]


def test_an_ended_lease_can_be_cancelled_and_its_consumer_is_told(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.create_queue("q", lease=10)
    id = queue.put(b"x")
    (message,) = queue.claim()
    clock.advance(11)
    assert queue.cancel(id)
    with pytest.raises(LeaseLost) as error:
        queue.ack(message)
    assert error.value.data["why"] == ["cancelled"]


def test_a_record_of_a_source_is_cancelled_as_a_peek_shows_it(ms: Millstream) -> None:
    queue = ms.create_queue("q", sources="orders")
    ms.log("orders").append_many([b"0", b"1", b"2"])
    messages = queue.peek(3)
    assert [message.id for message in messages] == [None] * 3
    assert queue.cancel(messages[1])
    assert values(queue.claim(3)) == [b"0", b"2"]
    assert not queue.cancel(messages[0])


def test_the_next_of_an_ordered_group_follows_a_cancelled_head(ms: Millstream) -> None:
    queue = ms.create_queue("q", group_by="g")
    ids = [queue.put(b"%d" % n, group="a") for n in range(4)]
    (first,) = queue.claim(9)
    assert queue.cancel(ids[1])
    queue.nack(first, delay=60)
    assert queue.cancel(ids[0])
    assert values(queue.claim(9)) == [b"2"]
    assert queue.cancel(ids[3])
    assert counts(queue) == {"in_flight": 1}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"priority_by": "p"},
        {"group_by": "g"},
        {"group_by": "g", "group_in_flight": 0},
        {"group_by": "g", "group_rate": 0.5},
        {"group_by": "g", "priority_by": "p"},
        {"delay": 5},
    ],
)
@pytest.mark.embedded
def test_the_doctor_finds_nothing_wrong_after_cancelling_any_kind(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    clock = SimulatedClock()
    with millstream.open(tmp_path / "q.db", clock=clock) as ms:
        queue = ms.create_queue("q", bucket_exponent=1, backoff=5, **options)
        headers = [{"g": "abc"[n % 3], "p": n % 4} for n in range(30)]
        ids = [*queue.put_many(range(30), headers=headers)]
        ids += queue.put_many(range(30), headers=headers, delay=20)
        ids += queue.put_many(range(30), headers=headers, at=clock.wall_ms() + 30_000)
        clock.advance(6)
        queue.nack(queue.claim(5))
        cancelled = [id for id in ids[::3] if queue.cancel(id)]
        ms.fold()
        cancelled += [id for id in ids[1::3] if queue.cancel(id)]
        assert {queue.message(id).state for id in cancelled} == {"cancelled"}
    assert examine(tmp_path / "q.db").problems == []


def test_a_cancelled_message_is_forgotten_like_a_done_message(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.create_queue("q", bucket_exponent=0, done_retention=60)
    id = queue.put(b"x")
    queue.cancel(id)
    clock.advance(59)
    upkeep(ms)
    assert queue.message(id).state == "cancelled"
    clock.advance(60)
    upkeep(ms)
    assert queue.message(id).state == "unknown"
    clock.advance(601)
    upkeep(ms)
    assert queue.cancel(id) is False


def test_a_cancelled_message_stays_cancelled_in_a_store_that_is_opened_again(
    reopen: Reopen,
) -> None:
    queue = reopen().create_queue("q")
    ids = queue.put_many([b"0", b"1", b"2"])
    later = queue.put(b"later", delay=60)
    assert queue.cancel(ids[1])
    assert queue.cancel(later)
    ms = reopen()
    ms.fold()
    queue = reopen().queue("q")
    assert [queue.message(id).state for id in (ids[1], later)] == ["cancelled"] * 2
    assert values(queue.claim(9)) == [b"0", b"2"]
    settle(queue)
    assert counts(queue) == {"in_flight": 2}


KILLED = """
import os, signal, sys
import millstream
queue = millstream.open(sys.argv[1]).queue("q")
print(queue.cancel(int(sys.argv[2])), queue.put("again", dedup="x", detail=True), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.embedded
def test_a_cancellation_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    with millstream.open(path) as ms:
        queue = ms.create_queue("q", dedup_by="d", dedup_while="waiting")
        id = queue.put("first", dedup="y", delay=3600)
        original = queue.put("first", dedup="x")
    source = str(Path(millstream.__file__).parents[1])
    died = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), str(id)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert died.stdout == f"True PutResult(id={original}, repeated=True)\n"
    with millstream.open(path) as ms:
        queue = ms.queue("q")
        assert queue.message(id).state == "cancelled"
        assert [message.text for message in queue.claim(9)] == ["first"]
        assert not queue.put("second", dedup="y", detail=True).repeated
    assert examine(path).problems == []


def test_ids_that_make_no_sense_are_refused(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    with pytest.raises(InvalidInput):
        queue.cancel(-1)
    with pytest.raises(NotFound):
        ms.queue("other").cancel(0)


def test_a_message_far_behind_the_routed_ones_is_cancelled(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    ids = queue.put_many([b"x"] * 6_000)
    assert queue.cancel(ids[-1])
    assert queue.info().unrouted == 0
    assert counts(queue) == {"available": 5_999}


@pytest.mark.embedded
def test_pinned_payloads_go_with_a_cancelled_message(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    ids = queue.put_many([b"0", b"1"])
    for id in ids:
        queue.cancel(id)
    Probe(ms).upkeep()
    assert len(ms.log("queue:q")) == 0
