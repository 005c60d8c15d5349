"""A worker in a loop that runs already: it shares it, drains on a stop, and can be cancelled.

What it has in common with the worker of threads is in `tests/unit/worker/test_shells.py`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream import Message, aio
from millstream.errors import Closed, InvalidInput, NotFound
from millstream.worker.stats import WorkerStats

PATIENCE_S = 30


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[tuple[aio.Millstream, aio.Queue]]:
    async with await aio.open(path / "store.db") as ms:
        yield ms, await ms.queue("jobs", **{"max_attempts": 5, "backoff": 0, **options})


async def states(queue: aio.Queue) -> tuple[int, int, int, int]:
    """How many are available, in flight, done and failed."""
    info = await queue.info()
    assert info is not None
    return info.available + info.unrouted, info.in_flight, info.done, info.failed


async def test_handlers_run_in_the_loop_of_the_caller(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, jobs):
        await jobs.put_many(range(20))
        loops = set()

        async def handle(message: Message) -> None:
            loops.add(asyncio.get_running_loop())
            await asyncio.sleep(0)

        stats = await jobs.worker(handle, concurrency=5).run(drain=True)
        assert stats == WorkerStats(done=20)
        assert loops == {asyncio.get_running_loop()}


async def test_plain_functions_run_on_threads_while_the_loop_goes_on(tmp_path: Path) -> None:
    async with opened(tmp_path) as (ms, jobs):
        await jobs.put_many(range(2))
        both = threading.Barrier(2)
        threads = set()

        def handle(message: Message, tx: Any) -> None:
            threads.add(threading.current_thread())
            both.wait(PATIENCE_S)
            tx.append("results", message.json())

        assert (await jobs.worker(handle, concurrency=2).run(drain=True)).done == 2
        assert threading.current_thread() not in threads
        assert sorted([r.json() async for r in ms.log("results").read()]) == [0, 1]


async def test_a_stop_finishes_what_runs_and_gives_back_what_has_not_begun(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, jobs):
        await jobs.put_many(range(10))
        begun, release = asyncio.Event(), asyncio.Event()

        async def handle(message: Message) -> None:
            begun.set()
            await release.wait()

        worker = jobs.worker(handle, batch=10).start()
        await begun.wait()
        worker.stop()
        assert worker.stopping
        assert not await worker.join(timeout=0)
        while (await states(jobs))[1] > 1:
            pass  # the rest comes back while the first still runs
        release.set()
        assert await worker.join()
        assert worker.stats == WorkerStats(done=1)
        assert len(await jobs.claim(20)) == 9


async def test_the_end_of_a_block_stops_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, jobs):
        came = asyncio.Event()

        async def handle(message: Message) -> None:
            came.set()

        async with jobs.worker(handle) as worker:
            await jobs.put("later")
            await came.wait()
        assert worker.stats == WorkerStats(done=1)


async def test_a_thread_may_stop_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, jobs):
        await jobs.put("work")
        worker = jobs.worker(lambda message: worker.stop())
        assert await worker.run() == WorkerStats(done=1)


async def test_cancelled_it_gives_everything_back_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path, lease=3600) as (_, jobs):
        await jobs.put_many(range(10))
        begun = asyncio.Semaphore(0)
        ended: list[str] = []

        async def handle(message: Message) -> None:
            begun.release()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cleaned up")

        worker = jobs.worker(handle, concurrency=3, batch=8)
        running = asyncio.create_task(worker.run())
        for _ in range(3):
            await begun.acquire()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ended == ["cleaned up"] * 3
        assert worker.stats == WorkerStats(retried=3)
        found = await jobs.claim(20)
        assert sorted(m.json() for m in found) == list(range(10))
        again = [m for m in found if m.attempt == 2]
        assert len(again) == 8
        reasons = {(await jobs.attempts(m))[0].reason for m in again}
        assert reasons == {"given back by a worker that was cancelled"}


async def test_cancelled_before_its_handlers_have_begun(tmp_path: Path) -> None:
    async with opened(tmp_path, lease=3600) as (_, jobs):
        await jobs.put_many(range(4))

        async def handle(message: Message) -> None:
            raise AssertionError("it was cancelled before")

        running: asyncio.Task[WorkerStats]

        def cancel(stats: WorkerStats) -> None:
            if stats.running:  # their tasks are made, and have had no turn of the loop
                running.cancel()

        running = asyncio.create_task(jobs.worker(handle, concurrency=4, on_progress=cancel).run())
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await states(jobs))[1] == 0


async def test_cancelled_while_it_claims_it_keeps_nothing(tmp_path: Path) -> None:
    async def handle(message: Message) -> None:
        """Unlike a function on a thread, it can be cancelled."""

    async with opened(tmp_path, lease=3600) as (_, jobs):
        for n in range(20):
            running = asyncio.create_task(jobs.worker(handle).run())
            for _ in range(n):
                await asyncio.sleep(0)
            running.cancel()
            put = asyncio.create_task(jobs.put(n))
            with pytest.raises(asyncio.CancelledError):
                await running
            await put
            assert (await states(jobs))[1] == 0


async def test_what_was_finished_before_is_acknowledged(tmp_path: Path) -> None:
    async with opened(tmp_path, lease=3600) as (_, jobs):
        await jobs.put_many(range(3))
        last = asyncio.Event()

        async def handle(message: Message) -> None:
            if message.json() == 2:
                last.set()
                await asyncio.Event().wait()

        running = asyncio.create_task(jobs.worker(handle, batch=3).run())
        await last.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await states(jobs) == (1, 0, 2, 0)


async def test_a_time_limit_around_it_gives_back_as_well(tmp_path: Path) -> None:
    async with opened(tmp_path, lease=3600) as (_, jobs):
        await jobs.put("work")

        async def handle(message: Message) -> None:
            await asyncio.Event().wait()

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await jobs.worker(handle).run()
        assert (await states(jobs))[1] == 0


async def test_a_thread_is_left_behind_and_its_lease_ends(tmp_path: Path) -> None:
    async with opened(tmp_path, lease=1.0) as (ms, jobs):
        await jobs.put("work")
        begun, release, ended = asyncio.Event(), threading.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def handle(message: Message, tx: Any) -> None:
            loop.call_soon_threadsafe(begun.set)
            tx.append("results", "dropped")
            release.wait(PATIENCE_S)
            ended.set()

        worker = jobs.worker(handle)
        running = asyncio.create_task(worker.run())
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert worker.stats == WorkerStats(lost=1)
        (again,) = await jobs.claim(wait=PATIENCE_S, lease=60)
        release.set()
        assert await asyncio.to_thread(ended.wait, PATIENCE_S)
        await jobs.ack(again)
        assert [r async for r in ms.log("results").read()] == []


async def test_cancelled_twice_it_ends_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, jobs):
        await jobs.put("work")
        begun, resists, release = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def handle(message: Message) -> None:
            begun.set()
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    resists.set()

        running = asyncio.create_task(jobs.worker(handle).run())
        await begun.wait()
        running.cancel()
        await resists.wait()
        assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        release.set()


async def test_a_lease_is_renewed_while_its_handler_runs(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, jobs):
        await jobs.put("slow")
        begun, release = asyncio.Event(), asyncio.Event()

        async def handle(message: Message) -> None:
            begun.set()
            await release.wait()

        async with jobs.worker(handle, lease=6) as worker:
            await begun.wait()
            seen: set[Any] = set()
            while len(seen) < 2:  # until it was renewed
                seen |= {m.until for m in await jobs.peek(state="in_flight")}
            release.set()
        assert worker.stats.done + worker.stats.lost == 1


async def test_a_lost_lease_is_counted(tmp_path: Path) -> None:
    async with opened(tmp_path) as (ms, jobs):
        await jobs.put("work")

        async def handle(message: Message, tx: Any) -> None:
            tx.append("results", message.attempt)
            if message.attempt == 1:
                await jobs.nack(message, delay=0)
                await jobs.nack(await jobs.claim(), delay=0)

        assert await jobs.worker(handle).run(drain=True) == WorkerStats(done=1, lost=1)
        assert [r.json() async for r in ms.log("results").read()] == [3]


async def test_a_store_closed_under_it_is_told(tmp_path: Path) -> None:
    ms = await aio.open(tmp_path / "store.db")
    jobs = await ms.queue("jobs", max_attempts=3)
    worker = jobs.worker(print).start()
    await asyncio.sleep(0)
    await ms.close()
    with pytest.raises(Closed):
        await worker.join()
    assert await worker.join()


async def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as (ms, jobs):
        with pytest.raises(NotFound):
            await (await ms.queue("nowhere")).worker(print).run(drain=True)
        with pytest.raises(InvalidInput, match="takes 3 parameters"):
            jobs.worker(lambda a, b, c: None)

        async def hook(*facts: Any) -> None: ...

        with pytest.raises(InvalidInput, match="on_error must be a plain function"):
            jobs.worker(print, on_error=hook)  # type: ignore[arg-type]
        worker = jobs.worker(print).start()
        with pytest.raises(InvalidInput, match="runs once"):
            worker.start()
        await asyncio.sleep(0)
        with pytest.raises(InvalidInput, match="runs already"):
            await worker.run()
        worker.stop()
        await worker.join()


@pytest.mark.embedded
def test_a_loop_that_ends_gives_back_what_its_tasks_held(tmp_path: Path) -> None:
    async def main() -> tuple[asyncio.Task[WorkerStats], aio.Queue]:
        ms = await aio.open(tmp_path / "store.db")
        jobs = await ms.queue("jobs", max_attempts=5, lease=3600)
        await jobs.put_many(range(3))
        begun = asyncio.Event()

        async def handle(message: Message) -> None:
            begun.set()
            await asyncio.Event().wait()

        running = asyncio.create_task(jobs.worker(handle, batch=3).run())
        await begun.wait()
        return running, jobs

    running, _ = asyncio.run(main())  # which cancels every task that is left
    assert running.cancelled()

    async def look() -> tuple[int, int, int, int]:
        async with await aio.open(tmp_path / "store.db") as ms:
            return await states(await ms.queue("jobs"))

    assert asyncio.run(look()) == (3, 0, 0, 0)
