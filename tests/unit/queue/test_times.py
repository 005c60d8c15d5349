"""Times that people see are times: aware ones in Python, RFC 3339 in JSON; store time stays inside."""

from __future__ import annotations

import asyncio
import pickle
from datetime import UTC, datetime, timedelta

import pytest

from millstream import Millstream
from millstream.errors import Locked
from millstream.record import moment, wall_ms_of
from millstream.testing import MemoryEngine, SimulatedClock, memory_store
from tests.unit.queue.conftest import Reopen
from tests.unit.server.asking import serving

pytestmark = pytest.mark.embedded


def now(clock: SimulatedClock) -> datetime:
    return moment(clock.wall_ms())


def test_a_moment_is_the_same_there_and_back() -> None:
    for wall_ms in (0, 1, 999, 1_700_000_000_123, 253_402_300_799_999):
        assert wall_ms_of(moment(wall_ms)) == wall_ms
    assert moment(1_700_000_000_123) == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)


def test_a_lease_ends_at_a_time(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("q", lease=30)
    queue.put(b"a")
    (message,) = queue.claim()
    assert message.until == now(clock) + timedelta(seconds=30)
    assert queue.peek(state="in_flight")[0].until == message.until
    assert pickle.loads(pickle.dumps(message)) == message
    clock.advance(5)
    assert queue.renew(message) == now(clock) + timedelta(seconds=30)


def test_what_waits_for_no_time_has_none(ms: Millstream) -> None:
    queue = ms.queue("q", lease=30)
    queue.put(b"a")
    assert queue.peek()[0].until is None


def test_a_retry_is_due_and_an_ending_was_at_a_time(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("q", backoff=60)
    queue.put_many([b"a", b"b"])
    clock.advance(1)
    again, done = queue.claim(2)
    queue.nack(again)
    queue.ack(done)
    assert queue.peek(state="delayed")[0].until == now(clock) + timedelta(seconds=60)
    assert queue.peek(state="done")[0].until == now(clock)


def test_times_are_told_alike_after_a_reboot(reopen: Reopen, clock: SimulatedClock) -> None:
    queue = reopen().queue("q", max_attempts=1)
    queue.put(b"a")
    claimed = now(clock)
    (message,) = queue.claim()
    clock.advance(10)
    queue.nack(message, reason="no")
    clock.reboot(off=3600)

    (one,) = reopen().queue("q").attempts(message.claim_id)

    assert (one.claimed, one.ended) == (claimed, claimed + timedelta(seconds=10))


def test_another_handle_tells_the_same_time(reopen: Reopen, clock: SimulatedClock) -> None:
    clock.advance(0.001)
    queue = reopen().queue("q", lease=30)
    queue.put(b"a")
    clock.advance(0.007)
    (message,) = queue.claim()
    assert message.until == now(clock) + timedelta(seconds=30)
    queue = reopen().queue("q")
    assert queue.peek(state="in_flight")[0].until == message.until


def test_times_follow_a_wall_clock_that_was_set(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("q", lease=30)
    queue.put(b"a")
    (message,) = queue.claim()
    clock.jump(3600)
    assert queue.attempts(message)[0].claimed == now(clock)
    assert queue.peek(state="in_flight")[0].until == now(clock) + timedelta(seconds=30)


def test_queues_and_logs_were_made_at_a_time(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("q", lease=30)
    info = queue.info()
    ms.log("x").append(b"")
    log = ms.log("x").info()
    assert info is not None
    assert log is not None
    assert info.created == log.created == now(clock)
    assert info.created.tzinfo is UTC


def test_a_held_log_is_free_at_a_time(ms: Millstream, clock: SimulatedClock) -> None:
    log = ms.log("x")
    with log.stage(), pytest.raises(Locked) as error:
        log.append(b"")
    assert error.value.until > now(clock)


def test_json_tells_times_as_text() -> None:
    engine, clock = MemoryEngine(), SimulatedClock()
    with memory_store(engine, clock=clock) as ms:
        ms.queue("q", lease=30).put(b"a")

    async def ask() -> None:
        async with serving(engine=engine.reopen(), clock=clock) as rest:
            (message,) = (await rest.post("/queues/q/claims")).json()["messages"]
            assert message["until"] == "2023-11-14T22:13:50Z"
            assert message["timestamp"] == clock.wall_ms()
            path = f"/queues/q/messages/{message['claim_id']}/attempts"
            (one,) = (await rest.get(path)).json()["attempts"]
            assert (one["claimed"], one["ended"]) == ("2023-11-14T22:13:20Z", None)
            info = (await rest.get("/queues/q")).json()
            assert info["created"] == "2023-11-14T22:13:20Z"
            logs = (await rest.get("/logs/queue:q")).json()
            assert logs["created"] == "2023-11-14T22:13:20Z"

    asyncio.run(ask())
