"""The session: one commit for many coroutines, waits without threads, cancellation, closing."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from math import inf
from pathlib import Path

import pytest

import millstream
from millstream import Limits, aio
from millstream.embedded.loop.session import AsyncEmbeddedSession
from millstream.embedded.session import EmbeddedSession
from millstream.errors import CannotOpen, Closed, Overloaded
from millstream.log.rules.append import Appending
from millstream.store.commit import gather
from millstream.store.watch import Watch
from millstream.testing import Probe, SimulatedClock

pytestmark = pytest.mark.embedded


def session_of(ms: aio.Millstream) -> AsyncEmbeddedSession:
    session = ms.session
    assert isinstance(session, AsyncEmbeddedSession)
    return session


def waiting(ms: aio.Millstream) -> int:
    return Probe(ms).waiting()


async def until_waiting(ms: aio.Millstream, count: int) -> None:
    """Let the others run until so many wait for a change."""
    await Probe(ms).until_async(lambda: waiting(ms) == count)


async def test_a_thousand_concurrent_appends_need_a_few_commits(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        before = (await ms.stats())["commits"]

        offsets = await asyncio.gather(*(log.append(str(n)) for n in range(1_000)))

        stats = await ms.stats()
        assert stats["commits"] - before <= 3
        assert offsets == [*range(1_000)]
        assert await log.len() == 1_000


async def test_one_ring_answers_a_whole_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        await ms.log("x").append(b"first")
        loop = asyncio.get_running_loop()
        rings = []
        ring = loop.call_soon_threadsafe

        def counted(*arguments: object) -> object:
            rings.append(arguments)
            return ring(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        await asyncio.gather(*(ms.log("x").append(b"x") for _ in range(500)))

        assert len(rings) == 1


async def test_a_signal_that_hits_a_commit_keeps_nobody_from_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler raises after the commit; the callers of the group are told."""
    monkeypatch.setattr(gather, "FAST_S", inf)  # so that the loop itself commits
    monkeypatch.setattr(gather, "WORST_S", inf)
    async with await aio.open(tmp_path / "a.db", clock=SimulatedClock()) as ms:
        log, told = ms.log("x"), []
        for number in range(20):  # until it knows how fast commits are
            await log.append(str(number))

        def handle(*_: object) -> None:
            raise ValueError("of a handler")

        def interrupted(*_: object) -> None:
            if (
                threading.current_thread() is threading.main_thread()
            ):  # else the handler hits the loop
                signal.raise_signal(signal.SIGUSR2)

        before = signal.signal(signal.SIGUSR2, handle)
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        monkeypatch.setattr(Appending, "run_all", interrupted)
        for end in range(20, 2_000, 2):
            async with asyncio.timeout(10):
                offsets = await asyncio.gather(log.append(b"a"), log.append(b"b"))

            assert offsets == [end, end + 1]
            if told:
                break  # else the background had the turn, and the thread has committed
        assert [str(one["exception"]) for one in told] == ["of a handler"]
        signal.signal(signal.SIGUSR2, before)


async def test_more_than_one_commit_can_take_is_still_taken(tmp_path: Path) -> None:
    limits = Limits(group_operations_max=10)
    async with await aio.open(tmp_path / "a.db", limits=limits) as ms:
        offsets = await asyncio.gather(*(ms.log("x").append(b"x") for _ in range(95)))

        assert sorted(offsets) == [*range(95)]


async def test_what_finds_no_room_is_told_so_and_the_rest_happens(tmp_path: Path) -> None:
    limits = Limits(group_operations_max=10, waiting_operations_max=20)
    async with await aio.open(tmp_path / "a.db", limits=limits) as ms:
        log = ms.log("x")
        answers = await asyncio.gather(
            *(log.append(b"x") for _ in range(200)), return_exceptions=True
        )

        refused = [answer for answer in answers if isinstance(answer, Overloaded)]
        assert 0 < len(refused) <= 180
        assert await log.len() == 200 - len(refused)
        assert len({id(error) for error in refused}) == len(refused)


async def test_a_wait_wakes_on_an_append_of_another_coroutine(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("not there yet")
        wait = asyncio.ensure_future(log.wait(1))
        await until_waiting(ms, 1)
        await log.append(b"0")
        await asyncio.sleep(0)
        assert not wait.done()

        await log.append(b"1")

        assert await wait
        assert waiting(ms) == 0


async def test_a_wait_wakes_on_an_append_from_another_thread(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        wait = asyncio.ensure_future(ms.log("x").wait(0))
        await until_waiting(ms, 1)
        store = session_of(ms).store
        sync = millstream.Millstream(EmbeddedSession(store))
        thread = threading.Thread(target=lambda: sync.log("x").append(b"0"))
        thread.start()

        assert await wait
        thread.join()


async def test_a_wait_wakes_on_an_append_through_another_handle(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms, await aio.open(tmp_path / "a.db") as other:
        wait = asyncio.ensure_future(ms.log("x").wait(0))
        await until_waiting(ms, 1)
        await other.log("x").append(b"0")

        assert await wait


async def test_an_append_between_looking_and_watching_is_not_missed(tmp_path: Path) -> None:
    class LateWatch(Watch):
        """Somebody appends just before the watch begins."""

        def add(self, key: bytes, wake: Callable[[], None]) -> None:
            if not self.waiters:
                thread = threading.Thread(target=lambda: sync.log("x").append(b"late"))
                thread.start()
                thread.join()
            super().add(key, wake)

    async with await aio.open(tmp_path / "a.db") as ms:
        store = session_of(ms).store
        sync = millstream.Millstream(EmbeddedSession(store))
        store.watch = LateWatch(None)
        async with asyncio.timeout(5):
            assert await ms.log("x").wait(0)


async def test_a_wait_goes_on_when_the_log_is_deleted_and_made_again(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        await log.append(b"0")
        wait = asyncio.ensure_future(log.wait(1))
        await until_waiting(ms, 1)
        await log.delete()
        await log.append_many([b"0", b"1"])

        assert await wait


async def test_a_hundred_waits_hold_no_thread(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        waits = [asyncio.ensure_future(log.wait(0)) for _ in range(100)]
        await until_waiting(ms, 100)

        assert await log.append(b"0") == 0
        assert all(await asyncio.gather(*waits))


async def test_a_wait_that_takes_too_long_answers_false(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        assert not await ms.log("x").wait(0, timeout=0)
        assert not await ms.log("x").wait(0, timeout=timedelta(milliseconds=5))
        assert [record async for record in ms.log("x").tail(timeout=0.005)] == []
        assert waiting(ms) == 0


async def test_a_tail_follows_the_log(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        await log.append(b"0")
        tail = log.tail(0)
        assert (await anext(tail)).value == b"0"
        later = asyncio.ensure_future(anext(tail))
        await until_waiting(ms, 1)
        await log.append(b"1")

        assert (await later).value == b"1"
        await tail.aclose()


async def test_a_take_waits_for_its_first_record(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        cursor = await log.cursor("c")
        assert await cursor.take(2, wait=0) == []
        taking = asyncio.ensure_future(cursor.take(2, wait=30))
        await until_waiting(ms, 1)
        await log.append(b"0")

        assert [record.offset for record in await taking] == [0]


@pytest.mark.parametrize("handed_in", [False, True])
async def test_a_cancelled_append_breaks_no_other(tmp_path: Path, handed_in: bool) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        session = session_of(ms)
        with Probe(session.store).hold_commits():
            appends = [asyncio.ensure_future(log.append(str(n))) for n in range(100)]
            await asyncio.sleep(0)
            assert len(session._gathered) == 100
            while handed_in and session._gathered:
                await asyncio.sleep(0)
            for append in appends[::2]:
                append.cancel()

        answers = await asyncio.gather(*appends, return_exceptions=True)

        kept = [answer for answer in answers if isinstance(answer, int)]
        assert len(kept) == 50
        assert len(set(kept)) == 50
        stored = {record.offset: record.text async for record in log.read()}
        assert {stored[offset] for offset in kept} == {str(n) for n in range(1, 100, 2)}
        assert len(stored) == (100 if handed_in else 50)


async def test_a_cancelled_wait_is_forgotten(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        wait = asyncio.ensure_future(ms.log("x").wait(0))
        await until_waiting(ms, 1)
        wait.cancel()
        await asyncio.wait([wait])

        assert waiting(ms) == 0


async def test_closing_ends_every_wait(tmp_path: Path) -> None:
    ms = await aio.open(tmp_path / "a.db")
    waits = [asyncio.ensure_future(ms.log("x").wait(0)) for _ in range(5)]
    await until_waiting(ms, 5)

    await ms.close()

    for wait in waits:
        with pytest.raises(Closed):
            await wait


async def test_a_closed_store_refuses_and_closes_again(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    ms = await aio.open(tmp_path / "a.db")
    log = ms.log("x")
    await log.append(b"x")
    await asyncio.gather(ms.close(), ms.close())
    await ms.close()

    for refused in (log.append(b"x"), log.end_offset(), log.info(), log.wait(0)):
        with pytest.raises(Closed):
            await refused
    left = set(threading.enumerate()) - before
    assert not [t for t in left if t.name.startswith("millstream-commit")]


async def test_an_append_beside_the_closing_happens_or_is_refused(tmp_path: Path) -> None:
    ms = await aio.open(tmp_path / "a.db")
    log = ms.log("x")
    *appends, _ = await asyncio.gather(
        *(log.append(str(n)) for n in range(50)), ms.close(), return_exceptions=True
    )

    assert all(isinstance(answer, int | Closed) for answer in appends)
    async with await aio.open(tmp_path / "a.db") as again:
        assert await again.log("x").len() == sum(isinstance(answer, int) for answer in appends)


async def test_opening_what_is_not_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello" * 100)
    with pytest.raises(CannotOpen):
        await aio.open(tmp_path / "text")


async def test_a_cancelled_opening_leaves_no_store_open(tmp_path: Path) -> None:
    opening = asyncio.ensure_future(aio.open(tmp_path / "a.db"))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    async with await aio.open(tmp_path / "a.db") as ms:
        await ms.log("x").append(b"0")


def test_another_event_loop_is_refused(tmp_path: Path) -> None:
    first = asyncio.new_event_loop()
    ms = first.run_until_complete(aio.open(tmp_path / "a.db"))
    with pytest.raises(RuntimeError, match="event loop"):
        asyncio.run(ms.log("x").append(b"0"))
    first.run_until_complete(ms.close())
    first.run_until_complete(first.shutdown_default_executor())
    first.close()


def test_a_loop_that_ends_early_does_not_harm_the_store(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    ms = loop.run_until_complete(aio.open(tmp_path / "a.db"))
    wait = loop.create_task(ms.log("x").wait(0))
    loop.run_until_complete(until_waiting(ms, 1))
    append = loop.create_task(ms.log("y").append(b"0"))
    loop.run_until_complete(asyncio.sleep(0))
    pending = asyncio.all_tasks(loop)
    assert pending > {wait, append}  # the third is the task of the feed that `wait` has started
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    store = session_of(ms).store
    sync = millstream.Millstream(EmbeddedSession(store))

    assert sync.log("x").append(b"0") == 0
    assert sync.log("x").append(b"1") == 1
    sync.close()
    for task in pending:
        task.get_coro().close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
