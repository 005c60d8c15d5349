"""One handle over a server: waits, many callers, bounds, cancellation, closing."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path

import pytest
from msgspec import Raw

import millstream
from millstream import Producer, aio
from millstream.clock import SystemClock
from millstream.errors import Closed, InvalidInput, MillstreamError, NotFound, TooLarge
from millstream.queue.commands import ClaimMessages
from millstream.remote.loop_client import LoopRequest
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from millstream.testing import Probe
from tests.unit.remote.conftest import Call

HASTY = Settings(port=0, wait_ms_max=10, stop_s=1.0)
NARROW = Settings(port=0, requests_in_flight_max=4, stop_s=1.0)


def until_waiting(server: Serving, count: int) -> None:
    """Until so many wait in the store for a change."""
    assert server.core is not None
    probe = Probe(server.core.store)
    while probe.waiting() < count:
        threading.Event().wait(0.001)


def test_limits_are_those_of_the_server(server: Serving) -> None:
    with millstream.open(server.url) as ms:
        assert server.core is not None
        assert ms.session.limits == server.core.store.limits


def test_a_wait_takes_as_long_as_its_caller_says_not_the_server(tmp_path: Path) -> None:
    clock = SystemClock()
    with running(tmp_path / "a.db", HASTY) as server, millstream.open(server.url) as ms:
        log, queue = ms.log("a"), ms.queue("q", lease=10)
        began = clock.seconds()
        assert log.wait(0, timeout=0.15) is False
        assert clock.seconds() - began >= 0.15
        began = clock.seconds()
        assert queue.claim(wait=0.15) == []
        assert clock.seconds() - began >= 0.15

        for_ever = Call(lambda: log.wait(0))
        claiming = Call(lambda: [message.value for message in queue.claim(wait=60)])
        until_waiting(server, 2)
        log.append(b"x")
        queue.put(b"job")
        assert for_ever.result() is True
        assert claiming.result() == [b"job"]


async def test_a_coroutines_wait_takes_as_long_as_it_says(tmp_path: Path) -> None:
    clock = SystemClock()
    with running(tmp_path / "a.db", HASTY) as server:
        async with await aio.open(server.url) as ms:
            log = ms.log("a")
            began = clock.seconds()
            assert await log.wait(0, timeout=0.15) is False
            assert clock.seconds() - began >= 0.15
            waiting = asyncio.ensure_future(log.wait(0))
            await log.append(b"x")
            assert await waiting is True


def test_more_may_wait_than_may_be_in_flight(tmp_path: Path) -> None:
    with running(tmp_path / "a.db", NARROW) as server, millstream.open(server.url) as ms:
        log = ms.log("a")
        waiting = [Call(lambda: log.wait(0)) for _ in range(12)]
        until_waiting(server, 2)
        assert log.append(b"x") == 0
        assert [call.result() for call in waiting] == [True] * 12


def test_many_threads_share_a_handle(tmp_path: Path) -> None:
    def work(name: str) -> list[int]:
        return [ms.log(name).append(b"x") for _ in range(20)]

    with running(tmp_path / "a.db", NARROW) as server, millstream.open(server.url) as ms:
        calls = [Call(lambda n=n: work(f"log-{n}")) for n in range(40)]  # type: ignore[misc]
        assert [call.result() for call in calls] == [[*range(20)]] * 40


def test_a_frame_over_the_servers_bound_is_refused_here(tmp_path: Path) -> None:
    settings = Settings(port=0, frame_bytes_max=10_000, stop_s=1.0)
    with running(tmp_path / "a.db", settings) as server, millstream.open(server.url) as ms:
        log = ms.log("a")
        with pytest.raises(TooLarge) as refused:
            log.append(b"x" * 10_000)
        assert refused.value.limit == 10_000
        assert log.append(b"x" * 9_000) == 0
        waiting = [Call(lambda: log.append(b"x" * 5_000)) for _ in range(10)]
        assert sorted(call.result() for call in waiting) == [*range(1, 11)]


def test_errors_come_back_as_they_are(server: Serving) -> None:
    with millstream.open(server.url) as ms:
        with pytest.raises(NotFound) as missing:
            ms.queue("none").claim()
        assert missing.value.name == "none"
        with pytest.raises(InvalidInput, match="cluster does not offer"), ms.transaction() as tx:
            tx.sql("SELECT 1")
        with pytest.raises(InvalidInput, match=r"ms\.sql.*cluster does not offer"):
            ms.sql("SELECT 1")
        with pytest.raises(InvalidInput, match=r"ms\.begin.*cluster does not offer"), ms.begin():
            pytest.fail("a server has no interactive transactions")
        assert ms.log("a").append(b"x", producer=Producer("p", 5)) == 0


def test_a_closed_handle_says_so(server: Serving) -> None:
    ms = millstream.open(server.url)
    log = ms.log("a")
    waiting = Call(lambda: log.wait(0))
    until_waiting(server, 1)
    ms.close()
    ms.close()
    assert isinstance(waiting.result(), Closed)
    with pytest.raises(Closed):
        log.append(b"x")
    with pytest.raises(Closed):
        log.wait(0)


def test_closing_lets_what_was_sent_finish(server: Serving) -> None:
    ms = millstream.open(server.url)
    assert server.core is not None
    transactor = server.core.store._transactor
    with transactor.turn:
        appending = Call(lambda: ms.log("a").append(b"x"))
        while transactor._gather.phase == "idle":
            threading.Event().wait(0.001)
        closing = Call(ms.close)
    assert appending.result() == 0
    assert closing.result() is None


def test_a_handle_that_is_forgotten_hangs_up(server: Serving) -> None:
    ms = millstream.open(server.url)
    ms.log("a").append(b"x")
    assert connections(server) == 1
    del ms
    gc.collect()
    while connections(server):
        threading.Event().wait(0.001)


def connections(server: Serving) -> int:
    assert server.core is not None
    found = server.core.meter.registry.get_sample_value("millstream_connections")
    return int(found or 0)


def test_a_handle_of_threads_has_no_thread_of_its_own(server: Serving) -> None:
    before = {*threading.enumerate()}
    with millstream.open(server.url) as ms:
        ms.log("a").append(b"x")
        names = {thread.name for thread in {*threading.enumerate()} - before}
        assert not [name for name in names if "remote" in name]


async def test_cancelling_one_caller_leaves_the_others_alone(tmp_path: Path) -> None:
    with running(tmp_path / "a.db", NARROW) as server:
        async with await aio.open(server.url) as ms:
            log = ms.log("a")
            waits = [asyncio.ensure_future(log.wait(0)) for _ in range(10)]
            appends = [asyncio.ensure_future(log.append(b"x")) for _ in range(10)]
            await asyncio.sleep(0)
            for task in (*waits[::2], *appends[::2]):
                task.cancel()
            found = await asyncio.gather(*waits, *appends, return_exceptions=True)
            assert [type(one) for one in found[0:10:2]] == [asyncio.CancelledError] * 5
            assert found[1:10:2] == [True] * 5
            assert all(isinstance(one, int) for one in found[11::2])
            assert await log.append(b"after") == await log.end_offset() - 1


async def test_a_closed_handle_says_so_to_coroutines(server: Serving) -> None:
    ms = await aio.open(server.url)
    waiting = asyncio.ensure_future(ms.log("a").wait(0))
    await ms.log("a").end_offset()
    await ms.close()
    await ms.close()
    with pytest.raises(Closed):
        await waiting
    with pytest.raises(Closed):
        await ms.log("a").append(b"x")


def test_another_event_loop_is_refused(server: Serving) -> None:
    loop = asyncio.new_event_loop()
    ms = loop.run_until_complete(aio.open(server.url))
    with pytest.raises(RuntimeError, match="event loop"):
        asyncio.run(ms.log("a").end_offset())
    loop.run_until_complete(ms.close())
    loop.close()


async def test_a_cancel_in_the_turn_of_the_answer_gives_the_messages_back(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = LoopRequest.settle
    claims: list[asyncio.Task[object]] = []

    def cancelled_before(request: LoopRequest, outcome: Raw | MillstreamError) -> None:
        if claims and isinstance(request.command, ClaimMessages):
            claims.pop().cancel()
        settle(request, outcome)

    monkeypatch.setattr(LoopRequest, "settle", cancelled_before)
    async with await aio.open(server.url) as ms:
        queue = await ms.create_queue("q", lease=3600)
        await queue.put(b"a")
        claims.append(claim := asyncio.create_task(queue.claim()))
        with pytest.raises(asyncio.CancelledError):
            await claim
        assert [message.value for message in await queue.claim(wait=10)] == [b"a"]


@pytest.mark.parametrize("wait", [None, 30])
async def test_a_session_gives_back_before_it_closes(server: Serving, wait: int | None) -> None:
    """The claim of a cancelled coroutine is on its way when the session begins to close."""
    async with await aio.open(server.url) as ms:
        queue = await ms.create_queue("q", lease=3600, max_attempts=1)
        await queue.put_many([b"a", b"b"])
        claim = asyncio.create_task(queue.claim(2, wait=wait))
        for _ in range(3):
            await asyncio.sleep(0)  # it is sent
        claim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claim
    assert counts_of(server) == (2, 0)


def counts_of(server: Serving) -> tuple[int, int]:
    """Return the numbers of available and of claimed messages of the queue."""
    with millstream.open(server.url) as other:
        info = other.queue("q").info()
    return info.available, info.in_flight


def until_in_flight(server: Serving, count: int) -> None:
    """Until so many messages of the queue are claimed."""
    while counts_of(server)[1] < count:
        threading.Event().wait(0.001)


async def test_a_session_that_closes_in_the_turn_of_a_cancel_gives_back(server: Serving) -> None:
    """The claim's answer is on its way, and the cancelled coroutine has not run before the close."""
    async with await aio.open(server.url) as ms:
        queue = await ms.create_queue("q", lease=3600, max_attempts=1)
        await queue.put_many([b"a", b"b"])
        claim = asyncio.create_task(queue.claim(2, wait=30))
        for _ in range(3):
            await asyncio.sleep(0)  # it is sent
        until_in_flight(server, 2)  # meanwhile this loop reads no answer
        claim.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claim
    assert counts_of(server) == (2, 0)


async def test_a_close_that_is_cancelled_leaves_no_connection(server: Serving) -> None:
    """The closer is cancelled while it waits for the answer of a cancelled claim."""
    ms = await aio.open(server.url)
    queue = await ms.create_queue("q", lease=3600)
    claim = asyncio.create_task(queue.claim(wait=60))
    await asyncio.to_thread(until_waiting, server, 1)
    claim.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claim
    closing = asyncio.create_task(ms.close())
    for _ in range(3):
        await asyncio.sleep(0)  # it waits for the answer
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    async with asyncio.timeout(10):
        await ms.close()
        while connections(server):
            await asyncio.sleep(0)


@pytest.mark.parametrize("waits", [True, False])
async def test_what_a_cancelled_coroutine_claimed_goes_back(server: Serving, waits: bool) -> None:
    """The lease lasts for an hour, and nobody waits for its end."""
    async with await aio.open(server.url) as ms:
        queue = await ms.create_queue("q", lease=3600, max_attempts=1)
        if not waits:
            await queue.put_many([b"a", b"b"])
        claim = asyncio.create_task(queue.claim(2, wait=30 if waits else None))
        if waits:
            await asyncio.to_thread(until_waiting, server, 1)
            claim.cancel()
            await queue.put_many([b"a", b"b"])
        else:
            await asyncio.sleep(0)  # it is sent
            await asyncio.sleep(0)
            claim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claim
        found = []
        while len(found) < 2:
            found += await queue.claim(2, wait=30)
        assert sorted(message.value for message in found) == [b"a", b"b"]
